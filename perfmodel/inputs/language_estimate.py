"""Compute times of language models, estimated from published utilisations of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Assumption, Source
from perfmodel.inputs.batch_scaling import SINGLE_ERROR as SINGLE_SIZE_ERROR
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of, with_layers
from perfmodel.inputs.device import Device, PublishedUtilisation, roofline_s
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.workload import Workload, resolve

BATCH_SIZE = 8
"""Default sequences per step."""

DEVICE = "h100"
"""Default device of models that were not measured on any."""

OWN_ERROR = 0.25
"""Error with several figures of other models on the same chip: 90th percentile of the factor, less
one. 17 figures of A100 and H100, each against the median of the others; median 0.13, worst 0.31."""

SINGLE_ERROR = 0.32
"""Error with one figure on the same chip: 168 pairs, median 0.15, worst 0.50."""

OTHER_ERROR = 0.5
"""Error with figures of other chips: 18 figures of A100, H100 and V100, each against the median of
the other two chips; median 0.25. The worst, 0.50, is used, because there are only three chips."""

LAUNCH_S = 0.1e-3
"""Least time of a step per parameter tensor: about ten launches of 5 to 20 us. Between the values
of :mod:`perfmodel.inputs.batch_scaling` for older hosts and for recent ones."""

LAUNCHED_ERROR = dict(SINGLE_SIZE_ERROR)[4.0]
"""Error where launches determine the step time: that of the same rule for other models, from one
batch size to another up to four times larger or smaller."""

SAMPLE = 8
"""Batch size, in sequences, for the rooflines of published figures."""


def estimate(
    profile: Profile,
    target: Device,
    precision: str | None,
    batch_size: int | None,
    *,
    devices: Mapping[str, Device],
    decoder_of: Callable[[str], Decoder],
) -> Workload:
    """Estimate a language model's workload on a device that it was not measured on.

    The efficiency is the roofline time of a model's layers over the time that its published
    utilisation implies (:func:`efficiency_on`). The figures come from training on many devices, so
    their common losses are part of the estimate. A step takes at least as long as the launches of
    its operations (:data:`LAUNCH_S`). The optimizer (Adam) reads
    parameters, gradients and its state, and writes parameters and state, at memory bandwidth.

    Raises
    ------
    InputError : the device does not support the precision.
    """
    notes = []
    if precision is None:
        precision = "mixed" if "mixed" in target.precisions else "float32"
        notes.append(Assumption("precision", precision, "", "default of language models"))
    if precision not in target.precisions:
        raise InputError(
            f"precision: {target.title} has no {precision} (it has: {', '.join(target.precisions)})"
        )
    if batch_size is None:
        notes.append(Assumption("batch_size", BATCH_SIZE, "samples", "default of language models"))
    size = BATCH_SIZE if batch_size is None else whole_number("batch_size", batch_size)
    profile = with_layers(profile, precision)
    efficiency, names, error = efficiency_on(target, devices, decoder_of)
    roofline = roofline_s(target, profile.layers, size, precision)
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    why = f"median of published language models on {names}"
    first = Assumption("efficiency", round(efficiency, 4), "of the roofline", why)
    passes_s = 3.0 * sum(roofline) / efficiency
    if passes_s < LAUNCH_S * tensors:
        why = f"{LAUNCH_S * 1e3:g} ms for each parameter tensor, more than the products take"
        passes_s, error = LAUNCH_S * tensors, LAUNCHED_ERROR
        first = Assumption("launches of operations", passes_s, "s", why)
    state = profile.optimizer_state_bytes_per_parameter_byte
    moved = (3.0 + 2.0 * state) * profile.parameter_bytes
    optimizer_s = moved / target.memory_bandwidth_bytes_per_s
    timing = Timing(
        device=target.name,
        batch_size=size,
        precision=precision,
        step_s=passes_s + optimizer_s,
        optimizer_s=optimizer_s,
        source=Source("estimated", f"roofline of {target.title}, {target.source.text}"),
    )
    notes.insert(0, first)
    estimated = resolve(
        profile,
        [timing],
        batch_size=size,
        layer_shares=roofline,
        assumptions=notes,
        error_fraction=error,
    )
    return msgspec.structs.replace(estimated, among_several=True)


def efficiency_on(
    target: Device, devices: Mapping[str, Device], decoder_of: Callable[[str], Decoder]
) -> tuple[float, str, float]:
    """Efficiency of language models on a device, the devices it comes from, and its error.

    It is the median of the figures on devices with the same peak rates, which have the same chip;
    if there are none, the median over all chips.
    """
    from statistics import median  # takes 3 ms to import, and most jobs have no language model

    efficiencies = {
        name: [efficiency(one, figure, decoder_of) for figure in one.language_models]
        for name, one in devices.items()
        if one.language_models
    }
    alike = [
        name for name in efficiencies if devices[name].peak_flop_per_s == target.peak_flop_per_s
    ]
    if alike:
        of_device = [efficiency for name in alike for efficiency in efficiencies[name]]
        error = OWN_ERROR if len(of_device) > 1 else SINGLE_ERROR
        return median(of_device), ", ".join(alike), error
    typical = [median(values) for values in efficiencies.values()]
    return median(typical), ", ".join(efficiencies), OTHER_ERROR


def efficiency(
    device: Device, figure: PublishedUtilisation, decoder_of: Callable[[str], Decoder]
) -> float:
    """Roofline time of a model's layers, forward and backward, over the published time."""
    decoder, length = decoder_of(figure.model), figure.sequence_length
    layers = layers_of(decoder, length, figure.precision)
    least_s = 3.0 * sum(roofline_s(device, layers, SAMPLE, figure.precision))
    flop = SAMPLE * length * decoder.model_flop(length)
    return least_s * figure.utilisation * device.peak(figure.precision) / flop
