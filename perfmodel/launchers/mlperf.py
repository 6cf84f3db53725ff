"""Reads the log of an MLPerf training run: lines ``:::MLLOG`` with an event in JSON each.

See the training rules of MLCommons and its logging library: ``global_batch_size``,
``gradient_accumulation_steps`` and ``max_sequence_length`` describe the job, ``tracked_stats`` has
the throughput in samples/s, and ``epoch_start``, ``epoch_stop`` and ``train_samples`` give it where
there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from perfmodel.launchers.launch import Launch

_LINE = re.compile(r":::MLL(?:OG)? (\{.*\})")

MOST = 10**18
"""Largest number of samples, milliseconds or samples per second."""

COUNTS = {
    "global_batch_size": "global_batch_size",
    "gradient_accumulation_steps": "accumulation",
    "max_sequence_length": "sequence_length",
}
"""Arguments of a job by the key of an event."""


def events(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, in order."""
    for line in _LINE.findall(text):
        try:
            event = msgspec.json.decode(line.encode())
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def parse(text: str, name: str) -> Launch:
    """Read what a log says about the job; a log that says nothing is no error."""
    values_of: dict[str, int] = {}
    for event in events(text):
        value = event.get("value")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            values_of[str(event.get("key"))] = value
    values: dict[str, object] = {COUNTS[key]: values_of[key] for key in COUNTS if key in values_of}
    if values.get("accumulation") == 1:
        del values["accumulation"]
    return Launch(
        "a log of MLPerf",
        values_of.get("number_of_nodes"),
        values_of.get("accelerators_per_node"),
        arguments=values,
    )


def samples_per_s(text: str) -> list[float]:
    """Throughputs that a log states, else those of its epochs; none if it has neither."""
    stated: list[float] = []
    epochs: list[float] = []
    samples: float | None = None
    begin_ms: float | None = None
    for event in events(text):
        key, value, at_ms = event.get("key"), event.get("value"), _number(event.get("time_ms"))
        if key == "tracked_stats" and isinstance(value, dict):
            rate = _number(value.get("throughput"))
            if rate is not None:
                stated.append(rate)
        elif key == "train_samples":
            samples = _number(value)
        elif key == "epoch_start":
            begin_ms = at_ms
        elif key == "epoch_stop":
            if begin_ms is not None and at_ms is not None and samples and at_ms > begin_ms:
                epochs.append(1e3 * samples / (at_ms - begin_ms))
            begin_ms = None
    return stated or epochs


def _number(value: object) -> float | None:
    """A number above 0 in a plausible range, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < MOST else None


def throughput(rates: Sequence[float]) -> float:
    """Median of the throughputs of a log, without the first of several, in samples/s."""
    return median(rates[1:] or rates)
