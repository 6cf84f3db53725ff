"""Errors of the formulas on drawn jobs; simulations are kept in a file, and made in parallel."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

import msgspec
from msgspec.structs import replace

from benchmarks.coarse.draw import Cell, cell
from perfmodel import coarse, predict

Progress = Callable[[int, int], None]


class Simulated(msgspec.Struct, frozen=True):
    """What simulating a job found: its iteration time, how sure that is, and how long it took.

    ``job`` is a digest of the job, so that nothing is taken for what was drawn differently before.
    """

    name: str
    job: str
    fine_s: float
    ci_fraction: float
    took_s: float


def digest(one: Cell) -> str:
    """A short name of all that a job is."""
    plain = replace(one.job, assumptions=())
    return hashlib.blake2b(repr(plain).encode(), digest_size=8).hexdigest()


def simulated(where: tuple[int, int]) -> Simulated:
    """Simulate a job, by its seed and number."""
    one = cell(*where)
    begin = perf_counter()
    found = predict(one.job)
    took_s = perf_counter() - begin
    return Simulated(one.name, digest(one), found.iteration_s, found.throughput_ci_fraction, took_s)


class Store:
    """Simulations in a file, one JSON object a line: what is there is not simulated again.

    Give another file once the simulation itself has changed.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.known: dict[str, Simulated] = {}
        if path is not None and path.exists():
            decoder = msgspec.json.Decoder(Simulated)
            found = decoder.decode_lines(path.read_bytes())
            self.known = {each.name: each for each in found}

    def of(self, one: Cell) -> Simulated | None:
        """The simulation of a job, if it is known."""
        found = self.known.get(one.name)
        return found if found is not None and found.job == digest(one) else None

    def add(self, found: Simulated) -> None:
        """Keep one more."""
        self.known[found.name] = found
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(msgspec.to_builtins(found)) + "\n")


def simulate(
    jobs: Iterable[Cell],
    store: Store,
    processes: int = 1,
    progress: Progress = lambda done, of: None,
) -> None:
    """Simulate the jobs that ``store`` does not know yet; it can be interrupted at any time."""
    wanted = [(one.seed, one.number) for one in jobs if store.of(one) is None]
    if processes == 1:
        for done, where in enumerate(wanted, 1):
            store.add(simulated(where))
            progress(done, len(wanted))
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, found in enumerate(pool.imap_unordered(simulated, wanted), 1):
            store.add(found)
            progress(done, len(wanted))


class Row(msgspec.Struct, frozen=True):
    """A job on both routes: iteration times (s), whether the formulas are declared exact, what they
    leave out, and the band that is declared (the 90th percentile, None where not known)."""

    name: str
    group: str
    fine_s: float
    coarse_s: float
    exact: bool
    left_out: str | None
    p90: float | None

    @property
    def error(self) -> float:
        """Of the formulas, as a fraction of the simulated iteration; positive if they are slow."""
        return self.coarse_s / self.fine_s - 1.0


def row(one: Cell, found: Simulated) -> Row:
    """Both routes for a job whose simulation is known."""
    model = coarse.model_of(one.job)
    return Row(
        name=one.name,
        group=one.group,
        fine_s=found.fine_s,
        coarse_s=float(coarse.phases(one.job).iteration_s),
        exact=model.exact(one.job),
        left_out=model.leaves_out(one.job),
        p90=coarse.error_band(one.job).p90,
    )
