"""Makes a coarse workload of the output of DeepSpeed's flops profiler.

It has the latencies of the forward pass, the backward pass and the optimizer's step on one device,
the number of parameters and the batch size. See
https://www.deepspeed.ai/tutorials/flops-profiler/.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from perfmodel.base.errors import InputError, number
from perfmodel.base.provenance import Source
from perfmodel.inputs.profile import MOST_TENSORS, Gradients, Profile, Timing

PARAMETER_BYTES = 4
"""Bytes of a gradient: float32."""

TENSOR_BYTES = 2**20
"""Size of a tensor where a summary does not list them; they are of this order in most models."""

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


class FlopsProfile(NamedTuple):
    """A step as DeepSpeed's flops profiler reports it, on one of ``data_parallel`` devices."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    batch_size: int
    gradient_bytes: float
    data_parallel: int

    @property
    def computing_s(self) -> float:
        """Seconds of both passes and the optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def tensors(self) -> int:
        """Number of equal tensors that the gradients are taken as."""
        return min(max(1, math.ceil(self.gradient_bytes / TENSOR_BYTES)), MOST_TENSORS)

    @property
    def notes(self) -> list[str]:
        """What is assumed, or may be wrong."""
        notes = [f"gradients: {self.tensors} equal tensors, because they are not listed"]
        if self.data_parallel > 1:
            notes.append(
                f"measured among {self.data_parallel} data parallel workers: the backward latency "
                "may include communication that it waits for; on one device it does not"
            )
        return notes


def parse(text: str, name: str) -> FlopsProfile:
    """Read the output of DeepSpeed's flops profiler; of several profiles, the last.

    Raises
    ------
    InputError : a figure is missing or cannot be read; or the model is split over devices.
    """
    lines = re.findall(r"^[ \t]*([^:\n]+):[ \t]+(\S[^\n]*)$", text, flags=re.M)
    given = {label.lower().partition(" = ")[0]: value.strip() for label, value in lines}
    known: dict[str, float] = {}
    for label, units in (
        ("fwd latency", SECONDS),
        ("bwd latency", SECONDS),
        ("step latency", SECONDS),
        ("batch size per gpu", COUNTS),
        ("params per gpu", COUNTS),
    ):
        if label not in given:
            raise InputError(
                f"{name}: the output of DeepSpeed's flops profiler lacks {label!r}; profile a "
                "training step through the DeepSpeed configuration (flops_profiler)"
            )
        known[label] = _value(given[label], units, f"{name}: {label}")
    split = int(_value(given.get("model parallel size", "1"), COUNTS, f"{name}: model parallel"))
    if split > 1:
        raise InputError(
            f"{name}: the model is split over {split} devices (model parallel size); profile the "
            "whole model on one device"
        )
    passes_s = known["fwd latency"] + known["bwd latency"] + known["step latency"]
    step_s = passes_s
    if "iter latency" in given:
        step_s = max(passes_s, _value(given["iter latency"], SECONDS, f"{name}: iter latency"))
    devices = given.get("data parallel size", given.get("world size", "1"))
    return FlopsProfile(
        forward_s=known["fwd latency"],
        backward_s=known["bwd latency"],
        optimizer_s=known["step latency"],
        step_s=step_s,
        batch_size=int(known["batch size per gpu"]),
        gradient_bytes=PARAMETER_BYTES * known["params per gpu"],
        data_parallel=int(_value(devices, COUNTS, f"{name}: data parallel size")),
    )


def profile_of(
    found: FlopsProfile, name: str, device: str, precision: str, source: Source
) -> Profile:
    """Make the workload of a summary."""
    timing = Timing(
        device=device,
        batch_size=found.batch_size,
        precision=precision,
        forward_s=found.forward_s,
        backward_s=found.backward_s,
        optimizer_s=found.optimizer_s,
        other_s=max(0.0, found.step_s - found.computing_s),
        source=source,
    )
    gradients = Gradients(bytes=found.gradient_bytes, tensors=found.tensors)
    return Profile(name=name, source=source, timings=(timing,), gradients=gradients)


def _value(text: str, units: dict[str, float], where: str) -> float:
    """Return a figure such as ``31.20 ms`` or ``21.50 M`` in SI units."""
    match = re.fullmatch(r"([\d.,]+(?:e[-+]?\d+)?)\s*(\S*)", text.strip(), flags=re.I)
    try:
        value = float(match[1].replace(",", "")) if match else math.nan
    except ValueError:
        value = math.nan
    unit = match[2] if match else ""
    scale = units.get(unit if units is SECONDS else unit.lower())
    if scale is None or math.isnan(value):
        raise InputError(f"{where}: cannot read {text!r}")
    return number(where, value * scale, above=0.0)
