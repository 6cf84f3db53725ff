"""A schedule of training: which gradient was computed on which model, and when it took effect."""

from __future__ import annotations

import enum
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base import files
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, number, whole_number

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "perfmodel.schedule/1"
"""Name and version of the file format (docs/reference/schedule.md)."""

CENTRE = -1
"""The model on the servers, or the one model that synchronous replicas share."""

NO_MODEL = -2
"""``other`` of rows that take in no other model."""

WHOLE = -1
"""All slices."""

MOST_BYTES, MOST_ROWS, MOST_WORKERS, MOST_SLICES = 2 * 10**9, 50_000_000, 1_000_000, 32767
"""Largest file, longest schedule, most workers, and most slices."""


class Event(enum.IntEnum):
    """What a row of a schedule says: a worker reads the centre, a gradient is computed or applied,
    a model is mixed in, a gradient is dropped."""

    READ = 0
    GRADIENT = 1
    APPLY = 2
    MIX = 3
    DROP = 4


COLUMNS: dict[str, str] = {
    "time_s": "<f8",
    "event": "|u1",
    "worker": "<i4",
    "step": "<i4",
    "model": "<i4",
    "other": "<i4",
    "slice": "<i2",
    "weight": "<f8",
    "group": "<i8",
    "version": "<i8",
    "other_version": "<i8",
}
"""Columns of a schedule and their types."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of all rows of a schedule.

    Attributes
    ----------
    workers : their number; each has a model of its own.
    slices : bytes of each slice of the parameters.
    batch_size : samples of one gradient.
    options : options of the architecture.
    begins_s : (workers,) time at which each begins its first step.
    samples_per_s : predicted throughput of all workers in the long run.
    """

    workers: int
    slices: tuple[float, ...]
    batch_size: int
    architecture: str
    options: dict[str, Any]
    begins_s: tuple[float, ...]
    samples_per_s: float
    seed: int
    format: str = FORMAT


class Schedule(msgspec.Struct, frozen=True, eq=False):
    """Rows (rows,) in the order in which they took effect, from the start of training.

    Every model starts from the same parameters, as version 0. A model is that of a worker (its
    number) or CENTRE; a version counts the groups of rows that have changed a slice of a model.
    Rows of equal ``group`` follow each other and take effect together, on the values before any of
    them: of one model and slice first MIX, then APPLY.

    Attributes
    ----------
    time_s : when it took effect.
    event : an :class:`Event`.
    worker : READ: the one that reads; GRADIENT, APPLY, DROP: the one that computes the gradient;
        MIX: the one that causes it.
    step : the worker's step of that gradient, from 0; READ: the step it is read for; MIX: -1.
    model : the model that is written; GRADIENT: that is used; DROP: that it was meant for.
    other : READ: CENTRE; MIX: the model that is mixed in; else NO_MODEL.
    slice : index of a slice, or WHOLE.
    weight : APPLY: factor of the gradient in the optimizer's step; MIX: w in
        model + sum of w (other - model); else 0.
    group : of rows that take effect together.
    version : READ: of the centre that is read; GRADIENT: of the centre that the parameters come
        from or, without READ rows, of the worker's own model, -1 where slices differ; APPLY, MIX:
        of the model that it makes; DROP: of the model at that time.
    other_version : MIX: the version of ``other`` that is mixed in, which may be an old one, as it
        was sent; else -1.
    """

    header: Header
    time_s: Floats
    event: NDArray[np.uint8]
    worker: NDArray[np.int32]
    step: NDArray[np.int32]
    model: NDArray[np.int32]
    other: NDArray[np.int32]
    slice: NDArray[np.int16]
    weight: Floats
    group: Ids
    version: Ids
    other_version: Ids

    def __len__(self) -> int:
        return len(self.time_s)

    def __repr__(self) -> str:
        h = self.header
        return (
            f"Schedule({h.architecture}, {h.workers} workers: {len(self)} rows, "
            f"{self.gradients} gradients applied)"
        )

    @property
    def gradients(self) -> int:
        """How many gradients have been applied, to one slice at least."""
        applied = self.event == Event.APPLY
        steps = int(self.step.max(initial=0)) + 1
        of_whom = np.sort(self.worker[applied].astype(np.int64) * steps + self.step[applied])
        return int(np.count_nonzero(np.diff(of_whom))) + bool(len(of_whom))

    def staleness(self) -> Ids:
        """Staleness of each update, in the order of the rows: versions between read and update.

        Where there is a centre, of each row that changes it, by the versions of the centre; else of
        each APPLY, by the versions of the worker's own model. A row of the whole model counts once
        for each slice.
        """
        rows, slices = _by_slice(self)
        event, model = self.event[rows], self.model[rows]
        central = bool((self.model == CENTRE).any())
        updates = (event == Event.APPLY) & ((model == CENTRE) == central)
        if central and not updates.any():
            return self._exchanged(rows, slices)
        worker, step = (values[rows].astype(np.int64) for values in (self.worker, self.step))
        steps = int(step.max(initial=0)) + 1
        key = (worker * len(self.header.slices) + slices) * steps + step
        base = event == (Event.READ if central else Event.GRADIENT)
        order = np.argsort(key[base], kind="stable")
        known, versions = key[base][order], self._versions(rows, slices)[base][order]
        at = np.searchsorted(known, key[updates], "right") - 1
        found = (at >= 0) & (known[at] // steps == key[updates] // steps) if len(known) else at >= 0
        read = np.zeros(len(at), np.int64)
        read[found] = versions[at[found]]
        stale: Ids = self.version[rows][updates] - 1 - read
        return stale

    def _versions(self, rows: Ids, slices: Ids) -> Ids:
        """The column version; of gradients on models whose slices differ, that of each slice."""
        event, made = self.event[rows], self.version[rows]
        lost = (event == Event.GRADIENT) & (made < 0)
        if not lost.any():
            return made
        model = self.model[rows].astype(np.int64) + 1
        place = (model * len(self.header.slices) + slices) * len(rows)
        at = place + np.arange(len(rows))
        writes = np.flatnonzero((event == Event.APPLY) | (event == Event.MIX))
        writes = writes[np.argsort(at[writes])]
        last = np.searchsorted(at[writes], at[lost]) - 1
        before = (last >= 0) & (place[writes][last] == place[lost])
        found = made.copy()
        found[lost] = np.where(before, made[writes][last], 0)
        return found

    def _exchanged(self, rows: Ids, slices: Ids) -> Ids:
        """Staleness of a worker's moves of the centre: versions since it read the centre."""
        mixed = (self.event[rows] == Event.MIX) & (self.model[rows] == CENTRE)
        rows, slices = rows[mixed], slices[mixed]
        other = self.other[rows]
        made = other != CENTRE
        key = self.group[rows] * len(self.header.slices) + slices
        own = dict(zip(key[~made].tolist(), self.other_version[rows][~made].tolist(), strict=True))
        versions = self.version[rows][made].tolist()
        return np.array(
            [v - 1 - own.get(k, v - 1) for k, v in zip(key[made].tolist(), versions, strict=True)],
            np.int64,
        )

    def staleness_histogram(self) -> dict[int, int]:
        """How often each staleness was seen."""
        counts = np.bincount(self.staleness())
        return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}

    def frame(self) -> pd.DataFrame:
        """One row per event, with its name; the header is in ``attrs``."""
        import pandas as pd

        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        names = pd.Index([event.name for event in Event])
        columns["event"] = pd.Categorical.from_codes(self.event.tolist(), names)
        frame = pd.DataFrame(columns)
        frame.attrs = msgspec.to_builtins(self.header)
        return frame

    def write(self, path: str | Path) -> None:
        """Write a file (.npz) that :meth:`read` reads.

        Raises
        ------
        InputError : the place cannot be written.
        """
        files.write(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The contents of such a file."""
        text = json.dumps(files.finite(msgspec.to_builtins(self.header), "inf")).encode()
        arrays = {name: getattr(self, name).astype(kind) for name, kind in COLUMNS.items()}
        out = io.BytesIO()
        np.savez_compressed(out, header=np.frombuffer(text, np.uint8), **arrays)
        return out.getvalue()

    @classmethod
    def read(cls, path: str | Path) -> Schedule:
        """The schedule in a file.

        Raises
        ------
        InputError : it cannot be read, is of another format or version, or contradicts itself.
        """
        name = str(path)
        arrays = _arrays(files.read_bytes(path, MOST_BYTES), name)
        header = _header(arrays.pop("header", None), name)
        if missing := [column for column in COLUMNS if column not in arrays]:
            raise InputError(f"{name}: column {missing[0]!r} is missing")
        for column, kind in COLUMNS.items():
            found = arrays[column]
            if found.dtype != np.dtype(kind) or found.ndim != 1:
                raise InputError(
                    f"{name}: {column}: expected a row of {np.dtype(kind).name}, got "
                    f"{found.dtype.name} of shape {found.shape}"
                )
        schedule = cls(header, **{column: arrays[column] for column in COLUMNS})
        try:
            schedule.check()
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        return schedule

    def check(self) -> None:
        """Check that columns, workers, slices and versions agree with each other.

        Raises
        ------
        InputError : they do not; the text has the column, and the first row that is wrong.
        """
        h, n = self.header, len(self)
        for name in COLUMNS:
            if len(getattr(self, name)) != n:
                raise InputError(f"{name}: expected {n} rows, got {len(getattr(self, name))}")
        if n > MOST_ROWS:
            raise InputError(f"a schedule has at most {MOST_ROWS} rows, got {n}")
        gradient = np.isin(self.event, (Event.GRADIENT, Event.APPLY, Event.DROP))
        mixes = self.event == Event.MIX
        for name, wrong, allowed in (
            ("time_s", ~np.isfinite(self.time_s) | (self.time_s < 0.0), "finite and not negative"),
            ("time_s", np.diff(self.time_s, prepend=0.0) < 0.0, "in order"),
            ("event", self.event > max(Event), f"at most {int(max(Event))}"),
            ("worker", (self.worker < 0) | (self.worker >= h.workers), f"below {h.workers}"),
            ("step", (self.step < 0) & gradient, "not negative"),
            ("model", (self.model < CENTRE) | (self.model >= h.workers), f"below {h.workers}"),
            ("other", (self.other < NO_MODEL) | (self.other >= h.workers), f"below {h.workers}"),
            ("other", mixes & (self.other == NO_MODEL), "a model, for a MIX"),
            (
                "slice",
                (self.slice < WHOLE) | (self.slice >= len(h.slices)),
                "a slice of the header",
            ),
            ("weight", ~np.isfinite(self.weight), "finite"),
            ("group", np.diff(self.group, prepend=self.group[:1]) < 0, "in order"),
            ("other_version", mixes & (self.other_version < 0), "not negative, for a MIX"),
        ):
            _none(name, wrong, allowed)
        self._check_gradients()
        self._check_versions()

    def _check_versions(self) -> None:
        """Each group that writes a slice of a model raises its version by one; what is read is the
        present version, what is mixed in was there before."""
        width = len(self.header.slices)
        rows, slices = _by_slice(self)
        group = np.cumsum(np.diff(self.group, prepend=self.group[:1]) != 0)[rows]
        event, version = self.event[rows], self.version[rows]

        def found(wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
            """By row, from wrong ones by row and slice."""
            return np.bincount(rows[wrong], minlength=len(self)) > 0

        made = np.isin(event, (Event.APPLY, Event.MIX))
        place = (self.model[rows] * width + slices) * (len(self) + 1) + group
        order = np.flatnonzero(made)[np.argsort(place[made], kind="stable")]
        at, became = place[order], version[order]
        model = at // (len(self) + 1)
        new = np.diff(model, prepend=model[:1] - 1) != 0
        before = np.where(new, 0, np.roll(became, 1))
        wrong = np.zeros(len(rows), np.bool_)
        wrong[order] = became != before + (np.diff(at, prepend=at[:1] - 1) != 0)
        _none("version", found(wrong), "one more than that of the group before")

        place = (self.other[rows] * width + slices) * (len(self) + 1) + group
        last = np.searchsorted(at, place) - 1
        there = np.zeros(len(rows), np.int64)
        if len(at):
            same = (last >= 0) & (model[last] == place // (len(self) + 1))
            there = np.where(same, became[last], 0)
        wrong = (event == Event.READ) & (version != there)
        _none("version", found(wrong), "that of the centre, for a READ")
        wrong = (event == Event.MIX) & (self.other_version[rows] > there)
        _none("other_version", found(wrong), "one that was made before")

    def _check_gradients(self) -> None:
        """Each gradient is computed once, before it is applied or dropped."""
        steps = int(self.step.max(initial=0)) + 1
        key = self.worker.astype(np.int64) * steps + self.step
        computed = np.flatnonzero(self.event == Event.GRADIENT)
        computed = computed[np.argsort(key[computed], kind="stable")]
        again = np.zeros(len(self), np.bool_)
        again[computed[1:]] = key[computed[1:]] == key[computed[:-1]]
        _none("step", again, "of a gradient that was not computed before")
        used = np.flatnonzero(np.isin(self.event, (Event.APPLY, Event.DROP)))
        at = np.searchsorted(key[computed], key[used], "right") - 1
        missing = np.ones(len(self), np.bool_)
        if len(computed):
            known = (at >= 0) & (key[computed[at]] == key[used]) & (computed[at] < used)
            missing[used] = ~known
        missing[self.event == Event.READ] = missing[self.event == Event.MIX] = False
        missing[computed] = False
        _none("step", missing, "of a gradient that was computed before")


def _by_slice(schedule: Schedule) -> tuple[Ids, Ids]:
    """Row numbers, those of the whole model once for each slice, and the slices."""
    count = len(schedule.header.slices)
    times = np.where(schedule.slice == WHOLE, count, 1)
    rows = np.repeat(np.arange(len(schedule)), times)
    first = np.repeat(np.cumsum(times) - times, times)
    own = schedule.slice[rows].astype(np.int64)
    return rows, np.where(own == WHOLE, np.arange(len(rows)) - first, own)


def _none(name: str, wrong: NDArray[np.bool_], allowed: str) -> None:
    if wrong.any():
        raise InputError(f"{name}: row {int(np.argmax(wrong))} is wrong: must be {allowed}")


def _arrays(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    """The arrays in a file, by name.

    Raises
    ------
    InputError : it is no archive of arrays, or would take too much memory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size <= MOST_BYTES:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                found = {key: file[key] for key in file.files}
            return {key: item for key, item in found.items() if isinstance(item, np.ndarray)}
    except _UNREADABLE as error:
        raise InputError(f"{name}: not a schedule: {error}") from None
    raise InputError(f"{name}: is too large: {size} bytes, at most {MOST_BYTES}")


_UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


def _header(data: NDArray[Any] | None, name: str) -> Header:
    """The header of a file.

    Raises
    ------
    InputError : there is none, it is of another format, or its values are impossible.
    """
    if data is None or data.dtype != np.uint8:
        raise InputError(f"{name}: not a schedule: it has no header")
    try:
        raw = json.loads(data.tobytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: header: not valid JSON: {error}") from None
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        raise InputError(f"{name}: format: expected {FORMAT!r}, got {found!r}")
    try:
        header = msgspec.convert(raw, files.ready(Header))
        whole_number("workers", header.workers, at_most=MOST_WORKERS)
        whole_number("batch_size", header.batch_size)
        number("samples_per_s", header.samples_per_s)
        for what, values, count in (
            ("slices", header.slices, min(max(len(header.slices), 1), MOST_SLICES)),
            ("begins_s", header.begins_s, header.workers),
        ):
            if len(values) != count:
                raise InputError(f"{what}: expected {count} values, got {len(values)}")
            for k, value in enumerate(values):
                number(f"{what}[{k}]", value)
    except (InputError, msgspec.ValidationError) as error:
        raise InputError(f"{name}: header: {error}") from None
    return header
