"""Columns of tables that show predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.results.prediction import Prediction
from perfmodel.sweeping.grids import Row, label

if TYPE_CHECKING:
    import pandas as pd


def basis_columns(p: Prediction) -> Row:
    """Bottleneck, fidelity and 90 % interval: the last columns of a sweep."""
    interval = p.interval
    return {
        "bottleneck": p.bottleneck.resource,
        "fidelity": p.fidelity,
        "error_p90_fraction": p.error_band.p90 if p.error_band is not None else None,
        "low_samples_per_s": interval.throughput_samples_per_s[0] if interval else None,
        "high_samples_per_s": interval.throughput_samples_per_s[1] if interval else None,
    }


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a data frame; integer and boolean columns keep their type beside missing values."""
    import pandas as pd

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    whole, truth = {int, type(None)}, {bool, type(None)}
    dtypes = {
        name: "Int64" if whole <= set(map(type, column)) else "boolean"
        for name, column in columns.items()
        if set(map(type, column)) in (whole, truth)
    }
    return pd.DataFrame(columns).astype(dtypes)


def common(predictions: Sequence[Prediction]) -> str:
    """Title made of the inputs that predictions have in common."""
    same: Row = {}
    for name in ("model", "device", "architecture", "batch_size", "workers"):
        found = {getattr(p, name) for p in predictions}
        same |= {name: found.pop()} if len(found) == 1 else {}
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
