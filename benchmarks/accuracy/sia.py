"""Data-parallel training on clusters of faster GPUs than those of Pollux.

Jayaram Subramanya, Arfeen, Lin, Qiao, Jia, Ganger, "Sia: Heterogeneity-aware, goodput-optimized
ML-cluster scheduling", SOSP 2023. The folder is that of :mod:`benchmarks.accuracy.placements`.
"""

from __future__ import annotations

from pathlib import Path

import perfmodel as pm
from benchmarks.accuracy import placements
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel.calibration.placements.model import LINKS

SOURCE = "sia"

NOMINAL_BYTES_PER_S, OTHER_BYTES_PER_S = {"rtx": 50e9 / 8}, 25e9 / 8
"""Assumed Ethernet, and that of clusters that are not known. The tables do not say."""

DGX, NOMINAL_SPREAD = (
    pm.Cluster(
        name="dgx",
        nic=pm.Link(200e9 / 8, 6e-7),
        intra_node=pm.IntraNode(300e9, 6e-7, 0.83, kind="per_device"),
        pair_efficiency=placements.PAIR_EFFICIENCY,
        source=pm.Source("estimated", "one port of HDR InfiniBand, NVLink, and no TCP"),
    ),
    0.2,
)
"""Assumed links of an A100 node, and how firmly they are expected."""

ABOUT = About(
    title="Sia: six DNNs on RTX 2080 Ti, A100 and Quadro",
    citation="Jayaram Subramanya and others, Sia, SOSP 2023",
    folder="sia_sosp23",
    splits={
        "a-CLUSTER": Split(
            "each DNN's own steps on one node, and all steps of the other DNNs on the cluster",
            "its steps on several nodes",
        ),
        "a-strict-CLUSTER": Split(
            "each DNN's own steps on one node; the network as TCP is expected to deliver of "
            "nominal links, or InfiniBand",
            "its steps on several nodes",
        ),
        "b-CLUSTER": Split(
            "each DNN's own steps on one device; all steps of the others on the cluster but one, "
            "every pair left out",
            "all its other steps, once for each pair that it is in",
        ),
        "all-CLUSTER": Split("all rows at hand", "other rows of the same DNNs: more nodes"),
    },
    remarks="""\
Mechanisms as of Pollux. On rtx the worst are NeuMF's steps of 10 to 30 ms, which hang on latencies:
its messages are many. In *b* it is DeepSpeech2: its computing on eight devices of one node lasts
twice that on one, as loading data takes the processors that all devices share, and no other DNN
tells so. Computing grows by what a DNN's own steps say, and the interval says how much it may.
YOLOv3 computes a seventh to a third faster in company than alone on rtx, as loading gets ahead
while it waits, so that *b* says too little waiting.

On dgx a step on one node grows with its devices though next to nothing is waited for: the loader
again. *b* knows nothing of it and comes out where ideal scaling does. quad has one node, and only
*b*. On several nodes only two were seen, so that what a third adds is theory. The choices made
having seen predicted rows are those of Pollux; on dgx also that InfiniBand and NVLink are expected
to be about nominal, and how firmly.
""",
)


def cases(folder: Path) -> list[Case]:
    """Every step that each fit predicts and was not fitted to."""
    return placements.cases(TABLES, folder)


def fit(folder: Path) -> None:
    """Fit to the steps in a folder and write down the fits."""
    placements.fit(TABLES, folder)


def _expected(name: str) -> tuple[pm.Cluster, dict[str, float]]:
    if name.removesuffix("-ext") == "dgx":
        return DGX, dict.fromkeys(LINKS, NOMINAL_SPREAD)
    nominal = NOMINAL_BYTES_PER_S.get(name, OTHER_BYTES_PER_S)
    return placements.ethernet(name, nominal, nominal), {}


TABLES = placements.Tables(SOURCE, _expected, labelled=True)
