"""Tables of data-parallel steps by placement and batch size, as runs.

``throughput.csv`` has steps by ``model``, ``cluster``, ``table``, ``placement`` (digits: devices on
each node), ``num_nodes``, ``num_replicas`` (spread evenly where ``placement`` is empty),
``local_bsz`` (samples per device), ``step_time_s``, and ``sync_time_s``: waiting for gradients.

Splits of a cluster: *a*, the steps of each DNN on one node and all those of other DNNs predict its
steps on several nodes; *b*, all steps of other DNNs, of which one more is left out each time, and
its own on one device predict all others; *all*, fitted to every step, predicts others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import perfmodel as pm
from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.cases import Case, Run, predicted
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.calibration.placements import Placements, Step, Training, calibrate_placements
from perfmodel.calibration.placements.table import smoothed

FILE = "throughput.csv"

BYTES = 4
"""Of a parameter: gradients are of single precision."""

DNNS: dict[str, tuple[float, float]] = {
    "cifar10": (11.2e6, 1.0),
    "imagenet": (25.6e6, 1.0),
    # the word embeddings, a fifth of all bytes, come last
    "bert": (110e6, 0.8),
    "yolov3": (61.9e6, 1.0),
    # five recurrent layers: the first fifth of backward ends with the first gradients
    "deepspeech2": (41e6, 0.8),
    # nearly all bytes are embeddings of the input
    "ncf": (1.6e6, 0.1),
}
"""Parameters, as the READMEs of both sources have them; and which part of backward is left once
gradients get ready, from the DNNs' layers."""


TCP_NOMINAL_BYTES_PER_S, TCP_BYTES_PER_S = 100e9 / 8, (1.3e9, 2.9e9)
"""What TCP was seen to deliver of 100 Gbit/s (README of the data). Of slower links it may be as
large a part, or as large a rate; what is expected is the middle of all."""

HOP_S = 6e-6
"""What a hop of a ring adds to each of several messages that are under way, over TCP."""

PAIR_EFFICIENCY = 0.74
"""What two nodes get of their links."""


def ethernet(name: str, nominal_bytes_per_s: float, flow_bytes_per_s: float) -> pm.Cluster:
    """What is expected of nodes on Ethernet, of which a connection has so much at most, whose
    devices exchange through the memory of the host."""
    link = min(nominal_bytes_per_s, flow_bytes_per_s)
    least, most = TCP_BYTES_PER_S
    least = min(least * nominal_bytes_per_s / TCP_NOMINAL_BYTES_PER_S, link)
    return pm.Cluster(
        name=name,
        nic=pm.Link(link, HOP_S, math.sqrt(least * min(most, link)) / link),
        intra_node=pm.IntraNode(16e9, HOP_S, 0.08, kind="per_device"),
        pair_efficiency=PAIR_EFFICIENCY,
        source=pm.Source("estimated", "what TCP delivers, and PCI Express through memory"),
    )


class Row(msgspec.Struct, frozen=True):
    """A row of ``throughput.csv``."""

    model: str
    cluster: str
    num_nodes: int
    num_replicas: int
    local_bsz: int
    step_time_s: float
    sync_time_s: float = 0.0
    table: str = "placements"
    placement: str = ""

    def __post_init__(self) -> None:
        whole_number("num_nodes", self.num_nodes)
        whole_number("num_replicas", self.num_replicas, at_least=self.num_nodes)
        whole_number("local_bsz", self.local_bsz)
        number("step_time_s", self.step_time_s, above=0.0)
        number("sync_time_s", self.sync_time_s)
        if self.placement and not (self.placement.isdigit() and "0" not in self.placement):
            raise InputError(f"placement: must be digits of 1 to 9, got {self.placement!r}")

    @property
    def step(self) -> Step:
        """The same as a step."""
        each, more = divmod(self.num_replicas, self.num_nodes)
        even = (each + (node < more) for node in range(self.num_nodes))
        devices = tuple(map(int, self.placement)) or tuple(even)
        return Step(
            devices, self.local_bsz, self.step_time_s, min(self.sync_time_s, self.step_time_s)
        )

    @property
    def key(self) -> str:
        """Its table and placement."""
        return f"{self.table} {'.'.join(map(str, self.step.devices))}"


class Entry(msgspec.Struct, frozen=True):
    """A fit: to how many rows, to which batches (least, greatest) by DNN and placement.

    ``lines``, by DNN, stand in where a folder lacks the steps on one node.
    """

    rows: int
    fit: Placements
    fitted_to: dict[str, dict[str, tuple[int, int]]] = {}
    lines: dict[str, Training] = {}

    def knows(self, row: Row) -> bool:
        """Whether it was fitted to this row."""
        ends = self.fitted_to.get(row.model, {}).get(row.key)
        return ends is not None and ends[0] <= row.local_bsz <= ends[1]


class Tables(msgspec.Struct, frozen=True):
    """What to call a source; what is expected of each of its clusters and how firmly, by name; and
    whether groups have the name of the cluster."""

    name: str
    expected: Callable[[str], tuple[pm.Cluster, Mapping[str, float]]]
    labelled: bool


def read(folder: Path) -> dict[str, list[Row]]:
    """The rows of a folder by cluster; one measurement given in both tables counts once."""
    found: dict[str, dict[Any, Row]] = {}
    for row in rows.read(folder / FILE, Row):
        same = (row.model, row.step.devices, row.local_bsz, row.step_time_s)
        found.setdefault(row.cluster, {}).setdefault(same, row)
    if not found:
        raise InputError(f"{folder / FILE}: no rows")
    return {cluster: list(own.values()) for cluster, own in found.items()}


def trainings(of: Iterable[Row]) -> dict[str, Training]:
    """Steps of each DNN that is known, and was run on one device."""
    steps: dict[str, list[Step]] = {}
    for row in of:
        steps.setdefault(row.model, []).append(row.step)
    alone = [name for name in sorted(steps) if any(s.devices == (1,) for s in steps[name])]
    return {name: _training(name, steps[name]) for name in alone if name in DNNS}


def _training(name: str, steps: Iterable[Step]) -> Training:
    parameters, left = DNNS[name]
    return Training(
        name=name,
        gradient_bytes=parameters * BYTES,
        steps=tuple(steps),
        overlap_fraction=left,
    )


def fit(source: Tables, folder: Path) -> None:
    """Fit to the rows of a folder and write the fits, by cluster, split and DNNs left out."""
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


def cases(source: Tables, folder: Path) -> list[Case]:
    """Every step that is predicted, of every split, and the waiting part of each."""
    entries = fitted.read(source.name, Entry)
    found: list[Run] = []
    for name, every in read(folder).items():
        prefix = f"{name}/" if source.labelled else ""
        own = {k.removeprefix(prefix): e for k, e in entries.items() if k.startswith(prefix)}
        expected = calibrate_placements([], *source.expected(name))
        known, lines = trainings(every), own["all"].lines if "all" in own else {}
        for dnn in sorted({row.model for row in every}):
            some = [row for row in every if row.model == dnn]
            if dnn not in DNNS:
                rows.say_left_out("parameters are not known", [f"{dnn} on {name}"])
            elif dnn in known or dnn in lines:
                if dnn not in known:
                    rows.say_from_fits([f"{dnn} on {name}"])
                whole = known[dnn] if dnn in known else smoothed(lines[dnn], _sizes(some))
                for split in _splits(whole, some, own, expected):
                    found += _runs(source.name, f"-{name}" if source.labelled else "", *split)
            else:
                rows.say_left_out("no step on one device", [f"{dnn} on {name}"])
    if not found:
        raise InputError(f"{folder}: no step that can be predicted and was not fitted to")
    return predicted(found)


def _sizes(some: Iterable[Row]) -> list[int]:
    return sorted({row.local_bsz for row in some})


Split = tuple[str, Placements, Training, list[Row], str]
"""Its name, the fit, what is known of a DNN, what is predicted, and the fold."""


def _splits(
    whole: Training, own: list[Row], entries: Mapping[str, Entry], expected: Placements
) -> Iterator[Split]:
    name, every = whole.name, entries.get("all")
    one = _only(whole, lambda step: len(step.devices) == 1)
    device = _only(whole, lambda step: step.devices == (1,))
    several = [row for row in own if row.num_nodes > 1]
    more = [row for row in own if row.num_replicas > 1]
    yield "a-strict", expected, one, several, ""
    if every is None:
        return
    if name not in every.fitted_to:
        yield "a", every.fit, one, several, ""
        yield "b", every.fit, device, more, ""
        return
    if f"a/{name}" in entries:
        yield "a", entries[f"a/{name}"].fit, one, several, ""
    for key, entry in entries.items():
        if key.startswith("b/") and name in key[2:].split("+"):
            yield "b", entry.fit, device, more, key
    other = [row for row in more if not every.knows(row)]
    yield "all", every.fit, device, [row for row in other if row.num_nodes == 1], ""
    yield "all", every.fit, one, [row for row in other if row.num_nodes > 1], ""


def _only(whole: Training, wanted: Callable[[Step], bool]) -> Training:
    return msgspec.structs.replace(whole, steps=tuple(s for s in whole.steps if wanted(s)))


def _runs(
    source: str,
    label: str,
    split: str,
    fit: Placements,
    known: Training,
    wanted: list[Row],
    fold: str,
) -> Iterator[Run]:
    fit, profiles = fit.knowing(known), {}
    pool = f"{source}/{split}{label}"
    for row in wanted:
        step, most = row.step, max(row.step.devices)
        if most not in profiles:
            profiles[most] = fit.profile(known, most)
        yield Run(
            group=f"{pool}/{row.model}",
            name=f"{row.model} {row.key}, {row.local_bsz} samples" + (fold and f", {fold}"),
            job=fit.job(profiles[most], step.devices, row.local_bsz),
            step_s=row.step_time_s,
            idle=row.sync_time_s / row.step_time_s if row.sync_time_s else None,
            pools=(pool,),
            setting=" ".join(filter(None, (row.model, fold))),
        )
