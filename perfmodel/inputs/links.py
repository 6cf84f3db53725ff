"""Links between nodes, and between the devices of a node."""

from typing import ClassVar, Literal

from perfmodel.base.ranges import NOT_NEGATIVE, POSITIVE, Range, Ranged, or_none

MOST_LATENCY_S = 100.0
"""Maximum latency of a link; a limit that catches typing errors. With a longer one, other workers
do millions of iterations while one message is under way."""

LEAST_EFFICIENCY = 1e-3
"""Minimum fraction of its bandwidth that a link delivers; a limit that catches typing errors."""


class Link(Ranged, frozen=True, forbid_unknown_fields=True):
    """A full-duplex link: ``bandwidth_bytes_per_s`` each way, of which ``efficiency`` is achieved.

    ``latency_s`` is one way, from the last byte sent to the last byte usable at the other end.
    ``ceiling_bytes_per_s`` is the most that software gets out of the link however fast it is; None
    if there is no such limit.
    """

    RANGES: ClassVar = {
        "bandwidth_bytes_per_s": POSITIVE,
        "efficiency": Range(LEAST_EFFICIENCY, 1.0),
        "latency_s": NOT_NEGATIVE._replace(at_most=MOST_LATENCY_S),
        "ceiling_bytes_per_s": or_none(POSITIVE),
    }

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    efficiency: float = 1.0
    ceiling_bytes_per_s: float | None = None

    @property
    def goodput_bytes_per_s(self) -> float:
        """Payload bytes per second, one way."""
        return self.goodput_at(self.bandwidth_bytes_per_s)

    def goodput_at(self, bandwidth_bytes_per_s: float) -> float:
        """Payload bytes per second, one way, if the link had this bandwidth."""
        reached, ceiling = bandwidth_bytes_per_s * self.efficiency, self.ceiling_bytes_per_s
        return reached if ceiling is None else min(reached, ceiling)

    def times(self, count: int) -> "Link":
        """Return ``count`` such links used as one; the ceiling holds for each of them."""
        if count == 1:
            return self
        ceiling = self.ceiling_bytes_per_s
        return Link(
            count * self.bandwidth_bytes_per_s,
            self.latency_s,
            self.efficiency,
            None if ceiling is None else count * ceiling,
        )


class IntraNode(Link, frozen=True, forbid_unknown_fields=True):
    """The links between the devices of one node.

    *bus*: one link that all transfers inside the node share, in both directions. *per_device*: a
    full-duplex port per device, to a switch that is never a bottleneck (NVSwitch). A transfer uses
    the sender's outgoing port and the receiver's incoming port, so that ``bandwidth_bytes_per_s``
    is what one device can send, and at the same time receive.

    ``interconnect`` says what the links are made of. With *pcie*, devices without peer access copy
    through the host's memory, as with *host*, which does not overlap with computation. None if
    unknown.
    """

    kind: Literal["bus", "per_device"] = "bus"
    interconnect: Literal["nvlink", "pcie", "host"] | None = None
