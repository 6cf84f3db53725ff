"""A sweep on disk: one file per chunk of jobs, so that an interrupted sweep can resume."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from perfmodel import api
from perfmodel.base import files, tables
from perfmodel.base.errors import InputError, PerfmodelWarning, exception_line
from perfmodel.inputs.job import Job
from perfmodel.predicting.installation import fingerprint
from perfmodel.results.prediction import Prediction
from perfmodel.sweeping.chunks import Answer, Chunk, Progress, predicted, slices
from perfmodel.sweeping.executors import completed
from perfmodel.sweeping.grids import Grid
from perfmodel.sweeping.labels import Row

SCHEMA = "perfmodel.shards/1"

ABOUT = "sweep.json"
"""The file in a folder that identifies its sweep."""


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifies the sweep in a folder.

    Attributes
    ----------
    installation : version of perfmodel and of what it computes with
        (:func:`perfmodel.predicting.installation.fingerprint`).
    how : how to predict them.
    axes : varied arguments, and their values as shown in a table.
    inputs : digest of all jobs, including file contents.
    """

    schema: str = SCHEMA
    installation: str
    how: Row
    axes: Row
    inputs: str

    def check(self, folder: Path, wanted: About) -> None:
        """Reject a sweep that differs from the one in the folder.

        Raises
        ------
        InputError : the sweeps differ; the text says where.
        """
        here = f"--resume: {folder} holds another sweep"
        if self.schema != wanted.schema or self.installation != wanted.installation:
            raise InputError(f"{here}, made by {self.installation}; this is {wanted.installation}")
        if list(self.axes) != list(wanted.axes):
            there, now = (", ".join(a) or "nothing" for a in (self.axes, wanted.axes))
            raise InputError(f"{here}: that sweep varies {there}, this one {now}")
        for old, new in ((self.how, wanted.how), (self.axes, wanted.axes)):
            for name, value in new.items():
                if old.get(name) != value:
                    was = old.get(name)
                    raise InputError(f"{here}: {name} is {was} in that sweep, {value} in this one")
        if self.inputs != wanted.inputs:
            raise InputError(f"{here}: its jobs, or the contents of their files, differ")


class Shards:
    """A folder with the results of a sweep, one file per chunk: Parquet if available, else CSV.

    A shard has the columns ``index`` (of the job in the grid), ``point`` (JSON), ``reason`` (why
    the prediction failed, else empty) and ``prediction`` (JSON; empty if it failed).

    Raises
    ------
    InputError : the folder cannot be created or read, or holds something else.
    """

    def __init__(self, folder: str | Path, about: About) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = any(self.folder.iterdir())
        except OSError as error:
            raise InputError(f"--resume: {folder}: {error.strerror or error}") from None
        place, encoded = self.folder / ABOUT, msgspec.json.encode(about)
        if not there:
            files.write(place, encoded)
            return
        if not place.exists():
            raise InputError(f"--resume: {folder} is not empty and does not hold a sweep")
        data = files.without_mark(files.read_bytes(place))
        try:
            old = msgspec.json.decode(data, type=files.ready(About))
        except RecursionError:
            raise InputError(f"--resume: {place}: nested too deeply") from None
        except (msgspec.DecodeError, ValueError) as error:  # also of bytes that are not UTF-8
            raise InputError(f"--resume: {place}: {error}") from None
        # compare after a round trip through JSON, which turns tuples into lists
        old.check(self.folder, msgspec.json.decode(encoded, type=About))

    def read(self, name: str, count: int) -> list[Answer] | None:
        """Read the answers of a shard; None if it does not exist or cannot be used, with a warning
        that names it.

        Raises
        ------
        InputError : the shard is a Parquet file, and pyarrow is not installed.
        """
        import pandas as pd

        columns = ["reason", "prediction"]
        for ending in ("parquet", "csv"):
            path = self.folder / f"{name}.{ending}"
            if not path.exists():
                continue
            if ending == "parquet":
                tables.need_parquet()
            try:
                frame = (
                    pd.read_parquet(path, engine="pyarrow", columns=columns)
                    if ending == "parquet"
                    else pd.read_csv(path, usecols=columns, dtype=str, keep_default_na=False)
                )
                answers = list(map(_answer, frame["reason"], frame["prediction"]))
                if len(answers) == count:
                    return answers
                why = f"it has {len(answers)} rows, expected {count}"
            except Exception as error:  # whatever the readers raise for damaged files
                why = exception_line(error)
            text = f"--resume: {path} is damaged ({why}); its jobs are predicted again"
            warnings.warn(text, PerfmodelWarning, stacklevel=3)
        return None

    def write(self, name: str, first: int, points: Sequence[Row], answers: list[Answer]) -> None:
        """Write a shard atomically; ``first`` is the index of its first job.

        Raises
        ------
        InputError : the file cannot be written.
        """
        import pandas as pd

        good = [answer if isinstance(answer, Prediction) else None for answer in answers]
        frame = pd.DataFrame(
            {
                "index": range(first, first + len(answers)),
                "point": [json.dumps(files.finite(point, "inf")) for point in points],
                "reason": [str(a) if p is None else "" for a, p in zip(answers, good, strict=True)],
                "prediction": ["" if p is None else json.dumps(p.to_dict()) for p in good],
            }
        )
        if tables.has_parquet():
            tables.parquet(frame, self.folder / f"{name}.parquet")
        else:
            tables.csv_text(frame, self.folder / f"{name}.csv")


def _answer(reason: str, text: str) -> Answer:
    if not isinstance(reason, str) or not isinstance(text, str):
        raise ValueError("expected text")
    if reason:
        return InputError(reason)
    return msgspec.convert(json.loads(text), files.ready(Prediction))


SETTINGS = ("fidelity", "tolerance", "rel_ci", "max_ops")
"""Fields of :class:`perfmodel.PredictOptions` that predictions depend on."""


def answers(
    grid: Grid,
    how: api.PredictOptions,
    executor: Executor,
    folder: str | Path | None,
    progress: Progress | None,
) -> list[Answer]:
    """Predict all jobs of a grid and return the answers in its order.

    Parameters
    ----------
    how : how to predict them.
    executor : runs the predictions.
    folder : folder with the answers known so far; new ones are added as they complete.
    progress : called with (done, all).

    Raises
    ------
    InputError : see :class:`Shards` and :func:`perfmodel.sweeping.executors.completed`.
    """
    count = len(grid.jobs)
    parts = list(slices(count, how.fidelity))
    shards, names = None, [""] * len(parts)
    if folder is not None:
        digests = _digests(grid.jobs)
        about = About(
            installation=fingerprint(),
            how=files.finite({name: getattr(how, name) for name in SETTINGS}, "inf"),
            axes=files.finite({axis.name: axis.shown for axis in grid.axes}, "inf"),
            inputs=_digest(*digests),
        )
        shards = Shards(folder, about)
        common = (SCHEMA.encode(), fingerprint().encode(), json.dumps(about.how).encode())
        names = [f"{at.start:06d}-{_digest(*common, *digests[at])}" for at in parts]
    answers: dict[int, list[Answer]] = {}
    for k, (at, name) in enumerate(zip(parts, names, strict=True)):
        saved = shards.read(name, at.stop - at.start) if shards is not None else None
        if saved is not None:
            answers[k] = saved
    done = sum(map(len, answers.values()))
    if done and progress is not None:
        progress(done, count)
    left = [k for k in range(len(parts)) if k not in answers]
    work = (Chunk(grid.jobs[parts[k]], how) for k in left)
    for place, predictions in completed(executor, predicted, work):
        k = left[place]
        if shards is not None:
            shards.write(names[k], parts[k].start, grid.points[parts[k]], predictions)
        answers[k] = predictions
        done += len(predictions)
        if progress is not None:
            progress(done, count)
    return [answer for k in range(len(parts)) for answer in answers[k]]


def _digests(jobs: Sequence[Job]) -> list[bytes]:
    """A digest of all values of each job; values shared between jobs are encoded once."""
    known: dict[int, str] = {}

    def shared(value: object) -> str:
        if id(value) not in known:
            known[id(value)] = _digest(_encoded(value))
        return known[id(value)]

    def encoded_job(job: Job) -> bytes:
        values = msgspec.structs.asdict(job)
        del values["given"]
        values |= {name: shared(values[name]) for name in ("workload", "cluster")}
        values["architecture"] = job.architecture.name
        values["islands"] = [
            msgspec.structs.asdict(island) | {"job": encoded_job(island.job)}
            for island in job.islands
        ]
        values["flat"] = None if job.flat is None else encoded_job(job.flat)
        return _encoded(values)

    return [_digest(encoded_job(job)).encode() for job in jobs]


def _encoded(value: object) -> bytes:
    """Encode as MessagePack, which supports infinities; NumPy numbers become Python numbers."""
    return msgspec.msgpack.encode(value, enc_hook=float)


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
