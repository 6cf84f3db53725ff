"""Units of layers that are gathered together, and the order in which collectives are issued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.fsdp.options import Options
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.same import kept
from perfmodel.inputs.job import Job
from perfmodel.inputs.precisions import EIGHT_BITS, SHORT
from perfmodel.inputs.workload import Workload, WorkloadLayer, expanded
from perfmodel.theory.buckets import ddp_buckets


class Units(msgspec.Struct, frozen=True, eq=False):
    """Groups of consecutive layers whose parameters are gathered together, in forward order.

    All of shape (units,): ``bytes`` that are trained, and ``frozen`` bytes as stored; the ``first``
    and the ``last`` layer with parameters that are trained.
    """

    bytes: Floats
    frozen: Floats
    first: Ids
    last: Ids

    def gathered(self, sent_share: float) -> Floats:
        """Return the bytes of each unit that are gathered, (units,), if of those that are trained a
        share is sent."""
        return self.bytes * sent_share + self.frozen


def units_of(workload: Workload, unit_bytes: float, stage: int = 3) -> Units:
    """Group a workload's layers; a layer that brings its unit to the full size closes it.

    At stage 3 units have frozen parameters, too. Those of layers without others belong to the
    preceding layer, or to the first.
    """
    return _grouped(expanded(workload).layers, unit_bytes, stage)


@kept(256)
def _grouped(layers: tuple[WorkloadLayer, ...], unit_bytes: float, stage: int) -> Units:
    """Group layers; see :func:`units_of`."""
    index: list[int] = []
    sizes: list[float] = []
    frozen: list[float] = []
    before = 0.0
    for number, layer in enumerate(layers):
        held = layer.frozen_bytes if stage == 3 else 0.0
        if layer.tensor_bytes:
            index.append(number)
            sizes.append(sum(layer.tensor_bytes))
            frozen.append(held + before)
            before = 0.0
        elif frozen:
            frozen[-1] += held
        else:
            before += held
    groups = ddp_buckets(
        np.add(sizes, frozen).tolist(), cap_bytes=unit_bytes, first_cap_bytes=unit_bytes
    )
    return Units(
        bytes=np.array([sum(sizes[k] for k in group) for group in groups]),
        frozen=np.array([sum(frozen[k] for k in group) for group in groups]),
        first=np.array([index[group[0]] for group in groups]),
        last=np.array([index[group[-1]] for group in groups]),
    )


def units_in(job: Job) -> Units:
    """Return the units of a job."""
    options = Options.of(job)
    return units_of(job.workload, options.unit_bytes, options.stage)


def sent_share(job: Job) -> float:
    """Return the bytes of a parameter when sent, relative to its bytes when stored."""
    low = Options.of(job).mixed_precision and job.workload.precision in SHORT
    return 0.5 if low else 1.0


def gathered_share(job: Job) -> float:
    """Return the bytes of a parameter when gathered, relative to its bytes when stored.

    References
    ----------
    torchao, ``torchao/float8/fsdp_utils.py`` (``enable_fsdp_float8_all_gather``); Megatron-LM,
    ``fp8_param_gather``.
    """
    short = Options.of(job).gather_8_bits and job.workload.precision in EIGHT_BITS
    return 0.25 if short else sent_share(job)


class Issue(NamedTuple):
    """A collective of stage 3 in the order of issue: an all-gather or a reduce-scatter, with its
    ``number`` among those of its kind, issued once computation ``after`` has ended (-1: none)."""

    gather: bool
    number: int
    after: int


def issue_order(units: int, options: Options) -> list[Issue]:
    """Return the order in which PyTorch's FSDP issues the collectives of a stage-3 iteration.

    Computations are numbered: the forward passes of all units and then, in reverse order, their
    backward passes. All-gather k belongs to computation k, and reduce-scatter k follows backward
    pass units + k. An all-gather is issued ``prefetch`` + 1 computations before its own
    (:meth:`Options.ahead`), once its unit has been freed. After a unit's backward pass its
    gradients are reduced before the next unit is gathered, because its post-backward hook runs
    before the pre-backward hook of the next unit, which gathers and prefetches
    (torch/distributed/fsdp: ``_runtime_utils.py``,
    ``_fully_shard/_fsdp_param_group.py``; BackwardPrefetch.BACKWARD_PRE). The collectives of one
    process group run one after the other in the order of issue, whatever their streams.
    """
    gathers = 2 * units if options.reshard_after_forward else units
    freed, ahead = [-1] * units + [units - 1] * units, options.ahead(units)
    issues = [Issue(True, k, max(k - ahead[k] - 1, freed[k])) for k in range(gathers)]
    issues += [Issue(False, k, units + k) for k in range(units)]
    return sorted(issues, key=lambda issue: (issue.after, issue.gather, issue.number))


class Around(NamedTuple):
    """Seconds of a worker around each gather and each reduction of a unit, (units,) each: in the
    order of gathers, and in that of units."""

    gathers: Floats
    reductions: Floats


def around(job: Job) -> Around | None:
    """Return what a worker's copies and its host take around collectives; None for nothing.

    FSDP2 copies a worker's shards into one buffer, gathers there, and copies each parameter out of
    it before it is used; and it copies the gradients of a unit into one buffer that is reduced
    (torch/distributed/fsdp, ``_fully_shard/_fsdp_collectives.py``: ``all_gather_copy_in``,
    ``foreach_all_gather_copy_out``, ``foreach_reduce_scatter_copy_in``). FSDP1 keeps a unit's
    parameters and gradients in one tensor each, of which they are views.
    """
    options, units = Options.of(job), units_in(job)
    if not options.copies:
        return None
    shards = options.shards(job.workers)
    gathered, reduced = units.gathered(gathered_share(job)), units.bytes * sent_share(job)
    return Around(
        np.array([options.around_gather_s(size, shards) for size in gathered.tolist()]),
        np.array([options.around_reduction_s(size) for size in reduced.tolist()]),
    )


class PassCollectives(NamedTuple):
    """The collectives of one pass of an update: whether parameters are gathered before they are
    used, whether they are gathered ``again`` for backward, and whether gradients are reduced."""

    gathered: bool
    again: bool
    reduced: bool


def passes_of(job: Job) -> list[PassCollectives]:
    """Return the passes of an update, in order; one if only its last pass communicates.

    At stage 3 each pass gathers the parameters that it needs. With no_sync, units that are not
    freed after forward are not freed after backward either, until gradients are reduced
    (torch/distributed/fsdp: ``_runtime_utils.py``, ``_should_free_in_backward``), so that later
    passes need not gather them; FSDP2 frees them in each pass unless told otherwise
    (``_fully_shard/_fsdp_param_group.py``, ``post_backward``). At stages 1 and 2 parameters
    are gathered once per update, outside of its passes.
    """
    options, count = Options.of(job), job.workload.accumulation
    again = not options.no_sync or options.reshard_after_backward
    sharded, freed = options.stage == 3, options.stage == 3 and options.reshard_after_forward
    if count == 1 or (options.no_sync and not sharded):
        return [PassCollectives(sharded, freed, reduced=True)]
    return [
        PassCollectives(
            gathered=sharded and (freed or again or number == 0),
            again=freed,
            reduced=not options.no_sync or number == count - 1,
        )
        for number in range(count)
    ]


def issued_in(one: PassCollectives, units: int, options: Options) -> list[Issue]:
    """Return the collectives that a pass of stage 3 issues, in order."""
    return [
        issue
        for issue in issue_order(units, options)
        if (one.gathered if issue.gather else one.reduced)
    ]


def counts_of(passes: Sequence[PassCollectives], options: Options) -> tuple[int, int]:
    """Return how often all parameters are gathered, and all gradients reduced, per update."""
    gathered = sum(one.gathered + one.again for one in passes)
    return gathered if options.stage == 3 else 1, sum(one.reduced for one in passes)
