"""Devices: peak rates, and the rooflines that divide a step among its layers."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import unknown_name
from perfmodel.base.limits import limits_of
from perfmodel.base.provenance import Source
from perfmodel.base.ranges import COUNT, POSITIVE, Range, Ranged, or_none
from perfmodel.inputs.batch_scaling import LAUNCH_S, RECENT_LAUNCH_S
from perfmodel.inputs.operators import Operators
from perfmodel.inputs.precisions import RECIPES
from perfmodel.inputs.profile import Layer
from perfmodel.inputs.software import AS_FOUND, STACKS

SCHEMA = "perfmodel.device/1"

PEAK = Range(*limits_of("flop_per_s"))
"""Range of a peak rate."""


class PeakRates(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Peak FLOP/s: float32, and tf32, mixed (16-bit with 32-bit sums), fp8 and mxfp8 (8-bit with a
    scale per tensor, or per block) and nvfp4 (4-bit, with scales per block) if supported."""

    RANGES: ClassVar = {
        "float32": PEAK,
        **dict.fromkeys(("tf32", "mixed", "fp8", "mxfp8", "nvfp4"), or_none(PEAK)),
    }
    PLACE: ClassVar = "peak_flop_per_s."

    float32: float
    tf32: float | None = None
    mixed: float | None = None
    fp8: float | None = None
    mxfp8: float | None = None
    nvfp4: float | None = None


class PublishedUtilisation(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Published utilisation of a device in the training of a language model.

    Attributes
    ----------
    model : a model of the catalogue with a decoder.
    sequence_length : tokens per sequence.
    utilisation : operations per second, counted as in
        :meth:`perfmodel.inputs.decoder.Decoder.model_flop`, over the peak rate at ``precision``.
    stack : level of the software, one of :data:`perfmodel.inputs.software.STACKS`.
    """

    RANGES: ClassVar = {"utilisation": POSITIVE._replace(at_most=1.0)}

    model: str
    sequence_length: int
    precision: str
    utilisation: float
    source: Source
    stack: str = AS_FOUND

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stack not in STACKS:
            raise unknown_name("stack", self.stack, STACKS)


CPU = "cpu"
"""Name of the device in profiles that were recorded on any CPU."""


class Device(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device type (schema ``perfmodel.device/1``): peak rates and memory.

    Times can be transferred between devices of the same ``kind``. ``default_cluster`` is the
    catalogue's cluster for jobs that name none. ``peer_access`` says whether devices on PCIe
    usually access each other's memory; otherwise copies go through the host. ``aliases`` are
    further names of the device. ``language_models`` are published figures from which the times of
    other language models are estimated. ``architecture``, such as *hopper*, and the number of
    ``multiprocessors`` are those of GPUs; ``operators`` is what products and attention achieve.
    ``sustained`` is the fraction of the peak rates that a card keeps within its power limit, or
    reaches with its libraries, where other cards would reach all of what their figures say.
    """

    RANGES: ClassVar = {
        "memory_bandwidth_bytes_per_s": POSITIVE,
        "memory_bytes": or_none(POSITIVE),
        "multiprocessors": or_none(COUNT),
        "sustained": POSITIVE._replace(at_most=1.0),
    }

    schema: Literal["perfmodel.device/1"] = "perfmodel.device/1"
    name: str
    title: str
    kind: Literal["cpu", "gpu", "tpu"] = "gpu"
    peak_flop_per_s: PeakRates
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float | None = None
    default_cluster: str | None = None
    peer_access: bool = True
    aliases: tuple[str, ...] = ()
    language_models: tuple[PublishedUtilisation, ...] = ()
    architecture: str | None = None
    multiprocessors: int | None = None
    sustained: float = 1.0
    operators: Operators | None = None
    source: Source

    @property
    def launch_s(self) -> float:
        """Part of a step that does not depend on the batch size, in seconds per parameter tensor;
        GPUs since 2020 have TF32, and a TPU runs a compiled step."""
        recent = self.kind == "tpu" or (
            self.kind == "gpu" and self.peak_flop_per_s.tf32 is not None
        )
        return RECENT_LAUNCH_S if recent else LAUNCH_S

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions with a peak rate, and recipes with that of another."""
        rates = self.peak_flop_per_s
        names = [name for name in rates.__struct_fields__ if getattr(rates, name) is not None]
        more = [name for name, recipe in RECIPES.items() if recipe.peak in names]
        return tuple(dict.fromkeys([*names, *more]))

    def peak(self, precision: str) -> float:
        """Sustained peak FLOP/s at ``precision``; that of float32 if the device has none for it.

        Pure 16-bit precisions (*bf16*, *fp16*) are as fast as *mixed*, and recipes with 8 bits as
        those of their scales.
        """
        name = "mixed" if precision in ("bf16", "fp16") else precision
        name = RECIPES[precision].peak if precision in RECIPES else name
        rate = getattr(self.peak_flop_per_s, name, None)
        return self.sustained * float(rate if rate is not None else self.peak_flop_per_s.float32)


class LayerDemands(msgspec.Struct, frozen=True):
    """What the forward pass of each layer demands of a device, per sample or per pass.

    Attributes
    ----------
    flop_per_sample : floating-point operations, (layers,).
    parameter_bytes : read once per pass, (layers,).
    activation_bytes_per_sample : written once and read once, (layers,).
    """

    flop_per_sample: NDArray[np.float64]
    parameter_bytes: NDArray[np.float64]
    activation_bytes_per_sample: NDArray[np.float64]

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> "LayerDemands":
        """Return the demands of some layers."""
        return cls(
            np.array([layer.forward_flop for layer in layers], np.float64),
            np.array([sum(t.bytes for t in layer.tensors) for layer in layers], np.float64),
            np.array([layer.activation_bytes for layer in layers], np.float64),
        )

    def forward_s(self, device: Device, batch_size: int, precision: str) -> list[float]:
        """Return the minimum forward seconds of each layer, see :func:`roofline_s`."""
        count = float(batch_size)
        with np.errstate(over="ignore"):
            moved = self.parameter_bytes + 2.0 * count * self.activation_bytes_per_sample
            computing = count * self.flop_per_sample / device.peak(precision)
            least_s = np.maximum(computing, moved / device.memory_bandwidth_bytes_per_s)
        return list(least_s.tolist())


def roofline_s(
    device: Device, layers: Sequence[Layer], batch_size: int, precision: str
) -> list[float]:
    """Minimum forward seconds of each layer on ``device``: the slower of arithmetic and memory.

    t = max(batch * flop / peak, (parameters + 2 * batch * activations) / memory bandwidth)

    References
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", CACM 52(4), 2009, doi 10.1145/1498765.1498785.
    """
    return LayerDemands.of(layers).forward_s(device, batch_size, precision)
