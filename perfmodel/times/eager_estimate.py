"""Compute times of recorded networks on a device that none was timed on, as PyTorch runs them.

The operators of a recorded network are those of its PyTorch modules, one kernel after the other.
What they take longer than by their operations and bytes was fitted to 41 steps of 18 networks on
one H100 and one H200 (PyTorch 2.11, ``bfloat16``, 33 with autocast): six values, of which four are
here and two in :mod:`perfmodel.theory.eager_kernels`. Factors of products and attention are those
of *recent* software.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Assumption, Source
from perfmodel.inputs.device import Device
from perfmodel.inputs.operator_shapes import MemoryBound, OperatorShape, Product
from perfmodel.inputs.profile import Layer, Profile, Timing
from perfmodel.inputs.software import EAGER, LAUNCH_S, RECENT, UNSAID, Software
from perfmodel.inputs.storage import DEFAULT, Storage
from perfmodel.inputs.workload import Workload, resolve
from perfmodel.theory.attention import VALUE_BYTES
from perfmodel.theory.eager_kernels import channel_sums_s, odd_product_s
from perfmodel.theory.memory_bound import ACHIEVED
from perfmodel.times.operator_times import Factors, kernels_of, layers_s, stated
from perfmodel.times.operator_transfer import Stack, stack_of
from perfmodel.times.slow_hosts import slowest_s

Devices = Mapping[str, Device]
"""Devices by name."""

PRECISION = "mixed"
"""The precision that it is known for."""

BATCH_SIZE = 32
"""Default samples per step."""

CONVOLUTIONS = 1.80
"""Time of products of convolutions over that of their operators: images whose channels are stored
one after the other are transposed by kernels of their own, and kernels are chosen by rule."""

AUTOCAST, PLAIN = 2.85, 1.56
"""Time of kernels bound by memory over that of their values in 16 bits. Under autocast norms,
losses, powers and all that is added to their results have 32 bits, and products cast them back."""

TENSOR_S = 73e-6
"""Time of the host for each parameter tensor, besides that for kernels: its cast, that of its
gradient, their accumulation, and the optimizer. Half of it without autocast."""

SGD = 8.0 / 5.0 / ACHIEVED
"""Time of an update with momentum over that of its least bytes at bandwidth: eight values instead
of five, by kernels of their own."""

ERROR = 0.45
"""Nine in ten of 24 steps on the H200, of 23 other networks that nothing was fitted to."""

PARAMETER_BYTES = 4.0
"""Of a value of a recorded tensor."""


def estimate(
    profile: Profile,
    target: Device,
    devices: Devices,
    precision: str | None,
    batch_size: int | None,
    software: Software = UNSAID,
    storage: Storage = DEFAULT,
) -> Workload | None:
    """Estimate a recorded network's workload on a device for which it has no timing; None if
    nothing is known of it, or other timings say more.

    Layers take the time of their operators on the device, and longer as PyTorch does: products of
    convolutions and kernels bound by memory by a factor; batch norms by what a channel takes in one
    thread block (:func:`perfmodel.theory.eager_kernels.channel_sums_s`); products with rows of an
    odd number of values (:func:`perfmodel.theory.eager_kernels.odd_product_s`). Both passes take at
    least as long as the host for their kernels and tensors. ``storage`` says whether autocast casts
    values. All layers have to state their operators, and the chip has to be one that steps of
    PyTorch were measured on. Unless ``software`` is *recent*, timings on devices of the same kind
    say more.
    """
    if precision != PRECISION or not _known(profile, target, devices, software):
        return None
    notes = []
    size = BATCH_SIZE if batch_size is None else whole_number("batch_size", batch_size)
    if batch_size is None:
        notes.append(Assumption("batch_size", size, "samples", "default"))
    autocasts = storage.autocasts(PRECISION)
    stack = stack_of(target, RECENT, devices)
    seconds = passes_s(profile.layers, target, size, stack, devices, autocasts=autocasts)
    alone_s, kernels = float(seconds.sum()), kernels_of(profile.layers)
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    launched_s = LAUNCH_S[EAGER] * kernels + TENSOR_S * tensors * (1.0 if autocasts else 0.5)
    if launched_s > alone_s > 0.0:
        seconds *= launched_s / alone_s
        why = (
            f"the host takes {launched_s * 1e3:.3g} ms for {kernels} kernels and {tensors} "
            f"tensors, longer than the device, which takes {alone_s * 1e3:.3g} ms"
        )
        notes.insert(0, Assumption("launches of operations", launched_s, "s", why))
    why = f"PyTorch as it comes, as on {', '.join(stack.devices)}; images by channels"
    notes.insert(0, Assumption("stack", RECENT, "", why))
    timing = Timing(
        device=target.name,
        batch_size=size,
        precision=PRECISION,
        forward_s=tuple(seconds[:, 0].tolist()),
        backward_s=tuple(seconds[:, 1].tolist()),
        optimizer_s=_update_bytes(profile, stack) / target.memory_bandwidth_bytes_per_s,
        source=Source("estimated", f"operators of {target.title}, {target.source.text}"),
    )
    made = resolve(profile, [timing], batch_size=size, assumptions=notes, error_fraction=ERROR)
    slowest = slowest_s(EAGER, kernels, kernels) / max(launched_s, alone_s)
    return msgspec.structs.replace(made, slow_host=max(slowest, 1.0))


def _known(profile: Profile, target: Device, devices: Devices, software: Software) -> bool:
    """Return whether a network is estimated here on a device that it was not timed on."""
    if software.launches is not None or software.stack not in (None, RECENT):
        return False
    alike = {name for name, one in devices.items() if one.kind == target.kind}
    timed = any(one.device in alike and one.precision == PRECISION for one in profile.timings)
    if (timed and software.stack is None) or target.kind != "gpu" or not stated(profile.layers):
        return False
    try:
        return stack_of(target, RECENT, devices).alike
    except InputError:
        return False


def passes_s(
    layers: Sequence[Layer],
    target: Device,
    batch_size: int,
    stack: Stack,
    devices: Devices,
    *,
    autocasts: bool,
) -> Floats:
    """Return the seconds of the device for forward and backward of each layer, (layers, 2)."""
    moving = AUTOCAST if autocasts else PLAIN
    parts = (
        (_of_convolutions, Factors(CONVOLUTIONS)),
        (_of_others, Factors(stack.products, stack.attention)),
        (_of_batch_norms, Factors(stack.products)),
        (_of_memory, Factors(moving)),
    )
    seconds: Floats = np.zeros((len(layers), 2))
    for belongs, factors in parts:
        some = [_only(layer, belongs) for layer in layers]
        if any(layer.operators for layer in some):
            at = layers_s(target, some, batch_size, PRECISION, devices, factors, fused=False)
            seconds += np.array(at)
    seconds += [_channels_s(layer, batch_size) for layer in layers]
    odd_s = np.array(odd_products_s(layers, batch_size))
    seconds += odd_s[:, None] * np.array([1.0, 2.0])  # two products in backward
    return seconds


def odd_products_s(layers: Sequence[Layer], batch_size: int) -> list[float]:
    """Return the seconds that products of each layer's forward take longer because rows of their
    weights or results have an odd number of values; those of convolutions are not counted."""
    return [float(odd_product_s(batch_size * _odd_flop(layer))) for layer in layers]


def _odd_flop(layer: Layer) -> float:
    return sum(
        one.flop
        for one in layer.operators
        if isinstance(one, Product)
        and one.weights
        and (one.columns % 2 or one.depth % 2)
        and not _of_convolutions(layer, one)
    )


def _channels_s(layer: Layer, batch_size: int) -> tuple[float, float]:
    """Return the seconds that both passes of a batch norm take longer, as it sums by channels."""
    if not _is_batch_norm(layer) or not layer.tensors:
        return 0.0, 0.0
    channels = layer.tensors[0].bytes / PARAMETER_BYTES
    moving = [one for one in layer.operators if isinstance(one, MemoryBound)]
    values = (
        sum(one.forward_values for one in moving),
        sum(one.backward_values for one in moving),
    )
    forward, backward = (VALUE_BYTES * batch_size * some for some in values)
    return float(channel_sums_s(forward, channels)), float(channel_sums_s(backward, channels))


def _update_bytes(profile: Profile, stack: Stack) -> float:
    """Return the bytes that an update moves in 32 bits, as long as its kernels take."""
    states = profile.optimizer_state_bytes_per_parameter_byte
    factor = stack.optimizer if states > 1.0 else SGD
    return factor * (3.0 + 2.0 * states) * profile.parameter_bytes


def _only(layer: Layer, belongs: Callable[[Layer, OperatorShape], bool]) -> Layer:
    """Return the layer with those of its operators that belong to a part."""
    some = tuple(one for one in layer.operators if belongs(layer, one))
    return msgspec.structs.replace(layer, operators=some, forward_flop=0.0)


def _of_convolutions(layer: Layer, one: OperatorShape) -> bool:
    kind = layer.kind.lower()
    linear = kind == "conv1d" and isinstance(one, Product) and one.layout == "rows"  # of GPT-2
    return isinstance(one, Product) and one.weights and "conv" in kind and not linear


def _of_others(layer: Layer, one: OperatorShape) -> bool:
    return not isinstance(one, MemoryBound) and not _of_convolutions(layer, one)


def _of_batch_norms(layer: Layer, one: OperatorShape) -> bool:
    return isinstance(one, MemoryBound) and _is_batch_norm(layer)


def _of_memory(layer: Layer, one: OperatorShape) -> bool:
    return isinstance(one, MemoryBound) and not _is_batch_norm(layer)


def _is_batch_norm(layer: Layer) -> bool:
    return "batchnorm" in layer.kind.lower()
