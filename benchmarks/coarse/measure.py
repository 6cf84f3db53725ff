"""Predict random jobs by both routes; simulations run in parallel and are cached in a file."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

import perfmodel
from benchmarks.coarse import draw, draw_many, draw_replicas
from benchmarks.coarse.classes import Known
from benchmarks.coarse.draw import Cell
from perfmodel import build_graph, predict
from perfmodel.graph.op_graph import OpGraph
from perfmodel.predicting import bands, coarse
from perfmodel.predicting.bands import BandClass

Progress = Callable[[int, int], None]


REPLICAS_FROM, MANY_FROM = 100, 200
"""Seeds from these on are those of jobs whose workers are replicas of several devices, and of jobs
with many asynchronous workers."""


def cell(seed: int, number: int) -> Cell:
    """Return job ``number`` of a seed."""
    if seed >= MANY_FROM:
        return draw_many.cell(seed, number)
    return (draw_replicas if seed >= REPLICAS_FROM else draw).cell(seed, number)


class Simulated(msgspec.Struct, frozen=True):
    """The simulated iteration time of a job.

    ``made_of`` is a digest of the graph and the simulator: the result is only valid for these.
    """

    name: str
    made_of: str
    fine_s: float


def digest(one: Cell) -> str:
    """Return a digest of everything that a simulation depends on."""
    found = hashlib.blake2b(_simulator(), digest_size=8)
    graph = build_graph(one.job)
    for field in OpGraph.__struct_fields__:
        value = getattr(graph, field)
        found.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    found.update(repr((one.job.seed, one.job.workers, one.job.workload.batch_size)).encode())
    return found.hexdigest()


@functools.cache
def _simulator() -> bytes:
    """Return the source code of the engine, which determines the result of a simulation."""
    folder = Path(perfmodel.__file__).parent / "engine"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


class Wanted(msgspec.Struct, frozen=True):
    """A job to simulate, and its digest."""

    one: Cell
    made_of: str


def simulated(wanted: Wanted) -> Simulated:
    """Simulate a job."""
    one = wanted.one
    return Simulated(one.name, wanted.made_of, predict(one.job).iteration_s)


class Store:
    """Cache of simulations in a file, with one JSON object per line."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[tuple[str, str], Simulated] = {}
        self._digests: dict[int, Wanted] = {}
        if path is not None and path.exists():
            decoder = msgspec.json.Decoder(Simulated)
            for each in decoder.decode_lines(path.read_bytes()):
                self._known[each.name, each.made_of] = each

    def wanted(self, one: Cell) -> Wanted:
        """Return a job with its digest, which is computed once."""
        if id(one) not in self._digests:
            self._digests[id(one)] = Wanted(one, digest(one))
        return self._digests[id(one)]

    def of(self, one: Cell) -> Simulated | None:
        """Return the simulation of a job, or None if it is not in the cache."""
        return self._known.get((one.name, self.wanted(one).made_of))

    def add(self, found: Simulated) -> None:
        """Add a simulation."""
        self._known[found.name, found.made_of] = found
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")


def simulate(
    jobs: Iterable[Cell],
    store: Store,
    processes: int = 1,
    progress: Progress = lambda done, of: None,
) -> None:
    """Simulate the jobs that are not in ``store``; it can be interrupted at any time."""
    wanted = [store.wanted(one) for one in jobs if store.of(one) is None]
    if processes == 1:
        for done, each in enumerate(wanted, 1):
            store.add(simulated(each))
            progress(done, len(wanted))
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, found in enumerate(pool.imap_unordered(simulated, wanted), 1):
            store.add(found)
            progress(done, len(wanted))


class Row(msgspec.Struct, frozen=True):
    """A job predicted by both routes: its group and traits, iteration times (s), and whether the
    formulas are declared exact."""

    name: str
    group: str
    traits: frozenset[str]
    fine_s: float
    coarse_s: float
    exact: bool

    @property
    def error(self) -> float:
        """Error of the formulas relative to the simulated time; positive if they are slower."""
        return self.coarse_s / self.fine_s - 1.0

    def band(self, groups: dict[str, BandClass]) -> float:
        """Return the declared error: 0 if the formulas are exact, infinite if it is unknown."""
        if self.exact:
            return 0.0
        if self.group not in groups:
            return float("inf")
        return bands.narrowest(groups[self.group], self.group, self.traits)[0].p90


def known(one: Cell) -> bool:
    """Return whether the formulas support all features of a job."""
    if one.job.replica is not None:
        return coarse.leaves_out(one.job) is None
    return coarse.model_of(one.job).leaves_out(one.job) is None


def row(one: Cell, fine_s: float) -> Row:
    """Return the results of both routes for a job with a known simulated iteration time."""
    found = coarse.phases(one.job)
    return Row(
        name=one.name,
        group=one.group,
        traits=bands.traits(one.job, found),
        fine_s=fine_s,
        coarse_s=float(found.iteration_s),
        exact=coarse.exact(one.job),
    )


def rows(jobs: Sequence[Cell], store: Store) -> list[Row]:
    """Return the simulated jobs whose features the formulas all support."""
    found = [(one, store.of(one)) for one in jobs if known(one)]
    return [row(one, each.fine_s) for one, each in found if each is not None]


def by_group(found: Iterable[Row]) -> dict[str, list[Known]]:
    """Return the jobs whose formulas are not exact, by group; classes are built from these."""
    groups: dict[str, list[Known]] = {}
    for each in found:
        if not each.exact:
            groups.setdefault(each.group, []).append(Known(each.traits, each.error))
    return dict(sorted(groups.items()))
