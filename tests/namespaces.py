"""Emulated nodes for tests: network namespaces of this machine, joined by a switch.

Each node has a link of a given rate (token bucket, ``tc tbf``) in both directions: its traffic is
shaped where it leaves the node, and where it leaves the switch. An Ethernet frame of 1514
bytes carries 1448 of TCP, so at best 0.956 of the rate is goodput.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BURST_BYTES = 16 * 1024
"""Burst that passes at full speed after a pause: 0.7 ms of 200 Mbit/s. Messages that are not much
larger see a faster link."""

SLOW_START = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"

QUEUE_S = 0.01
"""Longest wait in a link's queue; further packets are dropped."""


@dataclass(frozen=True)
class Nodes:
    """Namespaces that can reach each other; node i has the address ``addresses[i]``."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]

    def popen(self, node: int, command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        """Start ``command`` on a node; the caller waits for it or kills it."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[node], *command], encoding="utf-8", **more
        )


@contextlib.contextmanager
def cluster(
    nodes: int, bits_per_s: float, *, burst_bytes: int = BURST_BYTES, queue_s: float = QUEUE_S
) -> Iterator[Nodes]:
    """Nodes with links of ``bits_per_s``; all are removed at the end, whatever happens.

    Raises
    ------
    subprocess.CalledProcessError : see :func:`available`.
    """
    token = f"pm{os.getpid()}-{secrets.token_hex(3)}"
    switch = f"{token}-switch"
    names = tuple(f"{token}-{i}" for i in range(nodes))
    addresses = tuple(f"10.0.0.{i + 1}" for i in range(nodes))
    made = []
    try:
        for name in (switch, *names):
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for i, (name, address) in enumerate(zip(names, addresses, strict=True)):
            port = f"port{i}"
            _ip(
                *("-n", name, "link", "add", "eth0", "mtu", "1500", "type", "veth"),
                *("peer", "name", port, "mtu", "1500", "netns", switch),
            )
            _ip("-n", switch, "link", "set", port, "master", "bridge")
            for where, device in ((name, "eth0"), (switch, port)):
                _run(
                    *("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf"),
                    *("rate", f"{bits_per_s:.0f}bit", "burst", str(burst_bytes)),
                    *("limit", f"{bits_per_s / 8 * queue_s + burst_bytes:.0f}"),
                )
                _ip("-n", where, "link", "set", device, "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            # otherwise a connection restarts slowly after idling while its worker computed
            _ip("netns", "exec", name, "sh", "-c", f"echo 0 > {SLOW_START}")
        yield Nodes(names, addresses)
    finally:
        for name in made:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)


@functools.cache
def available() -> str:
    """Why such nodes cannot be made here; "" if they can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"network namespaces need {program}, which is not installed"
    try:
        with cluster(1, 1e9):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted here: {error.stderr.strip()}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
    )
