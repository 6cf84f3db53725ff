"""Reads the speed of a run from the logs of frameworks, and of MLPerf.

Megatron-LM, nanotron, torchtitan, DeepSpeed, the Trainer of Transformers, Horovod's and
TensorFlow's benchmarks, and Lightning print it line by line, each in its own words and unit. The
speed of a log is the median of its lines, without the first ones: they contain compilation, and
caches that are empty.
"""

from __future__ import annotations

import re
import statistics
from typing import Literal, NamedTuple

from perfmodel.base.errors import InputError
from perfmodel.launchers import mlperf

Unit = Literal["s", "samples/s", "tokens/s"]

WARM_UP = 0.1
"""Fraction of the lines that are left out, the first ones; at least one if there are four."""

_NUMBER = r"([\d][\d,]*\.?\d*(?:[eE][-+]?\d+)?)\s*([KMB]?)"

_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}


class Pattern(NamedTuple):
    """What a framework prints: its name, how to find the number, its unit, how many of the unit
    one is, and whether it is of one device."""

    framework: str
    pattern: str
    unit: Unit
    scale: float = 1.0
    per_device: bool = False
    inverse: bool = False


PATTERNS = (
    Pattern("Megatron-LM", rf"elapsed time per iteration \(ms\): *{_NUMBER}", "s", 1e-3),
    Pattern("nanotron", rf"elapsed_time_per_iteration_ms: *{_NUMBER}", "s", 1e-3),
    Pattern("torchtitan", rf"\btps: *{_NUMBER}", "tokens/s", per_device=True),
    Pattern("DeepSpeed", rf"CurrSamplesPerSec=*{_NUMBER}", "samples/s"),
    Pattern("Transformers", rf"['\"]train_samples_per_second['\"]: *['\"]?{_NUMBER}", "samples/s"),
    Pattern("Horovod", rf"Img/sec per \w+: *{_NUMBER}", "samples/s", per_device=True),
    Pattern("TensorFlow", rf"total images/sec: *{_NUMBER}", "samples/s"),
    Pattern("Lightning", rf"[\[,] *{_NUMBER}it/s", "s", inverse=True),
)
"""What is looked for; the first framework with a line is the one."""


class LogSpeed(NamedTuple):
    """The speed of a run in its log: ``value`` in ``unit``, of all devices unless ``per_device``;
    ``lines`` are those that it is the median of."""

    framework: str
    value: float
    unit: Unit
    per_device: bool
    lines: int


def is_log(text: str) -> bool:
    """Whether a text has a line with a speed."""
    return any(re.search(p.pattern, text) for p in PATTERNS) or bool(mlperf.samples_per_s(text))


def parse(text: str, name: str) -> LogSpeed:
    """Read the speed; ``name`` is the file's.

    Raises
    ------
    InputError : no line has one.

    >>> log = "elapsed time per iteration (ms): 900.0 |\\nelapsed time per iteration (ms): 500.0 |"
    >>> parse(2 * (log + "\\n") + "elapsed time per iteration (ms): 500.0", "log.txt").value
    0.5
    """
    rates = mlperf.samples_per_s(text)
    if rates:
        rate = mlperf.throughput(rates)
        return LogSpeed("MLPerf", rate, "samples/s", per_device=False, lines=len(rates))
    for pattern in PATTERNS:
        values = [
            _value(found[1], found[2]) * pattern.scale
            for found in re.finditer(pattern.pattern, text)
        ]
        values = [1.0 / x if pattern.inverse else x for x in values if x > 0.0]
        if values:
            first = max(round(WARM_UP * len(values)), 1 if len(values) >= 4 else 0)
            kept = values[first:]
            return LogSpeed(
                pattern.framework,
                statistics.median(kept),
                pattern.unit,
                pattern.per_device,
                len(kept),
            )
    frameworks = ", ".join(["MLPerf", *dict.fromkeys(p.framework for p in PATTERNS)])
    raise InputError(f"{name}: no line has the speed of a run; known are the logs of {frameworks}")


def _value(digits: str, scale: str) -> float:
    return float(digits.replace(",", "")) * _SCALES[scale]
