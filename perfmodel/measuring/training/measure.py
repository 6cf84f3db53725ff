"""Runs a short training job and measures it."""

from __future__ import annotations

import datetime as dt
import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from perfmodel import __version__
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.files import ready
from perfmodel.base.provenance import Source
from perfmodel.foreign.pytorch import import_torch
from perfmodel.inputs.workload import Workload
from perfmodel.measuring.torchrun import ProcessPlace, RankGroup, congestion, connected
from perfmodel.measuring.training import data_parallel
from perfmodel.measuring.training.run import MeasuredRun, Options, RunResults
from perfmodel.measuring.training.server import ParameterServer, ServerReport
from perfmodel.measuring.training.shards import Applied, Shard, pieces_of, update_cost
from perfmodel.measuring.training.worker import Client, Ran, train
from perfmodel.profiler.training import TrainableModel

ARCHITECTURES = {"ps": "ps", "ring": "allreduce", "allreduce": "allreduce", "ddp": "allreduce"}
SYNCS = ("bsp", "asp", "ssp")

LEARNING_RATE = 1e-4
"""Learning rate of a parameter server's SGD; it is small because only the times matter."""

FEWEST = 2
"""Minimum number of iterations from which to compute a worker's rate."""

PROBES = 16
"""Round trips for comparing clocks; the shortest is used."""

Progress = Callable[[int, int], None]


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a run; the same on all ranks.

    Attributes
    ----------
    arch : *ps* or *allreduce*.
    servers : number of parameter servers, which are the last ranks.
    model : arguments of :func:`perfmodel.profiler.training.training`.
    bucket_cap_mib : bucket cap of DistributedDataParallel; None for its default.
    time_limit_s : the run ends after this time even if ``steps`` are not done.
    threads : compute threads of each process; None for torch's default.
    timeout_s : how long to wait for another process; must be longer than an iteration.
    """

    arch: Literal["ps", "allreduce"] = "ps"
    sync: str = "bsp"
    staleness_bound: float = 3.0
    servers: int = 1
    model: dict[str, Any] = {}
    seed: int = 0
    bucket_cap_mib: float | None = None
    backend: str = "gloo"
    steps: int = 50
    warmup: int = 5
    time_limit_s: float | None = None
    threads: int | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.sync not in SYNCS:
            raise unknown_name("--sync", self.sync, SYNCS)
        if self.backend not in data_parallel.CONCURRENT:
            raise unknown_name("--backend", self.backend, data_parallel.CONCURRENT)
        bound = self.staleness_bound
        if bound != math.inf and number("--staleness-bound", bound) != int(bound):
            raise InputError(f"--staleness-bound: expected a whole number or inf, got {bound:g}")
        whole_number("--servers", self.servers)
        whole_number("--seed", self.seed, at_least=0)
        whole_number("--steps", self.steps, at_least=FEWEST)
        whole_number("--warmup", self.warmup)
        number("--timeout", self.timeout_s, above=0.0)
        if self.threads is not None:
            whole_number("--threads", self.threads)
        if self.bucket_cap_mib is not None:
            number("--bucket-cap", self.bucket_cap_mib, above=0.0)
        if self.time_limit_s is not None:
            number("--time-limit", self.time_limit_s, above=0.0)

    def workers(self, ranks: int) -> int:
        """Return the number of workers, which are the first ranks."""
        workers = ranks - self.servers if self.arch == "ps" else ranks
        if workers < 1:
            raise InputError(f"--servers: {self.servers} of {ranks} processes leave no worker")
        return workers

    def arguments(self) -> dict[str, str]:
        """Return the arguments that must agree on all ranks, by flag."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "model"}
        del values["timeout_s"]
        return {_flag(name): str(value) for name, value in (values | self.model).items()}

    def options(self) -> Options:
        """Return the equivalent options for ``make_job``."""
        if self.arch == "ps":
            options: Options = {"sync": self.sync, "servers": self.servers}
            if self.sync == "ssp":
                bound = self.staleness_bound
                options["staleness_bound"] = "inf" if bound == math.inf else bound
            return {**options, "overlap": True, "duplex": True}
        cap_bytes, first_bytes = data_parallel.caps(self.bucket_cap_mib)
        return {
            "algorithm": data_parallel.ALGORITHM[self.backend],
            "bucketing": "ddp",
            "bucket_cap_bytes": cap_bytes,
            "first_bucket_bytes": first_bytes,
            "concurrent": data_parallel.CONCURRENT[self.backend],
            "broadcast_buffers": False,
        }


def _flag(name: str) -> str:
    names = {
        "bucket_cap_mib": "bucket-cap", "model_spec": "model", "time_limit_s": "time-limit"
    }  # fmt: skip
    return f"--{names.get(name, name.replace('_', '-'))}"


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Message from a rank to rank 0 at the end; workers set ``ran``, servers ``report``."""

    ran: Ran | None = None
    report: ServerReport | None = None
    batch_size: int = 0
    workload: str = ""
    about: str = ""


def measure(
    plan: TrainingPlan, place: ProcessPlace, progress: Progress | None = None
) -> MeasuredRun | None:
    """Take part in a run as the process ``place``; return the measurements on rank 0, None
    elsewhere.

    Raises
    ------
    PerfmodelError : another process did not connect, has disconnected, or has different arguments;
    or the run was too short.
    """
    workers = plan.workers(place.ranks)
    if plan.threads is not None:
        import_torch().set_num_threads(plan.threads)
    backend = "gloo" if plan.arch == "ps" else plan.backend
    with connected(place, backend, timeout_s=plan.timeout_s) as group:
        group.agree(plan.arguments())
        offset_s = clock_offset_s(group)
        if plan.arch == "allreduce":
            report = _data_parallel(plan, group, progress)
        elif place.rank >= workers:
            report = _server(plan, group, workers)
        else:
            report = _worker(plan, group, workers, progress)
        if report.ran is not None:
            ends_s = [end + offset_s for end in report.ran.ends_s]
            ran = msgspec.structs.replace(report.ran, ends_s=ends_s)
            report = msgspec.structs.replace(report, ran=ran)
        values = group.share(msgspec.to_builtins(report, str_keys=True))
    if place.rank != 0:
        return None
    reports = [msgspec.convert(value, ready(RankReport), strict=False) for value in values]
    return _run(plan, reports, workers)


def clock_offset_s(group: RankGroup) -> float:
    """Return ``time.monotonic()`` of rank 0 minus that of this process, in seconds.

    It is that of the shortest of several round trips.
    """
    if group.place.rank:
        for _ in range(PROBES):
            group.receive(0)
            group.send(0, time.monotonic_ns())
        return group.receive(0)[0] * 1e-9
    for rank in range(1, group.place.ranks):
        probes = []
        for _ in range(PROBES):
            begin_ns = time.monotonic_ns()
            group.send(rank, 0)
            theirs_ns = group.receive(rank)[0]
            trip_ns = time.monotonic_ns() - begin_ns
            probes.append((trip_ns, begin_ns + trip_ns // 2 - theirs_ns))
        group.send(rank, min(probes)[1])
    return 0.0


def _training(plan: TrainingPlan, place: ProcessPlace) -> TrainableModel:
    from perfmodel.profiler.training import training

    arguments = {**plan.model, "seed": plan.seed}
    if arguments.get("device") == "cuda":
        arguments["device"] = f"cuda:{place.local_rank}"
    return training(**arguments)


def _data_parallel(plan: TrainingPlan, group: RankGroup, progress: Progress | None) -> RankReport:
    trained = _training(plan, group.place)
    steps = data_parallel.DataParallel(trained, plan.bucket_cap_mib)
    steps.measure_alone()
    ran = data_parallel.train(
        group.distributed, steps.iteration, steps=plan.steps, warmup=plan.warmup,
        time_limit_s=plan.time_limit_s, device=trained.device, progress=progress,
    )  # fmt: skip
    sizes = ", ".join(map(str, steps.buckets().made_bytes))
    about = f"DistributedDataParallel, {_software(plan.backend, group)}, buckets of {sizes} bytes"
    return RankReport(
        ran=ran, batch_size=trained.batch_size, workload=trained.built.name, about=about
    )


def _software(backend: str, group: RankGroup) -> str:
    return f"{backend}, torch {group.torch.__version__}, TCP {congestion() or '(system default)'}"


def _server(plan: TrainingPlan, group: RankGroup, workers: int) -> RankReport:
    server = group.place.rank - workers
    bound = {"bsp": 0.0, "asp": math.inf, "ssp": plan.staleness_bound}[plan.sync]
    rate = LEARNING_RATE / workers if plan.sync == "bsp" else LEARNING_RATE
    workload = msgspec.convert(group.share(None)[0], ready(Workload))
    pieces = [piece for piece in pieces_of(workload, plan.servers) if piece.server == server]
    sizes = [piece.elements for piece in pieces]
    shard = Shard(sizes, workers=workers, bound=bound, learning_rate=rate)
    return RankReport(report=ParameterServer(group, pieces, shard, workers, plan.warmup).serve())


def _worker(
    plan: TrainingPlan, group: RankGroup, workers: int, progress: Progress | None
) -> RankReport:
    from perfmodel.measuring.training.hooks import HookedModel

    rank = group.place.rank
    hooked = HookedModel(_training(plan, group.place))
    workload = hooked.workload
    group.share(msgspec.to_builtins(workload) if rank == 0 else None)
    servers = range(workers, group.place.ranks)
    client = Client(group, servers, pieces_of(workload, plan.servers))
    if rank == 0:
        client.set({layer: hooked.values(layer) for layer in range(len(hooked.layers))})
        for other in range(1, workers):
            group.send(other)
    else:
        group.receive(0)  # the servers have the initial parameters
    ran = train(
        client, hooked.iteration, iterations=plan.warmup + plan.steps, together=plan.sync == "bsp",
        time_limit_s=math.inf if plan.time_limit_s is None else plan.time_limit_s,
        progress=progress,
    )  # fmt: skip
    return RankReport(
        ran=ran,
        batch_size=workload.batch_size,
        workload=workload.name,
        about=f"parameter server, {_software('gloo', group)}",
    )


def _run(plan: TrainingPlan, messages: Sequence[RankReport], workers: int) -> MeasuredRun:
    """Make the measured run from the messages of all ranks."""
    first = messages[0]
    ran = [message.ran for message in messages if message.ran is not None]
    reports = [message.report for message in messages if message.report is not None]
    synchronous = plan.arch != "ps" or plan.sync == "bsp"
    measured = measured_of(
        ran, warmup=plan.warmup, batch_size=first.batch_size, synchronous=synchronous
    )
    if plan.arch == "ps":
        measured = _with_servers(measured, ran, reports, stale=not synchronous)
    arch = f"{plan.arch} {plan.sync}" if plan.arch == "ps" else plan.arch
    return MeasuredRun(
        name=f"{first.workload}, {arch}, {workers} workers",
        workload=first.workload,
        batch_size=first.batch_size,
        workers=workers,
        arch=plan.arch,
        options=plan.options(),
        measured=measured,
        source=Source(
            "measured",
            f"perfmodel {__version__} measure training: {first.about}, seed {plan.seed}, "
            f"Python {platform.python_version()} on {platform.system()}",
            date=dt.date.today().isoformat(),
        ),
    )


def measured_of(
    ran: Sequence[Ran], *, warmup: int, batch_size: int, synchronous: bool = False
) -> RunResults:
    """Compute the results in the window in which all workers were past their warm-up and running.

    A worker's iteration time is the mean over the iterations that begin and end in this window; all
    ``ends_s`` are on one clock. If workers are ``synchronous``, it is the mean over the same
    iterations for all.
    """
    begin_s = max(record.ends_s[min(warmup, len(record.ends_s) - 1)] for record in ran)
    end_s = min(record.ends_s[-1] for record in ran)
    fewest = min(len(record.ends_s) for record in ran)
    iterations, deviations, steps_s, computed_s = [], [], [], []
    for worker, record in enumerate(ran):
        ends_s = np.array(record.ends_s)
        inside = np.flatnonzero((ends_s >= begin_s) & (ends_s <= end_s))
        if synchronous:
            inside = np.arange(warmup, fewest)
        if len(inside) <= FEWEST:
            raise InputError(
                f"--steps: worker {worker} completed fewer than {FEWEST} iterations while all were "
                "running; increase --steps or --time-limit"
            )
        first, last = int(inside[0]), int(inside[-1])
        mean_s = float(ends_s[last] - ends_s[first]) / (last - first)
        iterations.append(last - first)
        steps_s.append(mean_s)
        computed_s.append(float(np.mean(record.computed_s[first:last])))
        deviations.append(np.diff(ends_s[first : last + 1]) - mean_s)
    per_s = sum(1.0 / seconds for seconds in steps_s)
    idle = 1.0 - np.array(computed_s) / np.array(steps_s)
    return RunResults(
        iterations=min(iterations),
        warmup=warmup,
        iteration_s=len(ran) / per_s,
        iteration_std_s=float(np.std(np.concatenate(deviations))),
        worker_iteration_s=tuple(steps_s),
        samples_per_s=batch_size * per_s,
        compute_s=float(np.mean(computed_s)),
        idle_fraction=max(float(np.mean(idle)), -1.0),
    )


def _with_servers(
    measured: RunResults, ran: Sequence[Ran], reports: Sequence[ServerReport], *, stale: bool
) -> RunResults:
    """Add the servers' reports; equal pieces on several servers get the median of their medians."""
    staleness: Counter[int] = Counter()
    shapes: dict[tuple[float, float], list[float]] = {}
    for report in reports:
        staleness.update(report.staleness)
        for applied in report.applied:
            shapes.setdefault((applied.tensors, applied.bytes), []).append(applied.seconds)
    per_tensor_s, per_byte_s = update_cost(
        [Applied(*shape, float(np.median(seconds))) for shape, seconds in shapes.items()]
    )
    return msgspec.structs.replace(
        measured,
        staleness={str(s): staleness[s] for s in sorted(staleness)} if stale else None,
        update_per_tensor_s=per_tensor_s,
        update_per_byte_s=per_byte_s,
        sent_bytes=float(np.mean([r.sent_bytes / len(r.computed_s) for r in ran])),
    )
