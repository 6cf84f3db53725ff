"""How long collectives take by their size: in closed form, or as measured on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from perfmodel import costs
from perfmodel.algebra import Quantity
from perfmodel.cluster import Collective
from perfmodel.costs import Line
from perfmodel.errors import InputError
from perfmodel.graph import Floats
from perfmodel.job import Job
from perfmodel.units import show


class Rate(msgspec.Struct, frozen=True, eq=False):
    """What a collective takes: seconds to start, and for each byte of the whole.

    One line in closed form; as measured, as many as there are pieces.
    """

    lines: tuple[Line, ...]

    def seconds(self, size_bytes: Quantity) -> Quantity:
        """How long one of so many bytes takes."""
        startup_s, moving_s = costs.line_s(self.lines, size_bytes)
        return startup_s + moving_s

    def chord(self, size_bytes: Quantity) -> Line:
        """The line from no bytes to so many, for what must be linear in the size."""
        if len(self.lines) == 1:
            return self.lines[0]
        startup_s = self.seconds(0.0)
        return Line(startup_s, (self.seconds(size_bytes) - startup_s) / size_bytes)

    def sent(self, share: Quantity, at_once: int = 1) -> Rate:
        """By bytes of which ``share`` is sent, if ``at_once`` collectives start together."""
        return Rate(
            tuple(
                Line(line.startup_s / at_once, share * line.per_byte_s, line.above_bytes / share)
                for line in self.lines
            )
        )

    @classmethod
    def of(cls, cost: Callable[..., Quantity], **figures: Quantity) -> Rate:
        """Of a closed form of :mod:`perfmodel.costs`, which is linear in the size."""
        still = {name: 0.0 for name in figures if "latency" in name}
        startup_s = cost(size_bytes=0.0, **figures)
        return cls((Line(startup_s, cost(size_bytes=1.0, **{**figures, **still})),))


def measured_in(collectives: Iterable[Collective], operation: str) -> Collective | None:
    """What an operation was measured to take, if it was."""
    return next((each for each in collectives if each.operation == operation), None)


def measured_rate(
    collectives: Iterable[Collective], operation: str, ranks: Quantity, reduce_per_byte_s: float
) -> Rate | None:
    """What an operation was measured to take among ``ranks``; adding is part of it.

    The one place where both routes turn from closed forms to what was measured.
    """
    measured = measured_in(collectives, operation)
    if measured is None:
        return None
    if reduce_per_byte_s > 0.0:
        raise InputError(
            f"reduce_per_byte_s: the cluster's measured {operation} includes adding; leave it out"
        )
    return Rate(costs.measured_lines(measured, ranks))


def measured_notes(job: Job, used: Mapping[str, Floats]) -> tuple[str, ...]:
    """Where a job goes beyond what was measured: ``used`` has the sizes (messages,) by operation.

    Empty for a cluster without measured collectives, and for one worker.
    """
    notes = []
    for operation, sizes in used.items() if job.workers > 1 else ():
        measured = measured_in(job.cluster.collectives, operation)
        if measured is None:
            continue
        least, most = measured.ranks
        if not least <= job.workers <= most:
            ranks = f"{least} ranks" if least == most else f"{least} to {most} ranks"
            notes.append(
                f"{operation} among {job.workers} workers is extrapolated: measured among {ranks}"
            )
        low, high = measured.bytes
        outside = [size for size in (sizes.min(), sizes.max()) if not low <= size <= high]
        if outside:
            notes.append(
                f"{operation} of {show(float(outside[-1]), 'bytes')} is extrapolated: measured "
                f"from {show(low, 'bytes')} to {show(high, 'bytes')}"
            )
    return tuple(notes)
