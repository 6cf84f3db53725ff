"""Costs of collectives as formulas: seconds, and busy time of links, by size."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from perfmodel.base.quantities import Condition, Quantity, maximum, minimum, where
from perfmodel.inputs.job import Job
from perfmodel.theory.collective_times import LinearCost, line_s


class Use(msgspec.Struct, frozen=True, eq=False):
    """Busy time (s) of the busiest link of each kind: between a node and the network, the core,
    inside a node, and between sites."""

    nic_s: Quantity = 0.0
    core_s: Quantity = 0.0
    inside_s: Quantity = 0.0
    sites_s: Quantity = 0.0

    def _combined(self, function: Callable[..., Quantity], *others: Use) -> Use:
        return Use(*map(function, *map(msgspec.structs.astuple, (self, *others))))

    def times(self, factor: Quantity) -> Use:
        """Return the busy times multiplied by a factor."""
        return self._combined(lambda seconds: seconds * factor)

    def plus(self, other: Use) -> Use:
        """Return the sum of two busy times."""
        return self._combined(lambda seconds, more: seconds + more, other)

    def or_else(self, condition: Quantity, other: Use) -> Use:
        """Return these busy times if a condition holds, else the others."""
        return self._combined(functools.partial(where, condition), other)

    def by_link(self, job: Job) -> dict[str, Quantity]:
        """Return the busy times by name, for the links that a job has."""
        busy_s = {"link of each node": self.nic_s}
        if job.cluster.core_oversubscription is not None:
            busy_s["core"] = self.core_s
        inside = job.cluster.intra_node
        if inside is not None:
            bus = inside.kind == "bus"
            busy_s["link inside each node" if bus else "inside link of each device"] = self.inside_s
        if job.crosses_sites:
            busy_s["slowest link between sites"] = self.sites_s
        return busy_s


class Rate(msgspec.Struct, frozen=True, eq=False):
    """Cost of a collective: seconds to start, and per byte of its size.

    It is one line in closed form, and a line for each piece if measured. ``use`` is per byte; if
    ``measured``, links are busy for at most the measured time.
    """

    lines: tuple[LinearCost, ...]
    use: Use = Use()
    measured: Condition = False

    def seconds(self, size_bytes: Quantity) -> Quantity:
        """Return the seconds of a collective of ``size_bytes``."""
        startup_s, moving_s = line_s(self.lines, size_bytes)
        return startup_s + moving_s

    def busy(self, size_bytes: Quantity) -> Use:
        """Return the links' busy time in a collective of ``size_bytes``."""
        use = self.use.times(size_bytes)
        if self.measured is False:
            return use
        _, moving_s = line_s(self.lines, size_bytes)
        longest = maximum(use.nic_s, use.core_s, use.inside_s)
        share = minimum(1.0, moving_s / where(longest > 0.0, longest, 1.0))
        return use.times(where(self.measured, share, 1.0))

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

    def or_else(self, condition: Quantity, other: Rate) -> Rate:
        """Return this rate if a condition holds, else another one in closed form."""
        (instead,) = other.lines
        lines = tuple(
            LinearCost(
                where(condition, line.startup_s, instead.startup_s),
                where(condition, line.per_byte_s, instead.per_byte_s),
                line.above_bytes,
            )
            for line in self.lines
        )
        measured = self.measured and condition
        return Rate(lines, self.use.or_else(condition, other.use), measured)


class Fastest(msgspec.Struct, frozen=True, eq=False):
    """For each message, the fastest of several rates in closed form; the first on ties."""

    rates: tuple[Rate, ...]

    def at(self, size_bytes: Quantity) -> Rate:
        """Return the rate chosen for messages of ``size_bytes``."""
        return functools.reduce(
            lambda best, rate: rate.or_else(
                rate.seconds(size_bytes) < best.seconds(size_bytes), best
            ),
            self.rates,
        )

    def seconds(self, size_bytes: Quantity) -> Quantity:
        """Return the seconds of a message of ``size_bytes``."""
        return minimum(*(rate.seconds(size_bytes) for rate in self.rates))

    def busy(self, size_bytes: Quantity) -> Use:
        """Return the links' busy time for a message of ``size_bytes``."""
        return self.at(size_bytes).busy(size_bytes)

    def chord(self, size_bytes: Quantity) -> LinearCost:
        """Return the line of the rate chosen for ``size_bytes``."""
        return self.at(size_bytes).lines[0]

    def sent(self, share: Quantity, at_once: int = 1) -> Fastest:
        """Return the rate by bytes before compression to ``share``, with ``at_once`` concurrent."""
        return Fastest(tuple(rate.sent(share, at_once) for rate in self.rates))
