"""What a device of a stage keeps: its part of the model, and activations of passes in flight.

Every micro-batch whose forward pass is done keeps its activations until its backward pass. How many
there are of each chunk follows from the schedule; memory is largest in one of the backward passes,
whose own tensors come on top (:mod:`perfmodel.inputs.peaks`).

What devices of a tensor-parallel group divide, each keeps a part of: products but their sums,
attention, activations between products, logits and loss; with sequence parallelism everything. Of
parameters, each keeps a part but for norms and position embeddings.

References
----------
Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, arXiv
2205.05198, sections 4.2 and 4.2.3; PyTorch 2.13, ``torch/distributed/pipelining/stage.py`` (buffers
of all micro-batches, outputs kept until backward); Megatron-LM,
``megatron/core/pipeline_parallel/schedules.py`` (outputs freed once they are sent).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.ranges import unchecked
from perfmodel.base.same import SameItems, kept
from perfmodel.inputs.activations import FUSED_LOSS, Peak, Peaks, by_kind, kind_of
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.peaks import further_peak, peaks_of, update_bytes
from perfmodel.inputs.recomputation import KeptSizes, kept_of
from perfmodel.inputs.replica import Replica, ReplicaStage
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.pipelines.facts import stored_versions
from perfmodel.replicas.stage_work import (
    actions_of,
    pass_of,
    schedule_of,
    stages_of,
)
from perfmodel.replicas.stages import blocks_before, chunks_of
from perfmodel.times.tensor_parallel import with_tensors

RECEIVED = "received"
"""Kind of the activations that a stage receives."""

DIVIDED = ("linear", "attention", "activation", "loss", FUSED_LOSS)
"""Kinds of layers whose activations tensor-parallel devices divide, unless they are summed."""

REPLICATED = r".*norm|embedding|router"
"""Pattern of the kinds of layers whose parameters every device keeps, unless outputs are summed."""


class DeviceWork(NamedTuple):
    """A device of a stage: its part of the workload, with activations of all passes in flight; the
    bytes of its buffers for what devices of its replica send to each other; and how many versions
    of its parameters it keeps at a time."""

    workload: Workload
    buffers_bytes: float
    versions: int


class Ends(NamedTuple):
    """What a chunk receives and sends of a micro-batch, per device; 0 at the ends of the model."""

    received: float
    sent: float


class _Chunk(NamedTuple):
    """What a chunk keeps of a micro-batch on a device: in all until its backward pass, and what is
    there besides while a part is computed again; and the moment of its backward pass at which its
    memory is largest."""

    kept: KeptSizes
    bytes: float
    again_bytes: float
    peak: Peak


def device_works(
    whole: Workload, replica: Replica, *, accelerator: bool, most: int | None = None
) -> tuple[DeviceWork, ...]:
    """Return what a device of each stage keeps, or of the first so many.

    Parameters
    ----------
    whole : the workload of the replica.
    accelerator : whether devices are accelerators, see :func:`perfmodel.inputs.peaks.peaks_of`.
    """
    return _device_works(whole, replica, accelerator, most)


@kept(64)
def _device_works(
    whole: Workload, replica: Replica, accelerator: bool, most: int | None
) -> tuple[DeviceWork, ...]:
    """Return what :func:`device_works` does; layouts that differ in architecture share it."""
    layers = pass_of(whole).layers
    chunks = chunks_of(layers, replica)
    schedule = schedule_of(replica, whole.accumulation)
    share = 1.0 / replica.tensor if replica.sequence_parallel else 1.0
    share /= replica.context
    passed = [layers[chunk.stop - 1].passed_on_bytes * share for chunk in chunks[:-1]]
    passed = [0.0, *passed, 0.0]
    blocks = blocks_before(tuple([layer.name for layer in layers]))
    before = [blocks[chunk.start] for chunk in chunks]
    versions = stored_versions(schedule).tolist()
    works = []
    for stage, work in stages_of(whole, replica, most):
        held = schedule.held(stage.number)
        ends = [Ends(passed[chunk], passed[chunk + 1]) for chunk in held]
        part, buffers = _device_work(work, stage, ends, [before[k] for k in held], accelerator)
        works.append(DeviceWork(part, buffers, max(versions[k] for k in held)))
    return tuple(works)


def _device_work(
    work: Workload,
    stage: ReplicaStage,
    ends: Sequence[Ends],
    before: Sequence[int],
    accelerator: bool,
) -> tuple[Workload, float]:
    """Return a device's part of the workload, and the bytes of its buffers."""
    replica, passes = stage.replica, work.accumulation
    first, *rest = one_pass(work).layers
    alike = unchecked(replica, pipeline=1, virtual_stages=1, schedule="", stage_layers=())
    held = _held(
        unchecked(first, forward_s=0.0),  # which has the earlier passes
        SameItems(tuple(rest)),
        alike,
        (stage.chunk_layers, tuple(ends), tuple(before), work.recompute),
    )
    part = _in_flight(with_tensors(work, held.layers), held.chunks, stage, passes)
    peaks = msgspec.structs.replace(part.peaks, update_bytes=update_bytes(part, accelerator))
    endless = schedule_of(replica, passes * stage.copies).updates.kind != "flush"
    buffers = buffers_bytes(ends, replica.pipeline - stage.number if endless else passes, replica)
    return msgspec.structs.replace(part, peaks=peaks), buffers + held.gathered + held.exchanged


class _Held(NamedTuple):
    """What a device of a stage has, however many micro-batches are in flight: its part of the
    layers, which take no time; what its chunks keep; and buffers for what a product gathers, and
    for what devices that divide sequences exchange."""

    layers: tuple[WorkloadLayer, ...]
    chunks: tuple[_Chunk, ...]
    gathered: float
    exchanged: float


@functools.lru_cache(maxsize=256)
def _held(
    first: WorkloadLayer,
    rest: SameItems[WorkloadLayer],
    replica: Replica,
    divided: tuple[tuple[int, ...], tuple[Ends, ...], tuple[int, ...], str],
) -> _Held:
    """Return what a device has of layers that are ``divided`` into chunks of so many, with such
    ends and so many blocks before, and recomputed so. Schedules, numbers of micro-batches and
    architectures have it in common."""
    sizes, ends, before, recompute = divided
    whole = (first, *rest.value)
    layers = tuple(on_device(layer, replica) for layer in whole)
    bounds = np.cumsum([0, *sizes]).tolist()
    chunks = tuple(
        _chunk(layers[start:end], at, blocks, replica, recompute)
        for start, end, at, blocks in zip(bounds, bounds[1:], ends, before, strict=False)
    )
    gathered = 0.0
    if replica.sequence_parallel:  # what a product gathers, once
        gathered = max((layer.forward_summed_bytes for layer in whole), default=0.0)
    return _Held(layers, chunks, gathered, max(_exchanged_bytes(layer, replica) for layer in whole))


def on_device(layer: WorkloadLayer, replica: Replica) -> WorkloadLayer:
    """Return a layer with the bytes of one of the devices that divide it."""
    if replica.tensor == replica.context == 1:
        return layer
    count, share = shares_of(layer, replica)
    return msgspec.structs.replace(
        layer,
        tensor_bytes=tuple(size / count for size in layer.tensor_bytes),
        frozen_bytes=layer.frozen_bytes / count,
        activation_bytes=layer.activation_bytes * share,
        output_bytes=None if layer.output_bytes is None else layer.output_bytes * share,
        temporary_bytes=None if layer.temporary_bytes is None else layer.temporary_bytes * share,
    )


def shares_of(layer: WorkloadLayer, replica: Replica) -> tuple[int, float]:
    """Return how many devices that divide a layer divide its parameters, and which part of its
    activations each of them has."""
    part = 1.0 / replica.context
    summed = layer.forward_summed_bytes > 0.0  # its output is whole on every device
    divides = layer.kind in DIVIDED and not summed
    share = part / replica.tensor if divides or replica.sequence_parallel else part
    return (1 if _replicated(layer.kind) and not summed else replica.tensor), share


@functools.lru_cache(maxsize=256)
def _replicated(kind: str) -> bool:
    return re.match(REPLICATED, kind) is not None


def _exchanged_bytes(layer: WorkloadLayer, replica: Replica) -> float:
    """Return the buffers of what devices that divide sequences exchange in the backward pass of a
    layer: the parts of keys and values that are used and received, or all of them, and as much for
    their gradients; or heads of whole sequences, before and after an all-to-all."""
    if replica.context == 1 or not layer.keys_bytes:
        return 0.0
    part = layer.keys_bytes / replica.context
    whole = (layer.keys_bytes + layer.queries_bytes) / replica.context
    ways = {"ring": 4.0 * part, "all-gather": 2.0 * layer.keys_bytes, "all-to-all": 2.0 * whole}
    return ways.get(replica.context_exchange, 4.0 * part + 2.0 * whole)


def _chunk(
    layers: Sequence[WorkloadLayer], at: Ends, before: int, replica: Replica, recompute: str
) -> _Chunk:
    """Return what a chunk with these layers keeps of a micro-batch."""
    kept, last = kept_of(layers, recompute, before), layers[-1]
    sent = 0.0
    if not replica.asks_as_torch:
        sent = min(at.sent, last.passed_on_bytes)
        kind = kind_of(last.name, last.kind)
        kept = msgspec.structs.replace(
            kept, always=[*kept.always, (RECEIVED, at.received)] + ([(kind, -sent)] if sent else [])
        )
        stays = max(last.activation_bytes - sent, 0.0)
        sized = last.passed_on_bytes
        last = msgspec.structs.replace(last, activation_bytes=stays, output_bytes=sized)
    always, again = (sum(size for _, size in part) for part in (kept.always, kept.again))
    kept_bytes = sum(size for _, size in (*kept.always, *kept.again))
    return _Chunk(kept, always, again, further_peak((*layers[:-1], last), kept_bytes, recompute))


def _in_flight(
    part: Workload, chunks: Sequence[_Chunk], stage: ReplicaStage, passes: int
) -> Workload:
    """Return the workload of a device with the activations of all passes in flight."""
    schedule = schedule_of(stage.replica, passes * stage.copies)
    if passes == schedule.micro_batches == 1:
        always = [size for chunk in chunks for size in chunk.kept.always]
        largest = max(chunks, key=lambda chunk: chunk.again_bytes)
        sized = _with_activations(part, [*always, *largest.kept.again])
        return msgspec.structs.replace(sized, peaks=peaks_of(sized, accelerator=True))
    kind, chunk, *_ = actions_of(schedule, stage.number)
    counts = counts_before(kind, chunk, len(chunks))
    sizes = np.array([one.bytes for one in chunks])
    more = np.array(
        [
            one.peak.activations * (one.bytes + one.again_bytes)
            - one.bytes
            + one.peak.temporary_bytes
            for one in chunks
        ]
    )
    backward = np.flatnonzero((kind == BACKWARD) | (kind == INPUT))
    at = backward[np.argmax((counts[backward] * sizes).sum(axis=1) + more[chunk[backward]])]
    largest = chunks[chunk[at]]
    always = [
        (word, many * size)
        for many, one in zip(counts[at].tolist(), chunks, strict=True)
        for word, size in one.kept.always
    ]
    sized = _with_activations(part, [*always, *largest.kept.again])
    whole = largest.bytes + largest.again_bytes
    absent = (1.0 - largest.peak.activations) * whole
    exists = 1.0 - absent / sized.activation_bytes if sized.activation_bytes else 1.0
    peak = Peak(exists, 1.0, largest.peak.temporary_bytes)
    return msgspec.structs.replace(sized, peaks=Peaks(peak, peak))


def counts_before(kind: Ids, chunk: Ids, chunks: int) -> Ids:
    """Return how many micro-batches of each chunk have activations before each action of a stage,
    (actions, chunks): their forward pass is done, and not the whole of their backward pass."""
    change = np.zeros((len(kind), chunks), np.int64)
    sign = np.where(kind == FORWARD, 1, np.where((kind == BACKWARD) | (kind == WEIGHT), -1, 0))
    change[np.arange(len(kind)), chunk] = sign
    return np.cumsum(change, axis=0) - change


def _with_activations(part: Workload, sizes: Sequence[tuple[str, float]]) -> Workload:
    kinds = by_kind(sizes)
    total = sum(size for _, size in kinds)
    return msgspec.structs.replace(part, activation_bytes=total, activations=kinds)


def buffers_bytes(ends: Sequence[Ends], passes: int, replica: Replica) -> float:
    """Return the buffers for what a device receives from other stages.

    PyTorch has one for each input and each gradient of all micro-batches. With Megatron-LM, inputs
    count as activations; there is one gradient at a time, and one more of each if they are
    received ahead.
    """
    if replica.asks_as_torch:
        return passes * sum(at.received + at.sent for at in ends)
    inputs, gradients = max(at.received for at in ends), max(at.sent for at in ends)
    if replica.transfers == "blocking":
        return gradients
    return inputs + 2.0 * gradients
