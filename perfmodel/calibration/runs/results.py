"""Results of a fit to past runs: errors of each run, and the overlap."""

from __future__ import annotations

import msgspec

from perfmodel.calibration.statistics import Status


class FittedRun(msgspec.Struct, frozen=True):
    """A run and its errors, predicted / measured - 1: of the fit, and of a fit without this run.

    ``held_out`` is None if there were too few runs.
    """

    place: str
    arch: str
    workers: int
    error: float
    held_out: float | None


class Overlap(msgspec.Struct, frozen=True):
    """Whether communication overlaps with computation in runs that do not specify it.

    ``was`` is the default, ``margin`` the difference in log-likelihood in favour of ``value``.
    """

    value: bool
    was: bool
    margin: float
    status: Status
