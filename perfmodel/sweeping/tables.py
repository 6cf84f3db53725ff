"""Results as tables, and the columns of predictions in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfmodel.base import tables
from perfmodel.base.files import finite
from perfmodel.results.prediction import Prediction
from perfmodel.sweeping.labels import Row, label

if TYPE_CHECKING:
    import pandas as pd


class Tabular(msgspec.Struct, frozen=True):
    """A result with rows, as a data frame, CSV, Parquet and JSON."""

    def rows(self) -> list[Row]:
        """The rows, in SI units."""
        raise NotImplementedError

    def to_dict(self) -> Row:
        """The result as JSON-like values."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a data frame; integer and boolean columns stay so beside missing values."""
        return frame(self.rows())

    def to_csv(self, path: str | Path | None = None) -> str:
        """The data frame as CSV text, also written to ``path`` if given.

        Raises
        ------
        InputError : ``path`` cannot be written.
        """
        return tables.csv_text(self.to_frame(), path)

    def to_parquet(self, path: str | Path | None = None) -> bytes:
        """The data frame as a Parquet file (extra ``parquet``), also written to ``path`` if given.

        A column with both text and numbers becomes text.

        Raises
        ------
        InputError : pyarrow is not installed, or ``path`` cannot be written.
        """
        return tables.parquet(self.to_frame(), path)

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(finite(self.to_dict(), "inf"), indent=2)


def fields(result: msgspec.Struct, *without: str) -> Row:
    """The fields of a result as JSON-like values."""
    names = [name for name in result.__struct_fields__ if name not in without]
    values: Row = msgspec.to_builtins({name: getattr(result, name) for name in names})
    return values


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a data frame; integer and boolean columns keep their type beside missing values."""
    import pandas as pd

    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    dtypes = {}
    for name, column in columns.items():
        kinds = set(map(type, column))
        if type(None) in kinds and kinds - {type(None)} in ({int}, {bool}):
            dtypes[name] = "Int64" if int in kinds else "boolean"
    return pd.DataFrame(columns).astype(dtypes)


def common(predictions: Sequence[Prediction]) -> str:
    """Title made of the inputs that predictions have in common."""
    same: Row = {}
    for name in ("model", "device", "architecture", "batch_size", "workers"):
        values = {getattr(p, name) for p in predictions}
        same |= {name: values.pop()} if len(values) == 1 else {}
    return label(same)


def quantity_columns(p: Prediction) -> Row:
    """Predicted quantities in SI units, by column name of a sweep."""
    return {
        "throughput_samples_per_s": p.throughput_samples_per_s,
        "throughput_ci_fraction": p.throughput_ci_fraction,
        "iteration_s": p.iteration_s,
        "idle_fraction": p.idle_fraction.mean,
        "staleness_mean": p.staleness.mean if p.staleness is not None else None,
    }


def memory_columns(predictions: Sequence[Prediction]) -> list[Row]:
    """The probability that each job fits into its devices; no column if all surely do."""
    if all(p.memory.is_enough() for p in predictions):
        return [{} for _ in predictions]
    return [{"memory_fits": p.memory.fits} for p in predictions]


def best_of(predictions: Sequence[Prediction]) -> int:
    """Index of the highest throughput among the jobs that fit into their devices, or among all if
    none does; the first on ties."""
    fitting = [i for i, p in enumerate(predictions) if p.memory.is_enough()]
    among = fitting or range(len(predictions))
    return max(among, key=lambda i: predictions[i].throughput_samples_per_s)


def basis_columns(p: Prediction) -> Row:
    """Bottleneck, fidelity and 90 % interval: the last columns of a sweep."""
    low, high = p.interval.throughput_samples_per_s if p.interval else (None, None)
    return {
        "bottleneck": p.bottleneck.resource,
        "fidelity": p.fidelity,
        "error_p90_fraction": p.error_band.p90 if p.error_band is not None else None,
        "low_samples_per_s": low,
        "high_samples_per_s": high,
    }
