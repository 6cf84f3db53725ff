"""Compute times from the measured speed of one device, which the user gives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Assumption, Source
from perfmodel.inputs.batch_scaling import RECENT_LAUNCH_S, batch_error
from perfmodel.inputs.workload import Workload, expanded

if TYPE_CHECKING:
    from perfmodel.inputs.job import Job

UNITS = ("samples/s", "tokens/s")
"""Units of a speed; a number without a unit is in samples/s."""

REPLACED = ("layer times", "efficiency", "launches of operations", "compute time error")
"""Assumptions about times that a given speed replaces."""

_SPEED = r"\s*([^\s/]+?)\s*([A-Za-z]+/s)?\s*"


class Speed(msgspec.Struct, frozen=True):
    """A speed of one device, ``value`` in ``unit``, which is one of :data:`UNITS`."""

    value: float
    unit: str = "samples/s"


def read_speed(given: float | str, name: str) -> Speed:
    """Read a number of samples per second, or text with the unit samples/s or tokens/s.

    >>> read_speed("171", "--one-device-speed"), read_speed("12000 tokens/s", "--one-device-speed")
    (Speed(value=171.0, unit='samples/s'), Speed(value=12000.0, unit='tokens/s'))

    Raises
    ------
    InputError : not a positive finite number, or another unit.
    """
    if not isinstance(given, str):
        return Speed(number(name, given, above=0.0))
    match = re.fullmatch(_SPEED, given)
    try:
        value, unit = float(match[1] if match else given), match[2] if match else None
    except ValueError:
        value, unit = 0.0, "unreadable"
    if unit not in (None, *UNITS):
        raise InputError(
            f"{name}: cannot read {given!r}; expected samples per second such as 171 or "
            "'171 samples/s', or '12000 tokens/s'"
        )
    return Speed(number(name, value, above=0.0), unit or UNITS[0])


class OneDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What one device was measured to do: a ``speed``, or ``step_s``, seconds of one update.

    The measurement is of the job's model, precision, passes and, if ``batch_size`` is None, of its
    batch size per update.
    """

    speed: Speed | None = None
    step_s: float | None = None
    batch_size: int | None = None

    @property
    def text(self) -> str:
        """The measurement in words."""
        if self.speed is None:
            return f"{self.step_s:.6g} s per step"
        return f"{self.speed.value:.6g} {self.speed.unit}"

    def seconds(self, workload: Workload) -> float:
        """Seconds of one update of ``workload``, at whose batch size the device was measured.

        Raises
        ------
        InputError : the speed is in tokens, and the workload has no sequence length.
        """
        if self.speed is None:
            return float(self.step_s or 0.0)
        rate = self.speed.value
        if self.speed.unit == "tokens/s":
            if workload.sequence_length is None:
                raise InputError(
                    f"one-device speed: expected samples/s, because {workload.name} has no "
                    f"sequence length; got {self.text!r}"
                )
            rate /= workload.sequence_length
        return workload.batch_size / rate


def read_one_device(
    samples_per_s: float | str | None, step_s: float | None, batch_size: int | None
) -> OneDevice | None:
    """Read the arguments ``one_device_...`` of :func:`perfmodel.make_job`; None if not given.

    Raises
    ------
    InputError : both speed and step time are given, or only the batch size; or a value is not
        positive and finite, or has another unit.
    """
    if samples_per_s is not None and step_s is not None:
        raise InputError("one_device_samples_per_s and one_device_step_s: give one of them")
    if batch_size is not None:
        whole_number("one_device_batch_size", batch_size)
        if samples_per_s is None and step_s is None:
            raise InputError(
                "one_device_batch_size: needs one_device_samples_per_s or one_device_step_s"
            )
    if samples_per_s is not None:
        speed = read_speed(samples_per_s, "one_device_samples_per_s")
        return OneDevice(speed=speed, batch_size=batch_size)
    if step_s is None:
        return None
    checked_s = number("one_device_step_s", step_s, above=0.0)
    return OneDevice(step_s=checked_s, batch_size=batch_size)


def at_speed(
    workload: Workload,
    there: Workload,
    given: OneDevice,
    launch_s: float = RECENT_LAUNCH_S,
) -> Workload:
    """Return the workload with all times multiplied by one factor, so that they fit a measurement.

    Parameters
    ----------
    workload : the workload of the job, whose times need only be right relative to each other.
    there : the same at the batch size of the measurement; ``workload`` itself if that is its own.
    launch_s : fixed part of a step per tensor, for the error at another batch size.

    On one device, data are loaded during computation, so a step of ``there`` takes as long as the
    longer of the two; after scaling this is the measured time. At the measured batch size the
    result is *measured*; at another it is *estimated*, with the error of an estimate from one batch
    size. A workload without layers is divided as in :func:`perfmodel.inputs.workload.expanded`.

    Raises
    ------
    InputError : as :meth:`OneDevice.seconds`; or a step takes no time.
    """
    workload = expanded(workload)
    known_s = max(there.compute_s, there.data_loading_s)
    if not known_s > 0.0:
        raise InputError(f"workload {there.name!r}: no times to scale, because a step takes none")
    factor = given.seconds(there) / known_s
    size, at = workload.batch_size, there.batch_size
    kept = [note for note in workload.assumptions if note.name not in REPLACED]
    name, value, unit = "one-device step", given.step_s, "s"
    if given.speed is not None:
        name, value, unit = "one-device speed", given.speed.value, given.speed.unit
    why = f"given, at batch size {at}; proportions of the layers {there.quality} on {there.device}"
    notes = [*kept, Assumption(name, value, unit, why)]
    error = batch_error([at], size, launch_s=launch_s)
    if error is not None:
        why = f"9 in 10 such estimates are within a factor of {1 + error:.2f} of the truth"
        notes.append(Assumption("layer times", size, "samples", f"scaled from batch size {at}"))
        notes.append(Assumption("compute time error", error, "", why))
    source = Source("measured", f"given by the user: {given.text} on one device, batch size {at}")
    return msgspec.structs.replace(
        workload.scaled("compute_s", factor),
        data_loading_s=workload.data_loading_s * factor,
        quality="measured" if error is None else "estimated",
        source=source,
        assumptions=tuple(notes),
        error_fraction=error,
        calibration=None,
        among_several=False,
        slow_host=1.0,
    )


def step_of(job: Job, speed: float | str) -> float:
    """Return the seconds of a step of a job at a speed of all its workers together: samples per
    second, or text with a unit, such as tokens/s.

    Raises
    ------
    InputError : the speed is not positive, or cannot be read.
    """
    workload = job.of_devices.workload
    alone_s = OneDevice(speed=read_speed(speed, "measured")).seconds(workload)
    return alone_s * job.global_batch_size / workload.batch_size
