"""Seconds of layers that efficiency relates measured times to: of operators, or of the roofline.

Operators count on GPUs, for layers that all state them; of a CPU, nothing is known but its
roofline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.inputs.device import Device, LayerDemands
from perfmodel.inputs.profile import Layer
from perfmodel.inputs.workload import BACKWARD_OVER_FORWARD
from perfmodel.times.operator_times import layers_s, stated

Passes = tuple[Sequence[float], Sequence[float]]
"""Forward and backward seconds of each layer."""


def by_operators(device: Device, layers: Sequence[Layer]) -> bool:
    """Return whether the operators of layers count on a device."""
    return device.kind == "gpu" and stated(layers)


def roofline_passes_s(
    device: Device, demands: LayerDemands, batch_size: int, precision: str
) -> Passes:
    """Return the least seconds of both passes; the first layer passes no gradient back."""
    forward = demands.forward_s(device, batch_size, precision)
    backward = [BACKWARD_OVER_FORWARD * seconds for seconds in forward]
    if backward:
        backward[0] -= forward[0]
    return forward, backward


def operator_passes_s(
    device: Device,
    layers: Sequence[Layer],
    batch_size: int,
    precision: str,
    devices: Mapping[str, Device],
) -> Passes:
    """Return the seconds of the operators of both passes.

    Raises
    ------
    InputError : see :func:`perfmodel.times.operator_times.layers_s`.
    """
    pairs = layers_s(device, layers, batch_size, precision, devices)
    return [forward for forward, _ in pairs], [backward for _, backward in pairs]
