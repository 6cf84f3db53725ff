"""What is trained: a profile file of a model, and the workload it resolves to.

A :class:`Profile` is what a file holds: layers, and timings on one or more devices at one or more
batch sizes. A :class:`Workload` is one resolved training step: one device, one batch size, seconds
and bytes of every layer. Everything downstream sees only the resolved form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from perfmodel import files
from perfmodel.errors import InputError, number, unknown_name, whole_number
from perfmodel.provenance import Assumption, Source

SCHEMA = "perfmodel.workload/1"

BACKWARD_OVER_FORWARD = 2.0
"""Backward does two products (gradients of inputs and of weights) for each one of forward."""

Quality = Literal["measured", "estimated"]


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter tensor, and so one gradient tensor: its name and size in bytes."""

    name: str
    bytes: float

    def __post_init__(self) -> None:
        number(f"tensor {self.name!r}: bytes", self.bytes, above=0.0)


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer of a profile: its tensors in definition order (backward produces them reversed).

    ``forward_flop`` and ``activation_bytes`` (kept for backward) are per sample.
    """

    name: str
    kind: str = ""
    tensors: tuple[Tensor, ...] = ()
    forward_flop: float = 0.0
    activation_bytes: float = 0.0

    def __post_init__(self) -> None:
        number(f"layer {self.name!r}: forward_flop", self.forward_flop)
        number(f"layer {self.name!r}: activation_bytes", self.activation_bytes)


class Gradients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a coarse profile knows of its gradients: bytes in all, and in how many tensors."""

    bytes: float
    tensors: int = 1
    largest_bytes: float | None = None

    def __post_init__(self) -> None:
        number("bytes", self.bytes, above=0.0)
        whole_number("tensors", self.tensors)
        if self.largest_bytes is not None:
            number("largest_bytes", self.largest_bytes, above=0.0)
            if self.largest_bytes > self.bytes:
                raise InputError(
                    f"largest_bytes: {self.largest_bytes:g} is more than all the "
                    f"gradients together ({self.bytes:g} bytes)"
                )
            if self.largest_bytes * self.tensors < self.bytes:
                raise InputError(
                    f"largest_bytes: {self.tensors} tensors of at most "
                    f"{self.largest_bytes:g} bytes cannot hold {self.bytes:g} bytes"
                )


Seconds = float | tuple[float, ...]


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one training step on one device at one batch size, in one of three degrees.

    - per layer: ``forward_s`` and ``backward_s`` as lists in forward order (with ``*_std_s``);
    - per pass: ``forward_s`` and ``backward_s`` as single numbers;
    - per step: ``step_s``, or ``samples_per_s`` as throughput is published (the whole step).
    """

    device: str
    batch_size: int
    source: Source
    precision: str = "float32"
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    forward_std_s: Seconds | None = None
    backward_std_s: Seconds | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    optimizer_s: float = 0.0
    data_loading_s: float = 0.0

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size)
        for name in ("forward_s", "backward_s", "forward_std_s", "backward_std_s"):
            value = getattr(self, name)
            for i, item in enumerate(value if isinstance(value, tuple) else ()):
                number(f"{name}[{i}]", item)
            if value is not None and not isinstance(value, tuple):
                number(name, value)
        for name in ("step_s", "samples_per_s"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), above=0.0)
        number("optimizer_s", self.optimizer_s)
        number("data_loading_s", self.data_loading_s)
        passes = self.forward_s is not None and self.backward_s is not None
        either = self.forward_s is not None or self.backward_s is not None
        given = [either, self.step_s is not None, self.samples_per_s is not None]
        if sum(given) != 1 or either != passes:
            raise InputError(
                "a timing needs exactly one of: forward_s with backward_s, step_s, samples_per_s"
            )
        if isinstance(self.forward_s, tuple) != isinstance(self.backward_s, tuple):
            raise InputError("forward_s and backward_s: both per layer (lists) or both totals")

    @property
    def per_layer(self) -> bool:
        """Whether every layer has its own seconds."""
        return isinstance(self.forward_s, tuple)

    @property
    def total_s(self) -> float:
        """Seconds of the whole step on the device (forward, backward, optimizer)."""
        if self.samples_per_s is not None:
            return self.batch_size / self.samples_per_s
        if self.step_s is not None:
            return self.step_s
        return _total(self.forward_s) + _total(self.backward_s) + self.optimizer_s


def _total(value: Seconds | None) -> float:
    return sum(value) if isinstance(value, tuple) else (value or 0.0)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a workload file holds (schema ``perfmodel.workload/1``).

    Either ``layers``, in forward order, or ``gradients`` (a coarse profile); and ``timings``.
    """

    schema: Literal["perfmodel.workload/1"] = "perfmodel.workload/1"
    name: str
    source: Source
    timings: tuple[Timing, ...]
    title: str = ""
    layers: tuple[Layer, ...] = ()
    gradients: Gradients | None = None
    optimizer_state_bytes_per_parameter_byte: float = 1.0

    def __post_init__(self) -> None:
        if bool(self.layers) == (self.gradients is not None):
            raise InputError("a workload needs either layers or gradients, not both and not none")
        if self.layers and not any(layer.tensors for layer in self.layers):
            raise InputError("layers: no layer has a tensor, so there is nothing to communicate")
        if not self.timings:
            raise InputError("timings: at least one is needed")
        seen: set[tuple[str, str, int]] = set()
        for i, timing in enumerate(self.timings):
            key = (timing.device, timing.precision, timing.batch_size)
            if key in seen:
                raise InputError(
                    f"timings[{i}]: a second one for {timing.device}, {timing.precision}, "
                    f"batch size {timing.batch_size}"
                )
            seen.add(key)
            for name in ("forward_s", "backward_s", "forward_std_s", "backward_std_s"):
                value = getattr(timing, name)
                if isinstance(value, tuple) and len(value) != len(self.layers):
                    raise InputError(
                        f"timings[{i}].{name}: {len(value)} values for {len(self.layers)} layers"
                    )

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices with a timing, in the order of the file."""
        return tuple(dict.fromkeys(timing.device for timing in self.timings))

    @property
    def parameter_bytes(self) -> float:
        """Bytes of all parameters, which is also what one iteration's gradients weigh."""
        if self.gradients is not None:
            return self.gradients.bytes
        return sum(tensor.bytes for layer in self.layers for tensor in layer.tensors)


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


def read_profile(path: str | Path) -> Profile:
    """Read a workload file.

    Raises
    ------
    InputError : see :func:`perfmodel.files.read`.
    """
    return files.read(path, Profile, SCHEMA)


def timings_on(profile: Profile, device: str | None, precision: str | None) -> list[Timing]:
    """The profile's timings on one device at one precision, by batch size.

    Without ``device`` the first one with per-layer times (else the first one at all) is taken.

    Raises
    ------
    InputError : the profile has no timing for that device or precision.
    """
    if device is None:
        device = next((t.device for t in profile.timings if t.per_layer), profile.devices[0])
    found = [t for t in profile.timings if t.device == device]
    if not found:
        raise unknown_name(f"device for {profile.name}", device, profile.devices)
    if precision is None:
        precision = found[0].precision
    chosen = [t for t in found if t.precision == precision]
    if not chosen:
        raise unknown_name(
            f"precision for {profile.name} on {device}", precision, {t.precision for t in found}
        )
    return sorted(chosen, key=lambda t: t.batch_size)


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
    """Forward and backward seconds per layer, and the rule that made them (None if measured)."""
    if isinstance(timing.forward_s, tuple) and isinstance(timing.backward_s, tuple):
        return list(timing.forward_s), list(timing.backward_s), None
    known = timing.forward_s is not None
    if not profile.layers:
        if isinstance(timing.forward_s, float) and isinstance(timing.backward_s, float):
            return [timing.forward_s], [timing.backward_s], None
        total = timing.total_s - timing.optimizer_s
        forward = total / (1.0 + BACKWARD_OVER_FORWARD)
        return [forward], [total - forward], "backward takes twice forward"
    if shares is None:
        flops = [layer.forward_flop for layer in profile.layers]
        shares = flops if sum(flops) > 0 else [1.0] * len(flops)
    # the first layer passes no gradient on to an input, so its backward is a single product
    factors = [BACKWARD_OVER_FORWARD - (i == 0) for i in range(len(shares))]
    back = [share * factor for share, factor in zip(shares, factors, strict=True)]
    if known:
        forward_s, backward_s = _total(timing.forward_s), _total(timing.backward_s)
    else:
        total = timing.total_s - timing.optimizer_s
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
    total = _total(timing.forward_s) + _total(timing.backward_s)
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
