"""Times of collectives by size: in closed form, or as measured on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity, maximum, minimum, where
from perfmodel.base.units import show
from perfmodel.inputs import measured_collectives
from perfmodel.inputs.cluster import Collective
from perfmodel.inputs.job import Job
from perfmodel.theory import collective_times
from perfmodel.theory.collective_times import LinearCost


class Use(msgspec.Struct, frozen=True, eq=False):
    """Busy time (s) of the busiest link of each kind: between a node and the network, the core,
    inside a node, and between sites."""

    nic_s: Quantity = 0.0
    core_s: Quantity = 0.0
    inside_s: Quantity = 0.0
    sites_s: Quantity = 0.0

    def times(self, factor: Quantity) -> Use:
        """Return the busy times multiplied by a factor."""
        return Use(*(each * factor for each in msgspec.structs.astuple(self)))

    def plus(self, other: Use) -> Use:
        """Return the sum of two busy times."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Use(*(one + more for one, more in pairs))

    def or_else(self, condition: Quantity, other: Use) -> Use:
        """Return these busy times if a condition holds, else the others."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Use(*(where(condition, one, instead) for one, instead in pairs))

    def by_link(self, job: Job) -> dict[str, Quantity]:
        """Return the busy times by name, for the links that a job has."""
        found = {"link of each node": self.nic_s}
        if job.cluster.core_oversubscription is not None:
            found["core"] = self.core_s
        inside = job.cluster.intra_node
        if inside is not None:
            bus = inside.kind == "bus"
            found["link inside each node" if bus else "inside link of each device"] = self.inside_s
        if job.crosses_sites:
            found["slowest link between sites"] = self.sites_s
        return found


class Rate(msgspec.Struct, frozen=True, eq=False):
    """Cost of a collective: seconds to start, and per byte of its size.

    It is one line in closed form, and a line for each piece if measured. ``use`` is per byte; if
    ``measured``, links are busy for at most the measured time.
    """

    lines: tuple[LinearCost, ...]
    use: Use = Use()
    measured: bool = False

    def seconds(self, size_bytes: Quantity) -> Quantity:
        """Return the seconds of a collective of ``size_bytes``."""
        startup_s, moving_s = collective_times.line_s(self.lines, size_bytes)
        return startup_s + moving_s

    def busy(self, size_bytes: Quantity) -> Use:
        """Return the links' busy time in a collective of ``size_bytes``."""
        found = self.use.times(size_bytes)
        if not self.measured:
            return found
        _, moving_s = collective_times.line_s(self.lines, size_bytes)
        longest = maximum(found.nic_s, found.core_s, found.inside_s)
        some = longest > 0.0
        return found.times(minimum(1.0, moving_s / where(some, longest, 1.0)))

    def at(self, size_bytes: Quantity) -> Rate:
        """Return the rate chosen for messages of ``size_bytes``: this one."""
        return self

    def chord(self, size_bytes: Quantity) -> LinearCost:
        """Return the line through sizes 0 and ``size_bytes``, for uses that need a linear cost."""
        if len(self.lines) == 1:
            return self.lines[0]
        startup_s = self.seconds(0.0)
        return LinearCost(startup_s, (self.seconds(size_bytes) - startup_s) / size_bytes)

    def sent(self, share: Quantity, at_once: int = 1) -> Rate:
        """Return the rate by bytes before compression to ``share``, with ``at_once`` concurrent."""
        lines = tuple(
            LinearCost(line.startup_s / at_once, share * line.per_byte_s, line.above_bytes / share)
            for line in self.lines
        )
        return Rate(lines, self.use.times(share), self.measured)

    @classmethod
    def of(cls, cost: Callable[..., Quantity], **figures: Quantity) -> Rate:
        """Return the rate of a closed form of :mod:`perfmodel.theory.collective_times`, which is
        linear in the size."""
        still = {name: 0.0 for name in figures if "latency" in name}
        startup_s = cost(size_bytes=0.0, **figures)
        return cls((LinearCost(startup_s, cost(size_bytes=1.0, **{**figures, **still})),))


class Either(msgspec.Struct, frozen=True, eq=False):
    """One rate if a condition holds, else another, element by element."""

    condition: Quantity
    yes: Rate
    no: Rate

    def seconds(self, size_bytes: Quantity) -> Quantity:
        """Return the seconds of a message of ``size_bytes``."""
        return where(self.condition, self.yes.seconds(size_bytes), self.no.seconds(size_bytes))

    def busy(self, size_bytes: Quantity) -> Use:
        """Return the links' busy time for a message of ``size_bytes``."""
        return self.yes.busy(size_bytes).or_else(self.condition, self.no.busy(size_bytes))


class Fastest(msgspec.Struct, frozen=True, eq=False):
    """For each message, the fastest of several rates; the first on ties."""

    rates: tuple[Rate, ...]

    def seconds(self, size_bytes: Quantity) -> Quantity:
        """Return the seconds of a message of ``size_bytes``."""
        return minimum(*(rate.seconds(size_bytes) for rate in self.rates))

    def busy(self, size_bytes: Quantity) -> Use:
        """Return the links' busy time for a message of ``size_bytes``."""
        found = self.rates[0].busy(size_bytes)
        least = self.rates[0].seconds(size_bytes)
        for rate in self.rates[1:]:
            seconds = rate.seconds(size_bytes)
            found = rate.busy(size_bytes).or_else(seconds < least, found)
            least = minimum(least, seconds)
        return found

    def at(self, size_bytes: Quantity) -> Rate:
        """Return the rate chosen for messages of ``size_bytes``."""
        found, least = self.rates[0], self.rates[0].seconds(size_bytes)
        for rate in self.rates[1:]:
            seconds = rate.seconds(size_bytes)
            here, new, old = seconds < least, rate.lines[0], found.lines[0]
            line = LinearCost(
                where(here, new.startup_s, old.startup_s),
                where(here, new.per_byte_s, old.per_byte_s),
            )
            found = Rate((line,), rate.use.or_else(here, found.use))
            least = minimum(least, seconds)
        return found

    def chord(self, size_bytes: Quantity) -> LinearCost:
        """Return the line of the rate chosen for ``size_bytes``."""
        return self.at(size_bytes).lines[0]

    def sent(self, share: Quantity, at_once: int = 1) -> Fastest:
        """Return the rate by bytes before compression to ``share``, with ``at_once`` concurrent."""
        return Fastest(tuple(rate.sent(share, at_once) for rate in self.rates))


def measured_in(collectives: Iterable[Collective], operation: str) -> Collective | None:
    """Return the measured collective of an operation, if there is one."""
    return next((each for each in collectives if each.operation == operation), None)


def measured_rate(
    collectives: Iterable[Collective], operation: str, ranks: Quantity, reduce_per_byte_s: float
) -> Rate | None:
    """Return the measured rate of an operation among ``ranks``, which includes the time to add.

    This is the one place in which both routes replace closed forms by measurements.
    """
    measured = measured_in(collectives, operation)
    if measured is None:
        return None
    if reduce_per_byte_s > 0.0:
        raise InputError(
            f"reduce_per_byte_s: the cluster's measured {operation} already includes it; omit it"
        )
    return Rate(measured_collectives.measured_lines(measured, ranks), measured=True)


def measured_notes(
    job: Job, used: Mapping[str, Floats], members: int | None = None
) -> tuple[str, ...]:
    """Return notes for a job that extrapolates measurements. ``used`` holds the sizes (messages,)
    by operation, among ``members`` members, by default all workers.

    There are none for a cluster without measured collectives, nor for a single worker.
    """
    notes = []
    count = job.workers if members is None else members
    for operation, sizes in used.items() if job.workers > 1 else ():
        measured = measured_in(job.cluster.collectives, operation)
        if measured is None:
            continue
        least, most = measured.ranks
        if not least <= count <= most:
            ranks = f"{least} ranks" if least == most else f"{least} to {most} ranks"
            notes.append(
                f"{operation} among {count} workers is extrapolated: measured among {ranks}"
            )
        low, high = measured.bytes
        outside = [size for size in (sizes.min(), sizes.max()) if not low <= size <= high]
        if outside:
            notes.append(
                f"{operation} of {show(float(outside[-1]), 'bytes')} is extrapolated: measured "
                f"from {show(low, 'bytes')} to {show(high, 'bytes')}"
            )
    return tuple(notes)
