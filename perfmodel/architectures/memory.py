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


def replica_of(
    work: Workload, shards: int = 1, *, updates: bool = True, sharded: bool = False
) -> Footprint:
    """Return the memory of a replica when it is largest: in the backward pass or the update.

    ``shards`` of them share optimizer states and masters. If another process ``updates`` the model,
    it has none. Gradients appear during the backward pass, unless they add to those of an earlier
    pass. Frameworks for ``sharded`` models (DeepSpeed, Megatron-LM) keep them in buffers, and
    update the model without temporary copies of states; copies of gradients depend on the policy.
    """
    stored, offload = work.stored, work.storage.offload
    states = stored.states / shards if updates else 0.0
    masters = stored.masters / shards if updates else 0.0
    stays = sharded or work.accumulation > 1
    peak = work.peaks.further if stays else work.peaks.first
    kept = peak.activations * work.activation_bytes
    appeared = stored.gradients * (1.0 if stays else peak.gradients)
    copies = 0.0 if sharded or offload else work.peaks.update_bytes / shards
    copies += 0.0 if offload else stored.updating / shards
    copies = copies if updates else 0.0
    if kept + appeared + peak.temporary_bytes >= stored.gradients + copies:
        temporary = peak.temporary_bytes
        absent = {
            "activations": work.activation_bytes - kept,
            "gradients": stored.gradients - appeared,
        }
    else:  # in the update
        temporary, absent = copies, {"activations": work.activation_bytes}
    activations = activations_of(work)
    logits = activations.pop(LOGITS, 0.0)
    return Footprint(
        parameters_bytes=stored.parameters,
        gradients_bytes=stored.gradients,
        optimizer_states_bytes=0.0 if offload else states,
        copies_bytes=stored.casts + (0.0 if offload else masters),
        activations_bytes=activations,
        logits_bytes=logits,
        temporary_bytes=temporary,
        absent_bytes={name: size for name, size in absent.items() if size > 0.0},
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
