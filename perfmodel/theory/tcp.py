"""Maximum rate of one TCP connection: one window per round trip, reduced by losses.

A sender has at most one window of unacknowledged bytes in flight, so it sends at most one window
per round trip. Random losses keep the window small: it grows by one segment per round trip and
halves at each loss. With a loss every 1/p segments it swings between w/2 and w, where
3 w^2 / 8 = 1/p, and the mean rate is

    (segment / round trip) * sqrt(3/2) / sqrt(p).

Mathis, Semke, Mahdavi, Ott, The macroscopic behavior of the TCP congestion avoidance algorithm, ACM
Computer Communication Review 27(3), 1997, equation 3, with an acknowledgement for each segment.
"""

from __future__ import annotations

import math

SEGMENT_BYTES = 1460.0
"""Payload of a segment: a 1500-byte Ethernet frame without the IP and TCP headers."""


def connection_bytes_per_s(
    round_trip_s: float,
    *,
    window_bytes: float | None = None,
    loss_rate: float = 0.0,
    segment_bytes: float = SEGMENT_BYTES,
) -> float:
    """Return the most that one connection carries, bytes/s; inf if nothing limits it.

    ``window_bytes`` is the largest window (None: large enough), ``loss_rate`` the fraction of
    segments lost at random.

    >>> connection_bytes_per_s(0.1, window_bytes=65536.0)
    655360.0
    >>> round(connection_bytes_per_s(0.1, loss_rate=1e-4))
    1788128
    """
    if round_trip_s == 0.0:
        return math.inf
    window = math.inf if window_bytes is None else window_bytes / round_trip_s
    losses = math.inf
    if loss_rate > 0.0:
        losses = segment_bytes / round_trip_s * math.sqrt(1.5 / loss_rate)
    return min(window, losses)
