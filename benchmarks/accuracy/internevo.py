"""A 7B model on 8 to 1024 A100, with ZeRO-1 over all devices or inside nodes.

``runs.csv`` has tokens per second and device, by number of devices, size of the groups that share
the optimizer (``shard_group``), micro-batch, recomputation and number of devices that divide layers
(``tp``). The step on one node calibrates the speed of a device; larger scales are predictions, and
so are all runs with divided layers: their speed is that of data parallelism on one node.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.accuracy.ranks import gated_decoder
from perfmodel import Job, Source, make_job, predict
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Link
from perfmodel.inputs.profile import Profile

SOURCE, FILE = "internevo", "runs.csv"
ABOUT = about(SOURCE)

ROUNDS = 6
"""Rounds in which the step on one device is found from that on one node; each leaves about the
exposed part of the communication as an error."""

CLUSTER = msgspec.structs.replace(
    catalogue.cluster("dgx-a100"),
    name="4 x 100 Gb/s RoCE",
    nic=Link(12.5e9, latency_s=14e-6, efficiency=0.85),
    nics_per_node=4,
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    id: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    devices: int
    devices_per_node: int
    tp: int
    micro_batch: int
    microbatches: int
    recompute: str
    shard_group: int
    iteration_s: float
    note: str = ""

    def __post_init__(self) -> None:
        number("iteration_s", self.iteration_s, above=0.0)
        for name in ("devices", "micro_batch", "microbatches", "shard_group"):
            whole_number(name, getattr(self, name))

    @property
    def configuration(self) -> str:
        """Everything but the scale, and whether the optimizer is shared beyond a node."""
        wide = "all" if self.shard_group * self.tp > self.devices_per_node else "node"
        again = f", {self.recompute} recomputation" if self.recompute != "none" else ""
        return f"batch {self.samples} x {self.microbatches}{again}, shared by {wide}"

    @property
    def samples(self) -> int:
        """Sequences of a micro-batch, per device."""
        return self.micro_batch // self.tp

    @property
    def work(self) -> str:
        """What a device computes, whatever it shares."""
        return self.configuration.partition(", shared")[0]

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.devices % self.tp or self.micro_batch % self.tp:
            return "tensor parallel over a part of the devices"
        return "copied from another table" if self.note else ""


@functools.cache
def profile_of(row: Row) -> Profile:
    """Return the profile of a row's model, by its dimensions."""
    return Profile(
        name="internlm-7b",
        decoder=gated_decoder(row),
        source=Source("published", ABOUT.citation),
    )


def job(row: Row, alone_s: float | None) -> Job:
    """Return the job of a row; ``alone_s`` is the step of one device that does its share of the
    samples, None for the catalogue's."""
    return make_job(
        workload=profile_of(row),
        device="a100-80",
        precision="mixed",
        batch_size=row.micro_batch * row.microbatches,
        tensor=row.tp,
        accumulation=row.microbatches,
        activation_checkpointing=row.recompute == "full",
        one_device_step_s=None if alone_s is None else alone_s * row.tp,
        cluster=CLUSTER,
        workers=row.devices // row.tp,
        arch="zero1",
        options={"shard_group": row.shard_group},
    )


def alone_s(row: Row) -> float:
    """Return the step of one device with which a run on one node takes as long as measured."""
    step_s = row.iteration_s
    for _ in range(ROUNDS):
        step_s *= row.iteration_s / predict(job(row, step_s), fidelity="fine").iteration_s
    return step_s


def cases(folder: Path) -> list[Case]:
    """Return every run by data parallelism; those on one node from the catalogue alone."""
    table = rows.read(folder / FILE, Row)
    rows.say_left_out("not predicted", [f"{r.why_not}: {r.id}" for r in table if r.why_not])
    table = [row for row in table if not row.why_not]
    known = {row.work: alone_s(row) for row in table
             if row.devices == row.devices_per_node and row.tp == 1}  # fmt: skip
    runs = []
    for row in table:
        alone = row.devices == row.devices_per_node and row.tp == 1
        found = None if alone else known.get(row.work)
        pool = f"{SOURCE}/one node" if alone else f"{SOURCE}/{'nodes' if found else 'none'}"
        if row.tp > 1:
            pool = f"{SOURCE}/{'anchored' if found else 'estimated'}-tensor x data"
        runs.append(Run(f"{pool}/{row.configuration}", row.id, job(row, found),
                        step_s=row.iteration_s, pools=(pool,)))  # fmt: skip
    if not runs:
        raise InputError(f"{folder / FILE}: no data-parallel run")
    return predicted(runs)
