"""Schedules for tests: recorded with the engine's own histogram, written as text, and replayed."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from perfmodel import Job, Schedule
from perfmodel.architectures.base import architecture_of
from perfmodel.engine.run import Simulation
from perfmodel.predicting.recording import Listener
from perfmodel.results.schedule import CENTRE, WHOLE, Event


def recorded(job: Job, iterations: int) -> tuple[Schedule, dict[int, int]]:
    """The schedule of the given iterations per worker, after which nothing moves, and the staleness
    histogram of the probes in the same run."""
    architecture = architecture_of(job)
    recorder, meaning = architecture.recording(job)
    graph = architecture.build(job)
    with Simulation(graph, job.seed, limit=iterations, log=True) as run:
        run.drain()
        Listener(graph, recorder, meaning).hear(run)
        seen = run.totals().histogram
    schedule = recorder.schedule(
        batch_size=1, architecture=architecture.name, options={}, samples_per_s=1.0, seed=job.seed
    )
    return schedule, {int(value): int(seen[value]) for value in np.flatnonzero(seen)}


def told(schedule: Schedule) -> list[str]:
    """The rows as text, without slices and groups: *worker.step*, *model@version*, *weight*x."""

    def name(model: int, version: int) -> str:
        return f"{'centre' if model == CENTRE else model}@{version}"

    lines = []
    for row in rows_of(schedule):
        gradient, made = f"{row['worker']}.{row['step']}", name(row["model"], row["version"])
        text = {
            Event.READ: f"read {name(CENTRE, row['version'])} for {gradient}",
            Event.GRADIENT: f"gradient {gradient} on {made}",
            Event.APPLY: f"apply {row['weight']:.4g}x {gradient} -> {made}",
            Event.MIX: f"mix {row['weight']:.4g}x {name(row['other'], row['other_version'])} "
            f"-> {made}",
            Event.DROP: f"drop {gradient}",
        }
        lines.append(f"{row['time_s']:g} {text[Event(row['event'])]}")
    return lines


def rows_of(schedule: Schedule) -> list[dict[str, int]]:
    frame = schedule.frame()
    frame["event"] = schedule.event
    found: list[dict[str, int]] = frame.to_dict("records")
    return found


Content = Counter[tuple[int, int]]
"""Composition of a model: the weight of each gradient, (worker, step), in it."""


class Follower:
    """Replays a schedule with symbolic gradients, and checks each row against the current state."""

    def __init__(self, schedule: Schedule) -> None:
        self.width = len(schedule.header.slices)
        self.present: dict[tuple[int, int], int] = defaultdict(int)
        self.past: dict[tuple[int, int, int], Content] = defaultdict(Counter)
        self.computed: dict[tuple[int, int], list[bool]] = {}
        self.dropped: set[tuple[int, int]] = set()
        self.read: dict[tuple[int, int], int] = defaultdict(int)
        groups: dict[int, list[dict[str, int]]] = {}
        for row in rows_of(schedule):
            groups.setdefault(row["group"], []).append(row)
        for group in groups.values():
            self._group(group)

    def content(self, model: int, slice: int = 0) -> Content:
        """Current composition of a model."""
        return self.past[model, slice, self.present[model, slice]]

    @property
    def pending(self) -> set[tuple[int, int]]:
        """Gradients that were computed but neither applied to all slices nor dropped."""
        waiting = {gradient for gradient, applied in self.computed.items() if not all(applied)}
        return waiting - self.dropped

    def _group(self, rows: list[dict[str, int]]) -> None:
        before, written = dict(self.present), set()
        for row in rows:
            of = range(self.width) if row["slice"] == WHOLE else (row["slice"],)
            gradient = (row["worker"], row["step"])
            event = Event(row["event"])
            if event == Event.GRADIENT:
                assert gradient not in self.computed
                assert row["step"] == sum(worker == row["worker"] for worker, _ in self.computed)
                self.computed[gradient] = [False] * self.width
                if row["model"] == CENTRE:
                    versions = {self.read[row["worker"], k] for k in of}
                else:
                    versions = {before.get((row["model"], k), 0) for k in of}
                assert row["version"] == (versions.pop() if len(versions) == 1 else -1)
            elif event == Event.DROP:
                assert not any(self.computed[gradient])
                self.dropped.add(gradient)
            elif event == Event.READ:
                assert all(row["version"] == before.get((CENTRE, k), 0) for k in of)
                self.read |= {(row["worker"], k): row["version"] for k in of}
            for k in of if event in (Event.APPLY, Event.MIX) else ():
                self._write(row, gradient, k, before.get((row["model"], k), 0))
                written.add((row["model"], k))
        for place in written:
            self.present[place] = before.get(place, 0) + 1

    def _write(self, row: dict[str, int], gradient: tuple[int, int], k: int, version: int) -> None:
        model = row["model"]
        assert row["version"] == version + 1
        if (model, k, version + 1) not in self.past:
            self.past[model, k, version + 1] = Counter(self.past[model, k, version])
        new = self.past[model, k, version + 1]
        if row["event"] == Event.APPLY:
            assert gradient not in self.dropped
            assert not self.computed[gradient][k]
            self.computed[gradient][k] = True
            new[gradient] += row["weight"]  # type: ignore[assignment]
            return
        assert row["other_version"] <= self.present[row["other"], k]
        other = self.past[row["other"], k, row["other_version"]]
        for each in {*other, *self.past[model, k, version]}:
            change = other[each] - self.past[model, k, version][each]
            new[each] += row["weight"] * change
