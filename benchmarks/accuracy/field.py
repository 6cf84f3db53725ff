"""Runs that people reported in public threads, predicted as a stranger would.

``cases.csv`` has a row for each run: what was said about model, devices, links and framework, the
speed of one device, and the measured step. Nothing is fitted: links are nominal, and everything
else is as ``perfmodel predict`` assumes it. Where a thread has no speed of one device, its run on
the fewest devices stands for it, and is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.accuracy.field_rows import Row, cluster_of
from perfmodel import Cluster, Job, Source
from perfmodel.base.errors import InputError
from perfmodel.inputs import catalogue
from perfmodel.inputs.profile import Gradients, Profile
from perfmodel.inputs.usual_losses import over_sockets
from perfmodel.validation.cases import Case as FileCase
from perfmodel.validation.cases import CaseJob, Cases, MeasuredJob, MeasuredValues, ready

SOURCE, FILE = "field", "cases.csv"
ABOUT = about(SOURCE)


def training_of(row: Row) -> dict[str, Any]:
    """Return the architecture and its options, from the framework and the precision."""
    if "servers" in row.network:
        nodes = -(-row.devices // row.devices_per_node)
        return {"arch": "mxnet", "options": {"servers": nodes}}
    if "ZeRO" in row.model:
        return {"arch": f"zero{row.model[-1]}"}
    options: dict[str, Any] = {}
    if "16-bit all-reduce" in row.precision:
        options = {"compression": "quantised", "quantised_bits": 16}
    arch = "horovod" if "horovod" in row.framework.lower() else "allreduce"
    return {"arch": arch, "options": options}


def speed_of(row: Row, thread: Sequence[Row]) -> dict[str, Any]:
    """Return the speed of one device: the poster's, or that of the thread's smallest run.

    Raises
    ------
    InputError : neither is known.
    """
    if row.one_device_samples_per_s is not None:
        return {"one_device_samples_per_s": row.one_device_samples_per_s}
    smallest = min(thread, key=lambda other: other.devices)
    if smallest.devices == row.devices:
        raise InputError("no speed of one device, and no run on fewer devices")
    return {
        "one_device_step_s": smallest.measured_step_s,
        "one_device_batch_size": smallest.batch_size,
    }


def case_of(row: Row, thread: Sequence[Row]) -> tuple[FileCase, Profile | None]:
    """Return a row as a case on the cluster of its name, and its workload if the catalogue has not.

    Raises
    ------
    InputError : the row lacks what a prediction needs.
    """
    profile = None
    if row.known is None:
        if row.gradient_bytes is None:
            raise InputError(f"the catalogue has no {row.model}, whose gradients are not stated")
        gradients = Gradients(row.gradient_bytes, row.tensors or 1, row.largest_bytes)
        source = Source("published", row.source)
        profile = Profile(name=row.model, gradients=gradients, source=source)
    decoder = row.known is not None and catalogue.model(row.known.model).decoder is not None
    job = CaseJob(
        model=None if row.known is None else row.known.model,
        workload=None if profile is None else row.id,
        device=row.device,
        precision="mixed" if decoder and "16" in row.precision else None,
        batch_size=row.batch_size,
        sequence_length=row.sequence_length if decoder else None,
        accumulation=row.passes if row.passes > 1 else None,
        cluster=row.id,
        workers=row.devices,
        **speed_of(row, thread),
        **training_of(row),
    )
    measured = MeasuredValues(step_s=row.measured_step_s)
    source = Source("published", row.source)
    return FileCase(name=row.id, job=job, measured=measured, source=source), profile


def cases_file(folder: Path) -> Cases:
    """Return the predictable rows of a folder as the contents of a cases file; report the others on
    standard error."""
    table = rows.read(folder / FILE, Row)
    found: list[FileCase] = []
    workloads: dict[str, Profile] = {}
    clusters: dict[str, Cluster] = {}
    for row in table:
        thread = [other for other in table if other.source == row.source]
        try:
            case, profile = case_of(row, thread)
        except InputError as error:
            rows.say_left_out(str(error), [row.id])
            continue
        found.append(case)
        clusters[row.id] = cluster_of(row)
        if profile is not None:
            workloads[row.id] = profile
    return Cases(
        name=SOURCE,
        source=Source("published", ABOUT.citation),
        cases=tuple(found),
        workloads=workloads,
        clusters=clusters,
    )


def kind_of(job: Job) -> str:
    """Return the class of machine of a job: its slowest links."""
    cluster = job.cluster
    if cluster.nodes_for(job.workers) > 1:
        return "tcp" if over_sockets(cluster.nic) else "rdma"
    inside = cluster.intra_node
    return (inside.interconnect if inside is not None else None) or "other"


def runs(measured: Sequence[MeasuredJob]) -> Iterator[Run]:
    """Yield each case as a run, in the group of its class of machine."""
    for one in measured:
        pool = f"{SOURCE}/none"
        yield Run(
            f"{pool}/{kind_of(one.job)}",
            one.name,
            one.job,
            step_s=one.measured.step_s,
            pools=(pool,),
        )


def cases(folder: Path) -> list[Case]:
    """Return every predictable row of a folder."""
    return predicted(runs(ready(cases_file(folder), folder, str(folder / FILE))))
