"""Sharded data parallel training: optimizer state, gradients and parameters are split (ZeRO)."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic
from perfmodel.architectures.fsdp import order
from perfmodel.architectures.fsdp.formulas import exact, leaves_out, phases
from perfmodel.architectures.fsdp.graph import build
from perfmodel.architectures.fsdp.options import Options
from perfmodel.architectures.memory import Parts, replica_of
from perfmodel.communication.collectives import measured_notes
from perfmodel.communication.groups import Groups, same_place
from perfmodel.communication.reduction import MEASURED_ASSUMPTION
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job


def notes(job: Job) -> tuple[str, ...]:
    """Return notes on accumulation, and on measured collectives that are extrapolated."""
    options = Options.of(job)
    units, share = order.units_in(job), order.sent_share(job)
    sizes = units.bytes * share
    shards, replicas = Groups.of(job.cluster, job.workers, int(options.shards(job.workers)))
    remarks: list[str] = []
    if shards.size > 1 and shards.measured:
        gathered = units.gathered(order.gathered_share(job))
        used = {"all_gather": gathered, "reduce_scatter": sizes}
        remarks += measured_notes(job, used, shards.size)
    if replicas.size > 1 and replicas.measured:
        remarks += measured_notes(job, {"all_reduce": sizes / shards.size}, replicas.size)
    if job.workload.accumulation > 1 and job.workers > 1:
        remarks.append(_accumulated(job))
    return tuple(remarks)


def _accumulated(job: Job) -> str:
    """Return a note on an update of several passes."""
    options, passes = Options.of(job), order.passes_of(job)
    gathered, reduced = order.counts_of(passes, options)
    text = f"accumulation: parameters are gathered {_times(gathered)} per update of "
    text += f"{job.workload.accumulation} passes, gradients reduced {_times(reduced)}"
    if options.no_sync and options.stage > 1:
        text += "; no_sync keeps whole gradients in memory"
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def memory(job: Job) -> Parts:
    """Return the peak memory of a worker by component.

    Each of the n workers of a shard group keeps 1/n of the optimizer state and of the master
    copies. At stage 2 it also keeps only 1/n of the gradients, besides those of one unit being
    reduced. At stage 3 it also keeps only 1/n of the parameters, besides the gathered units: the
    one that computes and those prefetched. Tensors sent in 16 bits are kept in 16 bits while whole;
    parameters in 32 bits are then sharded at stages 1 and 2, too.
    If an update accumulates several passes under no_sync, gradients are whole until the last pass
    reduces them (PyTorch, ``FullyShardedDataParallel.no_sync``).
    """
    options, work = Options.of(job), job.workload
    whole, n, stored = work.gradient_bytes, int(options.shards(job.workers)), work.stored
    units = order.units_in(job)
    largest = float(units.bytes.max()) / whole
    sent = order.sent_share(job) * whole
    kept = replica_of(work, n, sharded=True)
    gathered = 0.0
    gradients, parameters, copies = stored.gradients, stored.parameters, kept.copies_bytes
    if options.stage > 1:
        gradients /= n
        gradient_unit = min(sent, stored.gradients)
        in_flight = min(largest * gradient_unit, stored.gradients - gradients)
        if options.no_sync and work.accumulation > 1:
            in_flight = max(in_flight, gradient_unit - gradients)
        gathered += in_flight
    if options.stage == 3:
        copies -= stored.casts
    elif stored.casts > 0.0 and sent < whole:  # only what is sent in 16 bits is whole
        parameters /= n
    if options.stage == 3 and options.reshard_after_forward:
        parameters /= n
        trained = order.gathered_share(job) * whole
        trained = min(trained, stored.parameters - stored.frozen)
        sizes = np.sort(units.gathered(trained / whole))[::-1]
        unit = float(sizes[: options.prefetch + 1].sum())
        gathered += min(unit, stored.parameters - parameters)
    return Parts(
        msgspec.structs.replace(
            kept,
            parameters_bytes=parameters,
            gradients_bytes=gradients,
            copies_bytes=copies,
            gathered_bytes=gathered,
        )
    )


def _fold(job: Job) -> OpGraph | None:
    """Let one worker represent all if all groups are placed alike on nodes, at one site."""
    size = int(Options.of(job).shards(job.workers))
    same = same_place(job.cluster, job.workers, size)
    apart = job.crosses_sites and size < job.workers
    return build(job, fold=True) if same and not apart else None


def traffic(job: Job) -> Traffic:
    """Return a worker's bytes per update: (n-1)/n of the model in each reduce-scatter and each
    all-gather among n, and 2(r-1)/r of its part of the gradients in all-reduces among r replicas.
    """
    options = Options.of(job)
    n = int(options.shards(job.workers))
    r = job.workers // n
    gathered, reduced = order.counts_of(order.passes_of(job), options)
    sent = job.workload.gradient_bytes * order.sent_share(job)
    whole = job.workload.gradient_bytes * order.gathered_share(job)
    whole += float(order.units_in(job).frozen.sum())
    moved = (gathered * whole + reduced * sent) * (n - 1) / n
    if r > 1:
        moved += reduced * 2 * (r - 1) / r * sent / n
    return Traffic(moved, moved)


ARCHITECTURE = Architecture(
    name="fsdp",
    title="fully sharded data parallel, ZeRO (synchronous, no server)",
    options=Options,
    build=build,
    memory=memory,
    assumptions=(
        "a ring reduce-scatter or all-gather moves (n-1)/n of a unit's bytes over every member's "
        "link, both ways, at the pace of the slowest link",
        "collectives run one at a time, in the order of issue: at stage 3 a unit's gradients are "
        "reduced before any gather issued after them, as in PyTorch",
        "a worker's optimizer updates its own part of the parameters, in 1/n of the time",
        "at stages 1 and 2 all parameters are gathered between the optimizer and the next forward "
        "pass; the two stages take the same time and differ only in memory",
        "a unit that is freed after forward is gathered again for backward, including the last one",
        "with accumulation every pass does so; without reshard_after_forward units stay whole "
        "until gradients are reduced; a pass begins when those of the previous one are reduced",
        "gathered parameters have as many bytes as gradients; both are sent in 16 bits if the "
        "device computes in 16 bits (mixed), as with FSDP's MixedPrecision, and stored in 32; "
        "frozen parameters are gathered at stage 3 as they are stored, and have no gradients",
        "a shard group consists of consecutive workers and does all of the above on its own; then "
        "each worker's part of a unit's gradients is all-reduced on a ring across the groups, in a "
        "separate process group that runs alongside the collectives of the shard groups",
        "parameters and gradients are sent from where they are, unless copy_per_byte_s says how "
        "long a worker copies its shard into a buffer, a gathered unit out of one, and a unit's "
        "gradients into one, between passes, as FSDP2 does; stages of a pipeline compute meanwhile",
        MEASURED_ASSUMPTION,
    ),
    source="Rajbhandari et al., SC 2020, doi 10.1109/SC41405.2020.00024; "
    "Zhao et al., PVLDB 16(12), 2023, doi 10.14778/3611540.3611569",
    aliases={
        "zero1": {"stage": 1},
        "zero2": {"stage": 2},
        "zero3": {"stage": 3},
        "fsdp2": {},
        "full_shard": {"stage": 3, "reshard_after_forward": True},
        "shard_grad_op": {"stage": 3, "reshard_after_forward": False},
        "hsdp": {"shard_group": "node"},
        "hybrid_shard": {"shard_group": "node"},
    },
    fold=_fold,
    notes=notes,
    variants=(
        {"stage": 1, "unit_bytes": 0},
        {"stage": 2},
        {"stage": 3, "unit_bytes": 0},
        {"stage": 3, "unit_bytes": 50, "prefetch": 0, "reduce_per_byte_s": 0.01},
        {"stage": 3, "unit_bytes": 0, "prefetch": 3, "reshard_after_forward": False},
        {"stage": 3, "unit_bytes": 0, "shard_group": 2},
        {"stage": 3, "unit_bytes": 0, "blocking_reduce": True, "gather_8_bits": True},
        {"stage": 3, "unit_bytes": 0, "mixed_precision": False, "no_sync": False},
        {
            "stage": 3,
            "unit_bytes": 0,
            "copy_per_byte_s": 0.02,
            "collective_host_s": 0.05,
            "reshard_after_forward": False,
            "reshard_after_backward": True,
        },
    ),
    traffic=traffic,
    meaning=lambda job, recorder: recorder.replicas(),
    central=True,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
