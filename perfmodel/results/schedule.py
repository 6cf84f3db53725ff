"""Training schedules: which gradient was computed on which model, and when it took effect."""

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
from perfmodel.base.units import show
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "perfmodel.schedule/1"
"""Name and version of the file format (docs/reference/schedule.md)."""

CENTRE = -1
"""Index of the model on the servers, or of the model that synchronous replicas share."""

NO_MODEL = -2
"""Value of ``other`` in rows that involve no other model."""

WHOLE = -1
"""Value of ``slice`` in rows for the whole model."""

MOST_RATIO = 400
"""Largest compression ratio of a file. Recorded schedules of 64 workers that average every few
steps reach 93; the columns of workers and models alone, which cannot be packed better, allow
270."""

MOST_KEYS = 2**62
"""Limit on workers times slices times steps, which are combined in one whole number."""

MOST_BYTES, MOST_ROWS, MOST_WORKERS, MOST_SLICES = 2 * 10**9, 50_000_000, 1_000_000, 32767
"""Limits on file size, rows, workers and slices."""


class Event(enum.IntEnum):
    """Kind of a schedule row: a worker reads the centre, a gradient is computed or applied, another
    model is mixed in, or a gradient is dropped."""

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
    """Properties common to all rows of a schedule.

    Attributes
    ----------
    workers : number of workers; each has its own model.
    slices : size in bytes of each slice of the parameters.
    batch_size : samples per gradient.
    options : options of the architecture.
    begins_s : (workers,) time at which each worker begins its first step.
    samples_per_s : predicted steady-state throughput of all workers.
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


class Schedule(Drawn, frozen=True, eq=False):
    """Events of a training run in the order in which they took effect; columns are (rows,).

    All models start from the same parameters, at version 0. A model is a worker's (its index) or
    CENTRE. A version counts the groups of rows that have changed a slice of a model. Rows with the
    same ``group`` are consecutive and take effect together, on the values before the group: for
    each model and slice MIX first, then APPLY.

    Attributes
    ----------
    time_s : time at which the row took effect.
    event : an :class:`Event`.
    worker : READ: the worker that reads; GRADIENT, APPLY, DROP: the worker that computed the
        gradient; MIX: the worker that caused it.
    step : the worker's step that computed the gradient, from 0; READ: the step that uses the read
        parameters; MIX: -1.
    model : the model written; GRADIENT: the model used; DROP: the model that the gradient was for.
    other : READ: CENTRE; MIX: the model mixed in; else NO_MODEL.
    slice : index of a slice, or WHOLE.
    weight : APPLY: factor of the gradient in the optimizer step; MIX: w in
        model + sum of w (other - model); else 0.
    group : number of the group of rows that take effect together.
    version : READ: version of the centre read; GRADIENT: version of the centre from which the
        parameters come or, without READ rows, of the worker's own model, -1 if slices differ;
        APPLY, MIX: version of the model after the row; DROP: current version of the model.
    other_version : MIX: version of ``other`` mixed in, which may be old because it was sent
        earlier; else -1.
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
        """Number of gradients that were applied to at least one slice."""
        return int(self.applied().sum())

    def applied(self) -> Ids:
        """(workers,) gradients of each worker that were applied to at least one slice."""
        keys = np.unique(gradient_keys(self)[self.event == Event.APPLY])
        return np.bincount(keys // _steps(self), minlength=self.header.workers)

    def staleness(self) -> Ids:
        """Staleness of each update (updates,), in row order: versions between read and update.

        With a centre, updates are the rows that change it, and versions are those of the centre.
        Without one, updates are the APPLY rows, and versions are those of the worker's own model. A
        row for the whole model counts once per slice.
        """
        rows, slices = by_slice(self)
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
        newer = (at >= 0) & (known[at] // steps == key[updates] // steps) if len(known) else at >= 0
        read = np.zeros(len(at), np.int64)
        read[newer] = versions[at[newer]]
        stale: Ids = self.version[rows][updates] - 1 - read
        return stale

    def _versions(self, rows: Ids, slices: Ids) -> Ids:
        """Version of each row and slice; resolves gradients on models whose slices differ."""
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
        versions = made.copy()
        versions[lost] = np.where(before, made[writes][last], 0)
        return versions

    def _exchanged(self, rows: Ids, slices: Ids) -> Ids:
        """Staleness when workers move the centre by MIX: versions since they read the centre."""
        mixed = (self.event[rows] == Event.MIX) & (self.model[rows] == CENTRE)
        rows, slices = rows[mixed], slices[mixed]
        partner = self.other[rows]
        made = partner != CENTRE
        key = self.group[rows] * len(self.header.slices) + slices
        partners = dict(
            zip(key[~made].tolist(), self.other_version[rows][~made].tolist(), strict=True)
        )
        versions = self.version[rows][made].tolist()
        return np.array(
            [
                v - 1 - partners.get(k, v - 1)
                for k, v in zip(key[made].tolist(), versions, strict=True)
            ],
            np.int64,
        )

    def staleness_histogram(self) -> dict[int, int]:
        """Number of updates with each staleness."""
        counts = np.bincount(self.staleness())
        return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}

    def figure(self) -> Figure:
        """Staleness over updates, and the gradients applied of each worker."""
        from perfmodel.results.schedule_figure import figure

        h, ends_s = self.header, float(self.time_s[-1]) if len(self) else 0.0
        title = f"{h.architecture}, {h.workers} workers: the first {ends_s:.4g} s of training"
        return figure(self.staleness(), self.applied().tolist(), title)

    def frame(self) -> pd.DataFrame:
        """A data frame with one row per event, events by name; the header is in ``attrs``."""
        import pandas as pd

        columns: dict[str, object] = {name: getattr(self, name) for name in COLUMNS}
        names = pd.Index([event.name for event in Event])
        columns["event"] = pd.Categorical.from_codes(self.event.tolist(), names)
        frame = pd.DataFrame(columns)
        frame.attrs = msgspec.to_builtins(self.header)
        return frame

    def write(self, path: str | Path) -> None:
        """Write a file (.npz) that :meth:`read` can read.

        Raises
        ------
        InputError : ``path`` cannot be written.
        """
        files.write(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The contents of the file that :meth:`write` writes."""
        text = json.dumps(files.finite(msgspec.to_builtins(self.header), "inf")).encode()
        arrays = {name: getattr(self, name).astype(kind) for name, kind in COLUMNS.items()}
        out = io.BytesIO()
        np.savez_compressed(out, header=np.frombuffer(text, np.uint8), **arrays)
        return out.getvalue()

    @classmethod
    def read(cls, path: str | Path) -> Schedule:
        """Read a schedule from a file.

        Raises
        ------
        InputError : the file cannot be read, has another format or version, or is inconsistent.
        """
        name = str(path)
        arrays = _arrays(files.read_bytes(path, MOST_BYTES), name)
        header = _header(arrays.pop("header", None), name)
        if missing := [column for column in COLUMNS if column not in arrays]:
            raise InputError(f"{name}: column {missing[0]!r} is missing")
        for column, kind in COLUMNS.items():
            values = arrays[column]
            if values.dtype != np.dtype(kind) or values.ndim != 1:
                raise InputError(
                    f"{name}: {column}: expected a one-dimensional array of "
                    f"{np.dtype(kind).name}, got {values.dtype.name} of shape {values.shape}"
                )
        schedule = cls(header, **{column: arrays[column] for column in COLUMNS})
        try:
            schedule.check()
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        return schedule

    def check(self) -> None:
        """Check that columns, workers, slices and versions are consistent.

        Raises
        ------
        InputError : they are not; the text names the column and the first wrong row.
        """
        h, n = self.header, len(self)
        for name in COLUMNS:
            if len(getattr(self, name)) != n:
                raise InputError(f"{name}: expected {n} rows, got {len(getattr(self, name))}")
        if n > MOST_ROWS:
            raise InputError(f"a schedule has at most {MOST_ROWS} rows, got {n}")
        unsliced = int(np.count_nonzero(self.slice == WHOLE))
        if (expanded := n + unsliced * (len(h.slices) - 1)) > MOST_ROWS:
            raise InputError(
                f"a schedule has at most {MOST_ROWS} rows if each slice is one, got {expanded}"
            )
        if h.workers * len(h.slices) * _steps(self) > MOST_KEYS:
            raise InputError("step: too large for this many workers and slices")
        gradient = np.isin(self.event, (Event.GRADIENT, Event.APPLY, Event.DROP))
        mixes, reads = self.event == Event.MIX, self.event == Event.READ
        for name, wrong, allowed in (
            ("time_s", ~np.isfinite(self.time_s) | (self.time_s < 0.0), "finite and not negative"),
            ("time_s", np.diff(self.time_s, prepend=0.0) < 0.0, "in order"),
            ("event", self.event > max(Event), f"at most {int(max(Event))}"),
            ("worker", (self.worker < 0) | (self.worker >= h.workers), f"below {h.workers}"),
            ("step", (self.step < 0) & (gradient | reads), "not negative"),
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
            ("group", self.group < 0, "not negative"),
            ("version", self.version < -1, "at least -1"),
            ("other_version", mixes & (self.other_version < 0), "not negative, for a MIX"),
        ):
            _none(name, wrong, allowed)
        self._check_gradients()
        self._check_versions()
        if (self.staleness() < 0).any():
            raise InputError("version: a gradient is of a later version than the updated model")

    def _check_versions(self) -> None:
        """Check that each group that writes a slice of a model raises its version by one, that
        reads return the current version, and that mixed-in versions already exist."""
        width = len(self.header.slices)
        rows, slices = by_slice(self)
        group = np.cumsum(np.diff(self.group, prepend=self.group[:1]) != 0)[rows]
        event, version = self.event[rows], self.version[rows]

        def found(wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
            """Rows with at least one wrong slice."""
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
        _none("version", found(wrong), "one more than in the previous group")

        place = (self.other[rows] * width + slices) * (len(self) + 1) + group
        last = np.searchsorted(at, place) - 1
        there = np.zeros(len(rows), np.int64)
        if len(at):
            same = (last >= 0) & (model[last] == place // (len(self) + 1))
            there = np.where(same, became[last], 0)
        wrong = (event == Event.READ) & (version != there)
        _none("version", found(wrong), "that of the centre, for a READ")
        wrong = (event == Event.MIX) & (self.other_version[rows] > there)
        _none("other_version", found(wrong), "a version that already exists")

    def _check_gradients(self) -> None:
        """Check that each gradient is computed once, before it is applied or dropped."""
        key = gradient_keys(self)
        computed = np.flatnonzero(self.event == Event.GRADIENT)
        computed = computed[np.argsort(key[computed], kind="stable")]
        again = np.zeros(len(self), np.bool_)
        again[computed[1:]] = key[computed[1:]] == key[computed[:-1]]
        _none("step", again, "a step whose gradient is computed only once")
        used = np.flatnonzero(np.isin(self.event, (Event.APPLY, Event.DROP)))
        at = np.searchsorted(key[computed], key[used], "right") - 1
        missing = np.ones(len(self), np.bool_)
        if len(computed):
            known = (at >= 0) & (key[computed[at]] == key[used]) & (computed[at] < used)
            missing[used] = ~known
        missing[self.event == Event.READ] = missing[self.event == Event.MIX] = False
        missing[computed] = False
        _none("step", missing, "a step whose gradient was computed before")


def _steps(schedule: Schedule) -> int:
    """One more than the last step of any worker."""
    return int(schedule.step.max(initial=0)) + 1


def gradient_keys(schedule: Schedule) -> Ids:
    """Return a number for each row, equal for rows about the same gradient, (rows,)."""
    return schedule.worker.astype(np.int64) * _steps(schedule) + schedule.step


def by_slice(schedule: Schedule) -> tuple[Ids, Ids]:
    """Row numbers and slices; rows for the whole model are repeated for each slice."""
    count = len(schedule.header.slices)
    times = np.where(schedule.slice == WHOLE, count, 1)
    rows = np.repeat(np.arange(len(schedule)), times)
    first = np.repeat(np.cumsum(times) - times, times)
    slices = schedule.slice[rows].astype(np.int64)
    return rows, np.where(slices == WHOLE, np.arange(len(rows)) - first, slices)


def _none(name: str, wrong: NDArray[np.bool_], allowed: str) -> None:
    if wrong.any():
        raise InputError(f"{name}: row {int(np.argmax(wrong))} is wrong: must be {allowed}")


def _arrays(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    """The arrays in a file, by name.

    Raises
    ------
    InputError : the file is not an archive of arrays, or would take too much memory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        most = files.most_unpacked(len(data), MOST_BYTES, MOST_RATIO)
        if size <= most:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                names = [key for key in file.files if key in COLUMNS or key == "header"]
                arrays = {key: file[key] for key in names}
            return {key: item for key, item in arrays.items() if isinstance(item, np.ndarray)}
    except _UNREADABLE as error:
        raise InputError(f"{name}: not a schedule: {error}") from None
    raise InputError(
        f"{name}: too large: its {show(len(data), 'bytes')} unpack to {show(size, 'bytes')}, the "
        f"limit is {show(most, 'bytes')}"
    )


_UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


def _header(data: NDArray[np.generic] | None, name: str) -> Header:
    """Parse the header of a file.

    Raises
    ------
    InputError : the header is missing, has another format, or has impossible values.
    """
    if data is None or data.dtype != np.uint8:
        raise InputError(f"{name}: not a schedule: it has no header")
    try:
        raw = files.printable(msgspec.json.decode(files.without_mark(data.tobytes())))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: header: not valid JSON: {error}") from None
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise InputError(f"{name}: format: expected {FORMAT!r}, got {version!r}")
    try:
        header = msgspec.convert(raw, files.ready(Header))
        whole_number("workers", header.workers, at_most=MOST_WORKERS)
        whole_number("batch_size", header.batch_size)
        number("samples_per_s", header.samples_per_s)
        whole_number("seed", header.seed, at_least=0, at_most=2**63 - 1)
        for field, values, count in (
            ("slices", header.slices, min(max(len(header.slices), 1), MOST_SLICES)),
            ("begins_s", header.begins_s, header.workers),
        ):
            if len(values) != count:
                raise InputError(f"{field}: expected {count} values, got {len(values)}")
            for k, value in enumerate(values):
                number(f"{field}[{k}]", value)
    except (InputError, msgspec.ValidationError) as error:
        raise InputError(f"{name}: header: {error}") from None
    return header
