r"""Rate that TCP delivers on a ring through traffic shapers with short queues.

A token bucket drops what does not fit into its queue. The queue holds what the link sends in a
fixed time :math:`L`, plus a burst of b bytes: at a rate :math:`B` it has :math:`q = B L + b` bytes
(*latency* and *burst* of tc-tbf(8) on Linux). As in :mod:`perfmodel.theory.incast`, n connections
with segments of s bytes overflow it once in

.. math:: T = \frac{(1 - \beta) \, q / (n s)}{\alpha}

round trips, each of which moves q bytes. A lost segment is sent again and waits in the queue for
q / B, like the others. Data received after it cannot be delivered before it, so for that long the
receiver has nothing to pass on to its successor. On a ring of N links, a stall of any of them holds
up all. Each byte over a link then costs

.. math:: \frac{1}{B} \left( 1 + \frac{N}{T} \right)
   = \frac{1}{B} \left( 1 + \frac{\alpha}{1 - \beta} \, \frac{N n s}{B L + b} \right)

seconds. The extra cost is small if the link is fast, and large if a queue holds few segments.
Stalls of several links at once are counted separately, and losses that lead to a timeout are left
out.
"""

from __future__ import annotations

from perfmodel.base.errors import number, whole_number
from perfmodel.theory.incast import DECREASE, GROWTH


def ring_efficiency(
    bandwidth_bytes_per_s: float,
    *,
    queue_s: float,
    burst_bytes: float = 0.0,
    links: int,
    connections: int,
    segment_bytes: float,
) -> float:
    """Return the fraction of a shaper's rate that a ring gets; 1 for a queue of unlimited length.

    Parameters
    ----------
    bandwidth_bytes_per_s : the configured rate.
    queue_s, burst_bytes : the queue holds what the shaper sends in that time, plus these bytes.
    links : number of links of the ring.
    connections : number of connections over each link.
    segment_bytes : payload of a segment.

    Raises
    ------
    InputError : a value is out of range.

    >>> round(ring_efficiency(25e6, queue_s=0.05, links=4, connections=2, segment_bytes=8949), 3)
    0.908
    """
    number("bandwidth_bytes_per_s", bandwidth_bytes_per_s, above=0.0)
    number("queue_s", queue_s, above=0.0)
    number("burst_bytes", burst_bytes)
    number("segment_bytes", segment_bytes)
    whole_number("links", links)
    whole_number("connections", connections)
    queue_bytes = bandwidth_bytes_per_s * queue_s + burst_bytes
    lost = GROWTH / (1.0 - DECREASE) * links * connections * segment_bytes / queue_bytes
    return 1.0 / (1.0 + lost)
