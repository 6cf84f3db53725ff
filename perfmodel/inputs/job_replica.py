"""The replicas of a job, and the arguments that define them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base import files
from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.expert_parallel import OF_EXPERTS, experts_of
from perfmodel.inputs.replica import Replica, Transfers, read_stage_layers

OF_CONTEXT = ("context", "context_exchange", "context_inside", "context_split")
"""Arguments of :func:`perfmodel.make_job` about devices that divide sequences."""

OF_REPLICA = (
    *("tensor", *OF_CONTEXT),
    *("pipeline", "virtual_stages", "schedule", "stage_layers", "balance"),
    *("sequence_parallel", "overlap_sums", "transfers", "rank_order"),
    *OF_EXPERTS,
)
"""Arguments of :func:`perfmodel.make_job` that define a replica."""

SIZES = ("tensor", "context", "pipeline")
"""Those that are numbers of devices."""

MEGATRON = ("megatron", "megatron-lm", "megatron-core", "nemo")
"""Frameworks that send and sum as Megatron-LM does."""

ONEFLOW = ("oneflow", "libai")
"""OneFlow, and a framework built on it."""

INTERLEAVED = "interleaved_1f1b"
"""Default schedule with several chunks per stage."""

AHEAD = {
    **dict.fromkeys(
        ("pipedream", "pipedream_2bw"), "PipeDream sends and receives in threads of its own"
    ),
    "dualpipe": "DualPipe hides what stages send to each other",
}
"""Schedules whose authors send ahead and wait for nothing, each with the reason.

msr-fiddle/pipedream, ``runtime/communication.py``; DeepSeek-V3 Technical Report, section 3.2.1.
"""


def replica_of(arguments: Mapping[str, Any]) -> tuple[Replica | None, list[Assumption]]:
    """Return what a worker is made of; None for a single device.

    Raises
    ------
    InputError : an argument is out of range, or needs another.
    """
    given = {name: arguments[name] for name in OF_REPLICA if arguments.get(name) is not None}
    if not given:
        return None, []
    tensor, pipeline = given.get("tensor", 1), given.get("pipeline", 1)
    alone = all(whole_number(name, given.get(name, 1)) == 1 for name in SIZES)
    experts = experts_of(given, tensor)
    given = {name: value for name, value in given.items() if name not in OF_EXPERTS}
    if alone:
        others = [name for name in given if name not in SIZES]
        if others:
            raise InputError(f"{', '.join(others)}: need tensor, context or pipeline above 1")
        if experts is None:
            return None, []
    if experts is not None:
        if tensor > 1 and not given.get("sequence_parallel"):
            raise InputError("expert: needs sequence_parallel with tensor parallelism")
        given["experts"] = experts
    if any(arguments.get(name) is not None for name in ("island_devices", "island_steps")):
        raise InputError("island_devices, island_steps: a replica cannot be an island as well")
    notes = []
    if "rank_order" in given:
        given["order"] = given.pop("rank_order")
    if "stage_layers" in given:
        given["stage_layers"] = read_stage_layers(given["stage_layers"])
    if "schedule" not in given and pipeline > 1:
        several = given.get("virtual_stages", 1) > 1
        given["schedule"] = INTERLEAVED if several else "1f1b"
        notes.append(Assumption("schedule", given["schedule"], "", "default of pipelines"))
    notes += _as_megatron(given) if is_megatron(arguments) else []
    if "schedule" in given and not files.looks_like_path(given["schedule"]):
        from perfmodel.pipelines import canonical

        given["schedule"] = canonical(given["schedule"])
    if given.get("schedule") in AHEAD and "transfers" not in given:
        given["transfers"] = "ahead"
        notes.append(Assumption("transfers", "ahead", "", AHEAD[given["schedule"]]))
    return Replica(**given), notes


def is_megatron(arguments: Mapping[str, object]) -> bool:
    """Return whether a job's framework is Megatron-LM or built on it."""
    return _family(arguments) in MEGATRON


def _family(arguments: Mapping[str, object]) -> str:
    """Return the name of a job's framework, without its version."""
    return str(arguments.get("framework")).lower().partition(" ")[0]


def sends_in_place(arguments: Mapping[str, object]) -> bool:
    """Return whether a job's framework exchanges gradients where they are computed.

    Gradients of Megatron-LM are computed in the buffer that is sent
    (``gradient_accumulation_fusion``). OneFlow compiles the exchange into its graph: on eight V100,
    a step of BERT-base without clipping takes it 6 to 8 ms longer than on one, of which devices
    that slow each other down are 6 to 17 ms, at 0.44 GB of gradients (DLPerf of Oneflow-Inc, test
    report v1).
    """
    return is_megatron(arguments) or _family(arguments) in ONEFLOW


def transfers_of_megatron(chunks: int) -> Transfers:
    """Return how Megatron-LM hands over between stages of so many chunks each."""
    return "ahead" if chunks > 1 else "blocking"


def _as_megatron(given: dict[str, Any]) -> list[Assumption]:
    """Add what Megatron-LM does where it is not given, and return assumptions about that.

    References
    ----------
    Megatron-LM: ``forward_backward_pipelining_without_interleaving``, ``overlap_p2p_comm`` and
    ``async_tensor_model_parallel_allreduce`` of ``ModelParallelConfig``; torchtitan uses
    torch.distributed.pipelining.
    """
    usual: dict[str, Any] = {"transfers": transfers_of_megatron(given.get("virtual_stages", 1))}
    if given.get("tensor", 1) > 1 and not given.get("sequence_parallel"):
        usual["overlap_sums"] = True
    added = {name: value for name, value in usual.items() if name not in given}
    given.update(added)
    return [Assumption(name, value, "", "as in Megatron-LM") for name, value in added.items()]


def with_passes(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[Assumption]]:
    """Return arguments with ``accumulation`` for ``micro_batches`` and ``workers`` for ``devices``.

    The default number of micro-batches in a pipeline is one for each sample.

    Raises
    ------
    InputError : two arguments contradict each other; devices do not form whole replicas.
    """
    given = dict(arguments)
    if given.get("devices") is not None:
        given["workers"] = workers_of(given)
    given.pop("devices", None)
    if (passes := given.pop("micro_batches", None)) is not None:
        if given.get("accumulation") not in (None, passes):
            raise InputError("accumulation and micro_batches: give one of them")
        given["accumulation"] = whole_number("micro_batches", passes)
    notes = []
    stages = given.get("pipeline", 1)
    resolved = given.get("accumulation") is not None or given.get("workload") is not None
    if _whole(given) and stages > 1 and not resolved:
        if _updates_after_each(given):
            given["accumulation"] = 1
            notes.append(Assumption("micro_batches", 1, "", "PipeDream updates after each"))
            return given, notes
        batch = given.setdefault("batch_size", 4 * stages)
        given["accumulation"] = batch
        why = "default of pipelines: one sample each"
        notes.append(Assumption("micro_batches", batch, "", why))
    return given, notes


def _updates_after_each(given: Mapping[str, object]) -> bool:
    """Return whether stages update after each micro-batch."""
    name = given.get("schedule")
    if not isinstance(name, str) or files.looks_like_path(name):
        return False
    from perfmodel.pipelines import canonical

    return canonical(name) == "pipedream"


def workers_of(arguments: Mapping[str, Any]) -> int:
    """Return the number of workers, which may be given as the number of their ``devices``.

    Raises
    ------
    InputError : both are given, or the devices do not form whole replicas.
    """
    devices, workers = arguments.get("devices"), arguments.get("workers")
    if devices is None:
        return whole_number("workers", 1 if workers is None else workers)
    if workers is not None:
        raise InputError("workers and devices: give one of them")
    size, count = 1, whole_number("devices", devices)
    for name in SIZES if _whole(arguments) else ():
        size *= arguments.get(name, 1)
    if count % size:
        low = count // size * size
        near = f"{low} or {low + size}" if low else f"{size}"
        raise InputError(
            f"devices: {devices} do not form whole replicas of {size} (possible: {near})"
        )
    return count // size


def _whole(given: Mapping[str, object]) -> bool:
    """Return whether the sizes of replicas are whole numbers, as :func:`replica_of` will check."""
    return all(isinstance(given.get(name, 1), int) for name in SIZES)
