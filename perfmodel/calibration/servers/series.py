"""A table of the throughput of asynchronous runs."""

from __future__ import annotations

from pathlib import Path

from perfmodel.base import tables
from perfmodel.base.errors import InputError
from perfmodel.calibration.servers.asynchronous_model import Run, Series
from perfmodel.inputs.profile import Profile


def read_series(path: str | Path, *, profile: Profile | None = None) -> tuple[Series, ...]:
    """Read runs of asynchronous workers, for :func:`fit_asynchronous_server`.

    A line is a run: ``workers``, ``steps_per_s`` of all of them together, and if need be
    ``servers`` and ``spread_fraction``. Lines of one ``series`` are of identical workers; each has
    the ``model``, ``tensors`` and ``parameter_bytes`` of the series.

    Parameters
    ----------
    profile : has model, tensors and bytes, where the table does not.

    Raises
    ------
    InputError : as :func:`perfmodel.base.tables.read`; a column is missing, or a value out of
    range;
        lines of one series that do not go together.
    """
    table = tables.read(path)
    table.need("workers", "steps_per_s")
    loads: dict[str, tuple[str, int, float]] = {}
    runs: dict[str, list[Run]] = {}
    for line in table:
        if profile is None or "tensors" in table.columns:
            model = line.text("model") if line.has("model") else Path(path).stem
            load = (model, line.whole("tensors"), line.number("parameter_bytes", above=0.0))
        else:
            load = (profile.name, _tensors_of(profile), profile.parameter_bytes)
        name = line.text("series") if line.has("series") else load[0]
        if loads.setdefault(name, load) != load:
            raise InputError(
                f"{line.place}: series {name!r} has another model, tensors or parameter_bytes above"
            )
        runs.setdefault(name, []).append(
            Run(
                line.whole("workers"),
                line.number("steps_per_s", above=0.0),
                line.whole("servers") if line.has("servers") else 1,
                line.number("spread_fraction") if line.has("spread_fraction") else 0.0,
            )
        )
    return tuple(
        Series(
            name=name,
            model=model,
            tensors=tensors,
            parameter_bytes=size,
            runs=tuple(runs[name]),
        )
        for name, (model, tensors, size) in loads.items()
    )


def _tensors_of(profile: Profile) -> int:
    """How many tensors a model has."""
    if profile.gradients is not None:
        return profile.gradients.tensors
    return sum(len(layer.tensors) for layer in profile.layers)
