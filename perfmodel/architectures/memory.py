"""Memory of a worker that is a replica of the model, which architectures change."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perfmodel.inputs.activations import LOGITS
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import Workload
from perfmodel.results.memory import Footprint


class Parts(NamedTuple):
    """Memory of a worker, and of the fullest server (None without servers)."""

    worker: Footprint
    server: Footprint | None = None


def replica(job: Job) -> Parts:
    """Return the memory of a worker that keeps all of the model and of the optimizer's state."""
    return Parts(replica_of(job.workload))


def replica_of(work: Workload, shards: int = 1) -> Footprint:
    """Return the memory of a replica; ``shards`` of them share optimizer states and masters."""
    stored, offload = work.stored, work.storage.offload
    states, masters = stored.states / shards, stored.masters / shards
    activations = activations_of(work)
    logits = activations.pop(LOGITS, 0.0)
    return Footprint(
        parameters_bytes=stored.parameters,
        gradients_bytes=stored.gradients,
        optimizer_states_bytes=0.0 if offload else states,
        copies_bytes=stored.casts + (0.0 if offload else masters),
        activations_bytes=activations,
        logits_bytes=logits,
        module_buffers_bytes=work.buffer_bytes,
        host_bytes=states + masters if offload else 0.0,
    )


def activations_of(work: Workload) -> dict[str, float]:
    """Return the bytes of the activations of a workload by kind of layer."""
    if work.activation_bytes == 0.0:
        return {}
    whole = sum(size for _, size in work.activations)
    if whole == 0.0:
        return {"other": work.activation_bytes}
    return {kind: size * (work.activation_bytes / whole) for kind, size in work.activations}


def with_copies(footprint: Footprint, **copies: float) -> Footprint:
    """Return a footprint with further copies of the model, by name with _ for spaces."""
    named = {name.replace("_", " "): size for name, size in copies.items() if size > 0.0}
    kept = {**footprint.model_copies_bytes, **named}
    return msgspec.structs.replace(footprint, model_copies_bytes=kept)


def without_optimizer(footprint: Footprint, masters: float) -> Footprint:
    """Return the footprint of a worker whose servers run the optimizer, with its ``masters``."""
    return msgspec.structs.replace(
        footprint,
        optimizer_states_bytes=0.0,
        copies_bytes=footprint.copies_bytes - (masters if footprint.host_bytes == 0.0 else 0.0),
        host_bytes=0.0,
    )
