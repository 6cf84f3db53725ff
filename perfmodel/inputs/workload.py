"""Workloads: a model's profile resolved to one training step on one device.

A :class:`Workload` is fully specified: one device, one batch size, and seconds and bytes of every
layer. All further modules use this form, never the profile it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

import msgspec

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Assumption, Source
from perfmodel.inputs.activations import Peaks, by_kind, in_precision, kinds_of
from perfmodel.inputs.batch_scaling import (
    RECENT_LAUNCH_S,
    at_batch_size,
    batch_error,
    launching,
    together,
)
from perfmodel.inputs.calibration import Calibration, scaled, value_at
from perfmodel.inputs.profile import Profile, Timing, total_s
from perfmodel.inputs.storage import Lora, Storage, Stored
from perfmodel.inputs.workload_layer import WorkloadLayer as WorkloadLayer
from perfmodel.theory.packing import Packing

BACKWARD_OVER_FORWARD = 2.0
"""Backward computes two products (gradients of inputs and of weights) for each one in forward."""

Quality = Literal["measured", "estimated"]


WIDE: Mapping[str, tuple[str, ...]] = {
    "compute_s": ("forward_s", "backward_s", "optimizer_s"),
    "gradient_bytes": ("gradient_bytes", "largest_tensor_bytes"),
}
"""Values made of several fields and of all layers, with the fields of each."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of one worker, fully specified (SI units).

    ``layers`` is empty for a coarse workload; the totals are always set. ``quality`` is *estimated*
    if any time was derived rather than measured at this batch size. ``error_fraction`` is the
    90th-percentile error of such compute times, as a factor less one (0.35: within a factor of
    1.35); None if the step itself was measured. ``calibration`` says how precisely fitted values
    are known: fields, or keys of :data:`WIDE`. ``noise_scale_samples`` is the gradient noise scale
    of the training; None if unknown. ``sequence_length`` is the number of tokens per sample; None
    if unknown. Times and activations already include ``recompute`` and ``accumulation`` (passes
    per update). If ``among_several``, the times are of a device in a group and include the slowdown
    by the others. With a slow host, both passes take ``slow_host`` times as long. ``buffer_bytes``
    is the size of the module's buffers. ``storage`` says how parameters, gradients and optimizer
    states are stored; ``frozen_bytes`` is the size of parameters that are not trained.
    ``activations`` divides ``activation_bytes`` by kind of layer, in proportion; all are *other* if
    it is empty. ``peaks`` says what else there is when memory is largest. ``packing`` says what its
    sequences are packed from; None if attention is not limited.
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
    error_fraction: float | None = None
    calibration: Calibration | None = None
    noise_scale_samples: float | None = None
    sequence_length: int | None = None
    recompute: str = "none"
    accumulation: int = 1
    among_several: bool = False
    slow_host: float = 1.0
    buffer_bytes: float = 0.0
    storage: Storage = Storage()
    frozen_bytes: float = 0.0
    activations: tuple[tuple[str, float], ...] = ()
    peaks: Peaks = Peaks()
    packing: Packing | None = None

    def __post_init__(self) -> None:
        for path in self.calibration.parameters if self.calibration is not None else ():
            if path not in WIDE:
                value_at(self, path)

    def scaled(self, path: str, factor: float) -> Workload:
        """Return a copy with a field, or a key of :data:`WIDE`, multiplied by ``factor``."""
        if path not in WIDE:
            return scaled(self, path, factor)
        more = {name: getattr(self, name) * factor for name in WIDE[path]}
        times = factor if path == "compute_s" else 1.0
        layers = tuple(
            msgspec.structs.replace(
                layer,
                forward_s=layer.forward_s * times,
                backward_s=layer.backward_s * times,
                tensor_bytes=tuple(size * factor for size in layer.tensor_bytes)
                if path == "gradient_bytes"
                else layer.tensor_bytes,
            )
            for layer in self.layers
        )
        return msgspec.structs.replace(self, layers=layers, **more)

    @property
    def compute_s(self) -> float:
        """Seconds of device computation per step: forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def activation_checkpointing(self) -> bool:
        """Whether every block keeps only its input."""
        return self.recompute == "full"

    @property
    def optimizer(self) -> str | None:
        """The optimizer, if it was given."""
        return self.storage.optimizer

    @property
    def precision_policy(self) -> str | None:
        """The precision policy, if it was given."""
        return self.storage.policy

    @property
    def lora(self) -> Lora | None:
        """The adapters that alone are trained; None if all parameters are."""
        return self.storage.lora

    @property
    def offload_optimizer(self) -> bool:
        """Whether optimizer states and master copies are in the memory of the host."""
        return self.storage.offload

    @property
    def stored(self) -> Stored:
        """What is stored of the model."""
        return self.storage.stored(
            self.gradient_bytes, self.optimizer_state_bytes, self.frozen_bytes, self.precision
        )

    @property
    def earlier_passes(self) -> int:
        """Passes of an update before its last one."""
        return self.accumulation - 1

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
        buffer_bytes: float = 0.0,
    ) -> Workload:
        """Make a workload directly from its layers, for programs without a profile file.

        Raises
        ------
        InputError : there is no layer, or a time or size is negative or not finite.
        """
        if not layers:
            raise InputError(f"workload {name!r}: needs at least one layer")
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
            buffer_bytes=number("buffer_bytes", buffer_bytes),
        )


def resolve(
    profile: Profile,
    timings: Sequence[Timing],
    *,
    batch_size: int | None = None,
    layer_shares: Sequence[float] | None = None,
    assumptions: Sequence[Assumption] = (),
    error_fraction: float | None = None,
    launch_s: float = RECENT_LAUNCH_S,
    least_s: float = 0.0,
) -> Workload:
    """Resolve a profile and its timings on one device to the workload of a step with one pass.

    Parameters
    ----------
    timings : on one device at one precision, by increasing batch size of a pass; the largest is the
        default. Of timings with accumulated gradients only one pass is used
        (:attr:`perfmodel.inputs.profile.Timing.one_pass`).
    batch_size : samples of the pass.
    layer_shares : each layer's share of the step's compute time, for timings of whole steps;
        default: in proportion to the layers' floating-point operations.
    error_fraction : error of the timings themselves; None if they were measured.
    launch_s, least_s : as in :func:`perfmodel.inputs.batch_scaling.at_batch_size`.

    Times at a batch size that was not measured follow from that rule, and make the workload
    *estimated*. The optimizer time and the spread are those of the nearest size.
    """
    notes = list(assumptions)
    timings = [t.one_pass for t in timings]
    if batch_size is None:
        batch_size = timings[-1].batch_size
        why = "largest batch size of the profile"
        notes.append(Assumption("batch_size", batch_size, "samples", why))
    size = whole_number("batch_size", batch_size)
    near = min(timings, key=lambda t: (abs(t.batch_size - size), t.batch_size))
    used = _used(timings, size)
    parts = [_layer_seconds(profile, t, layer_shares) for t in used]
    sizes = [t.batch_size for t in used]
    rule = next((text for _, _, text in parts if text), None)
    sized, stored = _sizes(profile), in_precision(profile, near.precision)
    seconds = [[*forward, *backward] for forward, backward, _ in parts]
    tensors = sized["tensors"]
    constants = {"launch_s": launch_s, "least_s": least_s}
    passes = at_batch_size(sizes, seconds, size, tensors=tensors, **constants).tolist()
    forward, backward = passes[: len(passes) // 2], passes[len(passes) // 2 :]
    loading_s = float(at_batch_size(sizes, [[t.data_loading_s] for t in used], size, tensors=0)[0])
    if sizes != [size]:
        how = _how(sizes, size, launching(tensors, sum(seconds[0]), **constants))
        notes.append(Assumption("layer times", size, "samples", how))
    if rule:
        notes.append(Assumption("layer shares", rule, "", "the profile only has the whole step"))
    error = together(error_fraction, batch_error(sizes, size, launch_s=launch_s))
    if error is not None:
        error = round(error, 2)
        notes.append(_error_note(error))
    measured = sizes == [size] and rule is None and near.source.kind == "measured"
    return Workload(
        name=profile.name,
        device=near.device,
        precision=near.precision,
        batch_size=size,
        forward_s=sum(forward),
        backward_s=sum(backward),
        optimizer_s=near.optimizer_s,
        data_loading_s=loading_s,
        layers=_layers(stored, forward, backward, size),
        step_cv=_step_cv(near),
        **_activations(stored, size),
        optimizer_state_bytes=profile.parameter_bytes
        * profile.optimizer_state_bytes_per_parameter_byte,
        quality="measured" if measured else "estimated",
        source=near.source,
        assumptions=tuple(notes),
        error_fraction=error,
        calibration=profile.calibration,
        noise_scale_samples=profile.noise_scale.samples if profile.noise_scale else None,
        sequence_length=profile.decoder.sequence_length if profile.decoder else None,
        buffer_bytes=profile.buffer_bytes,
        **sized,
    )


def _error_note(error: float) -> Assumption:
    why = f"9 in 10 such estimates are within a factor of {1 + error:.2f} of the truth"
    return Assumption("compute time error", error, "", why)


def _used(timings: Sequence[Timing], batch_size: int) -> list[Timing]:
    """The timing at ``batch_size``, or the two around it, or all if it lies beyond them."""
    below = [t for t in timings if t.batch_size <= batch_size]
    above = [t for t in timings if t.batch_size > batch_size]
    if below and below[-1].batch_size == batch_size:
        return below[-1:]
    return [*below[-1:], *above[:1]] if below and above else list(timings)


def _how(sizes: Sequence[int], batch_size: int, fixed: float) -> str:
    """Describe how the times follow from those at ``sizes``; ``fixed`` is the fraction of a single
    one that does not depend on the batch size."""
    names = ", ".join(map(str, sizes))
    if len(sizes) == 1:
        return f"{fixed:.0%} fixed and the rest proportional, from the profile's {names}"
    if min(sizes) < batch_size < max(sizes):
        return f"linear in the batch size from the profile's {names}"
    return f"a fixed and a proportional part, fitted to the profile's {names}"


def _layer_seconds(
    profile: Profile, timing: Timing, shares: Sequence[float] | None
) -> tuple[list[float], list[float], str | None]:
    """Forward and backward seconds per layer, and the rule behind them (None if measured).

    The forward time of the first layer includes copies and the rest of the step.
    """
    forward, backward, rule = _shared_seconds(profile, timing, shares)
    return [forward[0] + timing.copy_s + timing.other_s, *forward[1:]], backward, rule


def _shared_seconds(
    profile: Profile, timing: Timing, shares: Sequence[float] | None
) -> tuple[list[float], list[float], str | None]:
    """Seconds of the passes by layer, and the rule that divided them (None if measured)."""
    if isinstance(timing.forward_s, tuple) and isinstance(timing.backward_s, tuple):
        return list(timing.forward_s), list(timing.backward_s), None
    known = timing.forward_s is not None
    if not profile.layers:
        if isinstance(timing.forward_s, float) and isinstance(timing.backward_s, float):
            return [timing.forward_s], [timing.backward_s], None
        total = timing.passes_s
        forward = total / (1.0 + BACKWARD_OVER_FORWARD)
        return [forward], [total - forward], "backward takes twice as long as forward"
    if shares is None:
        flops = [layer.forward_flop for layer in profile.layers]
        shares = flops if sum(flops) > 0 else [1.0] * len(flops)
    # the first layer passes no gradient back to an input, so its backward is a single product
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
        "roofline-share: in proportion to the layers' roofline times",
    )


def _layers(
    profile: Profile, forward: Sequence[float], backward: Sequence[float], batch_size: int
) -> tuple[WorkloadLayer, ...]:
    """The resolved layers; none for a coarse profile."""
    return tuple(
        WorkloadLayer(
            layer.name,
            f,
            b,
            tuple(t.bytes for t in reversed(layer.tensors)),
            batch_size * kept,
            layer.kind,
            None if layer.saved_bytes is None else batch_size * layer.activation_bytes,
            None if layer.temporary_bytes is None else batch_size * layer.temporary_bytes,
        )
        for layer, f, b, kept in zip(
            profile.layers, forward, backward, profile.kept_bytes, strict=bool(profile.layers)
        )
    )


class Sizes(TypedDict):
    """Fields of a workload about its gradients."""

    gradient_bytes: float
    tensors: int
    largest_tensor_bytes: float


class Activations(TypedDict):
    """Fields of a workload about what its layers keep."""

    activation_bytes: float
    activations: tuple[tuple[str, float], ...]


def _activations(profile: Profile, batch_size: int) -> Activations:
    """What layers keep for backward: the sum, and by kind of layer."""
    sizes = [batch_size * size for size in profile.kept_bytes]
    kinds = kinds_of([(layer.name, layer.kind) for layer in profile.layers])
    kept = by_kind(list(zip(kinds, sizes, strict=True)))
    return {"activation_bytes": sum(sizes), "activations": kept}


def _sizes(profile: Profile) -> Sizes:
    if profile.gradients is not None:
        g = profile.gradients
        largest = g.largest_bytes if g.largest_bytes is not None else g.bytes / g.tensors
        return {"gradient_bytes": g.bytes, "tensors": g.tensors, "largest_tensor_bytes": largest}
    sizes = [tensor.bytes for layer in profile.layers for tensor in layer.tensors]
    return {
        "gradient_bytes": sum(sizes),
        "tensors": len(sizes),
        "largest_tensor_bytes": max(sizes),
    }


def _step_cv(timing: Timing) -> float:
    """Spread of the layers' times, combined relative to the step: a lower bound of the step's."""
    if not isinstance(timing.forward_std_s, tuple) or not isinstance(timing.backward_std_s, tuple):
        return 0.0
    variance = sum(s * s for s in timing.forward_std_s) + sum(s * s for s in timing.backward_std_s)
    total = total_s(timing.forward_s) + total_s(timing.backward_s)
    return float(variance**0.5 / total) if total > 0 else 0.0


def expanded(workload: Workload) -> Workload:
    """Return the workload with layers: itself, or a coarse one divided by the rule *equal-compute*.

    Equal-compute: as many layers as tensors, each with the same forward and backward time; the
    largest tensor is in the last layer (where fully connected heads are), the rest is split
    equally. The result is *estimated*. All passes of an update but the last are forward time of the
    first layer.
    """
    if workload.layers:
        return workload
    n = workload.tensors
    rest = (workload.gradient_bytes - workload.largest_tensor_bytes) / max(n - 1, 1)
    sizes = [rest] * (n - 1) + [workload.largest_tensor_bytes]
    passes_s = workload.forward_s + workload.backward_s
    earlier_s = passes_s * workload.earlier_passes / workload.accumulation
    layers = tuple(
        WorkloadLayer(
            f"layer{i}",
            (workload.forward_s - earlier_s) / n + (earlier_s if i == 0 else 0.0),
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


def with_handover(workload: Workload, seconds: Callable[[int, float], float]) -> Workload:
    """Return the workload with the time to hand gradients over to the network.

    ``seconds`` gives that time for a number of tensors and their total bytes. It counts as backward
    time, right after the layer whose gradients they are.
    """
    return msgspec.structs.replace(
        workload,
        backward_s=workload.backward_s + seconds(workload.tensors, workload.gradient_bytes),
        layers=tuple(
            msgspec.structs.replace(
                layer,
                backward_s=layer.backward_s
                + seconds(len(layer.tensor_bytes), sum(layer.tensor_bytes)),
            )
            if layer.tensor_bytes
            else layer
            for layer in workload.layers
        ),
    )
