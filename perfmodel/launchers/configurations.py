"""Reads configurations of DeepSpeed, Accelerate, Lightning, nanotron and torchtitan.

Their keys are in the documentation of each: DeepSpeed's configuration JSON, ``accelerate config``,
the ``LightningCLI``, nanotron's YAML and torchtitan's ``JobConfig``.
"""

from __future__ import annotations

from perfmodel.launchers.launch import Launch
from perfmodel.launchers.trees import at, count, read

PRECISIONS = {
    **dict.fromkeys(("fp16", "bf16", "float16", "bfloat16", "half"), "mixed"),
    **dict.fromkeys(("16", "16-mixed", "bf16-mixed", "16-true", "bf16-true"), "mixed"),
    **dict.fromkeys(("no", "fp32", "float32", "32", "32-true"), "float32"),
    "fp8": "fp8",
}
"""Precisions here by the words of configurations; others say nothing."""

SHARDED = {
    **dict.fromkeys(("FULL_SHARD", "1"), "fsdp"),
    **dict.fromkeys(("SHARD_GRAD_OP", "2"), "shard_grad_op"),
    **dict.fromkeys(("NO_SHARD", "3"), "ddp"),
    **dict.fromkeys(("HYBRID_SHARD", "4", "HYBRID_SHARD_ZERO2", "5"), "hsdp"),
}
"""Architecture by ``fsdp_sharding_strategy``, by its name or the number of it."""

ZERO = {"0": "ddp", **{str(stage): f"zero{stage}" for stage in (1, 2, 3)}}
"""Architecture by the ZeRO stage."""

OPTIMIZERS = {name: name for name in ("adam", "adamw", "sgd", "lion", "muon")}
"""Optimizers here by the words of configurations, in lower case."""

STRATEGIES = {
    **dict.fromkeys(("ddp", "ddp_find_unused_parameters_true", "ddp_spawn"), "ddp"),
    "fsdp": "fsdp",
    **{f"deepspeed_stage_{stage}": f"zero{stage}" for stage in (1, 2, 3)},
    **{f"deepspeed_stage_{stage}_offload": f"zero{stage}" for stage in (2, 3)},
    "horovod": "horovod",
}
"""Architecture by Lightning's strategy."""


def deepspeed(text: str, name: str) -> Launch:
    """Read a configuration of DeepSpeed; values that are *auto* say nothing.

    Raises
    ------
    InputError : it cannot be read.
    """
    tree = read(text, name)
    stage = at(tree, "zero_optimization", "stage")
    arch = ZERO.get(str(stage or 0))
    values = _batches(
        count(tree, "train_micro_batch_size_per_gpu"),
        count(tree, "gradient_accumulation_steps"),
        count(tree, "train_batch_size"),
    )
    sixteen = any(at(tree, kind, "enabled") is True for kind in ("bf16", "fp16"))
    offload = at(tree, "zero_optimization", "offload_optimizer", "device")
    values |= {
        "arch": arch,
        "precision": "mixed" if sixteen else None,
        "optimizer": _optimizer(at(tree, "optimizer", "type")),
        "offload_optimizer": True if offload in ("cpu", "nvme") else None,
        "tensor": count(tree, "tensor_parallel", "autotp_size"),
    }
    elements = count(tree, "zero_optimization", "reduce_bucket_size")
    if elements is not None and arch in ("ddp", "zero1", "zero2"):
        option = "bucket_cap_bytes" if arch == "ddp" else "unit_bytes"
        values["options"] = {option: float(elements * (2 if sixteen else 4))}
    return Launch("a configuration of DeepSpeed", arguments=_known(values))


def accelerate(text: str, name: str) -> Launch:
    """Read what ``accelerate config`` writes."""
    tree = read(text, name)
    kind = str(at(tree, "distributed_type") or "").rpartition(".")[2].upper()
    values: dict[str, object] = {"precision": _precision(at(tree, "mixed_precision"))}
    values |= _batches(
        None, count(tree, "gradient_accumulation_steps"), None
    )  # its batch size is that of the script
    if kind == "MULTI_GPU":
        values["arch"] = "ddp"
    elif kind == "FSDP":
        shard = str(at(tree, "fsdp_config", "fsdp_sharding_strategy") or "FULL_SHARD")
        values["arch"] = SHARDED.get(shard.upper(), "fsdp")
        if at(tree, "fsdp_config", "fsdp_reshard_after_forward") is False:
            values["arch"] = "shard_grad_op"
    elif kind == "DEEPSPEED":
        stage = at(tree, "deepspeed_config", "zero_stage")
        values["arch"] = ZERO.get(str(stage))
        values |= _batches(
            None, count(tree, "deepspeed_config", "gradient_accumulation_steps"), None
        )
        if at(tree, "deepspeed_config", "offload_optimizer_device") in ("cpu", "nvme"):
            values["offload_optimizer"] = True
    elif kind == "MEGATRON_LM":
        values["arch"] = "ddp"
        values["tensor"] = count(tree, "megatron_lm_config", "megatron_lm_tp_degree")
        values["pipeline"] = count(tree, "megatron_lm_config", "megatron_lm_pp_degree")
    return Launch(
        "a configuration of Accelerate",
        nodes=count(tree, "num_machines"),
        devices=count(tree, "num_processes"),
        arguments=_known(values),
    )


def lightning(text: str, name: str) -> Launch:
    """Read a configuration of the LightningCLI."""
    tree = read(text, name)
    strategy = at(tree, "trainer", "strategy")
    if isinstance(strategy, dict):
        path = str(strategy.get("class_path", "")).rpartition(".")[2].removesuffix("Strategy")
        stage = at(strategy, "init_args", "stage")
        strategy = f"deepspeed_stage_{stage or 2}" if path == "DeepSpeed" else path.lower()
    values = _batches(
        next(
            (
                size
                for path in (("data", "batch_size"), ("data", "init_args", "batch_size"))
                if (size := count(tree, *path))
            ),
            None,
        ),
        count(tree, "trainer", "accumulate_grad_batches"),
        None,
    )
    values |= {
        "arch": STRATEGIES.get(str(strategy)),
        "precision": _precision(at(tree, "trainer", "precision")),
        "offload_optimizer": True if str(strategy).endswith("_offload") else None,
    }
    devices = at(tree, "trainer", "devices")
    per_node = len(devices) if isinstance(devices, list) else count(tree, "trainer", "devices")
    nodes = count(tree, "trainer", "num_nodes") or (1 if per_node else None)
    return Launch("a configuration of Lightning", nodes, per_node, arguments=_known(values))


def nanotron(text: str, name: str) -> Launch:
    """Read a configuration of nanotron."""
    tree = read(text, name)
    values = _batches(
        count(tree, "tokens", "micro_batch_size"),
        count(tree, "tokens", "batch_accumulation_per_replica"),
        None,
    )
    degrees = [count(tree, "parallelism", key) or 1 for key in ("dp", "tp", "pp")]
    zero = at(tree, "optimizer", "zero_stage")
    values |= {
        "arch": ZERO.get(str(zero or 0)),
        "tensor": count(tree, "parallelism", "tp"),
        "pipeline": count(tree, "parallelism", "pp"),
        "sequence_length": count(tree, "tokens", "sequence_length"),
        "precision": _precision(at(tree, "model", "dtype")),
    }
    devices = degrees[0] * degrees[1] * degrees[2]
    return Launch("a configuration of nanotron", devices=devices, arguments=_known(values))


def torchtitan(text: str, name: str) -> Launch:
    """Read a configuration of torchtitan, whose number of devices is that of torchrun."""
    tree = read(text, name)
    degree = at(tree, "parallelism", "data_parallel_shard_degree")
    size = count(tree, "training", "local_batch_size") or count(tree, "training", "batch_size")
    replicas = count(tree, "parallelism", "data_parallel_replicate_degree") or 1
    whole = count(tree, "training", "global_batch_size")
    values = _batches(size, None, whole)
    values |= {
        "arch": "ddp" if degree == 1 else "hsdp" if replicas > 1 else "fsdp",
        "sequence_length": count(tree, "training", "seq_len"),
        "tensor": count(tree, "parallelism", "tensor_parallel_degree"),
        "pipeline": count(tree, "parallelism", "pipeline_parallel_degree"),
        "context": count(tree, "parallelism", "context_parallel_degree"),
        "precision": "mixed",
    }
    return Launch("a configuration of torchtitan", arguments=_known(values))


def _batches(micro: int | None, accumulation: int | None, whole: int | None) -> dict[str, object]:
    """Batch sizes of a job: that of a worker is of all its passes."""
    passes = accumulation or 1
    return {
        "batch_size": micro * passes if micro is not None else None,
        "global_batch_size": whole if micro is None else None,
        "accumulation": accumulation if passes > 1 else None,
    }


def _precision(value: object) -> str | None:
    return PRECISIONS.get("no" if value is False else str(value).lower())


def _optimizer(value: object) -> str | None:
    return OPTIMIZERS.get(str(value).lower().removeprefix("fused"))


def _known(values: dict[str, object]) -> dict[str, object]:
    """Values without those that are not known, or degrees of 1."""
    degrees = ("tensor", "pipeline", "context")
    return {k: v for k, v in values.items() if v is not None and not (k in degrees and v == 1)}
