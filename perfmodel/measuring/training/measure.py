"""Runs a short training job and measures it."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import os
import platform
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from perfmodel import __version__
from perfmodel.base.errors import InputError, PerfmodelError, number, unknown_name, whole_number
from perfmodel.base.files import ready
from perfmodel.base.provenance import Source
from perfmodel.engine.noise import offsets
from perfmodel.inputs.job import Jitter
from perfmodel.inputs.workload import Workload
from perfmodel.measuring.processes.connecting import Listener
from perfmodel.measuring.processes.group import meet
from perfmodel.measuring.processes.meeting import Meeting
from perfmodel.measuring.processes.ranks import Place
from perfmodel.measuring.training import data_parallel
from perfmodel.measuring.training.emulated import EmulatedDevice, EmulatedModel, check_jitter
from perfmodel.measuring.training.run import MeasuredRun, RunResults
from perfmodel.measuring.training.server import ParameterServer, Report
from perfmodel.measuring.training.shards import Applied, Shard, pieces_of, update_cost
from perfmodel.measuring.training.worker import Client, Ran, train

ARCHITECTURES = {"ps": "ps", "ring": "allreduce", "allreduce": "allreduce", "ddp": "allreduce"}
SYNCS = ("bsp", "asp", "ssp")

LEARNING_RATE = 1e-4
"""Learning rate of a parameter server's SGD; it is small because only the times matter."""

FEWEST = 2
"""Minimum number of iterations from which to compute a worker's rate."""

Progress = Callable[[int, int], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a run; the same on all ranks.

    Attributes
    ----------
    arch : *ps* or *allreduce*.
    servers : number of parameter servers, which are the last ranks.
    workload : the emulated workload; None for a real model.
    model : arguments of :func:`perfmodel.profiler.training.training`, for a real model.
    device : device whose times in the workload are emulated; empty for the default.
    bucket_cap_mib : bucket cap of DistributedDataParallel; None for its default.
    time_limit_s : the run ends after this time even if ``steps`` are not done.
    threads : threads of numerical libraries in each process; None for their default.
    timeout_s : how long to wait for another process; must be longer than an iteration.
    """

    arch: Literal["ps", "allreduce"] = "ps"
    sync: str = "bsp"
    staleness_bound: float = 3.0
    servers: int = 1
    workload: Workload | None = None
    model: dict[str, Any] = {}
    device: str = ""
    jitter: Jitter = Jitter()
    seed: int = 0
    bucket_cap_mib: float | None = None
    backend: str = "gloo"
    steps: int = 50
    warmup: int = 5
    time_limit_s: float | None = None
    threads: int | None = None
    congestion: str = ""
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
        check_jitter(self.jitter)
        if self.workload is None and self.jitter.cv > 0.0:
            raise InputError("--jitter: needs --emulate; a real model has jitter of its own")
        if self.workload is not None and self.backend == "nccl" and self.arch == "allreduce":
            raise InputError("--backend nccl: transfers GPU memory only; with --emulate use gloo")

    def workers(self, ranks: int) -> int:
        """Return the number of workers, which are the first ranks.

        Raises
        ------
        InputError : no rank is left for a worker.
        """
        workers = ranks - self.servers if self.arch == "ps" else ranks
        if workers < 1:
            raise InputError(f"--servers: {self.servers} of {ranks} ranks leave no worker")
        return workers

    def arguments(self) -> dict[str, str]:
        """Return the arguments that must agree on all ranks, by flag."""
        given = {_flag(name): getattr(self, name) for name in self._flags}
        given["--jitter"] = f"{self.jitter.kind}:{self.jitter.cv:g}:{self.jitter.scope}"
        if self.workload is not None:
            digest = hashlib.sha256(msgspec.json.encode(self.workload)).hexdigest()[:12]
            given["--workload"] = f"{self.workload.name}, content {digest}"
        for name, value in self.model.items():
            given[_flag(name)] = value
        return {flag: str(value) for flag, value in given.items()}

    @property
    def _flags(self) -> tuple[str, ...]:
        common = ("arch", "steps", "warmup", "seed", "threads", "congestion")
        if self.arch == "ps":
            return (*common, "sync", "staleness_bound", "servers")
        return (*common, "bucket_cap_mib", "backend")

    def options(self) -> dict[str, str | int | float | bool]:
        """Return the equivalent options for ``make_job``."""
        if self.arch == "ps":
            made: dict[str, str | int | float | bool] = {
                "sync": self.sync, "servers": self.servers, "overlap": True, "duplex": True,
            }  # fmt: skip
            if self.sync == "ssp":
                bound = self.staleness_bound
                made["staleness_bound"] = "inf" if bound == math.inf else bound
            return made
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
    names = {"bucket_cap_mib": "bucket-cap", "model_spec": "model"}
    return f"--{names.get(name, name.replace('_', '-'))}"


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Message from a rank to rank 0 at the end; workers set ``ran``, servers ``report``."""

    ran: Ran | None = None
    report: Report | None = None
    batch_size: int = 0
    workload: str = ""
    about: str = ""


def measure(plan: Plan, place: Place, progress: Progress | None = None) -> MeasuredRun | None:
    """Take part in a run as the process ``place``; return the measurements on rank 0, None
    elsewhere.

    Raises
    ------
    PerfmodelError : another process did not connect, has disconnected, or has different arguments;
    or the run was too short.
    """
    workers = plan.workers(place.ranks)
    if plan.arch == "allreduce":
        data_parallel.check_congestion(plan.congestion)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if plan.threads is not None:
            os.environ[name] = str(plan.threads)
    group = meet(
        place,
        plan.arguments(),
        timeout_s=plan.timeout_s,
        congestion=plan.congestion if plan.arch == "ps" else "",
    )
    with Meeting(group, workers) as meeting:
        try:
            report = _take_part(plan, meeting, workers, progress)
        except PerfmodelError as error:
            raise meeting.reason(error) from error
        values = meeting.share(msgspec.to_builtins(report))
        if place.rank != 0:
            return None
        reports = [msgspec.convert(value, ready(RankReport), strict=False) for value in values]
        return _run(plan, reports, workers)


def _take_part(plan: Plan, meeting: Meeting, workers: int, progress: Progress | None) -> RankReport:
    if plan.arch == "allreduce":
        return _data_parallel(plan, meeting, progress)
    if meeting.place.rank >= workers:
        return _server(plan, meeting, workers)
    return _worker(plan, meeting, workers, progress)


def _real_model(plan: Plan) -> Any:
    from perfmodel.base.pytorch import import_torch
    from perfmodel.profiler.training import training

    torch = import_torch()
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    arguments = {**plan.model, "seed": plan.seed}
    if arguments.get("device") == "cuda" and "LOCAL_RANK" in os.environ:  # set by torchrun
        arguments["device"] = f"cuda:{os.environ['LOCAL_RANK']}"
    return training(**arguments)


def _data_parallel(plan: Plan, meeting: Meeting, progress: Progress | None) -> RankReport:
    place = meeting.place
    device = "cpu"
    with data_parallel.process_group(meeting, plan.backend, plan.timeout_s) as distributed:
        steps: data_parallel.EmulatedSteps | data_parallel.RealSteps
        if plan.workload is not None:
            steps = data_parallel.EmulatedSteps(
                plan.workload, plan.jitter, plan.seed, place.rank,
                bucket_cap_mib=plan.bucket_cap_mib, device=EmulatedDevice(),
            )  # fmt: skip
            name, batch_size = plan.workload.name, plan.workload.batch_size
        else:
            trained = _real_model(plan)
            steps = data_parallel.RealSteps(trained, plan.bucket_cap_mib)
            steps.measure_alone()
            device = trained.device
            name, batch_size = trained.built.name, trained.batch_size
        ran = data_parallel.train(
            distributed, steps.iteration, steps=plan.steps, warmup=plan.warmup,
            time_limit_s=plan.time_limit_s, device=device, progress=progress,
        )  # fmt: skip
        buckets = steps.buckets()
        about = (
            f"DistributedDataParallel, {plan.backend}, torch {data_parallel.version()}, "
            f"TCP {data_parallel.system_congestion() or '(system default)'}, buckets of "
            f"{', '.join(map(str, buckets.made_bytes))} bytes"
        )
    return RankReport(
        ran=_on_rank_0(ran, meeting), batch_size=batch_size, workload=name, about=about
    )


def _server(plan: Plan, meeting: Meeting, workers: int) -> RankReport:
    server = meeting.place.rank - workers
    bound = {"bsp": 0.0, "asp": math.inf, "ssp": plan.staleness_bound}[plan.sync]
    rate = LEARNING_RATE / workers if plan.sync == "bsp" else LEARNING_RATE
    with Listener(
        meeting.local_host, 0, plan.timeout_s, meeting.token, plan.congestion
    ) as listener:
        meeting.share([meeting.local_host, listener.port])
        workload = msgspec.convert(meeting.share(None)[0], ready(Workload))
        pieces = [one for one in pieces_of(workload, plan.servers) if one.server == server]
        shard = Shard(
            [piece.elements for piece in pieces], workers=workers, bound=bound, learning_rate=rate
        )
        serving = ParameterServer(
            listener, pieces, shard,
            workers=workers, warmup=plan.warmup, timeout_s=plan.timeout_s,
        )  # fmt: skip
        meeting.on_failure(serving.fail)
        meeting.at_end(serving.close)
        serving.accept()
    meeting.share(None)
    return RankReport(report=serving.serve())


def _worker(plan: Plan, meeting: Meeting, workers: int, progress: Progress | None) -> RankReport:
    rank = meeting.place.rank
    addresses = [tuple(address) for address in meeting.share(None)[workers:]]
    trained: Any
    if plan.workload is not None:
        workload, trained = plan.workload, None
    else:
        from perfmodel.measuring.training.hooks import HookedModel

        trained = HookedModel(_real_model(plan))
        workload = trained.workload
    meeting.share(msgspec.to_builtins(workload) if rank == 0 else None)
    client = Client(
        rank, addresses, pieces_of(workload, plan.servers),
        timeout_s=plan.timeout_s, token=meeting.token, congestion=plan.congestion,
    )  # fmt: skip
    meeting.at_end(client.close)
    meeting.on_failure(lambda: client.fail("the run has failed"))
    if trained is None:
        trained = EmulatedModel(workload, plan.jitter, plan.seed, rank, EmulatedDevice())
    elif rank == 0:
        for layer in range(len(trained.layers)):
            client.begin(layer, trained.values(layer))
    about = f"parameter server, TCP {client.congestion or '(system default)'}"
    meeting.share(None)
    limit = _limit(plan, meeting)
    if plan.sync != "bsp":  # stagger the start, as predictions do
        part = float(offsets(plan.seed, workers)[rank])
        meeting.stopped.wait(part * workload.compute_s)
    ran = train(
        client, trained, iterations=plan.warmup + plan.steps,
        stopped=meeting.stopped if plan.sync != "bsp" or plan.time_limit_s else None,
        enough=meeting.enough, progress=progress,
    )  # fmt: skip
    if limit is not None:
        limit.cancel()
    return RankReport(
        ran=_on_rank_0(ran, meeting),
        batch_size=workload.batch_size,
        workload=workload.name,
        about=about,
    )


def _limit(plan: Plan, meeting: Meeting) -> threading.Timer | None:
    """Start the timer that stops the run at its time limit; only on rank 0."""
    if plan.time_limit_s is None or meeting.place.rank != 0:
        return None
    timer = threading.Timer(plan.time_limit_s, meeting.stop)
    timer.daemon = True
    timer.start()
    return timer


def _on_rank_0(ran: Ran, meeting: Meeting) -> Ran:
    """Convert a worker's record to the clock of rank 0."""
    return msgspec.structs.replace(ran, ends_s=[end + meeting.offset_s for end in ran.ends_s])


def _run(plan: Plan, messages: Sequence[RankReport], workers: int) -> MeasuredRun:
    """Make the measured run from the messages of all ranks."""
    first = messages[0]
    ran = [one.ran for one in messages if one.ran is not None]
    reports = [one.report for one in messages if one.report is not None]
    synchronous = plan.arch != "ps" or plan.sync == "bsp"
    measured = measured_of(
        ran, warmup=plan.warmup, batch_size=first.batch_size, synchronous=synchronous
    )
    if plan.arch == "ps":
        measured = _with_servers(measured, ran, reports, stale=not synchronous)
    arch = f"{plan.arch} {plan.sync}" if plan.arch == "ps" else plan.arch
    where = "accelerator emulated by waits" if plan.workload is not None else "real model"
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
            f"perfmodel {__version__} measure training: {where}, {first.about}, seed {plan.seed}, "
            f"Python {platform.python_version()} on {platform.system()}",
            date=dt.date.today().isoformat(),
        ),
        jitter=f"{plan.jitter.kind}:{plan.jitter.cv:g}" if plan.jitter.cv > 0.0 else "",
        emulated=plan.workload is not None,
        device=plan.device,
    )


def measured_of(
    ran: Sequence[Ran], *, warmup: int, batch_size: int, synchronous: bool = False
) -> RunResults:
    """Compute the results in the window in which all workers were past their warm-up and running.

    A worker's iteration time is the mean over the iterations that begin and end in this window; all
    ``ends_s`` are on one clock. If workers are ``synchronous``, it is the mean over the same
    iterations for all.

    Raises
    ------
    InputError : a worker has fewer than two iterations in the window.
    """
    begin_s = max(one.ends_s[min(warmup, len(one.ends_s) - 1)] for one in ran)
    end_s = min(one.ends_s[-1] for one in ran)
    fewest = min(len(one.ends_s) for one in ran)
    iterations, spread, each, computed, idle = [], [], [], [], []
    for worker, one in enumerate(ran):
        ends_s = np.array(one.ends_s)
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
        compute_s = float(np.mean(one.computed_s[first:last]))
        iterations.append(last - first)
        each.append(mean_s)
        computed.append(compute_s)
        idle.append(1.0 - compute_s / mean_s)
        spread.append(np.diff(ends_s[first : last + 1]) - mean_s)
    per_s = sum(1.0 / seconds for seconds in each)
    return RunResults(
        iterations=min(iterations),
        warmup=warmup,
        iteration_s=len(ran) / per_s,
        iteration_std_s=float(np.std(np.concatenate(spread))),
        worker_iteration_s=tuple(each),
        samples_per_s=batch_size * per_s,
        compute_s=float(np.mean(computed)),
        idle_fraction=max(float(np.mean(idle)), -1.0),
    )


def _with_servers(
    measured: RunResults, ran: Sequence[Ran], reports: Sequence[Report], *, stale: bool
) -> RunResults:
    """Add the servers' reports; equal pieces on several servers get the median of their medians."""
    staleness: dict[int, int] = {}
    shapes: dict[tuple[float, float], list[float]] = {}
    for report in reports:
        for found, count in report.staleness.items():
            staleness[found] = staleness.get(found, 0) + count
        for one in report.applied:
            shapes.setdefault((one.tensors, one.bytes), []).append(one.seconds)
    per_tensor_s, per_byte_s = update_cost(
        [Applied(*shape, float(np.median(seconds))) for shape, seconds in shapes.items()]
    )
    return msgspec.structs.replace(
        measured,
        staleness={str(s): staleness[s] for s in sorted(staleness)} if stale else None,
        update_per_tensor_s=per_tensor_s,
        update_per_byte_s=per_byte_s,
        sent_bytes=float(np.mean([one.sent_bytes / len(one.computed_s) for one in ran])),
    )
