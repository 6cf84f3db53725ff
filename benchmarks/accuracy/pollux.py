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
"""One TCP flow within a placement group of this cloud has at most 10 Gbit/s, however fast the
machine's link is (docs.aws.amazon.com, EC2 instance network bandwidth); NCCL's ring is one flow."""

ABOUT = about("pollux")


def cases(folder: Path) -> list[Case]:
    """Every step that each fit predicts and was not fitted to."""
    return placements.cases(TABLES, folder)


def fit(folder: Path) -> None:
    """Fit to the steps in a folder and write down the fits."""
    placements.fit(TABLES, folder)


def _expected(name: str) -> tuple[pm.Cluster, dict[str, float]]:
    return placement_rows.ethernet(name, NOMINAL_BYTES_PER_S, FLOW_BYTES_PER_S), {}


TABLES = placements.Tables(SOURCE, _expected, labelled=False)
