"""Runs that people reported in public threads, predicted as a stranger would.

``cases.csv`` has a row for each run: what was said about model, devices, links and framework, the
speed of one device, and the measured step. Nothing is fitted: links are nominal, and everything
else is as ``perfmodel predict`` assumes it. Where a thread has no speed of one device, its run on
the fewest devices stands for it, and is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.field.reading import Row, case_of, cluster_of
from perfmodel import Cluster, Job, Source
from perfmodel.base.errors import InputError
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.usual_losses import over_sockets
from perfmodel.validation.cases import Case as FileCase, Cases, MeasuredJob, ready

SOURCE, FILE = "field", "cases.csv"
ABOUT = about(SOURCE)


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
