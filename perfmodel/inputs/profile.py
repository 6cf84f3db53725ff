"""Workload files: a model's layers, and its timings on one or more devices."""

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.provenance import Source
from perfmodel.base.ranges import COUNT, NOT_NEGATIVE, POSITIVE, Range, Ranged, or_none
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.operator_shapes import OperatorShape
from perfmodel.inputs.precisions import SHORT, WIDE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "perfmodel.workload/1"

MOST_TENSORS = 100_000
"""Maximum tensors, or layers, of a model."""


class Tensor(Ranged, frozen=True, forbid_unknown_fields=True):
    """A parameter tensor, and so also a gradient tensor: its name and size in bytes."""

    RANGES: ClassVar = {"bytes": POSITIVE}
    PLACE: ClassVar = "tensor {0.name!r}: "

    name: str
    bytes: float


class Layer(Ranged, frozen=True, forbid_unknown_fields=True):
    """A layer of a profile: its tensors in definition order (backward produces them reversed).

    ``forward_flop``, ``activation_bytes`` (its output), ``saved_bytes`` (kept for backward; the
    default is the output) and ``temporary_bytes`` (the gradients of an output and of its input, of
    which one is made of the other; the default is the layer's output and that before) are per
    sample. ``operators`` are what it computes, if known.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("forward_flop", "activation_bytes"), NOT_NEGATIVE),
        **dict.fromkeys(("saved_bytes", "temporary_bytes"), or_none(NOT_NEGATIVE)),
    }
    PLACE: ClassVar = "layer {0.name!r}: "

    name: str
    kind: str = ""
    tensors: tuple[Tensor, ...] = ()
    forward_flop: float = 0.0
    activation_bytes: float = 0.0
    saved_bytes: float | None = None
    temporary_bytes: float | None = None
    operators: tuple[OperatorShape, ...] = ()

    @property
    def kept_bytes(self) -> float:
        """What it keeps for backward, per sample."""
        return self.activation_bytes if self.saved_bytes is None else self.saved_bytes


class Gradients(Ranged, frozen=True, forbid_unknown_fields=True):
    """The gradients of a coarse profile: total bytes, number of tensors, and the largest tensor."""

    RANGES: ClassVar = {
        "bytes": POSITIVE,
        "tensors": COUNT._replace(at_most=MOST_TENSORS),
        "largest_bytes": or_none(POSITIVE),
    }

    bytes: float
    tensors: int = 1
    largest_bytes: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest_bytes is not None:
            if self.largest_bytes > self.bytes:
                raise InputError(
                    f"largest_bytes: {self.largest_bytes:g} is more than all gradients together "
                    f"({self.bytes:g} bytes)"
                )
            if self.largest_bytes * self.tensors < self.bytes:
                raise InputError(
                    f"largest_bytes: {self.tensors} tensors of at most "
                    f"{self.largest_bytes:g} bytes cannot hold {self.bytes:g} bytes"
                )


class Framework(Ranged, frozen=True, forbid_unknown_fields=True):
    """The software of a measurement: its ``name``, such as *pytorch*; ``version``, ``container``
    (its publisher or name) and ``year`` where they are known."""

    RANGES: ClassVar = {"year": Range(1990, 2100, whole=True, besides=(None,))}

    name: str
    version: str | None = None
    container: str | None = None
    year: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name != self.name.lower() or not self.name.strip():
            raise InputError(f"framework: a name in lower case, such as pytorch, not {self.name!r}")


Seconds = float | tuple[float, ...]

ACTIVATION_PRECISIONS = (*WIDE_BYTES, *SHORT)
"""Precisions in which activations may have been recorded."""


class Timing(Ranged, frozen=True, forbid_unknown_fields=True):
    """Times of one training step on one device at one batch size, at one of three levels of detail.

    - per layer: ``forward_s`` and ``backward_s`` as lists in forward order (with ``*_std_s``);
    - per pass: ``forward_s`` and ``backward_s`` as single numbers;
    - per step: ``step_s``, or ``samples_per_s`` as throughput is published (the whole step).

    Attributes
    ----------
    batch_size : samples per step, over all ``accumulation`` passes.
    copy_s : exposed copies between host and device.
    other_s : the rest of the step, such as the loss or the training loop.
    step_std_s : standard deviation of the whole step.
    accumulation : forward and backward passes per update; each has an equal share of the batch.
    overhead_fraction : relative overhead of the measurement; 0 if unknown.
    framework : what it was measured with, if known.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("batch_size", "accumulation"), COUNT),
        **dict.fromkeys(("forward_s", "backward_s"), or_none(NOT_NEGATIVE)),
        **dict.fromkeys(("forward_std_s", "backward_std_s"), or_none(NOT_NEGATIVE)),
        **dict.fromkeys(("step_s", "samples_per_s"), or_none(POSITIVE)),
        **dict.fromkeys(("optimizer_s", "data_loading_s", "copy_s", "other_s"), NOT_NEGATIVE),
        "step_std_s": or_none(NOT_NEGATIVE),
        "overhead_fraction": Range(-1.0),
    }

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
    copy_s: float = 0.0
    other_s: float = 0.0
    step_std_s: float | None = None
    accumulation: int = 1
    overhead_fraction: float = 0.0
    framework: Framework | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        passes = self.forward_s is not None and self.backward_s is not None
        either = self.forward_s is not None or self.backward_s is not None
        given = [either, self.step_s is not None, self.samples_per_s is not None]
        if sum(given) != 1 or either != passes:
            raise InputError(
                "a timing needs exactly one of: forward_s with backward_s, step_s, samples_per_s"
            )
        if isinstance(self.forward_s, tuple) != isinstance(self.backward_s, tuple):
            raise InputError("forward_s and backward_s: give lists (per layer) or totals for both")

    @property
    def per_layer(self) -> bool:
        """Whether every layer has its own seconds."""
        return isinstance(self.forward_s, tuple)

    @property
    def total_s(self) -> float:
        """Seconds of the whole step on the device, without data loading."""
        if self.samples_per_s is not None:
            return self.batch_size / self.samples_per_s
        if self.step_s is not None:
            return self.step_s
        passes = total_s(self.forward_s) + total_s(self.backward_s)
        return passes + self.optimizer_s + self.copy_s + self.other_s

    @property
    def passes_s(self) -> float:
        """Seconds of the forward and backward passes."""
        return max(0.0, self.total_s - self.optimizer_s - self.copy_s - self.other_s)

    @property
    def one_pass(self) -> "Timing":
        """The timing of a step with one of the ``accumulation`` passes, and with its samples.

        Passes are equal. The optimizer runs once per step; everything else, copies included, is
        divided by the number of passes, and so are standard deviations: the relative spread stays
        that of the step. If samples do not divide evenly, their number is rounded.
        """
        count = self.accumulation
        if count == 1:
            return self

        def share(value: Seconds | None) -> Seconds | None:
            if isinstance(value, tuple):
                return tuple(seconds / count for seconds in value)
            return None if value is None else value / count

        whole = self.forward_s is None
        return msgspec.structs.replace(
            self,
            batch_size=max(1, round(self.batch_size / count)),
            accumulation=1,
            forward_s=share(self.forward_s),
            backward_s=share(self.backward_s),
            forward_std_s=share(self.forward_std_s),
            backward_std_s=share(self.backward_std_s),
            step_s=self.optimizer_s + (self.total_s - self.optimizer_s) / count if whole else None,
            samples_per_s=None,
            data_loading_s=self.data_loading_s / count,
            copy_s=self.copy_s / count,
            other_s=self.other_s / count,
            step_std_s=None if self.step_std_s is None else self.step_std_s / count,
        )


class NoiseScale(Ranged, frozen=True, forbid_unknown_fields=True):
    """Gradient noise scale of a model at given parameters (McCandlish et al., 2018).

    Attributes
    ----------
    samples : the noise scale, in samples.
    batch_size : samples in each of the small batches whose gradients are compared.
    batches : number of small batches per estimate.
    steps : number of estimates averaged.
    std_error_samples : standard error of ``samples``; None if unknown.
    source : also states which parameters.
    """

    RANGES: ClassVar = {
        "samples": NOT_NEGATIVE,
        "batch_size": COUNT,
        "batches": COUNT._replace(at_least=2),
        "steps": COUNT,
        "std_error_samples": or_none(NOT_NEGATIVE),
    }

    samples: float
    batch_size: int
    source: Source
    batches: int = 2
    steps: int = 1
    std_error_samples: float | None = None

    def __str__(self) -> str:
        error = "" if self.std_error_samples is None else f" ± {self.std_error_samples:.2g}"
        return (
            f"gradient noise scale: {self.samples:.4g}{error} samples "
            f"({self.steps} x {self.batches} batches of {self.batch_size})"
        )


def total_s(value: Seconds | None) -> float:
    """Seconds of all layers together (0 for None)."""
    return sum(value) if isinstance(value, tuple) else (value or 0.0)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of a workload file (schema ``perfmodel.workload/1``).

    A profile has either ``layers``, in forward order, or ``gradients`` (a coarse profile).
    ``timings`` may be left out if the layers have operation counts, since times are then estimated
    from what other models achieve on a device, or if jobs give the measured speed of one device.
    With ``decoder``, the dimensions of a language model, the layers follow at any sequence length
    (:mod:`perfmodel.inputs.decoder_layers`): neither layers nor timings are needed, and any given
    hold for its default length. ``calibration`` says how precisely fitted values are known.
    ``noise_scale`` is for training the model on its data. ``buffer_bytes`` is the size of the
    module's buffers, such as running means. ``activation_precision`` is that of the step in which
    the layers' activations were recorded.
    """

    schema: Literal["perfmodel.workload/1"] = "perfmodel.workload/1"
    name: str
    source: Source
    timings: tuple[Timing, ...] = ()
    title: str = ""
    layers: tuple[Layer, ...] = ()
    gradients: Gradients | None = None
    decoder: Decoder | None = None
    optimizer_state_bytes_per_parameter_byte: float = 1.0
    buffer_bytes: float = 0.0
    activation_precision: str = "float32"
    noise_scale: NoiseScale | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        number("buffer_bytes", self.buffer_bytes)
        if self.activation_precision not in ACTIVATION_PRECISIONS:
            raise unknown_name(
                "activation_precision", self.activation_precision, ACTIVATION_PRECISIONS
            )
        by_layer = bool(self.layers) or self.decoder is not None
        if by_layer == (self.gradients is not None):
            raise InputError("a workload needs exactly one of: layers, gradients")
        if self.layers and not any(layer.tensors for layer in self.layers):
            raise InputError("layers: no layer has a tensor, so there is nothing to communicate")
        whole_number("layers, counted", len(self.layers), at_least=0, at_most=MOST_TENSORS)
        seen: set[tuple[str, str, int, object]] = set()
        for i, timing in enumerate(self.timings):
            made = timing.framework and (timing.framework.name, timing.framework.version)
            key = (timing.device, timing.precision, timing.batch_size, made)
            if key in seen:
                raise InputError(
                    f"timings[{i}]: duplicate timing for {timing.device}, {timing.precision}, "
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
    def estimable(self) -> bool:
        """Whether times can be estimated from operation counts."""
        return self.decoder is not None or any(layer.forward_flop for layer in self.layers)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices with a timing, in the order of the file."""
        return tuple(dict.fromkeys(timing.device for timing in self.timings))

    @property
    def kept_bytes(self) -> tuple[float, ...]:
        """What each layer keeps for backward, per sample."""
        return tuple(layer.kept_bytes for layer in self.layers)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of all parameters, and of the gradients of an iteration."""
        if self.gradients is not None:
            return self.gradients.bytes
        if self.decoder is not None and not self.layers:
            return 4.0 * self.decoder.parameters(self.decoder.sequence_length)
        return sum(tensor.bytes for layer in self.layers for tensor in layer.tensors)


def read_profile(path: "str | Path") -> Profile:
    """Read a workload file.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`.
    """
    return files.read(path, Profile, SCHEMA)


def timings_on(profile: Profile, device: str | None, precision: str | None) -> list[Timing]:
    """Return the profile's timings on one device at one precision, by batch size.

    ``device`` defaults to the first one with per-layer times, or else to the first one.

    Raises
    ------
    InputError : the profile has no timing on that device or at that precision.
    """
    if device is None and not profile.timings:
        raise InputError(f"device: {profile.name} has no timings; name a device to estimate for")
    if device is None:
        device = next((t.device for t in profile.timings if t.per_layer), profile.devices[0])
    timings = [t for t in profile.timings if t.device == device]
    if not timings:
        raise unknown_name(f"device for {profile.name}", device, profile.devices)
    if precision is None:
        precision = timings[0].precision
    chosen = [t for t in timings if t.precision == precision]
    if not chosen:
        raise unknown_name(
            f"precision for {profile.name} on {device}", precision, {t.precision for t in timings}
        )
    first = {t.batch_size: t for t in reversed(chosen)}  # of several frameworks
    return [first[size] for size in sorted(first)]
