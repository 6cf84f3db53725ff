"""The time of a whole training, and what failures make of it."""

from __future__ import annotations

import msgspec


class LongRun(msgspec.Struct, frozen=True, kw_only=True):
    """A whole training with failures, see :mod:`perfmodel.theory.failures`.

    Attributes
    ----------
    failures : expected number of those that go back to a checkpoint.
    expected_s, median_s, interval_s : time of the run: mean of the predicted step's time; median
        and 90 % interval over failures and over the interval of a step.
    goodput_fraction : of the expected time, in which training advances.
    checkpoint_bytes, checkpoint_interval_s, pause_s : size of a checkpoint, work between two, and
        time that training stands still for one.
    lost_s : expected time lost by cause.
    interruptions : expected number of nodes taken away.
    present_fraction : mean share of the nodes that are there; 1 unless the run is elastic.
    sensitivity : relative change of the expected time if a figure of the failures doubles.
    """

    failures: float
    expected_s: float
    median_s: float
    interval_s: tuple[float, float]
    goodput_fraction: float
    checkpoint_bytes: float
    checkpoint_interval_s: float
    pause_s: float
    lost_s: dict[str, float]
    sensitivity: dict[str, float]
    interruptions: float = 0.0
    present_fraction: float = 1.0


class Training(msgspec.Struct, frozen=True):
    """Time (s) of one pass over ``dataset_size`` samples, and of ``epochs`` passes.

    ``with_failures`` is the time as failures make it; None if they were not asked for.
    """

    dataset_size: int
    epochs: int
    iterations_per_epoch: int
    epoch_s: float
    training_s: float
    with_failures: LongRun | None = None
