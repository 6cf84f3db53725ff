"""A training job: a workload, a cluster, the number of workers, and how they train together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypedDict, Unpack

import msgspec

from perfmodel.base.errors import InputError, number, speed_ratio, unknown_name, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.base.quantities import NO_SPREAD
from perfmodel.base.ranges import COUNT, Range, Ranged
from perfmodel.base.same import kept
from perfmodel.base.units import islands_text
from perfmodel.inputs import wiring
from perfmodel.inputs.cluster import NO_HANDOVER, Cluster, Handover, Seat
from perfmodel.inputs.expert_parallel import check_groups
from perfmodel.inputs.offload import Offload, offload_of
from perfmodel.inputs.options import Options
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.replica import Replica, ReplicaStage
from perfmodel.inputs.workload import Workload, expanded, with_handover

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.inputs.profile import Profile

MOST_WORKERS = 200_000
"""Maximum workers of a job; a limit that catches typing errors."""

MOST_SEED = 2**63 - 1
"""Largest seed."""

MOST_JITTER = 10.0
"""Largest coefficient of variation; a limit that catches typing errors."""

JITTER_KINDS = ("lognormal", "gamma", "measured")
JITTER_SCOPES = ("iteration", "op")

Start = Literal["together", "staggered"]


class Jitter(msgspec.Struct, frozen=True):
    """Random factor with mean 1 on the compute time of a worker.

    ``cv`` is its coefficient of variation and ``kind`` its distribution: lognormal, gamma, or
    measured (lognormal, with the spread in the workload's profile). With ``scope`` *iteration*
    there is one factor per iteration, with *op* one per operation. A ``cv`` below
    :data:`perfmodel.base.quantities.NO_SPREAD` becomes 0.
    """

    cv: float = 0.0
    kind: str = "lognormal"
    scope: str = "iteration"

    def __post_init__(self) -> None:
        if number("jitter", self.cv, at_most=MOST_JITTER) < NO_SPREAD:
            msgspec.structs.force_setattr(self, "cv", 0.0)
        if self.kind not in JITTER_KINDS:
            raise unknown_name("jitter distribution", self.kind, JITTER_KINDS)
        if self.scope not in JITTER_SCOPES:
            raise unknown_name("jitter scope", self.scope, JITTER_SCOPES)

    @classmethod
    def parse(cls, text: str) -> Jitter:
        """Read ``0.1``, ``lognormal:0.1``, ``gamma:0.1`` or ``measured``, optionally with ``:op``.

        >>> Jitter.parse("gamma:0.1:op")
        Jitter(cv=0.1, kind='gamma', scope='op')
        """
        parts = text.split(":")
        scope = parts.pop() if parts[-1] in JITTER_SCOPES else "iteration"
        if parts == ["measured"]:
            return cls(kind="measured", scope=scope)
        try:
            value = float(parts.pop())
        except (ValueError, IndexError):
            raise InputError(
                f"jitter: cannot read {text!r}; expected a coefficient of variation such as 0.1, "
                "lognormal:0.1 or gamma:0.1, or measured"
            ) from None
        return cls(value, ":".join(parts) or "lognormal", scope)


class Straggler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker that computes for ``factor`` times the profiled time."""

    worker: int
    factor: float

    def __post_init__(self) -> None:
        whole_number("straggler worker", self.worker, at_least=0)
        speed_ratio("straggler factor", self.factor)

    @classmethod
    def parse(cls, text: str) -> Straggler:
        """Read ``WORKER:FACTOR``.

        >>> Straggler.parse("3:1.5")
        Straggler(worker=3, factor=1.5)
        """
        worker, _, factor = text.partition(":")
        try:
            return cls(int(worker), float(factor))
        except InputError:
            raise
        except ValueError:
            raise InputError(
                f"straggler: cannot read {text!r}; expected WORKER:FACTOR such as 0:1.5"
            ) from None


class JobArchitecture(Protocol):
    """What a job needs to know of an architecture; see :mod:`perfmodel.architectures.base`."""

    @property
    def name(self) -> str:
        """Its name in files and on the command line."""


if TYPE_CHECKING:

    class JobArguments(TypedDict, total=False):
        """Arguments of :func:`perfmodel.make_job`, and ``global_batch_size``; None: the default."""

        model: str | None
        workload: Workload | Profile | str | Path | None
        device: str | None
        precision: str | None
        batch_size: int | None
        global_batch_size: int | None
        sequence_length: int | None
        document_length: float | None
        document_spread: float | None
        document_lengths: Sequence[float] | str | Path | None
        activation_checkpointing: bool | None
        accumulation: int | None
        recompute: str | None
        stack: str | None
        launches: str | None
        framework: str | None
        optimizer: str | None
        precision_policy: str | None
        lora: str | None
        offload_optimizer: bool | None
        one_device_samples_per_s: float | str | None
        one_device_step_s: float | None
        one_device_batch_size: int | None
        cluster: Cluster | str | Path | None
        bandwidth: float | str | None
        bandwidth_bytes_per_s: float | None
        latency: float | str | None
        latency_s: float | None
        devices_per_node: int | None
        workers: int
        arch: str
        options: Mapping[str, object] | None
        island_devices: int | str | None
        island_steps: int | str | None
        island_arch: str | None
        island_options: Mapping[str, object] | None
        devices: int | None
        tensor: int | None
        context: int | None
        context_exchange: str | None
        context_inside: int | None
        context_split: str | None
        pipeline: int | None
        micro_batches: int | None
        schedule: str | None
        virtual_stages: int | None
        stage_layers: str | tuple[int, ...] | None
        balance: bool | None
        sequence_parallel: bool | None
        overlap_sums: bool | None
        transfers: str | None
        rank_order: str | None
        expert: int | None
        expert_tensor: int | None
        expert_skew: float | None
        expert_capacity: float | None
        expert_exchange: str | None
        expert_nodes: int | None
        expert_overlap: float | None
        jitter: Jitter | float | str | None
        stragglers: Iterable[Straggler]
        start: Start | None
        seed: int


STARTS: Mapping[bool, tuple[Start, str]] = {
    False: ("together", "synchronous"),
    True: ("staggered", "asynchronous workers drift apart"),
}
"""How workers start unless it is given, and why, by whether they are asynchronous."""


class Island(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is a group of devices, and one step of the training inside it.

    Attributes
    ----------
    job : the training inside this island alone.
    step_s : time of a step of that job.
    computing : fraction of the step in which a device computes.
    causes : the rest of the step by cause, as fractions of the step.
    steps : steps between two exchanges with other islands.
    """

    job: Job
    step_s: float
    computing: float
    causes: dict[str, float]
    steps: int = 1

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.job.workers

    @property
    def round_s(self) -> float:
        """Time between two exchanges."""
        return self.step_s * self.steps

    @property
    def samples(self) -> int:
        """Samples between two exchanges, in units of a device's batch size."""
        return self.devices * self.steps


class Job(Ranged, frozen=True, kw_only=True):
    """A training job: everything that its throughput depends on.

    ``options`` belong to the ``architecture``. With ``start`` *together* all workers begin at once,
    with *staggered* at seeded random offsets. ``assumptions`` are the defaults used. If workers are
    groups of devices, ``islands`` has one entry per worker; the workload is then what the first
    island does between two exchanges, its batch size is that of all its devices, and ``flat`` is
    the same job with one device per worker. If workers are ``replica``s of several devices, the
    workload is that of all of them, and its passes are the micro-batches. A job with a ``stage`` is
    what the devices of one stage of all replicas do. ``given`` are the arguments of
    :func:`perfmodel.make_job` that made it, if that did; equal jobs may differ in them.

    Raises
    ------
    InputError : no worker, a straggler that does not exist, too few nodes, only backup workers.
    """

    RANGES: ClassVar = {
        "workers": COUNT._replace(at_most=MOST_WORKERS),
        "seed": Range(0, MOST_SEED, whole=True),
    }

    workload: Workload
    cluster: Cluster
    workers: int
    architecture: JobArchitecture
    options: Options
    start: Start = "together"
    jitter: Jitter | None = None
    stragglers: tuple[Straggler, ...] = ()
    seed: int = 0
    assumptions: tuple[Assumption, ...] = ()
    islands: tuple[Island, ...] = ()
    flat: Job | None = None
    replica: Replica | None = None
    stage: ReplicaStage | None = None
    given: dict[str, Any] | None = None

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, Job) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[object, ...]:
        """Everything but ``given``, the last field."""
        return msgspec.structs.astuple(self)[:-1]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start not in ("together", "staggered"):
            raise unknown_name("start", self.start, ("together", "staggered"))
        seen: set[int] = set()
        for straggler in self.stragglers:
            if straggler.worker >= self.workers:
                raise InputError(
                    f"straggler {straggler.worker}: there is no such worker "
                    f"(workers are 0 to {self.workers - 1})"
                )
            if straggler.worker in seen:
                raise InputError(f"straggler {straggler.worker}: given twice")
            seen.add(straggler.worker)
        self.options.check_workers(self.workers)
        if self.replica is not None and self.replica.experts is not None:
            check_groups(
                self.replica.experts,
                self.replica.devices // self.replica.pipeline,
                self.workers,
                between=self.options.one_collective,
                name=self.architecture.name,
            )
        if self.cluster.nodes is None and not self.cluster.sites:
            return  # it has as many as a job needs
        nodes = self.cluster.workers_nodes
        if nodes is not None and self.cluster.nodes_for(self.devices) > nodes:
            each = "" if self.replica is None else f" of {self.replica.devices} devices each"
            raise InputError(
                f"workers: {self.workers}{each} do not fit on cluster {self.cluster.name!r} "
                f"({nodes} nodes x {self.cluster.devices_per_node} devices)"
            )

    @classmethod
    def from_file(cls, path: str | Path) -> Job:
        """Read a job file.

        Raises
        ------
        InputError : see :func:`perfmodel.read_job`; the job is impossible.
        """
        made: Job = wiring.make_job(**wiring.read_job(path))
        return made

    def with_(self, **changes: Unpack[JobArguments]) -> Job:
        """Return the job with other arguments of :func:`perfmodel.make_job`.

        None stands for the default. ``options`` are added to the job's; with another ``arch``, the
        options that both have stay. A measured speed of one device stays that at the batch size of
        this job.

        Raises
        ------
        InputError : the job is impossible, or :func:`perfmodel.make_job` did not make this one.
        """
        other: Job = wiring.change_job(self, changes)
        return other

    @property
    def devices(self) -> int:
        """Devices of all workers; of islands, one each."""
        return self.workers if self.replica is None else self.workers * self.replica.devices

    @property
    def context_workers(self) -> int:
        """Devices of a replica that divide its sequences and are workers of their own to the
        architecture: all of them if its collectives are those of Megatron-LM and torchtitan, over
        data x context; else they sum gradients before, and count as one."""
        if self.replica is None or not self.options.one_collective:
            return 1
        return self.replica.context

    @property
    def counted_as_one(self) -> int:
        """Consecutive devices that count as one worker of a stage's job."""
        if self.replica is None:
            return 1
        return self.replica.tensor * self.replica.context // self.context_workers

    @property
    def workers_together(self) -> int:
        """Workers whose devices have all experts together: numbers of workers are multiples."""
        if self.replica is None or self.replica.experts is None:
            return 1
        return max(self.replica.experts.devices * self.replica.pipeline // self.replica.devices, 1)

    @property
    def counted(self) -> str:
        """The number of workers; of replicas also the devices of each, ``2 x 8``; the islands."""
        if self.islands:
            return islands_text([island.devices for island in self.islands])
        return f"{self.workers}" + (f" x {self.replica.devices}" if self.replica else "")

    def seats(self, some: Iterable[int] | None = None) -> list[Seat]:
        """Where each of some workers runs, or each of all, and how fast, without jitter.

        If all go at the pace of the slowest device, so do their slowdowns.
        """
        workers = range(self.workers) if some is None else some
        factors = {straggler.worker: straggler.factor for straggler in self.stragglers}
        in_step = not self.options.asynchronous
        return self.cluster.seats(workers, self.workers, factors, in_step=in_step)

    @property
    def pace(self) -> float:
        """Compute time of the slowest worker over the mean if all go at its pace; else 1."""
        return 1.0 if self.options.asynchronous else self.cluster.pace(self.workers)

    def slowdown(self, worker: int) -> float:
        """Compute time of worker ``worker`` over the profiled time, without jitter."""
        return self.seats([worker])[0].slowdown

    @property
    def of_devices(self) -> Job:
        """The job with one device per worker: as it was before islands were formed."""
        return self if self.flat is None else self.flat

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Samples per iteration of each island; of any worker (one value) without islands."""
        batch = self.workload.batch_size
        if not self.islands:
            return (batch,)
        return tuple(batch // self.islands[0].samples * one.samples for one in self.islands)

    @property
    def global_batch_size(self) -> int:
        """Samples of a step of all workers."""
        sizes = self.batch_sizes
        return sum(sizes) if self.islands else self.workers * sizes[0]

    @property
    def path_efficiency(self) -> float:
        """Fraction of link bandwidth that nodes get, which is less if there are only two."""
        cluster, n = self.cluster, self.workers
        if cluster.pair_efficiency == 1.0:
            return 1.0
        homes = {cluster.node_of_server(s, n) for s in range(self.options.server_count)}
        return cluster.path_efficiency(len({*range(cluster.nodes_for(n)), *homes}))

    @property
    def crosses_sites(self) -> bool:
        """Whether the job sends anything between sites; workers begin at the first site."""
        cluster, n = self.cluster, self.workers
        if len(cluster.sites) < 2:
            return False
        nodes = [
            cluster.nodes_for(n) - 1,
            *(cluster.node_of_server(s, n) for s in range(self.options.server_count)),
        ]
        return bool(cluster.sites_of(max(nodes) + 1, n)[nodes].any())

    @property
    def unequal(self) -> bool:
        """Whether workers may differ in compute time, loading time or links."""
        if self.stragglers or self.cluster.overrides:
            return True
        return self.cluster.crowded(self.workers, loading=self.workload.data_loading_s > 0.0)

    @property
    def exchanged_share(self) -> float:
        """Mean share of the model, or of its gradients, that a worker sends per step: below 1 for
        architectures that exchange models every few steps; 0 for a single worker without servers.
        """
        if self.workers == 1 and self.options.server_count == 0:
            return 0.0
        return self.options.exchanged_share

    @property
    def device_work(self) -> Workload:
        """The workload, with gradient handover to the network as part of the backward pass, and
        with the update by the host if the optimizer is there."""
        work = self._handed_over(self.workload)
        if not work.storage.offload:
            return work
        offloaded = self.host_update
        return msgspec.structs.replace(work, optimizer_s=offloaded.seconds if offloaded else 0.0)

    @property
    def host_update(self) -> Offload | None:
        """The times of an update by the host; None if devices update."""
        if not self.workload.storage.offload:
            return None
        devices = 1 if self.stage is None else self.stage.replica.tensor
        return offload_of(self.workload, self.cluster, self.workers, devices)

    @property
    def reductions(self) -> int:
        """How often the gradients of an update are exchanged: once, or in each of its passes."""
        return self.options.reductions(self.workload.accumulation)

    @property
    def handovers(self) -> float:
        """How often the gradients of an update are handed over to the network."""
        return self.exchanged_share * self.reductions

    def pass_work(self, *, reduced: bool = True) -> Workload:
        """The workload of one of the passes of an update, with handover if its gradients are
        ``reduced``."""
        return self._handed_over(one_pass(self.workload), int(reduced))

    def _handed_over(self, workload: Workload, times: int | None = None) -> Workload:
        """Return a workload whose gradients are handed over to the network so many times, or as
        often as those of an update; of a stage, each device has only its part of a layer."""
        handover = self.cluster.handover
        if handover == NO_HANDOVER:
            return workload
        share = self.handovers if times is None else self.exchanged_share * times
        if share == 0.0:
            return workload
        parts = 1 if self.stage is None else self.stage.replica.tensor
        return _with_handover(expanded(workload), handover, share, parts)


@kept(64)
def _with_handover(workload: Workload, handover: Handover, share: float, parts: int) -> Workload:
    return with_handover(
        workload, lambda count, size: share * handover.seconds(count, size / parts)
    )
