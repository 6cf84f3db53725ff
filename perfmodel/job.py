"""A training job: a workload, a cluster, how many workers, and how they train together."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perfmodel.cluster import Cluster
from perfmodel.errors import InputError, number, unknown_name, whole_number
from perfmodel.provenance import Assumption
from perfmodel.workload import Workload

JITTER_KINDS = ("lognormal", "gamma")

Start = Literal["together", "staggered"]


class Jitter(msgspec.Struct, frozen=True):
    """Random factor of mean 1 on all compute of a worker's iteration.

    ``cv`` is its coefficient of variation; ``kind`` its distribution (lognormal or gamma).
    """

    cv: float
    kind: str = "lognormal"

    def __post_init__(self) -> None:
        number("jitter", self.cv)
        if self.kind not in JITTER_KINDS:
            raise unknown_name("jitter distribution", self.kind, JITTER_KINDS)

    @classmethod
    def parse(cls, text: str) -> Jitter:
        """Read ``0.1``, ``lognormal:0.1`` or ``gamma:0.1``.

        >>> Jitter.parse("gamma:0.1")
        Jitter(cv=0.1, kind='gamma')
        """
        kind, _, cv = text.rpartition(":")
        try:
            value = float(cv)
        except ValueError:
            raise InputError(
                f"jitter: cannot read {text!r}; expected a coefficient of variation such as 0.1, "
                "lognormal:0.1 or gamma:0.1"
            ) from None
        return cls(value, kind or "lognormal")


class Straggler(msgspec.Struct, frozen=True):
    """A worker whose compute takes ``factor`` times as long as profiled."""

    worker: int
    factor: float

    def __post_init__(self) -> None:
        whole_number("straggler worker", self.worker, at_least=0)
        number("straggler factor", self.factor, above=0.0)

    @classmethod
    def parse(cls, text: str) -> Straggler:
        """Read ``WORKER:FACTOR``.

        >>> Straggler.parse("3:1.5")
        Straggler(worker=3, factor=1.5)
        """
        worker, _, factor = text.partition(":")
        try:
            return cls(int(worker), float(factor))
        except InputError:
            raise
        except ValueError:
            raise InputError(
                f"straggler: cannot read {text!r}; expected WORKER:FACTOR such as 0:1.5"
            ) from None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides how fast training runs.

    ``options`` is the options type of the architecture named ``architecture``. ``start``
    *together* lets all workers begin at once, *staggered* at seeded random offsets.
    ``assumptions`` are the values that nobody gave.

    Raises
    ------
    InputError : no worker, a straggler that does not exist, too few nodes.
    """

    workload: Workload
    cluster: Cluster
    workers: int
    architecture: str
    options: Any
    start: Start = "together"
    jitter: Jitter | None = None
    stragglers: tuple[Straggler, ...] = ()
    seed: int = 0
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        whole_number("seed", self.seed, at_least=0)
        if self.start not in ("together", "staggered"):
            raise unknown_name("start", self.start, ("together", "staggered"))
        seen: set[int] = set()
        for straggler in self.stragglers:
            if straggler.worker >= self.workers:
                raise InputError(
                    f"straggler {straggler.worker}: there are {self.workers} workers, "
                    f"numbered 0 to {self.workers - 1}"
                )
            if straggler.worker in seen:
                raise InputError(f"straggler {straggler.worker}: given twice")
            seen.add(straggler.worker)
        nodes = self.cluster.nodes
        if nodes is not None and self.cluster.nodes_for(self.workers) > nodes:
            raise InputError(
                f"workers: {self.workers} do not fit on cluster {self.cluster.name!r} "
                f"({nodes} nodes x {self.cluster.devices_per_node} devices)"
            )

    def slowdown(self, worker: int) -> float:
        """How many times longer than profiled worker ``worker`` computes, jitter apart."""
        factor = next((s.factor for s in self.stragglers if s.worker == worker), 1.0)
        return factor / self.cluster.speed_of(self.cluster.node_of_worker(worker))

    @property
    def random(self) -> bool:
        """Whether two seeds can give two results."""
        jittered = self.jitter is not None and self.jitter.cv > 0.0
        return jittered or (self.start == "staggered" and self.workers > 1)
