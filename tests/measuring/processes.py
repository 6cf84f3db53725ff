"""Processes of a measurement, started by a test instead of torchrun."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.namespaces import Nodes

PATIENCE_S = 240.0
HOST = "127.0.0.1"
PORT = 29_500
"""Free between emulated nodes, since each has its own namespace."""


def place(rank: int, ranks: int, node: int, address: str, port: int) -> dict[str, str]:
    """The variables that torchrun sets for a process that is alone on its node."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "GROUP_RANK": str(node),
        "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@contextlib.contextmanager
def started(
    words: Sequence[Sequence[str]],
    nodes: Nodes | None = None,
    variables: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[list[subprocess.Popen[str]]]:
    """A ``perfmodel`` process for each rank, all on this machine or each on its node; ended at the
    end of the block."""
    running: list[subprocess.Popen[str]] = []
    address, port = (HOST, free_port()) if nodes is None else (nodes.addresses[0], PORT)
    more = {
        "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more
    }  # fmt: skip
    try:
        for rank, line in enumerate(words):
            interface = {} if nodes is None else {"GLOO_SOCKET_IFNAME": "eth0"}
            here = place(rank, len(words), rank, address, port)
            more["env"] = os.environ | here | interface | dict(variables or {})
            command = [sys.executable, "-W", "ignore", "-m", "perfmodel", *line]
            if nodes is None:
                running.append(subprocess.Popen(command, encoding="utf-8", **more))
            else:
                running.append(nodes.popen(rank, command, **more))
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def outcomes(
    words: Sequence[Sequence[str]], nodes: Nodes | None = None, **more: Any
) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each rank."""
    with started(words, nodes, **more) as running:
        texts = [process.communicate(timeout=PATIENCE_S) for process in running]
    return [(process.returncode, *text) for process, text in zip(running, texts, strict=True)]


def command(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``perfmodel`` in a folder, outside torchrun, with more environment variables."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "perfmodel", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        encoding="utf-8",
        timeout=PATIENCE_S,
    )


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server((HOST, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
