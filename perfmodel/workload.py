"""What is trained: a model's profile resolved to one training step on one device.

A :class:`Workload` is fully specified: one device, one batch size, seconds and bytes of every
layer. Everything downstream sees only this form, never the profile it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from perfmodel.errors import InputError, number, whole_number
from perfmodel.profile import Profile, Timing, total_s
from perfmodel.provenance import Assumption, Source

BACKWARD_OVER_FORWARD = 2.0
"""Backward does two products (gradients of inputs and of weights) for each one of forward."""

Quality = Literal["measured", "estimated"]


class WorkloadLayer(msgspec.Struct, frozen=True):
    """A layer of a resolved workload.

    ``tensor_bytes`` are its gradients in the order backward produces them.
    """

    name: str
    forward_s: float
    backward_s: float
    tensor_bytes: tuple[float, ...]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of one worker, fully specified (SI units).

    ``layers`` is empty for a coarse workload; the totals are always there. ``quality`` is
    *estimated* as soon as any time was derived rather than measured at this very batch size.
    """

    name: str
    device: str
    precision: str
    batch_size: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    data_loading_s: float
    gradient_bytes: float
    tensors: int
    largest_tensor_bytes: float
    layers: tuple[WorkloadLayer, ...]
    step_cv: float
    activation_bytes: float
    optimizer_state_bytes: float
    quality: Quality
    source: Source
    assumptions: tuple[Assumption, ...] = ()

    @property
    def compute_s(self) -> float:
        """Seconds a device computes in one step: forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @classmethod
    def of(
        cls,
        name: str,
        layers: Sequence[WorkloadLayer],
        *,
        batch_size: int = 1,
        device: str = "unnamed",
        optimizer_s: float = 0.0,
        data_loading_s: float = 0.0,
    ) -> Workload:
        """A workload straight from its layers, for programs that have no profile file.

        Raises
        ------
        InputError : no layer, or a time or size that is negative or not finite.
        """
        if not layers:
            raise InputError(f"workload {name!r}: at least one layer is needed")
        for layer in layers:
            number(f"layer {layer.name!r}: forward_s", layer.forward_s)
            number(f"layer {layer.name!r}: backward_s", layer.backward_s)
            for size in layer.tensor_bytes:
                number(f"layer {layer.name!r}: tensor_bytes", size, above=0.0)
        sizes = [size for layer in layers for size in layer.tensor_bytes]
        if not sizes:
            raise InputError(f"workload {name!r}: no layer has a tensor")
        return cls(
            name=name,
            device=device,
            precision="float32",
            batch_size=whole_number("batch_size", batch_size),
            forward_s=sum(layer.forward_s for layer in layers),
            backward_s=sum(layer.backward_s for layer in layers),
            optimizer_s=number("optimizer_s", optimizer_s),
            data_loading_s=number("data_loading_s", data_loading_s),
            gradient_bytes=sum(sizes),
            tensors=len(sizes),
            largest_tensor_bytes=max(sizes),
            layers=tuple(layers),
            step_cv=0.0,
            activation_bytes=0.0,
            optimizer_state_bytes=0.0,
            quality="measured",
            source=Source("measured", "given by the calling program"),
        )


def resolve(
    profile: Profile,
    timings: Sequence[Timing],
    *,
    batch_size: int | None = None,
    layer_shares: Sequence[float] | None = None,
    assumptions: Sequence[Assumption] = (),
) -> Workload:
    """Turn a profile and its timings on one device into a workload at one batch size.

    Parameters
    ----------
    timings : of one device and precision; the largest measured batch size is the default.
    layer_shares : share of the step's compute of each layer, for timings that only know the
        step; without it the layers' floating-point operations decide.

    At a batch size that was not measured, times are linear between the two nearest measured
    sizes (and beyond them); from a single size they are proportional. Either makes the
    workload *estimated*.
    """
    notes = list(assumptions)
    if batch_size is None:
        batch_size = timings[-1].batch_size
        notes.append(
            Assumption("batch_size", batch_size, "samples", "largest batch size of the profile")
        )
    whole_number("batch_size", batch_size)
    near = _nearest_two(timings, batch_size)
    forward, backward, rule = _layer_seconds(profile, near[0], layer_shares)
    optimizer_s, loading_s = near[0].optimizer_s, near[0].data_loading_s
    interpolated = near[0].batch_size != batch_size
    if interpolated:
        other = near[1] if len(near) > 1 else None
        f2, b2, _ = _layer_seconds(profile, other, layer_shares) if other else (None, None, None)
        x, x2 = near[0].batch_size, other.batch_size if other else 0

        def at(first: float, second: float) -> float:
            return max(0.0, first + (second - first) * (batch_size - x) / (x2 - x))

        forward = [at(a, b) for a, b in zip(forward, f2 or [0.0] * len(forward), strict=True)]
        backward = [at(a, b) for a, b in zip(backward, b2 or [0.0] * len(backward), strict=True)]
        loading_s = at(loading_s, other.data_loading_s if other else 0.0)
        sizes = ", ".join(str(t.batch_size) for t in near)
        how = "linear in the batch size from" if other else "proportional to"
        notes.append(
            Assumption("layer times", batch_size, "samples", f"{how} the profile's {sizes}")
        )
    if rule:
        notes.append(Assumption("layer shares", rule, "", "the profile only knows the whole step"))
    measured = not interpolated and rule is None and near[0].source.kind == "measured"
    return Workload(
        name=profile.name,
        device=near[0].device,
        precision=near[0].precision,
        batch_size=batch_size,
        forward_s=sum(forward),
        backward_s=sum(backward),
        optimizer_s=optimizer_s,
        data_loading_s=loading_s,
        layers=_layers(profile, forward, backward),
        step_cv=_step_cv(near[0]),
        activation_bytes=batch_size * sum(layer.activation_bytes for layer in profile.layers),
        optimizer_state_bytes=profile.parameter_bytes
        * profile.optimizer_state_bytes_per_parameter_byte,
        quality="measured" if measured else "estimated",
        source=near[0].source,
        assumptions=tuple(notes),
        **_sizes(profile),
    )


def _nearest_two(timings: Sequence[Timing], batch_size: int) -> list[Timing]:
    """The timing at ``batch_size``, or the two it lies between (the two at that end beyond)."""
    exact = [t for t in timings if t.batch_size == batch_size]
    if exact:
        return exact[:1]
    below = sum(t.batch_size < batch_size for t in timings)
    start = min(max(below - 1, 0), max(len(timings) - 2, 0))
    return list(timings[start : start + 2])


def _layer_seconds(
    profile: Profile, timing: Timing, shares: Sequence[float] | None
) -> tuple[list[float], list[float], str | None]:
    """Forward and backward seconds per layer, and the rule that made them (None if measured).

    Copies and whatever else a step does are in the forward time of the first layer: a worker
    does them before it computes, and communicates nothing by them.
    """
    forward, backward, rule = _shared_seconds(profile, timing, shares)
    return [forward[0] + timing.copy_s + timing.other_s, *forward[1:]], backward, rule


def _shared_seconds(
    profile: Profile, timing: Timing, shares: Sequence[float] | None
) -> tuple[list[float], list[float], str | None]:
    """The passes' seconds by layer, and the rule that shared them (None if measured)."""
    if isinstance(timing.forward_s, tuple) and isinstance(timing.backward_s, tuple):
        return list(timing.forward_s), list(timing.backward_s), None
    known = timing.forward_s is not None
    if not profile.layers:
        if isinstance(timing.forward_s, float) and isinstance(timing.backward_s, float):
            return [timing.forward_s], [timing.backward_s], None
        total = timing.passes_s
        forward = total / (1.0 + BACKWARD_OVER_FORWARD)
        return [forward], [total - forward], "backward takes twice forward"
    if shares is None:
        flops = [layer.forward_flop for layer in profile.layers]
        shares = flops if sum(flops) > 0 else [1.0] * len(flops)
    # the first layer passes no gradient on to an input, so its backward is a single product
    factors = [BACKWARD_OVER_FORWARD - (i == 0) for i in range(len(shares))]
    back = [share * factor for share, factor in zip(shares, factors, strict=True)]
    if known:
        forward_s, backward_s = total_s(timing.forward_s), total_s(timing.backward_s)
    else:
        total = timing.passes_s
        forward_s = total * sum(shares) / (sum(shares) + sum(back))
        backward_s = total - forward_s
    return (
        [forward_s * share / sum(shares) for share in shares],
        [backward_s * share / sum(back) for share in back],
        "roofline-share: each layer's part of the step as its roofline time on the device",
    )


def _layers(
    profile: Profile, forward: Sequence[float], backward: Sequence[float]
) -> tuple[WorkloadLayer, ...]:
    """The resolved layers; none for a coarse profile."""
    return tuple(
        WorkloadLayer(layer.name, f, b, tuple(t.bytes for t in reversed(layer.tensors)))
        for layer, f, b in zip(profile.layers, forward, backward, strict=bool(profile.layers))
    )


def _sizes(profile: Profile) -> dict[str, Any]:
    if profile.gradients is not None:
        g = profile.gradients
        largest = g.largest_bytes if g.largest_bytes is not None else g.bytes / g.tensors
        return {
            "gradient_bytes": g.bytes,
            "tensors": g.tensors,
            "largest_tensor_bytes": largest,
        }
    sizes = [tensor.bytes for layer in profile.layers for tensor in layer.tensors]
    return {
        "gradient_bytes": sum(sizes),
        "tensors": len(sizes),
        "largest_tensor_bytes": max(sizes),
    }


def _step_cv(timing: Timing) -> float:
    """Spread of one layer's time, weighted by its length: a lower bound of the step's own."""
    if not isinstance(timing.forward_std_s, tuple) or not isinstance(timing.backward_std_s, tuple):
        return 0.0
    variance = sum(s * s for s in timing.forward_std_s) + sum(s * s for s in timing.backward_std_s)
    total = total_s(timing.forward_s) + total_s(timing.backward_s)
    return float(variance**0.5 / total) if total > 0 else 0.0


def expanded(workload: Workload) -> Workload:
    """The workload with layers: itself, or a coarse one spread by the rule *equal-compute*.

    Equal-compute: as many layers as tensors, each with the same forward and backward time; the
    largest tensor in the last layer (where fully connected heads are), the rest in equal parts.
    The result is *estimated*.
    """
    if workload.layers:
        return workload
    n = workload.tensors
    rest = (workload.gradient_bytes - workload.largest_tensor_bytes) / max(n - 1, 1)
    sizes = [rest] * (n - 1) + [workload.largest_tensor_bytes]
    layers = tuple(
        WorkloadLayer(
            f"layer{i}",
            workload.forward_s / n,
            workload.backward_s / n,
            (size,) if size > 0 else (),
        )
        for i, size in enumerate(sizes)
    )
    rule = Assumption(
        "layer shares",
        "equal-compute: equal times, largest tensor last",
        "",
        "the workload has no layers",
    )
    return msgspec.structs.replace(
        workload,
        layers=layers,
        quality="estimated",
        assumptions=(*workload.assumptions, rule),
    )
