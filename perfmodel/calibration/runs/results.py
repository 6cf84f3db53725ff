"""What a fit to past runs says of each run, and of overlap."""

from __future__ import annotations

import msgspec

from perfmodel.calibration.statistics import Status


class FittedRun(msgspec.Struct, frozen=True):
    """A run and its errors, predicted / measured - 1: of the fit, and of one without this run.

    ``held_out`` is None where there were too few runs.
    """

    place: str
    arch: str
    workers: int
    error: float
    held_out: float | None


class Overlap(msgspec.Struct, frozen=True):
    """Whether communication overlaps with computation in runs that do not say.

    ``was`` is the default, ``margin`` the difference of the log-likelihoods in favour of ``value``.
    """

    value: bool
    was: bool
    margin: float
    status: Status
