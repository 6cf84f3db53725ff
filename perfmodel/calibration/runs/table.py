"""Tables of past runs: their jobs and step times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from perfmodel import api
from perfmodel.architectures import registry
from perfmodel.base import files, tables
from perfmodel.base.errors import InputError, nearest
from perfmodel.base.tables import TableRow, located
from perfmodel.calibration.parameters import Observation
from perfmodel.calibration.placements.table import placement
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile
from perfmodel.predicting import job_facts

MEASURED = ("step_s", "iteration_s", "samples_per_s", "steps_per_s")
"""Columns for the measured speed; each row fills in one of them."""

WHOLE = ("workers", "batch_size", "global_batch_size")
TEXTS = ("model", "workload", "device", "precision", "arch", "jitter")
RATE, SPREAD, PLACEMENT, GROUP = "bandwidth_bytes_per_s", "spread_fraction", "placement", "group"
CPU = ("worker_cpu_s", "server_cpu_s")
"""Columns for processor times of a step."""


class RunsTable(msgspec.Struct, frozen=True):
    """Runs of a table, their profiles, and the columns that were not used."""

    runs: tuple[Observation, ...]
    profiles: tuple[Profile, ...]
    unused: tuple[str, ...]


def read_runs(
    path: str | Path,
    *,
    cluster: Cluster,
    profile: Profile | None = None,
    device: str | None = None,
) -> RunsTable:
    """Read a table of past runs.

    Each row is a run: ``workers``, ``arch`` and any other argument of :func:`perfmodel.make_job`,
    any option of the architecture, and one of ``step_s`` (or ``iteration_s``: seconds),
    ``samples_per_s`` and ``steps_per_s`` (of all workers together). Empty cells take the default.

    Parameters
    ----------
    cluster : where all runs took place; ``bandwidth_bytes_per_s`` may differ between runs.
    profile, device : defaults for rows that name none.

    Raises
    ------
    InputError : as :func:`perfmodel.base.tables.read`; a column name is nearly that of a known one;
        a row describes no valid job, or has no measured speed or more than one.
    """
    table = tables.read(path)
    table.need("workers", "arch")
    if not any(column in table.columns for column in MEASURED):
        table.need(MEASURED[0])
    options = {f for a in registry.all_architectures() for f in a.options.__struct_fields__}
    known = {*WHOLE, *TEXTS, RATE, SPREAD, PLACEMENT, GROUP, *MEASURED, *CPU, *options}
    unused = tuple(column for column in table.columns if column not in known)
    for column in unused:
        hint = nearest(column, known)
        if hint is not None:
            raise InputError(f"{table.name}: unknown column {column!r}; did you mean {hint!r}?")
    reader = _Reader(Path(path).parent, cluster, profile, device, frozenset(options), {})
    runs = []
    for line in table:
        with located(table.name, line.place):
            job = reader.job(line)
        spread = line.number(SPREAD) if line.has(SPREAD) else 0.0
        cpu: dict[str, Any] = {name: line.number(name, above=0.0) for name in CPU if line.has(name)}
        place, group = f"line {line.number_in_file}", line.text(GROUP) if line.has(GROUP) else ""
        runs.append(Observation(job, _step_s(line, job), spread, place, group, **cpu))
    return RunsTable(tuple(runs), tuple(reader.used.values()), unused)


class _Reader(msgspec.Struct):
    """Makes jobs from rows; ``used`` has the profiles so far, by name or file in the table."""

    folder: Path
    cluster: Cluster
    profile: Profile | None
    device: str | None
    options: frozenset[str]
    used: dict[str, Profile]

    def job(self, line: TableRow) -> Job:
        """Make the job of a row."""
        arguments: dict[str, Any] = {name: line.text(name) for name in TEXTS if line.has(name)}
        arguments |= {name: line.whole(name) for name in WHOLE if line.has(name)}
        arguments["workers"], arguments["arch"] = line.whole("workers"), line.text("arch")
        if "global_batch_size" in arguments:
            samples, workers = arguments.pop("global_batch_size"), arguments["workers"]
            if "batch_size" in arguments or samples % workers:
                raise InputError(
                    f"global_batch_size: {samples}: needs an empty batch_size, and must be a "
                    f"multiple of the {workers} workers"
                )
            arguments["batch_size"] = samples // workers
        if self.device is not None:
            arguments.setdefault("device", self.device)
        if "model" in arguments and "workload" in arguments:
            raise InputError("model and workload: give only one of them")
        file = arguments.pop("workload", None)
        profile = self._profile(arguments.pop("model", file), file is not None)
        cluster = msgspec.structs.replace(self.cluster, losses="none")  # they are in what is fitted
        if line.has(RATE):
            nic = msgspec.structs.replace(
                cluster.nic, bandwidth_bytes_per_s=line.number(RATE, above=0.0)
            )
            cluster = msgspec.structs.replace(cluster, nic=nic)
        if line.has(PLACEMENT):
            counts = placement(line.text(PLACEMENT))
            if sum(counts) != arguments["workers"]:
                raise InputError(
                    f"placement: has {sum(counts)} devices, but workers is {arguments['workers']}"
                )
            cluster = msgspec.structs.replace(cluster, devices_on_nodes=counts)
        options = {name: _option(line.text(name)) for name in self.options if line.has(name)}
        job = api.make_job(workload=profile, cluster=cluster, options=options, **arguments)
        return job_facts.with_layers(job)

    def _profile(self, name: str | None, is_file: bool) -> Profile:
        if name is None:
            if self.profile is None:
                raise InputError("model or workload: given neither in the table nor separately")
            return self.used.setdefault("", self.profile)
        if name not in self.used:
            path = is_file or files.looks_like_path(name)
            profile = catalogue.profile(self.folder / name) if path else catalogue.model(name)
            self.used[name] = profile
        return self.used[name]


def _option(text: str) -> str:
    """Text of an option; spreadsheets write TRUE and FALSE in capitals."""
    return text.lower() if text.lower() in ("true", "false") else text


def _step_s(line: TableRow, job: Job) -> float:
    """Seconds of a worker's step."""
    columns = [column for column in MEASURED if line.has(column)]
    if len(columns) != 1:
        cells = " and ".join(columns) or "none"
        raise InputError(f"{line.place}: needs one of {', '.join(MEASURED)}, got {cells}")
    value = line.number(columns[0], above=0.0)
    if columns[0] == "steps_per_s":
        return job.workers / value
    if columns[0] != "samples_per_s":
        return value
    return job.workers * job.workload.batch_size / value
