"""The phases of an iteration, as computed by a coarse model.

A coarse model is one function of an architecture, from a :class:`Job` and :class:`Quantities` to
:class:`Phases`. The job holds the options of training, such as how layers are grouped into
messages. All numbers come from the quantities, each of which may be a float, an array that
broadcasts with the others, or a SymPy symbol (see :mod:`perfmodel.base.quantities`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from perfmodel.base.quantities import MANY, Quantity, axes_of, column, maximum

BETWEEN_STAGES = "link between stages"
"""The busiest link that stages of replicas send over, in :attr:`Phases.busy_s`."""


class Phase(msgspec.Struct, frozen=True, eq=False):
    """An exposed part of an iteration: its time, and what the worker waits for.

    ``cause`` is one of :data:`perfmodel.graph.op_graph.CAUSES`, or *compute*.
    """

    seconds: Quantity
    cause: str


class Phases(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The result of a coarse model: the phases of a worker's mean iteration.

    Attributes
    ----------
    parts : phases by name, one after the other; together they make up the iteration.
    busy_s : busy time of each resource in an iteration, for all workers that share it.
    updates : updates of the model per iteration of one worker.
    staleness : mean version staleness.
    spread : coefficient of variation of the time between two updates of a worker, which determines
        the variance of the staleness; 0 if that time is constant.
    classes : the phases of each class of workers, in the order of ``Quantities.classes``; empty if
        all workers are alike.
    late : for each stage of a pipeline without a flush, its own updates between the weights that a
        gradient is computed on and its update, besides those that ``staleness`` counts.
    """

    parts: Mapping[str, Phase]
    busy_s: Mapping[str, Quantity]
    updates: Quantity
    staleness: Quantity = 0.0
    spread: Quantity = 0.0
    classes: tuple[Phases, ...] = ()
    late: tuple[int, ...] = ()

    @property
    def iteration_s(self) -> Quantity:
        """Mean time of a worker's iteration."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def compute_s(self) -> Quantity:
        """Time that the device computes in an iteration."""
        return sum(part.seconds for part in self.parts.values() if part.cause == "compute")

    def part(self, number: int, axes: int) -> Phases:
        """Return the result at a place of the first of ``axes`` axes; a quantity with fewer axes is
        the same everywhere."""

        def at(value: Quantity) -> Quantity:
            if isinstance(value, np.ndarray) and value.ndim == axes:
                return value[number]
            return value

        return Phases(
            parts={name: Phase(at(p.seconds), p.cause) for name, p in self.parts.items()},
            busy_s={name: at(seconds) for name, seconds in self.busy_s.items()},
            updates=at(self.updates),
            staleness=at(self.staleness),
            spread=at(self.spread),
            classes=tuple(result.part(number, axes) for result in self.classes),
        )


def several(phases: Callable[..., Phases], *columns: Sequence[Quantity]) -> list[Phases]:
    """Return ``phases(a, b, ...)`` for each row of the columns.

    A few short arrays are evaluated as one array with the rows as its first axis, which is as fast
    as one row. No array inside ``phases`` may have more axes than those of the columns.
    """
    rows = len(columns[0])
    axes = axes_of(*(value for values in columns for value in values))
    sizes = [np.size(value) for values in columns for value in values]
    if not axes or rows * max(sizes) >= MANY:
        return [phases(*row) for row in zip(*columns, strict=True)]
    result = phases(*(column(values, axes) for values in columns))
    return [result.part(number, axes + 1) for number in range(rows)]


def mixed(counts: Sequence[Quantity], classes: Sequence[Phases]) -> Phases:
    """Return the rate-weighted mean of iterations of asynchronous classes of ``counts`` workers.

    Fast workers make more iterations. With weights by rate, the job's throughput is the number of
    workers divided by the length of the mean iteration.
    """
    if len(classes) == 1:
        return classes[0]
    rates = [count / result.iteration_s for count, result in zip(counts, classes, strict=True)]
    shares = [rate / sum(rates) for rate in rates]
    return msgspec.structs.replace(averaged(shares, classes), classes=tuple(classes))


def averaged(shares: Sequence[Quantity], several: Sequence[Phases]) -> Phases:
    """Return the weighted mean of several results with the same parts."""

    def mean(of: Callable[[Phases], Quantity]) -> Quantity:
        return sum(share * of(result) for share, result in zip(shares, several, strict=True))

    first = several[0]
    return Phases(
        parts={
            name: Phase(mean(lambda f, n=name: f.parts[n].seconds), part.cause)  # type: ignore[misc]
            for name, part in first.parts.items()
        },
        busy_s={
            name: mean(lambda f, n=name: f.busy_s[n])  # type: ignore[misc]
            for name in first.busy_s
        },
        updates=mean(lambda f: f.updates),
        staleness=mean(lambda f: f.staleness),
        spread=mean(lambda f: f.spread),
    )


def resource_limited(
    counts: Sequence[Quantity],
    classes: Sequence[Phases],
    *,
    links_s: Quantity,
    servers_s: Quantity,
) -> Phases:
    """Lengthen the classes' iterations if a shared link or server is the bottleneck.

    ``links_s`` and ``servers_s`` are the busy times of the busiest link and server for one
    iteration of every worker: a lower bound on the iteration. The time missing to that bound
    becomes the phases *queue for links* and *queue for servers*.
    """
    before_s = mixed(counts, classes).iteration_s
    by_links = maximum(links_s - before_s, 0.0)
    by_servers = maximum(servers_s - before_s - by_links, 0.0)
    late = {
        "queue for links": Phase(by_links, "network"),
        "queue for servers": Phase(by_servers, "server"),
    }
    return mixed(
        counts,
        [msgspec.structs.replace(result, parts={**result.parts, **late}) for result in classes],
    )
