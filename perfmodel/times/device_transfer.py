"""Estimated compute times on a device that a profile has no timings for.

Errors are stated as in :mod:`perfmodel.inputs.batch_scaling`, and come from the same benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import InputError, NoTimesError, spelling, unknown_name, whole_number
from perfmodel.base.provenance import Assumption, Source
from perfmodel.inputs.batch_scaling import SINGLE_ERROR, together
from perfmodel.inputs.device import Device, LayerDemands, PeakRates, roofline_s
from perfmodel.inputs.precisions import RECIPES
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.software import EAGER, LAUNCH_S
from perfmodel.inputs.workload import Workload, resolve
from perfmodel.times.operator_times import kernels_of, stated
from perfmodel.times.pass_times import by_operators, operator_passes_s, roofline_passes_s
from perfmodel.times.precision_names import OTHER_NAMES, check_precision

BATCH_SIZE = 32
"""Default batch size of an estimate."""

NEAREST = 2
"""Maximum number of devices to estimate from. Of 1, 2, 3, 5 and all, this has the smallest 90th
percentile of the error on a device without measured models (317 timings, 23 models)."""

COMMON_ERROR = 0.22
"""Error on a device of the same kind, if other models were measured on both devices, at a batch
size measured on the other: 48 timings of 16 models on 9 GPUs, median 0.09, worst 0.61."""

KIND_ERROR = 0.54
"""The same if no other model was measured on both: 46 timings, median 0.15, worst 0.87."""

SPEED_ERROR = 0.51
"""The same if, in addition, the layers' operation counts are unknown: 46 timings, median 0.12,
worst 0.78."""

TYPICAL_ERROR = 1.01
"""Error with the efficiency of other models on the device: 76 timings on 16 GPUs, median 0.34,
worst 1.31. (On the catalogue's only CPU, 9 of 10 of 20 timings are within 0.43.)"""

FOREIGN_ERROR = 1.28
"""Error with the efficiency of other models on other GPUs: 77 timings on 17 GPUs, median 0.42,
worst 2.66."""

KIND_OPERATORS_ERROR = 0.33
"""As :data:`KIND_ERROR`, where operators are known: 46 timings, median 0.09, worst 0.73."""

OPERATORS_ERROR = 0.72
"""As :data:`TYPICAL_ERROR`, where operators are known: 76 timings, median 0.27, worst 0.98."""

FOREIGN_OPERATORS_ERROR = 1.11
"""As :data:`FOREIGN_ERROR`, where operators are known: 74 timings, median 0.29, worst 1.61."""

LAUNCHED_ERROR = dict(SINGLE_ERROR)[4.0]
"""Error where launches determine the step time: that of the rule from one batch size to another up
to four times larger or smaller."""


class MeasuredDevice(msgspec.Struct, frozen=True):
    """A device of the target's kind with timings in the profile, sorted by batch size.

    For each of the other models measured on both devices, ``factors`` has its speedup on the target
    over the speedup that the rooflines predict.
    """

    device: Device
    timings: list[Timing]
    factors: list[float]

    def distance(self, target: Device) -> float:
        """Distance from ``target``: the sum of the absolute logarithms of the ratios of peak rate
        and of memory bandwidth."""
        precision = self.timings[0].precision
        rates = target.peak(precision) / self.device.peak(precision)
        bandwidths = target.memory_bandwidth_bytes_per_s / self.device.memory_bandwidth_bytes_per_s
        return abs(math.log(rates)) + abs(math.log(bandwidths))


def estimate(
    profile: Profile,
    target_name: str,
    precision: str,
    batch_size: int | None,
    *,
    devices: Mapping[str, Device],
    others: Sequence[Profile],
) -> Workload:
    """Estimate a workload on one of ``devices`` for which the profile has no timing.

    Efficiency is the time of the operators, or of the roofline if they are not known, over measured
    time.

    - If the profile has timings on a device of the same kind at this precision: the efficiency
      there of each group of layers, forward and backward separately. If ``others`` were measured on
      both devices, it is that of the roofline, times the ratio of their efficiencies on the target
      and on that device (median). Of several such devices, those on which ``others`` were measured
      come first, then the :data:`NEAREST` ones; the result is the median over them.
    - Otherwise the median efficiency of ``others`` on the target, or else on all devices of its
      kind. By operators, a step takes at least as long as the host launches them.
    - If the layers have no operation counts, the step time scales as that of ``others``, or else as
      the square root of peak rate times memory bandwidth.

    Raises
    ------
    InputError : the precision is unknown, or the device does not support it.
    NoTimesError : there is nothing to estimate from.
    """
    if precision in RECIPES:
        raise InputError(
            f"precision: times of {profile.name} at {precision} are not estimated, only those of "
            "language models are"
        )
    known = [name for name in PeakRates.__struct_fields__ if name not in RECIPES]
    if precision not in known and spelling(precision) not in OTHER_NAMES:
        raise unknown_name("precision", precision, known)
    size = BATCH_SIZE if batch_size is None else whole_number("batch_size", batch_size)
    target = devices[target_name]
    check_precision(precision, target.title, target.precisions)
    flop = any(layer.forward_flop for layer in profile.layers)
    places = _places(profile, target, precision, devices, others, flop)
    if places:
        timing, note, error = _transferred(profile, target, size, places, flop, devices)
    elif flop and (typical := _typical(profile, target, precision, size, devices, others)):
        timing, note, error = typical
    else:
        only = f" (only on {', '.join(profile.devices)})" if profile.devices else ""
        raise NoTimesError(
            f"device: {profile.name} has no timing on {target_name!r}{only}; to estimate one, add "
            f"forward_flop to its layers or a timing at {precision} on another {target.kind} of "
            "the catalogue; or give the speed of one device"
        )
    notes = [note]
    if batch_size is None:
        notes.append(Assumption("batch_size", size, "samples", "default"))
    shares = None if timing.per_layer else roofline_s(target, profile.layers, size, precision)
    return resolve(
        profile,
        [timing],
        batch_size=size,
        layer_shares=shares,
        assumptions=notes,
        error_fraction=error,
    )


def _typical(
    profile: Profile,
    target: Device,
    precision: str,
    size: int,
    devices: Mapping[str, Device],
    others: Sequence[Profile],
) -> tuple[Timing, Assumption, float] | None:
    """The profile's times with the efficiency of other models; the assumption; the error.

    None if there are no other models.
    """
    operators = by_operators(target, profile.layers)
    alike = [one for one in others if stated(one.layers)] if operators else others
    rates = _typical_rates(target, precision, devices, alike, operators)
    if not rates:
        return None
    efficiency = float(np.median(list(rates.values())))
    names = ", ".join(sorted({name for _, name in rates}))
    why = f"median of {len(rates)} figures of other models on {names}"
    own = names == target.name
    timing = Timing(
        device=target.name,
        batch_size=size,
        precision=precision,
        step_s=3.0 * sum(roofline_s(target, profile.layers, size, precision)) / efficiency,
        source=_source(target),
    )
    note = Assumption("efficiency", round(efficiency, 4), "of the roofline", why)
    if not operators:
        return timing, note, TYPICAL_ERROR if own else FOREIGN_ERROR
    passes = operator_passes_s(target, profile.layers, size, precision, devices)
    note = Assumption("efficiency", round(efficiency, 4), "of the operators", why)
    error = OPERATORS_ERROR if own else FOREIGN_OPERATORS_ERROR
    total_s = sum(map(sum, passes)) / efficiency
    kernels = kernels_of(profile.layers)
    launched_s = LAUNCH_S[EAGER] * kernels
    if launched_s > total_s:
        why = (
            f"the host takes {LAUNCH_S[EAGER] * 1e6:g} us for each of {kernels} kernels, longer "
            f"than the device, which takes {total_s * 1e3:.3g} ms"
        )
        note = Assumption("launches of operations", launched_s, "s", why)
        efficiency *= total_s / launched_s
        error = LAUNCHED_ERROR
    forward_s, backward_s = (tuple(s / efficiency for s in seconds) for seconds in passes)
    timing = msgspec.structs.replace(
        timing, step_s=None, forward_s=forward_s, backward_s=backward_s
    )
    return timing, note, error


def _places(
    profile: Profile,
    target: Device,
    precision: str,
    devices: Mapping[str, Device],
    others: Sequence[Profile],
    flop: bool,
) -> list[MeasuredDevice]:
    """The best of the profile's devices to estimate from."""
    rates = _rates(others, precision, devices, efficiency=flop)
    measured = []
    for name in profile.devices:
        timings = [t for t in profile.timings if (t.device, t.precision) == (name, precision)]
        if timings and name in devices and devices[name].kind == target.kind:
            factors = [
                rates[one.name, target.name] / rates[one.name, name]
                for one in others
                if {(one.name, target.name), (one.name, name)} <= rates.keys()
            ]
            timings.sort(key=lambda t: t.batch_size)
            measured.append(MeasuredDevice(devices[name], timings, factors))
    both = any(place.factors for place in measured)
    alike = [place for place in measured if bool(place.factors) == both]
    return sorted(alike, key=lambda place: place.distance(target))[:NEAREST]


def _transferred(
    profile: Profile,
    target: Device,
    size: int,
    places: Sequence[MeasuredDevice],
    flop: bool,
    devices: Mapping[str, Device],
) -> tuple[Timing, Assumption, float | None]:
    """The profile's times on ``places``, transferred to the target; the assumption; the error."""
    estimates = []
    batch_error = None
    for place in places:
        timings = place.timings
        first, shares = timings[0], None
        if flop:
            shares = roofline_s(place.device, profile.layers, first.batch_size, first.precision)
        there = resolve(
            profile,
            timings,
            batch_size=size,
            layer_shares=None if first.per_layer else shares,
            launch_s=place.device.launch_s,
            least_s=3.0 * sum(shares or ()),
        )
        batch_error = max(batch_error or 0.0, there.error_fraction or 0.0) or None
        memory = place.device.memory_bandwidth_bytes_per_s / target.memory_bandwidth_bytes_per_s
        passes = _on_target(profile, there, place, target, flop, devices)
        estimates.append([*passes, there.optimizer_s * memory, there.data_loading_s])
    *passes, optimizer_s, loading_s = np.median(estimates, axis=0).tolist()
    half = len(passes) // 2
    layered = bool(profile.layers)
    timing = Timing(
        device=target.name,
        batch_size=size,
        precision=places[0].timings[0].precision,
        forward_s=tuple(passes[:half]) if layered else passes[0],
        backward_s=tuple(passes[half:]) if layered else passes[1],
        optimizer_s=optimizer_s,
        data_loading_s=loading_s,
        source=_source(target),
    )
    names = ", ".join(
        f"{place.device.name} (batch {', '.join(str(t.batch_size) for t in place.timings)})"
        for place in places
    )
    how = "by the roofline" if flop else "by peak rate and memory bandwidth"
    error = KIND_ERROR if flop else SPEED_ERROR
    if by_operators(target, profile.layers) and not places[0].factors:
        how, error = "by operators", KIND_OPERATORS_ERROR
    if places[0].factors:
        how, error = f"{how}, and by other models measured on both devices", COMMON_ERROR
    note = Assumption("layer times", f"from {names}", "", how)
    return timing, note, together(error, batch_error)


def _on_target(
    profile: Profile,
    there: Workload,
    place: MeasuredDevice,
    target: Device,
    flop: bool,
    devices: Mapping[str, Device],
) -> NDArray[np.float64]:
    """Seconds on the target of each layer's forward pass, then of each layer's backward pass."""
    factor = float(np.median(place.factors)) if place.factors else 1.0
    if not flop:
        speeds = [
            math.sqrt(one.peak(there.precision) * one.memory_bandwidth_bytes_per_s)
            for one in (place.device, target)
        ]
        ratio = 1.0 if place.factors else speeds[0] / speeds[1]
        forward = [la.forward_s for la in there.layers] or [there.forward_s]
        backward = [la.backward_s for la in there.layers] or [there.backward_s]
        return np.array([*forward, *backward]) * ratio / factor
    groups = [group(layer.kind) for layer in profile.layers]
    given = there.batch_size, there.precision
    if by_operators(target, profile.layers) and not place.factors:
        before, after = (
            operator_passes_s(one, profile.layers, *given, devices)
            for one in (place.device, target)
        )
    else:
        demands = LayerDemands.of(profile.layers)
        before, after = (roofline_passes_s(one, demands, *given) for one in (place.device, target))
    forward_s = transferred(groups, [la.forward_s for la in there.layers], before[0], after[0])
    backward_s = transferred(groups, [la.backward_s for la in there.layers], before[1], after[1])
    return np.concatenate([forward_s, backward_s]) / factor


def group(kind: str) -> str:
    """Group of a layer's kind: layers of a group reach about the same fraction of their roofline.

    >>> [group(kind) for kind in ("conv2d", "batchnorm2d", "Linear", "attention")]
    ['convolution', 'norm', 'linear', 'other']
    """
    kind = kind.lower()
    words = {"norm": "norm", "embedding": "embedding", "conv": "convolution", "linear": "linear"}
    return next((name for word, name in words.items() if word in kind), "other")


def transferred(
    groups: Sequence[str], seconds: ArrayLike, there: ArrayLike, here: ArrayLike
) -> NDArray[np.float64]:
    """Seconds of one pass of each layer on another device: roofline time there over efficiency.

    Parameters
    ----------
    groups : the group of each layer (layers,). The layers of a group share one efficiency: roofline
        time over measured time on the first device.
    seconds : measured on the first device (layers,).
    there, here : roofline seconds of the pass on the first and on the other device (layers,).

    Layers without a roofline time scale with the total of the others.

    >>> transferred(["linear", "linear"], [4.0, 8.0], [1.0, 2.0], [0.5, 3.0])
    array([ 2., 12.])
    """
    t, before, after = (np.asarray(v, float) for v in (seconds, there, here))
    overall = after.sum() / before.sum() if before.sum() > 0 else 1.0
    times = t * overall
    for name in set(groups):
        of = np.array([g == name for g in groups])
        if before[of].sum() > 0:
            times[of] = after[of] * (t[of].sum() / before[of].sum())
    return np.array(times)


def _typical_rates(
    target: Device,
    precision: str,
    devices: Mapping[str, Device],
    others: Sequence[Profile],
    operators: bool,
) -> dict[tuple[str, str], float]:
    """Efficiencies on the target, else on all devices of its kind; if there are none at
    ``precision``, those at float32."""
    for which in (precision, "float32"):
        alike = {name: one for name, one in devices.items() if one.kind == target.kind}
        for places in ({target.name: target}, alike):
            known = devices if operators else None
            rates = _rates(others, which, places, efficiency=True, known=known)
            if rates:
                return rates
    return {}


def _rates(
    profiles: Sequence[Profile],
    precision: str,
    devices: Mapping[str, Device],
    *,
    efficiency: bool,
    known: Mapping[str, Device] | None = None,
) -> dict[tuple[str, str], float]:
    """Speed of each model on each device, by both names; geometric mean over batch sizes.

    The speed is the efficiency if ``efficiency``, else samples per second. It is that of operators
    if devices whose figures count are ``known``.
    """
    logs: dict[tuple[str, str], list[float]] = {}
    for one in profiles:
        usable = [t for t in one.timings if t.precision == precision and t.device in devices]
        demands = LayerDemands.of(one.layers if efficiency and usable else ())
        for timing in usable:
            rate = timing.batch_size / timing.total_s
            if efficiency:
                place = devices[timing.device]
                size = timing.batch_size
                if known is None:
                    least = 3.0 * sum(demands.forward_s(place, size, precision))
                else:
                    passes = operator_passes_s(place, one.layers, size, precision, known)
                    least = sum(map(sum, passes))
                rate = least / timing.total_s
            if rate > 0:
                logs.setdefault((one.name, timing.device), []).append(math.log(rate))
    return {key: math.exp(sum(ratios) / len(ratios)) for key, ratios in logs.items()}


def _source(target: Device) -> Source:
    return Source("estimated", f"roofline of {target.title}, {target.source.text}")
