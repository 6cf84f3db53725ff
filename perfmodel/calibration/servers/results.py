"""Results of a fit of shared parameter servers, as inputs of predictions."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from perfmodel.base.errors import unknown_name
from perfmodel.calibration import figures
from perfmodel.calibration.files import longer, timings_of, with_fields
from perfmodel.calibration.statistics import Fitted, Written
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.reporting.contents import Figure

SOURCE = "fitted to measured steps (perfmodel.calibration.servers)"


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
        costs = {f"server.{name}": value for name, value in self.costs.items()}
        return with_fields(base, costs, "estimated", SOURCE, self.known[0])

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
        chosen = timings_of(base, workload)
        nearest = min(chosen, key=lambda t: abs(math.log(t.batch_size / self.batch_size)))
        others = [t for t in base.timings if t not in chosen]
        sizes = dict.fromkeys((1, self.batch_size))
        timings = [_at(nearest, size, self.step_compute_s(size)) for size in sizes]
        return msgspec.structs.replace(base, timings=(*timings, *others), calibration=self.known[1])


def _at(t: Timing, batch_size: int, compute_s: float) -> Timing:
    """Return a timing at another batch size whose compute times have this sum."""
    if t.samples_per_s is not None:
        t = msgspec.structs.replace(t, step_s=t.batch_size / t.samples_per_s, samples_per_s=None)
    passes = (t.step_s or 0.0, t.forward_s or 0.0, t.backward_s or 0.0)
    total_s = sum(sum(times) if isinstance(times, tuple) else times for times in passes)
    if t.step_s is None:
        total_s += t.optimizer_s + t.copy_s + t.other_s
    return msgspec.structs.replace(longer(t, compute_s / total_s, SOURCE), batch_size=batch_size)


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
        keys = [key for key in self.workloads if name in (key, key.partition("/")[2])]
        if len(keys) != 1:
            raise unknown_name("workload", name, self.workloads)
        return self.workloads[keys[0]]

    @property
    def estimates(self) -> list[Fitted]:
        """Costs of servers and compute times, with intervals; costs only once if all workloads
        share them."""
        estimates: dict[str, Fitted] = {}
        for key, served in self.workloads.items():
            values = {**served.costs, "compute_s": served.compute_s}
            for known in served.known:
                for j, path in enumerate(known.parameters):
                    name = path.removeprefix("server.")
                    shared = self.sync != "bsp" and name != "compute_s"
                    label = name if shared else f"{name.removesuffix('_s')} of {key}"
                    spread = math.sqrt(known.covariance[j][j])
                    estimate = Fitted.spread(label, "s", values[name], spread)
                    estimates.setdefault(label, estimate)
        return list(estimates.values())

    @property
    def seen(self) -> str:
        """Summary of the runs as text."""
        kind = "synchronous" if self.sync == "bsp" else "asynchronous"
        return f"{self.rows} runs of {len(self.workloads)} workloads with {kind} servers"

    def figure(self) -> Figure:
        """The estimates with their intervals."""
        return figures.fit(self.estimates, [], self.seen)
