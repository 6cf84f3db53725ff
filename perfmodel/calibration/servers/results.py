"""What a fit of shared parameter servers found, as inputs of predictions."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.base.uncertainty import WIDTH
from perfmodel.calibration.runs.parameters import longer
from perfmodel.calibration.statistics import Fitted, Written
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.reporting.contents import Figure

SOURCE = Source("estimated", "fitted to measured steps (perfmodel.calibration.servers)")


def series_name(workload: Workload) -> str:
    """Name of a workload on its device."""
    return f"{workload.device}/{workload.name}" if workload.device else workload.name


class ServedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted values of a workload and of its servers.

    Attributes
    ----------
    compute_s : seconds of a worker's step with a batch of ``batch_size``.
    divisible : fraction of it that is proportional to the batch size.
    costs : of its servers, by name of the field.
    uneven : the option of that name.
    seen : workers and servers of the fitted runs.
    known : how precisely the values of the cluster and of the workload are known.
    """

    compute_s: float
    batch_size: int
    divisible: float = 0.0
    costs: dict[str, float]
    uneven: float = 0.0
    seen: tuple[tuple[int, int], ...] = ()
    known: tuple[Calibration, Calibration]

    def step_compute_s(self, batch_size: int) -> float:
        """Seconds that a worker computes for in a step with this batch."""
        share = 1.0 - self.divisible + self.divisible * batch_size / self.batch_size
        return self.compute_s * share

    def workload(self, like: Workload) -> Workload:
        """Return a workload of any batch size with the fitted compute time."""
        times = self.step_compute_s(like.batch_size) / like.compute_s
        return msgspec.structs.replace(like.scaled("compute_s", times), calibration=self.known[1])

    def cluster(self, base: Cluster) -> Cluster:
        """Return the cluster with the fitted costs of servers."""
        server = msgspec.structs.replace(base.server, **self.costs)
        return msgspec.structs.replace(
            base,
            name=f"{base.name}-calibrated",
            server=server,
            calibration=self.known[0],
            source=Source("estimated", f"{SOURCE.text}; else: {base.source.text}"),
        )

    def job(self, job: Job) -> Job:
        """Return a job of this workload with the fitted values."""
        options = job.options
        if self.uneven > 0.0:
            options = msgspec.structs.replace(options, uneven=self.uneven)
        return msgspec.structs.replace(
            job,
            workload=self.workload(job.workload),
            cluster=self.cluster(job.cluster),
            options=options,
        )

    def profile(self, base: Profile, workload: Workload) -> Profile:
        """Return the profile of a workload with the fitted compute times, at two batch sizes if
        their times are not proportional.

        Raises
        ------
        InputError : the profile has no times on that device, because they were estimated.
        """
        chosen = (workload.device, workload.precision)
        those = [t for t in base.timings if (t.device, t.precision) == chosen]
        if not those:
            raise InputError(f"{base.name}: has no times on {chosen[0]} at {chosen[1]} to scale")
        nearest = min(those, key=lambda t: abs(math.log(t.batch_size / self.batch_size)))
        others = [t for t in base.timings if t not in those]
        sizes = dict.fromkeys((1, self.batch_size))
        timings = [_at(nearest, size, self.step_compute_s(size)) for size in sizes]
        return msgspec.structs.replace(base, timings=(*timings, *others), calibration=self.known[1])


def _at(t: Timing, batch_size: int, compute_s: float) -> Timing:
    """Return a timing at another batch size whose compute times have this sum."""
    if t.samples_per_s is not None:
        t = msgspec.structs.replace(t, step_s=t.batch_size / t.samples_per_s, samples_per_s=None)
    passes = (t.step_s or 0.0, t.forward_s or 0.0, t.backward_s or 0.0)
    every_s = sum(sum(each) if isinstance(each, tuple) else each for each in passes)
    if t.step_s is None:
        every_s += t.optimizer_s + t.copy_s + t.other_s
    found = longer(t, compute_s / every_s, SOURCE.text)
    return msgspec.structs.replace(found, batch_size=batch_size)


class ServersFit(Written, frozen=True, kw_only=True):
    """Values of parameter servers and of each workload that they served (schema
    ``perfmodel.calibration/1``).

    Attributes
    ----------
    sync : of the servers, *bsp* or *asp*.
    rows : number of runs.
    common : what workloads have in common: values, and standard deviations of their coordinates.
    workloads : the values of each, by device and name.
    further : how precisely the steps of a further workload with few runs are known.
    """

    schema: Literal["perfmodel.calibration/1"] = "perfmodel.calibration/1"
    kind: Literal["servers"] = "servers"
    sync: str
    rows: int
    common: dict[str, tuple[float, float]]
    workloads: dict[str, ServedWorkload]
    further: Calibration

    def __getitem__(self, name: str) -> ServedWorkload:
        """Return the values of a workload, by device and name, or by name if that is unique.

        Raises
        ------
        InputError : the fit does not have it, or has it on several devices.
        """
        found = [
            served
            for key, served in self.workloads.items()
            if key == name or key.partition("/")[2] == name
        ]
        if len(found) != 1:
            raise unknown_name("workload", name, self.workloads)
        return found[0]

    @property
    def estimates(self) -> list[Fitted]:
        """Costs of servers and compute times, with intervals; costs only once if all workloads
        share them."""
        found = []
        for i, (key, served) in enumerate(self.workloads.items()):
            values = {**served.costs, "compute_s": served.compute_s}
            for known in served.known:
                for j, path in enumerate(known.parameters):
                    name = path.removeprefix("server.")
                    shared = self.sync != "bsp" and name != "compute_s"
                    factor = math.exp(WIDTH * math.sqrt(known.covariance[j][j]))
                    value = values[name]
                    label = name if shared else f"{name.removesuffix('_s')} of {key}"
                    if i == 0 or not shared:
                        found.append(
                            Fitted(
                                name=label,
                                unit="s",
                                was=0.0,
                                value=value,
                                low=value / factor,
                                high=value * factor,
                            )
                        )
        return found

    @property
    def seen(self) -> str:
        """Summary of the runs as text."""
        kind = "synchronous" if self.sync == "bsp" else "asynchronous"
        return f"{self.rows} runs of {len(self.workloads)} workloads with {kind} servers"

    def figure(self) -> Figure:
        """The estimates with their intervals."""
        from perfmodel.calibration.figures import fit, rows_of

        return fit(rows_of(self.estimates), [], self.seen)
