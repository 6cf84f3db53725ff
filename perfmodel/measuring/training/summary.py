"""Summary of a measured run, beside its prediction if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from perfmodel.base.units import show
from perfmodel.measuring.training.run import MeasuredRun
from perfmodel.results.prediction import Prediction


class Quantity(msgspec.Struct, frozen=True):
    """A measured quantity, its prediction and the prediction's error.

    ``error`` is predicted / measured - 1, or the difference for a fraction or a count. Both are
    None without a prediction.
    """

    name: str
    measured: float
    predicted: float | None = None
    error: float | None = None


def quantities(run: MeasuredRun, predicted: Mapping[str, float] | None = None) -> list[Quantity]:
    """Return the measured quantities that can be predicted; ``predicted`` has the same names.

    They are *iteration_s*, *throughput_samples_per_s*, *idle_fraction* and *staleness_mean*.
    """
    measured = run.measured
    stale = measured.mean_staleness
    values = {
        "iteration_s": measured.iteration_s,
        "throughput_samples_per_s": measured.samples_per_s,
        "idle_fraction": measured.idle_fraction,
        **({} if stale is None else {"staleness_mean": stale}),
    }
    found = []
    for name, value in values.items():
        if predicted is None:
            found.append(Quantity(name, value))
            continue
        other = predicted[name]
        relative = name in ("iteration_s", "throughput_samples_per_s")
        found.append(
            Quantity(name, value, other, other / value - 1.0 if relative else other - value)
        )
    return found


def of_prediction(prediction: Prediction) -> dict[str, float]:
    """Return the predicted values for :func:`quantities`."""
    return {
        "iteration_s": prediction.iteration_s,
        "throughput_samples_per_s": prediction.throughput_samples_per_s,
        "idle_fraction": prediction.idle_fraction.mean,
        "staleness_mean": prediction.staleness.mean if prediction.staleness else 0.0,
    }


def to_dict(run: MeasuredRun, found: Sequence[Quantity]) -> dict[str, Any]:
    """Return the contents of the run's file and the quantities, as JSON-like values."""
    made: dict[str, Any] = msgspec.to_builtins(run)
    return {**made, "quantities": msgspec.to_builtins(found)}


_SHOWN: dict[str, tuple[str, Callable[[float], str], Callable[[float], str]]] = {
    "iteration_s": ("iteration", lambda s: show(s, "s"), lambda e: f"{e:+.1%}"),
    "throughput_samples_per_s": (
        "throughput", lambda x: f"{x:.5g} samples/s", lambda e: f"{e:+.1%}"
    ),
    "idle_fraction": ("idle", lambda x: f"{x:.1%}", lambda e: f"{e * 100:+.1f} points"),
    "staleness_mean": ("staleness", lambda x: f"{x:.3g} updates", lambda e: f"{e:+.3g} updates"),
}  # fmt: skip


def lines(run: MeasuredRun, found: Sequence[Quantity]) -> list[str]:
    """Return the lines to print."""
    measured = run.measured
    rows = []
    for one in found:
        label, text, error = _SHOWN[one.name]
        row = [label, text(one.measured)]
        if one.predicted is not None and one.error is not None:
            row += [f"predicted {text(one.predicted)}", error(one.error)]
        elif one.name == "iteration_s":
            row.append(
                f"± {show(measured.iteration_std_s, 's')}, of which "
                f"{show(measured.compute_s, 's')} compute"
            )
        rows.append(row)
    cost = (measured.update_per_tensor_s, measured.update_per_byte_s)
    if cost[0] is not None and cost[1] is not None:
        rows.append(
            ["update", f"{show(cost[0], 's')} per tensor", f"{cost[1] * 1e9:.3g} ns per byte"]
        )
    if measured.sent_bytes is not None:
        rows.append(["sent", show(measured.sent_bytes, "bytes"), "per worker and iteration"])
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(4)]
    head = f"{run.name}: {measured.iterations} iterations after {measured.warmup} warm-up"
    head += " iterations"
    table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)) for row in rows]
    return [head, *(line.rstrip() for line in table)]
