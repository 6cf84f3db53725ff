"""Reads the output of DeepSpeed's flops profiler.

It has the latencies of the forward pass, the backward pass and the optimizer's step on one device,
the number of parameters and the batch size. See
https://www.deepspeed.ai/tutorials/flops-profiler/.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from perfmodel.base.errors import InputError, number
from perfmodel.inputs.profile import MOST_TENSORS
from perfmodel.traces.steps import PARTS, TraceStep

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
    def step(self) -> TraceStep:
        """The step as in a trace."""
        compute_s: dict[tuple[str, int | None], float] = {
            ("forward", None): self.forward_s,
            ("backward", None): self.backward_s,
            ("optimizer", None): self.optimizer_s,
        }
        computing_s = sum(compute_s.values())
        parts_s = dict.fromkeys(PARTS, 0.0)
        parts_s |= {"computing": computing_s, "idle": self.step_s - computing_s}
        return TraceStep(0.0, self.step_s, (0.0, self.step_s), parts_s, compute_s)

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
    lines_by_label = {label.lower().partition(" = ")[0]: value.strip() for label, value in lines}
    figures: dict[str, float] = {}
    for label, units in (
        ("fwd latency", SECONDS),
        ("bwd latency", SECONDS),
        ("step latency", SECONDS),
        ("batch size per gpu", COUNTS),
        ("params per gpu", COUNTS),
    ):
        if label not in lines_by_label:
            raise InputError(
                f"{name}: the output of DeepSpeed's flops profiler lacks {label!r}; profile a "
                "training step through the DeepSpeed configuration (flops_profiler)"
            )
        figures[label] = _value(lines_by_label[label], units, f"{name}: {label}")
    split = int(
        _value(lines_by_label.get("model parallel size", "1"), COUNTS, f"{name}: model parallel")
    )
    if split > 1:
        raise InputError(
            f"{name}: the model is split over {split} devices (model parallel size); profile the "
            "whole model on one device"
        )
    passes_s = figures["fwd latency"] + figures["bwd latency"] + figures["step latency"]
    step_s = passes_s
    if "iter latency" in lines_by_label:
        step_s = max(
            passes_s, _value(lines_by_label["iter latency"], SECONDS, f"{name}: iter latency")
        )
    devices = lines_by_label.get("data parallel size", lines_by_label.get("world size", "1"))
    return FlopsProfile(
        forward_s=figures["fwd latency"],
        backward_s=figures["bwd latency"],
        optimizer_s=figures["step latency"],
        step_s=step_s,
        batch_size=int(figures["batch size per gpu"]),
        gradient_bytes=PARAMETER_BYTES * figures["params per gpu"],
        data_parallel=int(_value(devices, COUNTS, f"{name}: data parallel size")),
    )


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
