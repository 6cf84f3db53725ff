"""Rows of published tables as jobs of the shipped catalogue alone, with nothing fitted."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import click
import msgspec

from benchmarks.accuracy.cases import Run
from perfmodel import InputError, Job, make_job
from perfmodel.inputs import catalogue


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table calls a task: a model of the catalogue.

    Attributes
    ----------
    sample : of the table's units, such as tokens, in a sample of the model.
    batch : of the table's units, in one unit of its batch sizes, such as sentences.
    epoch : samples of an epoch; 0 if rows are of long runs anyway. See :data:`STEPS`.
    options, mixed : options of the job by name; those with 16-bit products replace the others.
    """

    model: str
    sample: float = 1.0
    batch: float = 1.0
    epoch: float = 0.0
    options: dict[str, Any] = {}
    mixed: dict[str, Any] = {}


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table calls a machine: a device of the catalogue, and its cluster where that is not
    the device's default; ``devices_per_node`` where it is another number."""

    device: str
    cluster: str = ""
    devices_per_node: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A measured throughput of all devices together, in samples of the model.

    ``batch_size`` is that of a device and a pass in such samples, None where the table does not
    say; ``passes`` are those before an update.
    """

    name: str
    task: Task
    machine: Machine
    precision: str
    workers: int
    samples_per_s: float
    batch_size: int | None = None
    passes: int = 1


STEPS = 10
"""Fewest steps of an epoch whose throughput counts; that of fewer is of its start and its end."""

FEW = f"an epoch has fewer than {STEPS} steps"
LISTED = "one device, listed in the catalogue"


def runs(source: str, rows: Iterable[Row], left_out: Mapping[str, int]) -> list[Run]:
    """The rows as runs, each of a job; what is left out, and how often, is said on standard error.

    Rows of one device whose timing is in the catalogue are no predictions. Groups are *none* (for
    all, as nothing is fitted), *one* for other rows of one device, *several* for those of several
    devices of a node, and *nodes*.
    """
    found, counts = [], collections.Counter(left_out)
    jobs: dict[tuple[Any, ...], Job] = {}
    for row in rows:
        key = row.task.model, str(row.task), row.machine, row.precision, row.workers
        key = (*key, row.batch_size, row.passes)
        try:
            job = jobs[key] = jobs[key] if key in jobs else job_of(row)
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
    """Say on standard error how many rows are left out, and why."""
    for why, count in sorted(left_out.items()):
        click.echo(f"{count} rows left out: {why}", err=True)


def job_of(row: Row) -> Job:
    """The job of a row: its model, device, cluster and architecture as shipped.

    Raises
    ------
    InputError : the catalogue cannot make such a job.
    """
    machine = row.machine
    name = machine.cluster or catalogue.device(machine.device).default_cluster
    cluster = None if name is None else catalogue.cluster(name)
    if cluster is not None and machine.devices_per_node:
        cluster = msgspec.structs.replace(cluster, devices_per_node=machine.devices_per_node)
    whole = row.batch_size and row.batch_size * row.passes
    options = row.task.options | (row.task.mixed if row.precision == "mixed" else {})
    return make_job(
        model=row.task.model,
        device=machine.device,
        precision=row.precision,
        batch_size=whole,
        accumulation=row.passes,
        cluster=cluster,
        workers=row.workers,
        arch="allreduce",
        options=options,
    )


def precision_of(text: str, device: str) -> str:
    """The precision that frameworks of these tables mean: 32 bits are TF32 where there is that."""
    if "16" in text or "mixed" in text.lower() or "amp" in text.lower():
        return "mixed"
    return "tf32" if "tf32" in catalogue.device(device).precisions else "float32"
