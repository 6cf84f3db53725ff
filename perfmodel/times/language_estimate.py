"""Compute times of language models, estimated from the operators of their layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from perfmodel.base.errors import whole_number
from perfmodel.base.provenance import Assumption, Source
from perfmodel.inputs.activations import PRODUCT
from perfmodel.inputs.batch_scaling import SINGLE_ERROR as SINGLE_SIZE_ERROR
from perfmodel.inputs.decoder_layers import with_layers
from perfmodel.inputs.decoder_parts import EXPERTS
from perfmodel.inputs.device import Device
from perfmodel.inputs.operator_shapes import MemoryBound, Product
from perfmodel.inputs.precisions import FOUR_BITS
from perfmodel.inputs.profile import Layer, Profile, Timing
from perfmodel.inputs.recomputation import ATTENTION
from perfmodel.inputs.software import (
    AS_FOUND,
    COMPILED,
    EAGER,
    GRAPHS,
    RECENT,
    TUNED,
    UNSAID,
    Software,
    launch_s,
)
from perfmodel.inputs.storage import DEFAULT, Lora, Storage
from perfmodel.inputs.workload import BACKWARD_OVER_FORWARD, Workload, resolve
from perfmodel.theory.memory_bound import ACHIEVED
from perfmodel.theory.packing import Documents
from perfmodel.times.eager_estimate import PRECISION, odd_products_s
from perfmodel.times.frameworks import FRAMEWORK_ERROR
from perfmodel.times.operator_times import (
    Factors,
    has_small_groups,
    kernels_of,
    layers_s,
    most_kernels_of,
    weight_casts_bytes,
)
from perfmodel.times.operator_transfer import Stack, grouped_rates, stack_of
from perfmodel.times.packed import packed, with_documents
from perfmodel.times.precision_names import check_precision
from perfmodel.times.slow_hosts import slowest_s

BATCH_SIZE = 8
"""Default sequences per step."""

DEVICE = "h100"
"""Default device of models that were not measured on any."""

OTHER_ERROR = 0.5
"""Error on chips without factors of their own: 90th percentile of the factor, less one. The only
figure of such a chip, GPT-2 XL on V100, is within 0.2; the larger value is that of one efficiency
for all shapes, between chips, of which there were three."""

LAUNCHED_ERROR = dict(SINGLE_SIZE_ERROR)[4.0]
"""Error where launches determine the step time: that of the rule for other models, from one batch
size to another up to four times larger or smaller."""

ADAPTER_KERNELS = 10
"""Kernels that an adapter adds to both passes: two products with three each, a factor, and the sum
with the frozen product's result, with one each. One H200's host took 0.4 ms for each adapter of
Llama 1B and 8B, of which these are 0.3."""

CAST = 1.5
"""Bytes that casting a value from 32 to 16 bits, or back, reads and writes, over its own."""

MXFP8 = "mxfp8"
"""Precision of 8 bits with scales as those of 4 bits have."""


def estimate(
    profile: Profile,
    target: Device,
    precision: str | None,
    batch_size: int | None,
    *,
    devices: Mapping[str, Device],
    software: Software = UNSAID,
    documents: Documents | None = None,
    storage: Storage = DEFAULT,
) -> Workload:
    """Estimate a language model's workload on a device that it was not measured on.

    Layers take the time of their operators on the device
    (:func:`perfmodel.times.operator_times.layers_s`), and longer by what training takes with a
    level of software (:func:`perfmodel.times.operator_transfer.stack_of`). Unless tuned or
    compiled, parts of what is bound by memory are kernels of their own. Both passes take at least
    as long as the host launches their operators (:func:`perfmodel.inputs.software.launch_s`). The
    optimizer (Adam) reads parameters, gradients and its state, and writes parameters and state, at
    memory bandwidth, and takes as much longer as the level of software says; weights of products
    with 8 bits are cast then. ``storage`` says whether autocast casts weights. Attention stays
    inside ``documents`` (:mod:`perfmodel.times.packed`). Nothing is measured of products in 4 bits:
    the interval reaches the time that 8 bits take.

    Raises
    ------
    InputError : the device does not support the precision.
    """
    notes = []
    if precision is None:
        precision = "mixed" if "mixed" in target.precisions else "float32"
        notes.append(Assumption("precision", precision, "", "default of language models"))
    check_precision(precision, target.title, target.precisions)
    if batch_size is None:
        notes.append(Assumption("batch_size", BATCH_SIZE, "samples", "default of language models"))
    size = BATCH_SIZE if batch_size is None else whole_number("batch_size", batch_size)
    profile = with_layers(profile, precision)
    stack = stack_of(target, software.stack or AS_FOUND, devices)
    autocast = stack.autocast if storage.autocasts(precision) else None
    factors = Factors(stack.products, stack.attention, 1.0 + (autocast or 0.0))
    level, launches = software.stack or AS_FOUND, software.launches or EAGER
    fused = level == TUNED or launches in (COMPILED, GRAPHS)

    def times(layers: Sequence[Layer], at: str = precision) -> list[tuple[float, float]]:
        alone = layers_s(target, layers, size, at, devices, factors, fused=fused)
        alone = _with_odd_rows(layers, alone, size, at) if level == RECENT else alone
        return alone if autocast is None else _with_casts(layers, alone, target)

    seconds, varying = packed(profile.layers, documents, times)
    error = _stack_error(stack, software, profile.layers, seconds, target, devices)
    error = _with_experts(error, profile.layers, seconds, target, precision, devices)
    if precision in FOUR_BITS:
        error = _reaching(error, seconds, times(profile.layers, MXFP8))
    notes.insert(0, Assumption("stack", level, "", stack.meaning))
    kernels, alone_s = _work(profile, seconds, storage.lora)
    launched_s, note = _launches(kernels, launches, alone_s)
    if note is None and not fused and _parts(profile.layers):
        why = "norms, rotary positions and gates are several kernels each"
        notes.insert(1, Assumption("launches", launches, "", why))
    if note is not None:
        longer = launched_s / alone_s
        seconds = [(forward * longer, backward * longer) for forward, backward in seconds]
        error = LAUNCHED_ERROR
        notes.insert(1, note)
    moved = _moved_bytes(profile) * stack.optimizer
    moved += weight_casts_bytes(target, profile.layers, precision)
    timing = Timing(
        device=target.name,
        batch_size=size,
        precision=precision,
        forward_s=tuple(forward for forward, _ in seconds),
        backward_s=tuple(backward for _, backward in seconds),
        optimizer_s=moved / target.memory_bandwidth_bytes_per_s,
        source=Source("estimated", f"operators of {target.title}, {target.source.text}"),
    )
    estimated = resolve(profile, [timing], batch_size=size, assumptions=notes, error_fraction=error)
    estimated = with_documents(estimated, profile.decoder, documents, varying)
    most = kernels + most_kernels_of(profile.layers) - kernels_of(profile.layers)
    slow_host = max(slowest_s(launches, kernels, most) / max(launched_s, alone_s), 1.0)
    return msgspec.structs.replace(estimated, among_several=True, slow_host=slow_host)


def _moved_bytes(profile: Profile) -> float:
    """Return the bytes that Adam reads and writes in an update in 32 bits."""
    return (3.0 + 2.0 * profile.optimizer_state_bytes_per_parameter_byte) * profile.parameter_bytes


def _with_odd_rows(
    layers: Sequence[Layer],
    seconds: Sequence[tuple[float, float]],
    batch_size: int,
    precision: str,
) -> list[tuple[float, float]]:
    """Return the seconds of layers with what products in 16 bits take longer whose rows have an odd
    number of values (:mod:`perfmodel.theory.eager_kernels`), on all chips as on H100: software that
    is not *recent* is known from frameworks that pad the vocabulary."""
    if precision != PRECISION:
        return [*seconds]
    odd_s = odd_products_s(layers, batch_size)
    return [(f + o, b + 2.0 * o) for (f, b), o in zip(seconds, odd_s, strict=True)]


def _with_casts(
    layers: Sequence[Layer], seconds: Sequence[tuple[float, float]], target: Device
) -> list[tuple[float, float]]:
    """Return the seconds of layers with the casts of their weights to 16 bits, and of the gradients
    of these to 32."""
    bandwidth = ACHIEVED * target.memory_bandwidth_bytes_per_s
    cast_s = [CAST * sum(tensor.bytes for tensor in one.tensors) / bandwidth for one in layers]
    return [(f + c, b + c) for (f, b), c in zip(seconds, cast_s, strict=True)]


def _reaching(
    error: float, seconds: Sequence[tuple[float, float]], longer: Sequence[tuple[float, float]]
) -> float:
    """Return the error of a step that may take as long as with ``longer`` times of layers."""
    return math.hypot(error, max(_total_s(longer) / _total_s(seconds) - 1.0, 0.0))


def _stack_error(
    stack: Stack,
    software: Software,
    layers: Sequence[Layer],
    seconds: Sequence[tuple[float, float]],
    target: Device,
    devices: Mapping[str, Device],
) -> float:
    """Return the error of a step with software as in ``stack``; it reaches to tuned software if
    nobody said which it is."""
    error = stack.error_fraction if stack.alike else OTHER_ERROR
    if software.stack is not None:
        return error
    tuned = stack_of(target, TUNED, devices)
    pairs = [(layer.kind, sum(passes)) for layer, passes in zip(layers, seconds, strict=True)]
    attention_s = sum(each_s for kind, each_s in pairs if kind == ATTENTION)
    others_s = sum(each_s for kind, each_s in pairs if kind != ATTENTION)
    tuned_s = (
        attention_s * tuned.attention / stack.attention + others_s * tuned.products / stack.products
    )
    return max(error, (1.0 + tuned.error_fraction) * (attention_s + others_s) / tuned_s - 1.0)


def _with_experts(
    error: float,
    layers: Sequence[Layer],
    seconds: Sequence[tuple[float, float]],
    target: Device,
    precision: str,
    devices: Mapping[str, Device],
) -> float:
    """Return the error of a step with those of its products of experts, which are independent: of
    their shapes, and of their kernels.

    No published figure that the factors of software are fitted to is of experts, whose kernels may
    differ as those of other frameworks do, unless they are large and multiplied one by one.
    """
    pairs = [(layer, sum(passes)) for layer, passes in zip(layers, seconds, strict=True)]
    experts_s = sum(each_s for layer, each_s in pairs if layer.kind == EXPERTS)
    small_s = sum(each_s for layer, each_s in pairs if has_small_groups(layer))
    if experts_s == 0.0:
        return error
    of_shapes = grouped_rates(target, precision, devices).error_fraction
    whole_s = _total_s(seconds)
    return math.hypot(error, of_shapes * experts_s / whole_s, FRAMEWORK_ERROR * small_s / whole_s)


def _work(
    profile: Profile, seconds: Sequence[tuple[float, float]], lora: Lora | None
) -> tuple[int, float]:
    """Return the kernels of both passes, and the device's time for them.

    With adapters (``lora``) a frozen product has no kernel for the gradient of its weights, and its
    backward takes half the time, as in :func:`perfmodel.catalogue.job_storage.with_storage`; what
    adapters compute takes the device next to no time, but the host launches it.
    """
    layers, kernels = profile.layers, kernels_of(profile.layers)
    if lora is None or profile.decoder is None:
        return kernels, _total_s(seconds)
    adapters = profile.decoder.blocks * sum(map(len, lora.matrices(profile.decoder).values()))
    frozen = sum(
        isinstance(one, Product) and one.weights for layer in layers for one in layer.operators
    )
    backward = [
        after_s / (BACKWARD_OVER_FORWARD if layer.kind == PRODUCT else 1.0)
        for layer, (_, after_s) in zip(layers, seconds, strict=True)
    ]
    alone_s = sum(backward) + sum(forward for forward, _ in seconds)
    return kernels - frozen + ADAPTER_KERNELS * adapters, alone_s


def _launches(kernels: int, launches: str, alone_s: float) -> tuple[float, Assumption | None]:
    """Return the host's time to launch both passes, and a note if it is more than the device's."""
    each_s = launch_s(launches)
    launched_s = each_s * kernels
    if launched_s <= alone_s:
        return launched_s, None
    why = (
        f"the step is bound by launches: {each_s * 1e6:g} us of the host for each of "
        f"{kernels} kernels, {launched_s * 1e3:.3g} ms; the device takes {alone_s * 1e3:.3g} ms"
    )
    return launched_s, Assumption("launches", launches, "", why)


def _parts(layers: Sequence[Layer]) -> bool:
    """Return whether some operator has parts that an eager framework computes one by one."""
    return any(
        isinstance(one, MemoryBound) and one.unfused > 1.0
        for layer in layers
        for one in layer.operators
    )


def _total_s(seconds: Sequence[tuple[float, float]]) -> float:
    return sum(forward + backward for forward, backward in seconds)
