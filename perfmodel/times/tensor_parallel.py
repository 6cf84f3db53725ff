"""Layers of language models that several devices divide between them (tensor parallelism).

The products of a block are divided by columns and then by rows, so that the devices sum only its
two outputs in forward, and its two inputs in backward. The vocabulary is divided as well: look-ups
are summed in forward, and the gradient of the last block's output in backward.

References
----------
Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
parallelism", 2019, arXiv 1909.08053, section 3; Korthikanti et al., "Reducing activation
recomputation in large transformer models", 2022, arXiv 2205.05198, section 4.2.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.same import Same
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.decoder_parts import COMBINE, DISPATCH, ROUTER
from perfmodel.inputs.device import Device
from perfmodel.inputs.expert_parallel import (
    ExpertParallel,
    Routed,
    check_decoder,
    is_of_experts,
)
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.precisions import SHORT
from perfmodel.inputs.profile import Layer
from perfmodel.inputs.recomputation import block_named
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.software import EAGER, launch_s
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.times.context_parallel import exchanged_by_name, part_layers
from perfmodel.times.operator_times import kernels_of, layers_s, most_kernels_of
from perfmodel.times.slow_hosts import slowest_launch_s, slowest_s

FORWARD_SUMS = (".attention.out", ".feed_forward.down", ".shared.down", ".combine", "embedding")
BACKWARD_SUMS = (".attention.qkv", ".feed_forward.up", ".shared.up", ".router", "head")
"""Ends of the names of layers whose outputs, or the gradients of whose inputs, are summed."""

WHOLE = ("layernorm", "sum", ROUTER, DISPATCH, COMBINE)
"""Kinds of layers that every device computes in full, unless they are divided along the
sequence."""


def divided(
    workload: Workload,
    replica: Replica,
    *,
    decoder: Decoder | None,
    devices: Mapping[str, Device],
    launches: str = EAGER,
) -> Workload:
    """Return a workload with the times of one of the devices that divide its layers, and its
    sequences (:mod:`perfmodel.times.context_parallel`).

    Times change as those of the operators of layers of a ``decoder`` do; bytes stay those of all
    devices together. A workload whose layers say what is summed, or the size of keys, has the times
    of one device already.

    Parameters
    ----------
    devices : all of them by name.
    launches : how the host launches operators. They take it as long on each of the devices as on
        one (:func:`perfmodel.inputs.software.launch_s`), and their sums are launched as well.

    Raises
    ------
    InputError : a layer says nothing, and the model is not a language model with given dimensions;
        the devices cannot divide its heads or its sequences.
    """
    tensor, context, experts = replica.tensor, replica.context, replica.experts
    if experts is not None:
        check_decoder(experts, decoder, workload.name)
    elif tensor == context == 1:
        return workload
    one = one_pass(workload)
    layers, slow_host = one.layers, one.slow_host
    summed = any(layer.forward_summed_bytes or layer.backward_summed_bytes for layer in layers)
    exchanged = any(layer.keys_bytes for layer in layers)
    missing = {}
    if tensor > 1 and not summed:
        missing["tensor"] = "what devices sum (forward_summed_bytes)"
    if context > 1 and not exchanged:
        missing["context"] = "the size of keys (keys_bytes)"
    if experts is not None:
        missing["expert"] = "what experts compute"
    if missing:
        if decoder is None or len(layers) < decoder.blocks:
            name, what = next(iter(missing.items()))
            raise InputError(
                f"{name}: the layers of {workload.name!r} do not say {what}, and it is not a "
                "language model with given dimensions"
            )
        layers = _divided(one, replica, decoder, devices)
        length = one.sequence_length or decoder.sequence_length
        part = part_layers(decoder, length, one.precision, replica)
        layers, slow_host = launched(one, layers, *_kernels(Same(part)), launches)
    made = msgspec.structs.replace(
        with_tensors(one, layers) if experts is not None else one,
        layers=layers,
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        optimizer_s=one.optimizer_s / tensor,
        slow_host=slow_host,
    )
    if experts is not None and one.gradient_bytes:
        share = made.gradient_bytes / one.gradient_bytes
        made = msgspec.structs.replace(made, optimizer_s=made.optimizer_s * share)
    return accumulated(made, workload.accumulation, workload.batch_size)


def launched(
    one: Workload, layers: tuple[WorkloadLayer, ...], kernels: int, most: int, launches: str
) -> tuple[tuple[WorkloadLayer, ...], float]:
    """Return the layers of a pass on one device, no shorter together than their launches or, if it
    is shorter, than the pass on a single device and the launches of sums; and how many times as
    long they take with a slow host, which launches the ``most`` kernels.

    What is longer than the device takes is the fraction ``launching`` of each layer.
    """
    sums = sum(
        (layer.forward_summed_bytes > 0.0) + (layer.backward_summed_bytes > 0.0) for layer in layers
    )
    single_s = one.forward_s + one.backward_s
    least_s = min(launch_s(launches) * kernels, single_s) + launch_s(launches) * sums
    longest_s = min(slowest_s(launches, kernels, most), single_s * one.slow_host)
    longest_s += slowest_launch_s(launches) * sums
    whole_s = sum(layer.forward_s + layer.backward_s for layer in layers)
    longer, slow_host = 1.0, 1.0
    if whole_s > 0.0:
        longer = max(least_s / whole_s, 1.0)
        slow_host = max(longest_s / max(least_s, whole_s), 1.0)
    if longer == 1.0 and not any(layer.launching for layer in layers):
        return layers, slow_host
    made = tuple(
        msgspec.structs.replace(
            layer,
            forward_s=layer.forward_s * longer,
            backward_s=layer.backward_s * longer,
            launching=1.0 - 1.0 / longer,
        )
        for layer in layers
    )
    return made, slow_host


def _divided(
    one: Workload,
    replica: Replica,
    decoder: Decoder,
    devices: Mapping[str, Device],
) -> tuple[WorkloadLayer, ...]:
    """Return the layers of a pass with the times of one device, and what is summed."""
    length = one.sequence_length or decoder.sequence_length
    device = devices.get(one.device) or next(iter(devices.values()))
    experts = replica.experts
    at = Same(device), Same(devices), one.batch_size, one.precision
    whole = Same(layers_of(decoder, length, one.precision))
    part = Same(part_layers(decoder, length, one.precision, replica))
    divided_only = layers_of(decoder, length, one.precision, replica.tensor, experts)
    shares = _shares(whole, part, *at)
    value_bytes = _value_bytes(one)
    width = float(one.batch_size * length * decoder.hidden * value_bytes) / replica.context
    plain = msgspec.structs.replace(
        replica, pipeline=1, virtual_stages=1, schedule="1f1b", stage_layers=(), balance=False
    )
    exchanged = exchanged_by_name(Same(divided_only), plain) if replica.context > 1 else {}
    layers = _on_device(one, replica, shares, exchanged, width)
    if experts is None or decoder.experts is None:
        return layers
    tokens = float(one.batch_size * length)
    copies = tokens * decoder.experts.active * experts.factor
    routed = Routed(
        decoder.experts.routed,
        decoder.experts.active,
        tokens,
        copies * decoder.hidden * value_bytes,
    )
    return tuple(_of_experts(layer, experts, replica.tensor, routed) for layer in layers)


def _on_device(
    one: Workload,
    replica: Replica,
    shares: Mapping[str, tuple[float, float]],
    exchanged: Mapping[str, tuple[float, float]],
    width: float,
) -> tuple[WorkloadLayer, ...]:
    """Return the layers of a pass on one device, which takes these ``shares`` of their forward and
    backward times; with ``width`` bytes for each sum, and for the values that are exchanged."""
    along = replica.tensor if replica.sequence_parallel else 1
    again, each = one.recompute == "full", one.batch_size * _value_bytes(one)
    layers = []
    for layer in one.layers:
        forward, backward = shares.get(layer.name, (1.0, 1.0))
        if layer.kind in WHOLE:
            forward, backward = forward / along, backward / along
        changed = {
            "forward_s": layer.forward_s * forward,
            "backward_s": layer.backward_s * backward,
        }
        if replica.tensor > 1:
            changed |= _summed(layer.name, width, again=again)
        if replica.context > 1:
            keys, queries = exchanged.get(layer.name, (0.0, 0.0))
            changed |= {"keys_bytes": each * keys, "queries_bytes": each * queries}
        layers.append(msgspec.structs.replace(layer, **changed))
    return tuple(layers)


Divided = Same[tuple[Layer, ...]]
"""The layers of a decoder, which many layouts have in common."""


@functools.lru_cache(maxsize=64)
def _shares(
    whole: Divided,
    part: Divided,
    device: Same[Device],
    devices: Same[Mapping[str, Device]],
    batch_size: int,
    precision: str,
) -> dict[str, tuple[float, float]]:
    """Return the forward and the backward time of each layer on one of the devices that divide it
    over that on a single device, by name."""
    return {
        layer.name: (after[0] / before[0], after[1] / before[1])
        for layer, before, after in zip(
            part.value,
            *(_seconds(layers, device, devices, batch_size, precision) for layers in (whole, part)),
            strict=True,
        )
    }


@functools.lru_cache(maxsize=64)
def _seconds(
    layers: Divided,
    device: Same[Device],
    devices: Same[Mapping[str, Device]],
    batch_size: int,
    precision: str,
) -> list[tuple[float, float]]:
    return layers_s(device.value, layers.value, batch_size, precision, devices.value)


@functools.lru_cache(maxsize=64)
def _kernels(layers: Divided) -> tuple[int, int]:
    return kernels_of(layers.value), most_kernels_of(layers.value)


def _of_experts(
    layer: WorkloadLayer, experts: ExpertParallel, tensor: int, routed: Routed
) -> WorkloadLayer:
    """Return a layer with what it sends to the devices of experts, or with its part of the experts:
    that of the devices that divide the other layers."""
    if layer.kind in (DISPATCH, COMBINE):
        sent = msgspec.structs.replace(layer, routed=routed)
        return sent if layer.kind == DISPATCH else _not_summed(sent)
    if layer.kind == ROUTER:
        return _not_summed(layer)
    if not is_of_experts(layer.name):
        return layer
    share = tensor / experts.devices
    return msgspec.structs.replace(
        layer,
        tensor_bytes=tuple(size * share for size in layer.tensor_bytes),
        frozen_bytes=layer.frozen_bytes * share,
    )


def _not_summed(layer: WorkloadLayer) -> WorkloadLayer:
    """Return a layer that devices do not sum."""
    return msgspec.structs.replace(layer, forward_summed_bytes=0.0, backward_summed_bytes=0.0)


def with_tensors(work: Workload, layers: tuple[WorkloadLayer, ...]) -> Workload:
    """Return a workload with the bytes of the tensors of these layers."""
    sizes = [size for layer in layers for size in layer.tensor_bytes]
    total = sum(sizes)
    share = total / work.gradient_bytes if work.gradient_bytes else 0.0
    return msgspec.structs.replace(
        work,
        layers=layers,
        gradient_bytes=total,
        tensors=len(sizes),
        largest_tensor_bytes=max(sizes, default=0.0),
        optimizer_state_bytes=work.optimizer_state_bytes * share,
        frozen_bytes=sum(layer.frozen_bytes for layer in layers),
    )


def _value_bytes(one: Workload) -> float:
    """Return the bytes of an activation's value."""
    return 2.0 if one.precision in SHORT else 4.0


def _summed(name: str, width: float, *, again: bool) -> dict[str, float]:
    """Return what is summed of a layer: in backward also what forward sums, if it runs ``again``
    there."""
    forward, backward, in_block = _which_sums(name)
    forward_bytes = width if forward else 0.0
    backward_bytes = width if backward else 0.0
    backward_bytes += forward_bytes if again and in_block else 0.0
    return {"forward_summed_bytes": forward_bytes, "backward_summed_bytes": backward_bytes}


@functools.lru_cache(maxsize=16_384)
def _which_sums(name: str) -> tuple[bool, bool, bool]:
    """Return whether a layer of this name is summed in forward and in backward, and is in a block
    that may be computed again."""
    return name.endswith(FORWARD_SUMS), name.endswith(BACKWARD_SUMS), bool(block_named(name))
