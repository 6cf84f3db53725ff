"""Reads the matrix of ``nvidia-smi topo -m``: how each pair of GPUs of a node is connected.

See the legend that the program prints: NV# are bonded NVLinks; PIX and PXB pass PCIe bridges only;
PHB, NODE and SYS pass the host bridge of a CPU, or the links between CPUs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfmodel.base.errors import InputError

THROUGH_HOST = ("PHB", "NODE", "SYS")
"""Connections over which peer access is slow or does not work."""


class Topology(NamedTuple):
    """How the GPUs of a node are connected: ``pairs`` (GPU, GPU) to the word in the matrix."""

    pairs: dict[tuple[int, int], str]

    @property
    def through_host(self) -> float:
        """Fraction of pairs whose transfers pass the host bridge or the links between CPUs."""
        words = list(self.pairs.values())
        return sum(word in THROUGH_HOST for word in words) / len(words)

    @property
    def nvlink(self) -> bool:
        """Whether any pair has NVLink."""
        return any(word.startswith("NV") for word in self.pairs.values())


def parse(text: str, name: str) -> Topology:
    """Read the matrix; ``name`` is the file's.

    Raises
    ------
    InputError : it has no two GPUs.
    """
    rows = {
        int(row[1]): row[2].split() for row in re.finditer(r"^GPU(\d+)\s+((?!GPU).*)$", text, re.M)
    }
    pairs = {
        (gpu, other): words[other]
        for gpu, words in rows.items()
        for other in rows
        if gpu < other < len(words)
    }
    if not pairs:
        raise InputError(f"{name}: a matrix of nvidia-smi topo -m without two GPUs")
    return Topology(pairs)
