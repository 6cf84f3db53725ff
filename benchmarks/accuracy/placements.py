"""Step times by placement as runs, predicted from fits to other steps.

Splits of a cluster: in *a*, the steps of each DNN on one node and all steps of other DNNs predict
its steps on several nodes; in *b*, all steps of other DNNs, with one more DNN held out each time,
and its own on one device predict all others; *all* is fitted to every step, and predicts other
rows. The tables are those of :mod:`benchmarks.accuracy.placement_rows`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

import perfmodel as pm
from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.cases import Case, Run, predicted
from benchmarks.accuracy.placement_rows import DNNS, Row, read, trainings
from perfmodel.base.errors import InputError
from perfmodel.calibration.network.robust import least_absolute
from perfmodel.calibration.placements import Placements, Step, Training, calibrate_placements

SHORTEST = 0.01
"""Least step on a line, as a fraction of the shortest measured one."""


class Entry(msgspec.Struct, frozen=True):
    """A fit: its number of rows, and its batches (smallest, largest) by DNN and placement.

    ``lines``, by DNN, replace the steps on one node if a folder lacks them.
    """

    rows: int
    fit: Placements
    fitted_to: dict[str, dict[str, tuple[int, int]]] = {}
    lines: dict[str, Training] = {}

    def knows(self, row: Row) -> bool:
        """Return whether this row was part of the fit."""
        ends = self.fitted_to.get(row.model, {}).get(row.key)
        return ends is not None and ends[0] <= row.local_bsz <= ends[1]


class Tables(msgspec.Struct, frozen=True):
    """The name of a source; the priors of each of its clusters by name; and whether names of groups
    include the cluster."""

    name: str
    expected: Callable[[str], tuple[pm.Cluster, Mapping[str, float]]]
    labelled: bool


def fit(source: Tables, folder: Path) -> None:
    """Fit to the rows of a folder and store the fits, by cluster, split and held-out DNNs."""
    entries: dict[str, Entry] = {}
    for name, own in read(folder).items():
        cluster, spreads = source.expected(name)
        known, prefix = trainings(own), f"{name}/" if source.labelled else ""
        without: dict[str, tuple[str, ...]] = {"all": ()}
        if any(row.num_nodes > 1 for row in own):
            without |= {f"a/{dnn}": (dnn,) for dnn in known}
        without |= {f"b/{'+'.join(pair)}": pair for pair in itertools.combinations(known, 2)}
        for key, out in without.items():
            used = [row for row in own if row.model in known and row.model not in out]
            if any(row.num_replicas > 1 for row in used):
                others = [known[dnn] for dnn in known if dnn not in out]
                found = Entry(len(used), calibrate_placements(others, cluster, spreads))
                entries[prefix + key] = found if out else _whole(found, used, known)
    if not entries:
        raise InputError(f"{folder}: no DNN was run on one device and on several")
    fitted.write(source.name, entries)


def _whole(entry: Entry, used: Sequence[Row], known: Mapping[str, Training]) -> Entry:
    to: dict[str, dict[str, tuple[int, int]]] = {}
    for row in used:
        keys, size = to.setdefault(row.model, {}), row.local_bsz
        least, most = keys.get(row.key, (size, size))
        keys[row.key] = (min(least, size), max(most, size))
    lines = {name: smoothed(training) for name, training in known.items()}
    return msgspec.structs.replace(entry, fitted_to=to, lines=lines)


def smoothed(training: Training, batch_sizes: Iterable[int] | None = None) -> Training:
    """Replace the steps on one node by lines over the batch size, with least absolute errors.

    The lines are evaluated at the smallest and largest measured batch size, or at ``batch_sizes``;
    the waiting fraction is the median.
    """
    lines = []
    for devices in sorted({s.devices for s in training.steps if len(s.devices) == 1}):
        own = [step for step in training.steps if step.devices == devices]
        sizes = np.array([float(step.batch_size) for step in own])
        steps = np.array([step.step_s for step in own])
        design = np.stack([np.ones_like(sizes), sizes], axis=1)
        fixed, per_sample = least_absolute(design, steps)
        waits = float(np.median([step.waiting_s / step.step_s for step in own]))
        for size in batch_sizes or sorted({int(sizes.min()), int(sizes.max())}):
            step_s = max(float(fixed + per_sample * size), SHORTEST * float(steps.min()))
            step_s, waiting_s = (fitted.rounded(v, 4) for v in (step_s, min(waits, 1.0) * step_s))
            lines.append(Step(devices, size, step_s, min(waiting_s, step_s)))
    return msgspec.structs.replace(training, steps=tuple(lines))


def cases(source: Tables, folder: Path) -> list[Case]:
    """Return every predicted step of every split, and the waiting part of each."""
    entries = fitted.read(source.name, Entry)
    found: list[Run] = []
    for name, every in read(folder).items():
        prefix = f"{name}/" if source.labelled else ""
        own = {k.removeprefix(prefix): e for k, e in entries.items() if k.startswith(prefix)}
        expected = calibrate_placements([], *source.expected(name))
        known, lines = trainings(every), own["all"].lines if "all" in own else {}
        for dnn in sorted({row.model for row in every}):
            some = [row for row in every if row.model == dnn]
            whole = known.get(dnn)
            if dnn not in DNNS:
                rows.say_left_out("parameters are not known", [f"{dnn} on {name}"])
            elif whole is None and dnn not in lines:
                rows.say_left_out("no step on one device", [f"{dnn} on {name}"])
            else:
                if whole is None:
                    rows.say_from_fits([f"{dnn} on {name}"])
                    whole = smoothed(lines[dnn], sorted({row.local_bsz for row in some}))
                label = f"-{name}" if source.labelled else ""
                for of in _splits(whole, some, own, expected):
                    found += _runs(f"{source.name}/{of.name}{label}", of)
    if not found:
        raise InputError(f"{folder}: no predictable step outside the fits")
    return predicted(found)


class Split(NamedTuple):
    """Return the steps of a DNN that a fit predicts; ``known`` are its own known steps, ``fold``
    the held-out DNNs."""

    name: str
    fit: Placements
    known: Training
    wanted: list[Row]
    fold: str = ""


def _splits(
    whole: Training, own: list[Row], entries: Mapping[str, Entry], expected: Placements
) -> Iterator[Split]:
    name, every = whole.name, entries.get("all")
    one = _only(whole, lambda step: len(step.devices) == 1)
    device = _only(whole, lambda step: step.devices == (1,))
    several = [row for row in own if row.num_nodes > 1]
    more = [row for row in own if row.num_replicas > 1]
    yield Split("a-strict", expected, one, several)
    if every is None:
        return
    if name not in every.fitted_to:
        yield Split("a", every.fit, one, several)
        yield Split("b", every.fit, device, more)
        return
    if f"a/{name}" in entries:
        yield Split("a", entries[f"a/{name}"].fit, one, several)
    for key, entry in entries.items():
        if key.startswith("b/") and name in key[2:].split("+"):
            yield Split("b", entry.fit, device, more, key)
    other = [row for row in more if not every.knows(row)]
    yield Split("all", every.fit, device, [row for row in other if row.num_nodes == 1])
    yield Split("all", every.fit, one, [row for row in other if row.num_nodes > 1])


def _only(whole: Training, wanted: Callable[[Step], bool]) -> Training:
    return msgspec.structs.replace(whole, steps=tuple(s for s in whole.steps if wanted(s)))


def _runs(pool: str, of: Split) -> Iterator[Run]:
    fit = of.fit.knowing(of.known)
    fullest = {max(row.step.devices) for row in of.wanted}
    profiles = {most: fit.profile(of.known, most) for most in fullest}
    for row in of.wanted:
        devices = row.step.devices
        yield Run(
            group=f"{pool}/{row.model}",
            name=f"{row.model} {row.key}, {row.local_bsz} samples" + (of.fold and f", {of.fold}"),
            job=fit.job(profiles[max(devices)], devices, row.local_bsz),
            step_s=row.step_time_s,
            idle=row.sync_time_s / row.step_time_s if row.sync_time_s else None,
            pools=(pool,),
            setting=" ".join(filter(None, (row.model, of.fold))),
        )
