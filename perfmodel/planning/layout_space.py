"""Layouts of language models as candidates of a plan: how devices divide the model.

Formulas evaluate all layouts at once (:func:`perfmodel.layouts`). Of each kind, which has tensor,
context and expert parallelism, stages and chunks in common, the fastest layout that fits stands for
all others, which differ in sharding, in the size of micro-batches and in what is recomputed; of
those as fast, the simplest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from perfmodel import api
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError, whole_number
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.instances import Instance
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile
from perfmodel.planning.layout_fitting import (
    ARCHITECTURES,
    FEW,
    RECOMPUTE,
    SIMULATED,
    Fitting,
    best_of,
    outside_of,
)
from perfmodel.planning.layout_map import LayoutPoint
from perfmodel.planning.plans import shape_text
from perfmodel.planning.space import (
    BatchNoise,
    CandidateSeries,
    Columns,
    Common,
    Space,
    joined,
    none_left,
)
from perfmodel.studies.variables import divisors
from perfmodel.sweeping.layouts import Combinations, Layouts, combinations

MICRO_BATCHES = (1, 2, 4, 8)
CHUNKS = (1, 2, 4)
MOST_STAGES = 64
"""Default sizes of micro-batches, chunks per stage, and most stages."""

BATCH_TOKENS, LARGE_BATCH_TOKENS, LARGE = 4 * 2**20, 16 * 2**20, 4096
"""Default global batch: 4 Mi tokens (Llama 2, arXiv 2307.09288, section 2.2); from ``LARGE``
devices on 16 Mi, as Llama 3 of 405B parameters on 16,384 (arXiv 2407.21783, table 4)."""

LEAST_TOKENS = 8192
"""Fewest tokens of a sequence that a device has by default if several divide it; Llama 3 divided
sequences of 131,072 tokens among 16 devices (arXiv 2407.21783, table 4)."""


class Division(NamedTuple):
    """The varied arguments of layouts, empty for the defaults, and those of all layouts."""

    devices: Sequence[int] = ()
    tensor: Sequence[int] = ()
    context: Sequence[int] = ()
    expert: Sequence[int] = ()
    pipeline: Sequence[int] = ()
    virtual_stages: Sequence[int] = ()
    micro_batch_size: Sequence[int] = ()
    recompute: Sequence[str] = ()
    schedule: Sequence[str] = ()
    global_batch_size: Sequence[int] = ()
    arch: Sequence[str] = ()
    common: Mapping[str, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether a plan is to look for layouts."""
        split = (self.devices, self.tensor, self.context, self.expert, self.pipeline)
        return any(map(len, (*split, self.virtual_stages, self.micro_batch_size, self.schedule)))


class Machine(NamedTuple):
    """Where layouts may run: an instance type or a cluster of one's own, which has no price, the
    device profile, and the cluster as it was given."""

    instance: Instance
    price_usd_per_h: float
    cluster: Cluster
    device: str
    given: Cluster | str | Path


@dataclasses.dataclass(frozen=True)
class LayoutSpace(Space):
    """Layouts that stand for their kind.

    Attributes
    ----------
    layouts : those of each series that may be chosen; ``rows`` is the number of each candidate
        among them.
    outside : the fastest layouts that do not fit, a few of each series.
    considered : number of possible layouts; memory and a bound of their time rule out most.
    """

    layouts: tuple[Layouts, ...]
    rows: Ids
    outside: tuple[LayoutPoint, ...]
    considered: int

    most_considered: int = dataclasses.field(default=6, kw_only=True)
    most_simulated: int = dataclasses.field(default=3, kw_only=True)

    @property
    def evaluated(self) -> int:
        """Number of layouts evaluated by formulas, or ruled out before."""
        return self.considered

    @property
    def devices(self) -> Ids:
        """Number of devices of each candidate, (candidates,)."""
        return np.array([layouts.job.devices for layouts in self.layouts])[self.of]

    def options(self, index: int) -> dict[str, object]:
        """The layout of a candidate, as arguments of :func:`perfmodel.make_job`."""
        return self.layout(index)

    def layout(self, index: int) -> dict[str, object]:
        """How the devices of a candidate divide the model."""
        return self.layouts[int(self.of[index])].shape_of(int(self.rows[index]))

    def places(self) -> tuple[LayoutPoint, ...]:
        """Where the candidates, and some layouts that do not fit, are on a map."""
        inside = [
            LayoutPoint(
                float(self.worker_bytes[k]), float(self.rate[k]), self.arch(k),
                f"{self.arch(k)}{shape_text(self.layout(k))}", fits=True,
            )
            for k in range(len(self))
        ]  # fmt: skip
        return (*inside, *self.outside)

    def arch(self, index: int) -> str:
        """The architecture of a candidate."""
        return self.layouts[int(self.of[index])].arch[int(self.rows[index])]

    def effort(self, index: int) -> tuple[float, ...]:
        """What people would rather have less of, in this order: nodes, then what complicates a
        layout, then unusual software."""
        layouts, row = self.layouts[int(self.of[index])], int(self.rows[index])
        names = ("pipeline", "virtual_stages", "context", "expert", "tensor")
        sizes = [int(getattr(layouts, name)[row]) for name in names]
        known = ARCHITECTURES.index(layouts.arch[row]) if layouts.arch[row] in ARCHITECTURES else 9
        again = (
            RECOMPUTE.index(layouts.recompute[row]) if layouts.recompute[row] in RECOMPUTE else 9
        )
        kinds = sum(size > 1 for size in sizes)
        return (float(self.nodes[index]), kinds, *map(float, sizes), known, again)

    def job(self, index: int, **common: Unpack[Common]) -> Job:
        """The job of a candidate."""
        layouts = self.layouts[int(self.of[index])]
        arguments = layouts.arguments_of(int(self.rows[index]))
        return layouts.job.with_(**arguments, **common)


def layout_space(
    machines: Sequence[Machine],
    profile: Profile,
    division: Division,
    *,
    most_batch: int | None,
    confidence: float,
    noise: BatchNoise | None = None,
    out: Sequence[str] = (),
) -> LayoutSpace:
    """Evaluate the layouts of a language model on each machine with each number of devices.

    Parameters
    ----------
    most_batch : largest global batch size.
    confidence : probability with which a device's memory suffices.
    noise : what larger batches need more; None for nothing.
    out : machines left out before, and why.

    Raises
    ------
    InputError : no layout is possible, or none fits.
    """
    numbers = ("tensor", "context", "expert", "pipeline", "virtual_stages", "global_batch_size")
    for name in ("devices", *numbers):
        for value in getattr(division, name):
            whole_number(name, value)
    reasons, series, several, parts, rows = list(out), [], [], [], []
    outside, considered = list[LayoutPoint](), 0
    for machine in machines:
        for count in division.devices or (all_devices(machine),):
            try:
                choices = combinations_on(machine, profile, division, count, most_batch)
                possible = Fitting.of(choices, confidence, noise)
                layouts = best_of(choices, possible)
            except InputError as error:
                reasons.append(f"{machine.instance.label}, {count} devices: {error}")
                continue
            fitting = Fitting(layouts, confidence, noise, possible.needs)
            chosen = list(fitting.chosen())
            considered += len(possible.layouts)
            series.append(
                CandidateSeries(machine.instance, machine.price_usd_per_h, layouts.job, "", {})
            )
            several.append(layouts)
            rows += [row for row, _ in chosen]
            parts.append(_columns(layouts, machine, count, chosen))
            outside += outside_of(choices, possible)
    if not parts:
        raise none_left(reasons)
    columns = joined(parts)
    if max(series_layouts.job.devices for series_layouts in several) <= FEW:
        columns |= {"most_considered": 2 * SIMULATED, "most_simulated": SIMULATED}
    return LayoutSpace(
        series=tuple(series), left_out=tuple(reasons), layouts=tuple(several),
        rows=np.array(rows), outside=tuple(outside), considered=considered, **columns,
    )  # fmt: skip


def all_devices(machine: Machine) -> int:
    """Return how many devices a cluster has.

    Raises
    ------
    InputError : it has no number of nodes.
    """
    nodes = machine.cluster.nodes
    if nodes is None:
        raise InputError(f"devices: give how many; {machine.cluster.name!r} has no number of nodes")
    return nodes * machine.cluster.devices_per_node


def combinations_on(
    machine: Machine,
    profile: Profile,
    division: Division,
    count: int,
    most_batch: int | None = None,
) -> Combinations:
    """Return all layouts on a number of devices of a machine, to be evaluated.

    Raises
    ------
    InputError : none is possible.
    """
    decoder = profile.decoder
    if decoder is None:
        raise InputError(f"layouts: {profile.name!r} is not a language model with dimensions")
    per_node = machine.cluster.devices_per_node
    tensor = division.tensor or divisors(math.gcd(per_node, count), per_node)
    most = min(MOST_STAGES, decoder.blocks)
    pipeline = division.pipeline or [1, *(k for k in divisors(count, most) if k > 1)]
    length = division.common.get("sequence_length") or decoder.sequence_length
    tokens = BATCH_TOKENS if count < LARGE else LARGE_BATCH_TOKENS
    batches = division.global_batch_size or (max(tokens // length, 1),)
    if most_batch is not None:
        batches = [min(batch, most_batch) for batch in batches]
    return combinations(
        _base(machine, profile, division, count, tensor, pipeline),
        tensor=tensor,
        context=division.context or _contexts(length, count),
        expert=division.expert or _experts(decoder, count, per_node),
        pipeline=pipeline,
        virtual_stages=division.virtual_stages or CHUNKS,
        schedule=division.schedule,
        micro_batch_size=division.micro_batch_size or MICRO_BATCHES,
        recompute=division.recompute or RECOMPUTE,
        arch=division.arch or ARCHITECTURES,
        global_batch_size=batches,
    )


def _base(
    machine: Machine,
    profile: Profile,
    division: Division,
    count: int,
    tensor: Sequence[int],
    pipeline: Sequence[int],
) -> Job:
    """Return a job with one of these divisions, with tensors if its layers can be divided so.

    Raises
    ------
    InputError : a single device; no job is possible.
    """
    shapes = [(k, 1) for k in sorted(tensor, reverse=True)]
    shapes += [(1, k) for k in (*sorted(pipeline, reverse=True), *range(2, count + 1))]
    why = InputError("layouts: a single device (give devices above 1)")
    for size, stages in shapes:
        if size * stages == 1 or count % (size * stages):
            continue
        try:
            return api.make_job(
                workload=profile, device=machine.device, cluster=machine.given, devices=count,
                tensor=size, pipeline=stages, micro_batches=1, batch_size=1, arch="ring",
                **division.common,
            )  # fmt: skip
        except InputError as error:
            if not str(error).startswith(("tensor: ", "pipeline: ")):
                raise
            why = error
    raise why


def _contexts(length: int, count: int) -> list[int]:
    """Return the devices per sequence: as many as leave ``LEAST_TOKENS`` to each."""
    return divisors(count, max(length // LEAST_TOKENS, 1))


def _experts(decoder: Decoder, count: int, per_node: int) -> list[int]:
    """Return the devices that divide the experts: up to a node, where tokens travel fast."""
    if decoder.experts is None:
        return [1]
    return divisors(math.gcd(decoder.experts.routed, count), per_node)


def _columns(
    layouts: Layouts, machine: Machine, count: int, chosen: Sequence[tuple[int, float]]
) -> Columns:
    """Return the columns of the layouts that stand for their kinds."""
    rows = np.array([row for row, _ in chosen])
    nodes = -(-count // machine.cluster.devices_per_node)
    size = len(rows)
    device_bytes = catalogue.device(layouts.job.workload.device).memory_bytes or math.inf
    return Columns(
        workers=layouts.workers[rows],
        servers=np.zeros(size, np.int64),
        nodes=np.full(size, nodes),
        batch_size=layouts.micro_batches[rows] * layouts.micro_batch_size[rows],
        step_s=layouts.step_s[rows],
        rate=layouts.samples_per_s[rows],
        idle=layouts.bubble_fraction[rows],
        staleness=np.zeros(size),
        price=np.full(size, nodes * machine.price_usd_per_h),
        worker_bytes=np.array([needed for _, needed in chosen]),
        device_bytes=np.full(size, float(device_bytes)),
    )
