"""Predict rows of published tables with the shipped catalogue alone, without any fit."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import click
import msgspec

from benchmarks.accuracy.cases import Run
from perfmodel import InputError, Job, make_job
from perfmodel.catalogue import catalogue


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model of the catalogue that a table's task corresponds to.

    Attributes
    ----------
    sample : number of the table's units, such as tokens, per sample of the model.
    batch : number of the table's units per unit of its batch sizes, such as sentences.
    epoch : samples of an epoch; 0 if all rows are long runs. See :data:`STEPS`.
    options, mixed : options of the job by name; ``mixed`` is used instead with 16-bit products.
    """

    model: str
    sample: float = 1.0
    batch: float = 1.0
    epoch: float = 0.0
    options: dict[str, Any] = {}
    mixed: dict[str, Any] = {}


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device of the catalogue that a table's machine corresponds to; its cluster if not the
    device's default; ``devices_per_node`` if not the cluster's."""

    device: str
    cluster: str = ""
    devices_per_node: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A measured throughput of all devices together, in samples of the model.

    ``batch_size`` is the number of samples per device and pass, None if the table does not give
    it; ``passes`` is the number of passes per update; ``framework`` is None if unknown.
    """

    name: str
    task: Task
    machine: Machine
    precision: str
    workers: int
    samples_per_s: float
    batch_size: int | None = None
    passes: int = 1
    framework: str | None = None


STEPS = 10
"""Minimum number of steps of an epoch; in shorter ones, start and end dominate the throughput."""

FEW = f"an epoch has fewer than {STEPS} steps"
LISTED = "one device, listed in the catalogue"


def runs(
    source: str, rows: Iterable[Row], left_out: Mapping[str, int], *, tuned: bool = False
) -> list[Run]:
    """Return the rows as runs, each with a job; report on standard error which rows are left out.

    ``tuned`` says that the vendor's engineers removed the usual losses.

    Rows of one device with a timing in the catalogue are not predictions. Groups are *none* (all
    rows, because nothing is fitted), *one* for other rows of one device, *several* for several
    devices of one node, and *nodes*.
    """
    found, counts = [], collections.Counter(left_out)
    jobs: dict[tuple[Any, ...], Job] = {}
    for row in rows:
        key = row.task.model, str(row.task), row.machine, row.precision, row.workers
        key = (*key, row.batch_size, row.passes, row.framework)
        try:
            job = jobs[key] = jobs[key] if key in jobs else job_of(row, tuned)
        except InputError as error:
            counts[str(error)] += 1
            continue
        if row.workers == 1 and job.workload.error_fraction is None:
            counts[LISTED] += 1
            continue
        if row.task.epoch and row.workers * job.workload.batch_size * STEPS > row.task.epoch:
            counts[FEW] += 1
            continue
        nodes = job.cluster.nodes_for(row.workers)
        kind = "one" if row.workers == 1 else "several" if nodes == 1 else "nodes"
        pools = (f"{source}/{kind}", f"{source}/none")
        step_s = row.workers * job.workload.batch_size / row.samples_per_s
        group = f"{pools[0]}/{row.task.model}"
        found.append(Run(group, row.name, job, step_s, pools=pools))
    say(counts)
    return found


def say(left_out: Mapping[str, int]) -> None:
    """Report on standard error how many rows are left out, and why."""
    for why, count in sorted(left_out.items()):
        click.echo(f"{count} rows left out: {why}", err=True)


def job_of(row: Row, tuned: bool = False) -> Job:
    """Return the job of a row, with model, device, cluster and architecture as shipped.

    Raises
    ------
    InputError : the catalogue does not support the job.
    """
    machine = row.machine
    name = machine.cluster or catalogue.device(machine.device).default_cluster
    cluster = catalogue.cluster(name or catalogue.DEFAULT_CLUSTER)
    if tuned:
        cluster = msgspec.structs.replace(cluster, losses="none")
    if machine.devices_per_node:
        cluster = msgspec.structs.replace(cluster, devices_per_node=machine.devices_per_node)
    whole = row.batch_size and row.batch_size * row.passes
    options = row.task.options | (row.task.mixed if row.precision == "mixed" else {})
    return make_job(
        model=row.task.model,
        device=machine.device,
        precision=row.precision,
        batch_size=whole,
        accumulation=row.passes,
        framework=row.framework,
        cluster=cluster,
        workers=row.workers,
        arch="allreduce",
        options=options,
    )


FRAMEWORKS = {"mxnet": "mxnet", "pytorch": "pytorch", "paddle": "paddlepaddle", "tensorflow":
              "tensorflow", "tf": "tensorflow"}  # fmt: skip
"""Frameworks by words in the texts of tables."""


def framework_of(text: str) -> str | None:
    """Return the first framework that a text names.

    >>> framework_of("TensorFlow2/Classification"), framework_of("NGC MXNet 20.06")
    ('tensorflow', 'mxnet')
    """
    return next((name for word, name in FRAMEWORKS.items() if word in text.lower()), None)


def precision_of(text: str, device: str) -> str:
    """Return the precision that these frameworks use: 32 bits mean TF32 if the device has it."""
    if "16" in text or "mixed" in text.lower() or "amp" in text.lower():
        return "mixed"
    return "tf32" if "tf32" in catalogue.device(device).precisions else "float32"
