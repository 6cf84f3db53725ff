"""Data-parallel training on up to 16 cloud machines with four GPUs each.

Qiao, Choe, Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, "Pollux: Co-adaptive Cluster Scheduling
for Goodput-Optimized Deep Learning", OSDI 2021. The folder is that of
:mod:`benchmarks.accuracy.placement_rows`.
"""

from __future__ import annotations

from pathlib import Path

import perfmodel as pm
from benchmarks.accuracy import placement_rows, placements
from benchmarks.accuracy.cases import Case, about

SOURCE = "pollux"

NOMINAL_BYTES_PER_S, FLOW_BYTES_PER_S = 50e9 / 8, 10e9 / 8
"""A TCP flow within a placement group of this cloud has at most 10 Gbit/s on any link
(docs.aws.amazon.com, EC2 instance network bandwidth); NCCL's ring is one flow."""

ABOUT = about("pollux")


def cases(folder: Path) -> list[Case]:
    """Return every step that each fit predicts without including it."""
    return placements.cases(TABLES, folder)


def fit(folder: Path) -> None:
    """Fit to the steps in a folder and store the fits."""
    placements.fit(TABLES, folder)


def _expected(name: str) -> tuple[pm.Cluster, dict[str, float]]:
    return placement_rows.ethernet(name, NOMINAL_BYTES_PER_S, FLOW_BYTES_PER_S), {}


TABLES = placements.Tables(SOURCE, _expected, labelled=False)
