"""How the cost of a collective is found: measured, on rings, or by the rounds of an algorithm.

These rules hold for both routes: costs of a graph's messages on its links
(:mod:`perfmodel.communication.costs`), and formulas of a job's quantities
(:mod:`perfmodel.communication.formulas`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity
from perfmodel.base.units import show
from perfmodel.communication.reduction import Reduction
from perfmodel.inputs import measured_collectives
from perfmodel.inputs.cluster import Collective
from perfmodel.inputs.job import Job
from perfmodel.theory.collective_times import LinearCost, Operation, RingOperation

Lines = tuple[LinearCost, ...]
"""The pieces of a measured cost, by size."""

CostT = TypeVar("CostT")
ChosenT = TypeVar("ChosenT")


class Collectives(ABC, Generic[CostT, ChosenT]):
    """Collectives among the members of a group; ``ChosenT`` is the cost of the fastest algorithm
    for each size."""

    def cost(self, operation: RingOperation, reduce_per_byte_s: float = 0.0) -> CostT:
        """Return the cost of a collective as measured or, if there is no measurement, on rings."""
        lines = self.measured_lines(operation, reduce_per_byte_s)
        if lines is None:
            return self.on_rings(operation, reduce_per_byte_s)
        return self.as_measured(operation, lines)

    def all_reduce(self, options: Reduction) -> CostT | ChosenT:
        """Return the cost of an all-reduce."""
        if options.by_measurements:
            lines = self.measured_lines("all_reduce", options.reduce_per_byte_s)
            if lines is not None:
                return self.as_measured("all_reduce", lines)
        costs = [self.by_algorithm(candidate) for candidate in self.candidates(options)]
        return costs[0] if len(costs) == 1 else self.fastest(costs)

    def by_algorithm(self, options: Reduction) -> CostT:
        """Return the cost of an all-reduce by one algorithm."""
        if options.algorithm not in ("ring", "node_tree"):
            return self.by_rounds(options)
        startup_s = None
        if options.algorithm == "node_tree":
            startup_s = self.startup_s(self.by_rounds(Reduction("hierarchical")))
        return self.on_rings("all_reduce", options.reduce_per_byte_s, startup_s)

    @abstractmethod
    def measured_lines(self, operation: Operation, reduce_per_byte_s: float) -> Lines | None:
        """Return the measured cost of a collective, if there is one."""

    @abstractmethod
    def as_measured(self, operation: RingOperation, lines: Lines) -> CostT:
        """Return a measured cost, with the link usage of a ring."""

    @abstractmethod
    def on_rings(
        self, operation: RingOperation, reduce_per_byte_s: float, startup_s: Quantity | None = None
    ) -> CostT:
        """Return the cost on rings; ``startup_s`` replaces the latency of their steps."""

    @abstractmethod
    def by_rounds(self, options: Reduction) -> CostT:
        """Return the cost of an all-reduce in rounds."""

    @abstractmethod
    def startup_s(self, cost: CostT) -> Quantity:
        """Return the time before a collective moves bytes."""

    @abstractmethod
    def candidates(self, options: Reduction) -> list[Reduction]:
        """Return the options that *auto* chooses from; else the options themselves."""

    @abstractmethod
    def fastest(self, costs: list[CostT]) -> ChosenT:
        """Return the cost of the fastest algorithm for each size; the first on ties."""


def measured_in(collectives: Iterable[Collective], operation: str) -> Collective | None:
    """Return the measured collective of an operation, if there is one."""
    return next((measured for measured in collectives if measured.operation == operation), None)


def lines_of(
    collectives: Iterable[Collective], operation: str, ranks: Quantity, reduce_per_byte_s: float
) -> Lines | None:
    """Return the measured cost of an operation among ``ranks``, which includes the time to add."""
    measured = measured_in(collectives, operation)
    if measured is None:
        return None
    if reduce_per_byte_s > 0.0:
        raise InputError(
            f"reduce_per_byte_s: the cluster's measured {operation} already includes it; omit it"
        )
    return measured_collectives.measured_lines(measured, ranks)


def measured_notes(
    job: Job, sizes: Mapping[str, Floats], members: int | None = None
) -> tuple[str, ...]:
    """Return notes for a job that extrapolates measurements. ``sizes`` are those of messages,
    (messages,), by operation, among ``members`` members, by default all workers.

    There are none for a cluster without measured collectives, nor for a single worker.
    """
    notes = []
    count = job.workers if members is None else members
    for operation, size in sizes.items() if job.workers > 1 else ():
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
        outside = [end for end in (size.min(), size.max()) if not low <= end <= high]
        if outside:
            notes.append(
                f"{operation} of {show(float(outside[-1]), 'bytes')} is extrapolated: measured "
                f"from {show(low, 'bytes')} to {show(high, 'bytes')}"
            )
    return tuple(notes)
