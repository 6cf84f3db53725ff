"""Layers of a job that are joined to blocks: what a few of many workers have."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.replica import ReplicaStage, RoutedLayers, Sums, total
from perfmodel.inputs.workload import WorkloadLayer, expanded

BLOCKS = 4
"""Blocks that layers are joined to in a graph of a few of many workers that go on in step."""


def in_blocks(job: Job, count: int) -> Job:
    """Return a job whose layers, or those of each chunk of a stage, are joined to at most so many.

    What the devices of a stage exchange after each layer follows its block. The job stays as it is
    if it is of replicas, or if passes do not vary as a whole.
    """
    if job.replica is not None or not _as_a_whole(job):
        return job
    whole, stage = expanded(job.workload), job.stage
    seconds = [layer.forward_s + layer.backward_s for layer in one_pass(whole).layers]
    if stage is None:
        block = _blocks_of(whole.layers, count, seconds)
        layers = _joined(whole.layers, block)
        return msgspec.structs.replace(job, workload=msgspec.structs.replace(whole, layers=layers))
    ends = itertools.accumulate(stage.chunk_layers)
    parts = [slice(end - n, end) for end, n in zip(ends, stage.chunk_layers, strict=True)]
    chunks = [_blocks_of(whole.layers[part], count, seconds[part]) for part in parts]
    sizes = tuple(int(own[-1]) + 1 for own in chunks)
    block = np.concatenate([sum(sizes[:k]) + own for k, own in enumerate(chunks)])
    return msgspec.structs.replace(
        job,
        workload=msgspec.structs.replace(whole, layers=_joined(whole.layers, block)),
        stage=_of_blocks(stage, sizes, block),
    )


def _as_a_whole(job: Job) -> bool:
    """Return whether a pass varies as a whole, and no layer waits for copies to the host."""
    of_ops = job.jitter is not None and job.jitter.scope == "op"
    return not of_ops and job.workload.packing is None and not job.workload.storage.offload


def _blocks_of(layers: Sequence[WorkloadLayer], count: int, seconds: Sequence[float]) -> Ids:
    """Return the block of each layer, (layers,): at most so many, of about equal parts of their
    ``seconds``, (layers,), and of the gradients."""
    sizes = np.array([sum(layer.tensor_bytes) for layer in layers])
    weights = sizes, np.array(seconds)
    part = sum(some / max(float(some.sum()), 1e-300) / 2.0 for some in weights)
    block = np.minimum((np.cumsum(part) - part / 2.0) * count, count - 1).astype(np.int64)
    return np.asarray(np.unique(block, return_inverse=True)[1], np.int64)


def _joined(layers: Sequence[WorkloadLayer], block: Ids) -> tuple[WorkloadLayer, ...]:
    """Return a layer for each ``block``, (layers,). Tensors keep their order."""
    parts = [layers[part] for part in _parts(block)]
    return tuple(
        WorkloadLayer(
            of[0].name if len(of) == 1 else f"{of[0].name} to {of[-1].name}",
            sum(layer.forward_s for layer in of),
            sum(layer.backward_s for layer in of),
            tuple(size for layer in of for size in layer.tensor_bytes),
            weight_gradient_s=sum(layer.of_weights_s for layer in of),
        )
        for of in parts
    )


def _of_blocks(stage: ReplicaStage, sizes: tuple[int, ...], block: Ids) -> ReplicaStage:
    """Return a stage with chunks of these ``sizes``, whose layers are blocks, (layers,)."""
    parts, tied, routing = _parts(block), stage.tied, stage.routing

    def sums(of: Sequence[Sums]) -> tuple[Sums, ...]:
        return tuple(total(of[part]) for part in parts) if of else ()

    def seconds(of: Sequence[float]) -> tuple[float, ...]:
        return tuple(sum(of[part]) for part in parts) if of else ()

    if tied is not None:
        tied = msgspec.structs.replace(tied, layer=int(block[tied.layer]))
    if routing is not None:
        routing = RoutedLayers(
            routing.workers,
            sums(routing.forward),
            sums(routing.backward),
            seconds(routing.forward_waits_s),
            seconds(routing.backward_waits_s),
        )
    return msgspec.structs.replace(
        stage,
        chunk_layers=sizes,
        forward_sums=sums(stage.forward_sums),
        backward_sums=sums(stage.backward_sums),
        forward_exchanges=sums(stage.forward_exchanges),
        backward_exchanges=sums(stage.backward_exchanges),
        forward_waits_s=seconds(stage.forward_waits_s),
        backward_waits_s=seconds(stage.backward_waits_s),
        gradient_sums=sums(stage.gradient_sums),
        tied=tied,
        routing=routing,
    )


def _parts(block: Ids) -> list[slice]:
    """Return the layers of each block, which are in a row."""
    ends = (np.flatnonzero(np.diff(block)) + 1).tolist()
    return [slice(*ends) for ends in itertools.pairwise([0, *ends, len(block)])]
