"""Data-parallel training on clusters of faster GPUs than those of Pollux.

Jayaram Subramanya, Arfeen, Lin, Qiao, Jia, Ganger, "Sia: Heterogeneity-aware, goodput-optimized
ML-cluster scheduling", SOSP 2023. The folder is that of :mod:`benchmarks.accuracy.placement_rows`.
"""

from __future__ import annotations

from pathlib import Path

import perfmodel as pm
from benchmarks.accuracy import placement_rows, placements
from benchmarks.accuracy.cases import Case, about
from perfmodel.calibration.placements.model import LINKS

SOURCE = "sia"

NOMINAL_BYTES_PER_S, OTHER_BYTES_PER_S = {"rtx": 50e9 / 8}, 25e9 / 8
"""Assumed Ethernet, and that of unknown clusters, because the tables do not give it."""

DGX, NOMINAL_SPREAD = (
    pm.Cluster(
        name="dgx",
        nic=pm.Link(200e9 / 8, 6e-7),
        intra_node=pm.IntraNode(300e9, 6e-7, 0.83, kind="per_device"),
        pair_efficiency=placement_rows.PAIR_EFFICIENCY,
        source=pm.Source("estimated", "one port of HDR InfiniBand, NVLink, and no TCP"),
    ),
    0.2,
)
"""Assumed links of an A100 node, and the spreads of their priors."""

ABOUT = about("sia")


def cases(folder: Path) -> list[Case]:
    """Return every step that each fit predicts without including it."""
    return placements.cases(TABLES, folder)


def fit(folder: Path) -> None:
    """Fit to the steps in a folder and store the fits."""
    placements.fit(TABLES, folder)


def _expected(name: str) -> tuple[pm.Cluster, dict[str, float]]:
    if name.removesuffix("-ext") == "dgx":
        return DGX, dict.fromkeys(LINKS, NOMINAL_SPREAD)
    nominal = NOMINAL_BYTES_PER_S.get(name, OTHER_BYTES_PER_S)
    return placement_rows.ethernet(name, nominal, nominal), {}


TABLES = placements.Tables(SOURCE, _expected, labelled=True)
