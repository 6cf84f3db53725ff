"""Network interfaces of this machine and their IPv4 addresses (Linux)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_ASK_ADDRESS = 0x8915
"""Linux's SIOCGIFADDR: get the IPv4 address of an interface."""


def interface_of(host: str) -> str:
    """Return the network interface with the IPv4 address ``host``; "" if there is none."""
    return next((name for name, address in _interfaces() if address == host), "")


def address_of(name: str) -> str:
    """Return the IPv4 address of interface ``name``; "" if it has none."""
    return next((address for found, address in _interfaces() if found == name), "")


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yield the name and address of each interface that has an address."""
    try:
        import fcntl
    except ImportError:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(one.fileno(), _ASK_ADDRESS, request)
            except OSError:
                continue
            yield name, socket.inet_ntoa(answer[20:24])
