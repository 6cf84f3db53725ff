"""The least that a device of the first stage allocates, for many layouts at a small part of the
cost.

It keeps its parameters, their copies and the states of the optimizer, of which an architecture
shards what it shards of a whole model; with several micro-batches also gradients; activations of
all micro-batches whose forward pass is done before the first backward pass; and buffers for what
stages send to each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.same import kept
from perfmodel.inputs.job import Job
from perfmodel.inputs.recomputation import ATTENTION, block_of
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.workload import Workload
from perfmodel.predicting.replica_bounds import Least
from perfmodel.predicting.replica_columns import Known
from perfmodel.predicting.replicas import replica_of
from perfmodel.replicas.stage_memory import Ends, buffers_bytes, shares_of

OF_ALL = ("gpipe", "looped_bfs")
"""Schedules whose first backward pass follows all forward passes of a device."""

OF_STAGES = ("1f1b", "zb_h1", "zb_h2", "interleaved_1f1b", "interleaved_zb")
"""Schedules in which the first device has begun as many micro-batches as there are stages before
its first backward pass, of each of its chunks; of the first one, 1F1B one less than twice as
many."""

PART = 1.0 - 1e-6
"""Of the least memory, against rounding."""


class LayerBytes(NamedTuple):
    """Bytes of each layer of a device: of gradients, of what it keeps of a micro-batch, of what is
    there besides while it is computed again, and of what it passes on, (layers,)."""

    gradients: Floats
    kept: Floats
    again: Floats
    outputs: Floats


class First(NamedTuple):
    """Bytes of a device of the first stage: of gradients; of what each of its chunks keeps of a
    micro-batch at least, and of what is there besides while it is computed again; and of its
    buffers for one micro-batch."""

    gradients: float
    kept: float
    again: float
    buffers: float


class States(NamedTuple):
    """What a worker keeps of a model per byte of its gradients: of all but gradients, and of
    gradients."""

    others: float
    gradients: float


def least_kept(least: Least, passes: Ids, known: Known) -> tuple[Floats, Floats]:
    """Return the bytes of the gradients of a device of the first stage, (layouts,), and of the
    activations that it keeps at least with each of its numbers of micro-batches, ``passes``,
    (layouts, numbers); 0 where nothing is known."""
    tensors, kept = np.zeros(len(passes)), np.zeros(passes.shape)
    firsts: dict[Hashable, First] = {}  # schedules share them

    def first(column: int, replica: Replica) -> First:
        key = column, replica.pipeline, replica.virtual_stages, replica.transfers
        if key not in firsts:
            firsts[key] = _of_first(least.columns[column], replica, known)
        return firsts[key]

    for number, replica in enumerate(least.replicas):
        rows = np.flatnonzero(least.replica == number)
        if replica is None or replica.schedule not in (*OF_ALL, *OF_STAGES):
            continue
        columns, at = np.unique(least.column[rows], return_inverse=True)
        sizes = np.array([first(k, replica) for k in columns.tolist()])
        gradients, each, again, buffers = sizes[at].T[..., None]
        tensors[rows] = gradients[:, 0]
        chunks = replica.virtual_stages
        ahead = chunks * passes[rows]
        if replica.schedule in OF_STAGES:
            further = replica.schedule == "interleaved_1f1b" and chunks > 1
            begun = chunks * replica.pipeline + (replica.pipeline - 1) * further
            ahead = np.minimum(ahead, begun)
        turns = passes[rows] if replica.asks_as_torch else np.ones_like(passes[rows])
        kept[rows] = ahead * each + again + turns * buffers
    return tensors, kept


def _of_first(job: Job, replica: Replica, known: Known) -> First:
    """Return the bytes of a device of the first stage."""
    layers, divided = _layers(job.workload, replica_of(job)), replica_of(job)
    chunks = known.chunks_of(job, replica)
    held = [slice(one.start, one.stop) for one in chunks[:: replica.pipeline]]
    outputs = layers.outputs[[one.stop - 1 for one in chunks]]
    sent = [0.0 if replica.asks_as_torch else size for size in outputs[:: replica.pipeline]]
    share = 1.0 / divided.tensor if divided.sequence_parallel else 1.0
    passed = [job.workload.layers[one.stop - 1].passed_on_bytes for one in chunks[:-1]]
    passed = [0.0, *(size * share / divided.context for size in passed), 0.0]
    ends = [Ends(passed[k], passed[k + 1]) for k in range(0, len(chunks), replica.pipeline)]
    return First(
        sum(float(layers.gradients[one].sum()) for one in held),
        min(float(layers.kept[one].sum() - out) for one, out in zip(held, sent, strict=True)),
        min(float(layers.again[one].max()) for one in held),
        buffers_bytes(ends, 1, replica),
    )


@kept(512)
def _layers(work: Workload, replica: Replica) -> LayerBytes:
    """Return the layers of one micro-batch on a device."""
    known: dict[tuple[str, bool], tuple[int, float]] = {}
    for layer in work.layers:
        key = layer.kind, layer.forward_summed_bytes > 0.0
        if key not in known:
            known[key] = shares_of(layer, replica)
    shares = [known[layer.kind, layer.forward_summed_bytes > 0.0] for layer in work.layers]
    count, activation = np.array(shares).T
    gradients = [sum(layer.tensor_bytes) for layer in work.layers] / count
    whole = activation * [layer.activation_bytes for layer in work.layers]
    outputs = activation * [layer.passed_on_bytes for layer in work.layers]
    kept = again = np.zeros(len(whole))
    if work.recompute == "none":
        kept = whole
    elif work.recompute == "selective":
        core = [layer.kind == ATTENTION for layer in work.layers]
        kept, again = np.where(core, outputs, whole), np.where(core, whole - outputs, 0.0)
    elif work.recompute == "full":
        blocks = np.array([block_of(layer) for layer in work.layers])
        ends = np.flatnonzero(np.append(blocks[1:] != blocks[:-1], True))
        kept = np.where(blocks == "", whole, 0.0)
        inside = ends[blocks[ends] != ""]
        kept[inside] = outputs[inside]
        again = np.zeros(len(whole))
        again[ends] = np.diff(np.cumsum(whole)[ends], prepend=0.0)
        again[blocks == ""] = 0.0
    return LayerBytes(gradients, kept, again, outputs)


def states_of(job: Job, known: Known) -> States:
    """Return what a worker of a job keeps of a model."""
    if job.workload.frozen_bytes > 0.0:
        return States(0.0, 0.0)
    cluster = job.cluster if job.replica is None else known.first_seats(job).cluster
    alone = msgspec.structs.replace(
        job, workers=job.workers * job.context_workers, replica=None, stragglers=(),
        options=job.options.among(job.context_workers), given=None, cluster=cluster,
    )  # fmt: skip
    worker, whole = architecture_of(alone).memory(alone).worker, alone.workload.gradient_bytes
    others = worker.parameters_bytes + worker.optimizer_states_bytes + worker.copies_bytes
    return States(others / whole, worker.gradients_bytes / whole)


def least_allocated(
    tensors: Floats, kept: Floats, passes: Ids, states: Sequence[States], of: Ids
) -> Floats:
    """Return the least that a device of the first stage allocates, of layouts that keep of a model
    what ``states`` says, ``of`` (layouts,) being which of them, (layouts,)."""
    others, gradients = np.array(states).T
    each = others[of] + gradients[of] * (passes > 1)
    return np.asarray(PART * (tensors * each + kept))
