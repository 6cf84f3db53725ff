"""Tables of data-parallel steps by placement and batch size, and their predictions.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.cases import Case
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.calibration.network.robust import least_absolute
from perfmodel.calibration.placements.fit import (
    DataParallelFit,
    Predictor,
    expected_data_parallel,
    fit_data_parallel,
)
from perfmodel.calibration.placements.table import OneNode, Step, Training

FILE = "throughput.csv"

BYTES = 4
"""Of a parameter: gradients are of single precision."""


class Dnn(msgspec.Struct, frozen=True):
    """Parameters of a DNN, and which part of backward is left once its gradients get ready."""

    parameters: float
    overlap_fraction: float = 1.0


DNNS = {
    "cifar10": Dnn(11.2e6),
    "imagenet": Dnn(25.6e6),
    # the word embeddings, a fifth of all bytes, come last
    "bert": Dnn(110e6, 0.8),
    "yolov3": Dnn(61.9e6),
    # five recurrent layers: the first fifth of backward ends with the first gradients
    "deepspeech2": Dnn(41e6, 0.8),
    # nearly all bytes are embeddings of the input
    "ncf": Dnn(1.6e6, 0.1),
}
"""Parameters as the READMEs of both sources have them; the other figures from the DNNs' layers."""

STARTUP_S = 50e-6
"""Of a small message over TCP, for the naive baseline."""

TCP_NOMINAL_BYTES_PER_S, TCP_BYTES_PER_S = 100e9 / 8, (1.3e9, 2.9e9)
"""What TCP was seen to deliver of 100 Gbit/s (README of the data). Of slower links it may be as
large a part, or as large a rate; what is expected is the middle of all."""

Devices = tuple[int, ...]


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
    def devices(self) -> Devices:
        """Devices on each node."""
        if self.placement:
            return tuple(int(digit) for digit in self.placement)
        each, more = divmod(self.num_replicas, self.num_nodes)
        return tuple(each + (node < more) for node in range(self.num_nodes))

    @property
    def key(self) -> str:
        """Its table and placement."""
        return f"{self.table} {'.'.join(map(str, self.devices))}"

    @property
    def step(self) -> Step:
        """The same as a step."""
        waiting = min(self.sync_time_s, self.step_time_s)
        return Step(self.devices, self.local_bsz, self.step_time_s, waiting)


class Line(msgspec.Struct, frozen=True):
    """Steps on one node as a line over the batch: ``fixed_s + sample_s * batch`` seconds.

    ``waiting_fraction`` of it is waiting; ``spread`` is the standard deviation of its logarithm.
    """

    fixed_s: float
    sample_s: float
    waiting_fraction: float
    spread: float


class Entry(msgspec.Struct, frozen=True):
    """A fit: to how many rows, to which batches (least, greatest) by DNN and placement.

    ``lines``, by DNN and devices of a node, stand in where a folder lacks the steps on one node.
    """

    rows: int
    fit: DataParallelFit
    fitted_to: dict[str, dict[str, tuple[int, int]]] = {}
    lines: dict[str, dict[int, Line]] = {}

    def knows(self, row: Row) -> bool:
        """Whether it was fitted to this row."""
        ends = self.fitted_to.get(row.model, {}).get(row.key)
        return ends is not None and ends[0] <= row.local_bsz <= ends[1]


class Cluster(msgspec.Struct, frozen=True):
    """A cluster: what groups call it, one way of its network, and what is known of its links.

    ``flow_bytes_per_s`` is the most that one TCP connection may have; ``expected`` are parameters
    of a fit by name.
    """

    label: str
    nominal_bytes_per_s: float
    flow_bytes_per_s: float = math.inf
    expected: dict[str, float] = {}

    @property
    def link_bytes_per_s(self) -> float:
        """The most that one connection can have."""
        return min(self.nominal_bytes_per_s, self.flow_bytes_per_s)

    @property
    def delivered_bytes_per_s(self) -> float:
        """What TCP is expected to deliver, before any run."""
        least, most = TCP_BYTES_PER_S
        return math.sqrt(
            min(least * self.nominal_bytes_per_s / TCP_NOMINAL_BYTES_PER_S, self.link_bytes_per_s)
            * min(most, self.link_bytes_per_s)
        )


# -- reading ---------------------------------------------------------------------------------------


def read(folder: Path) -> list[Row]:
    """The rows of a folder; one measurement given in both tables counts once."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows.read(folder / FILE, Row):
        same = (row.model, row.cluster, row.devices, row.local_bsz, row.step_time_s)
        found.setdefault(same, row)
    if not found:
        raise InputError(f"{folder / FILE}: no rows")
    return list(found.values())


def training(name: str, of: Iterable[Row]) -> Training | None:
    """Steps of a DNN; None without one on a single device."""
    dnn, steps = DNNS[name], tuple(row.step for row in of if row.model == name)
    if not any(step.devices == (1,) for step in steps):
        return None
    return Training(
        name=name,
        gradient_bytes=dnn.parameters * BYTES,
        steps=steps,
        overlap_fraction=dnn.overlap_fraction,
    )


def _trainings(of: Sequence[Row], names: Iterable[str]) -> list[Training]:
    found = (training(name, of) for name in sorted(names) if name in DNNS)
    return [each for each in found if each is not None]


def _by_cluster(found: Sequence[Row]) -> dict[str, list[Row]]:
    clusters: dict[str, list[Row]] = {}
    for row in found:
        clusters.setdefault(row.cluster, []).append(row)
    return clusters


# -- fitting ---------------------------------------------------------------------------------------


def fit(source: str, folder: Path, label: Callable[[str], Cluster]) -> None:
    """Fit to the rows of a folder and write the fits, by cluster, split and DNNs left out."""
    entries: dict[str, Entry] = {}
    for cluster, own in _by_cluster(read(folder)).items():
        prefix, expected = _prefix(label(cluster)), label(cluster).expected
        names = [each.name for each in _trainings(own, {row.model for row in own})]
        left_out: list[tuple[str, tuple[str, ...]]] = [(f"{prefix}all", ())]
        if any(row.num_nodes > 1 for row in own):
            left_out += [(f"{prefix}a/{name}", (name,)) for name in names]
        for pair in itertools.combinations(names, 2):
            left_out.append((f"{prefix}b/{'+'.join(pair)}", pair))
        for key, without in left_out:
            used = [row for row in own if row.model in names and row.model not in without]
            if any(row.num_replicas > 1 for row in used):
                entries[key] = _entry(used, expected, everything=not without)
    if not entries:
        raise InputError(f"{folder}: no DNN was run on one device and on several")
    fitted.write(source, entries)


def fitted_to(used: Sequence[Row], expected: Mapping[str, float] | None = None) -> DataParallelFit:
    """A fit to rows of one cluster."""
    return fit_data_parallel(_trainings(used, {row.model for row in used}), expected)


def _entry(used: Sequence[Row], expected: Mapping[str, float], *, everything: bool) -> Entry:
    found = fitted_to(used, expected)
    if not everything:
        return Entry(len(used), found)
    to: dict[str, dict[str, tuple[int, int]]] = {}
    for row in used:
        keys = to.setdefault(row.model, {})
        least, most = keys.get(row.key, (row.local_bsz, row.local_bsz))
        keys[row.key] = (min(least, row.local_bsz), max(most, row.local_bsz))
    return Entry(len(used), found, to, _lines(used))


def _lines(used: Sequence[Row]) -> dict[str, dict[int, Line]]:
    """Lines through the steps on one node."""
    points: dict[tuple[str, int], list[Row]] = {}
    for row in used:
        if row.num_nodes == 1:
            points.setdefault((row.model, row.num_replicas), []).append(row)
    found: dict[str, dict[int, Line]] = {}
    for (name, devices), own in sorted(points.items()):
        batches = np.array([float(row.local_bsz) for row in own])
        steps = np.array([row.step_time_s for row in own])
        design = np.stack([np.ones_like(batches), batches], axis=1)
        fixed, each = least_absolute(design, steps)
        misses = np.log(design @ np.array([fixed, each]) / steps)
        waits = float(np.median([row.sync_time_s / row.step_time_s for row in own]))
        values = (float(fixed), float(each), min(waits, 1.0), float(np.std(misses)))
        found.setdefault(name, {})[devices] = Line(*(float(f"{v:.4g}") for v in values))
    return found


# -- predicting ------------------------------------------------------------------------------------


def cases(source: str, folder: Path, label: Callable[[str], Cluster]) -> list[Case]:
    """Every step that is predicted, of every split, and the waiting part of each."""
    entries = fitted.read(source, Entry)
    found: list[Case] = []
    notes: list[str] = []
    for cluster, own in _by_cluster(read(folder)).items():
        known = [row for row in own if row.model in DNNS]
        strange = sorted({row.model for row in own} - DNNS.keys())
        if strange:
            notes.append(f"parameters are not known, left out: {', '.join(strange)} on {cluster}")
        found += _Predicted(source, label(cluster), known, entries, notes).cases()
    for note in notes:
        click.echo(note, err=True)
    if not found:
        raise InputError(f"{folder}: no step that can be predicted and was not fitted to")
    return found


class _Predicted:
    """Cases of one cluster."""

    def __init__(
        self,
        source: str,
        cluster: Cluster,
        own: Sequence[Row],
        entries: Mapping[str, Entry],
        notes: list[str],
    ) -> None:
        self.source, self.cluster, self.rows, self.notes = source, cluster, own, notes
        self.where = cluster.label or source
        prefix = _prefix(cluster)
        self.entries = {
            key.removeprefix(prefix): entry
            for key, entry in entries.items()
            if key.startswith(prefix)
        }

    def cases(self) -> list[Case]:
        found: list[Case] = []
        for name in sorted({row.model for row in self.rows}):
            own = [row for row in self.rows if row.model == name]
            found += self._of(name, own)
        return found

    def _of(self, name: str, own: Sequence[Row]) -> list[Case]:
        whole, spread = training(name, own), 0.0
        every = self.entries.get("all")
        if whole is None and every is not None:
            whole, spread = self._from_lines(name, own, every)
        if whole is None:
            self.notes.append(f"no step on one device, left out: {name} on {self.where}")
            return []
        one = _only(whole, lambda step: len(step.devices) == 1)
        device = _only(whole, lambda step: step.devices == (1,))
        several = [row for row in own if row.num_nodes > 1]
        more = [row for row in own if row.num_replicas > 1]
        strict = expected_data_parallel(
            {"network_s_per_byte": 1.0 / self.cluster.delivered_bytes_per_s} | self.cluster.expected
        )
        found = self._predicted("a-strict", strict, one, several, spread)
        if every is None:
            return found
        if name not in every.fitted_to:
            found += self._predicted("a", every.fit, one, several, spread)
            return found + self._predicted("b", every.fit, device, more, spread)
        if f"a/{name}" in self.entries:
            found += self._predicted("a", self.entries[f"a/{name}"].fit, one, several, spread)
        for key, entry in self.entries.items():
            if key.startswith("b/") and name in key[2:].split("+"):
                found += self._predicted("b", entry.fit, device, more, spread, fold=key)
        other = [row for row in more if not every.knows(row)]
        for known, nodes in (
            (device, [r for r in other if r.num_nodes == 1]),
            (one, [r for r in other if r.num_nodes > 1]),
        ):
            found += self._predicted("all", every.fit, known, nodes, spread)
        return found

    def _from_lines(
        self, name: str, own: Sequence[Row], every: Entry
    ) -> tuple[Training | None, float]:
        """Steps on one node that lines say, for the batches of the rows, and their spread."""
        lines = every.lines.get(name)
        if not lines or 1 not in lines:
            return None, 0.0
        self.notes.append(f"steps on one node are those fitted: {name} on {self.where}")
        steps = [
            Step(
                (devices,),
                batch,
                seconds := line.fixed_s + line.sample_s * batch,
                seconds * line.waiting_fraction,
            )
            for devices, line in lines.items()
            for batch in sorted({row.local_bsz for row in own})
        ]
        dnn = DNNS[name]
        made = Training(
            name=name,
            gradient_bytes=dnn.parameters * BYTES,
            steps=tuple(steps),
            overlap_fraction=dnn.overlap_fraction,
        )
        return made, max(line.spread for line in lines.values())

    def _predicted(
        self,
        split: str,
        used: DataParallelFit,
        known: Training,
        wanted: Sequence[Row],
        spread: float,
        fold: str = "",
    ) -> list[Case]:
        """Cases of a split: the step, and its waiting part where that was measured."""
        if not wanted:
            return []
        pool = f"{self.source}/{split}" + (f"-{self.cluster.label}" if self.cluster.label else "")
        predictor = Predictor(used, known)
        alone = OneNode(known)
        found = []
        steps = predictor.predict_all([(row.devices, row.local_bsz) for row in wanted])
        for row, step in zip(wanted, steps, strict=True):
            base_s = alone.step_s(1, row.local_bsz) or math.nan
            unsure = msgspec.structs.replace(
                step.uncertainty,
                calibration=math.hypot(step.uncertainty.calibration, spread),
            )
            name = f"{row.model} {row.key}, {row.local_bsz} samples" + (fold and f", {fold}")
            found.append(self._case(pool, name, row, step.step_s, base_s, unsure, fold))
            if row.sync_time_s:
                found.append(
                    Case(
                        f"{pool}/{row.model}:idle",
                        name,
                        step.idle_fraction,
                        row.sync_time_s / row.step_time_s,
                        relative=False,
                        pools=(f"{pool}:idle",),
                        others={"ideal scaling": 0.0},
                    )
                )
        return found

    def _case(
        self,
        pool: str,
        name: str,
        row: Row,
        step_s: float,
        base_s: float,
        unsure: Uncertainty,
        fold: str,
    ) -> Case:
        count = row.num_replicas
        wire = 2.0 * (count - 1) / count * DNNS[row.model].parameters * BYTES
        plain = wire / self.cluster.link_bytes_per_s + 2.0 * (count - 1) * STARTUP_S
        return Case(
            f"{pool}/{row.model}",
            name,
            step_s,
            row.step_time_s,
            interval=unsure.interval(step_s),
            pools=(pool,),
            others={"ideal scaling": base_s, "plain alpha-beta": base_s + plain},
            setting=" ".join(filter(None, (row.model, fold))),
            samples=float(count * row.local_bsz),
        )


def _prefix(cluster: Cluster) -> str:
    return f"{cluster.label}/" if cluster.label else ""


def _only(whole: Training, wanted: Callable[[Step], bool]) -> Training:
    return msgspec.structs.replace(whole, steps=tuple(s for s in whole.steps if wanted(s)))
