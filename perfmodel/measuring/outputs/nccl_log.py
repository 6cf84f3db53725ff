"""Reads what NCCL says with ``NCCL_DEBUG=INFO``: over what its channels go.

Between nodes a channel goes over ``NET/IB`` or a plugin such as ``NET/OFI``, with RDMA, or over
``NET/Socket``; inside a node over ``P2P``, or over ``SHM``, through the memory of the host. See the
section on NCCL_DEBUG in NCCL's user guide.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NETWORK = re.compile(r"NCCL INFO (?:Using network |[^\n]*?\bNET/(?!Plugin))(\w+)")
_INSIDE = re.compile(r"NCCL INFO Channel [^\n]*? via (P2P|SHM)\b")


class Channels(NamedTuple):
    """Whether channels between nodes go over sockets, and the fraction of channels inside a node
    that pass the host; None for what a log does not say."""

    sockets: bool | None
    through_host: float | None


def parse(text: str) -> Channels | None:
    """Read a log; None if it has no such lines.

    >>> parse("n1:7:9 [0] NCCL INFO Using network Socket")
    Channels(sockets=True, through_host=None)
    """
    networks = _NETWORK.findall(text)
    inside = _INSIDE.findall(text)
    if not networks and not inside:
        return None
    # several may be tried: NCCL falls back to sockets, and names what channels use last
    sockets = networks[-1].lower() == "socket" if networks else None
    return Channels(sockets, inside.count("SHM") / len(inside) if inside else None)
