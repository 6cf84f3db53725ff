"""Summary of a measured run, beside its prediction if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from perfmodel.base.tables import aligned
from perfmodel.base.units import show
from perfmodel.measuring.training.run import MeasuredRun
from perfmodel.results.prediction import Prediction


class ComparedQuantity(msgspec.Struct, frozen=True):
    """A measured quantity, its prediction and the prediction's error.

    ``error`` is predicted / measured - 1, or the difference for a fraction or a count. Both are
    None without a prediction.
    """

    name: str
    measured: float
    predicted: float | None = None
    error: float | None = None


def quantities(
    run: MeasuredRun, predicted: Mapping[str, float] | None = None
) -> list[ComparedQuantity]:
    """Return the measured quantities that can be predicted; ``predicted`` has the same names.

    They are *iteration_s*, *throughput_samples_per_s*, *idle_fraction* and *staleness_mean*.
    """
    measured = run.measured
    values = {
        "iteration_s": measured.iteration_s,
        "throughput_samples_per_s": measured.samples_per_s,
        "idle_fraction": measured.idle_fraction,
        "staleness_mean": measured.mean_staleness,
    }
    known = {name: value for name, value in values.items() if value is not None}
    if predicted is None:
        return [ComparedQuantity(name, value) for name, value in known.items()]
    compared = []
    for name, value in known.items():
        relative = name in ("iteration_s", "throughput_samples_per_s")
        error = predicted[name] / value - 1.0 if relative else predicted[name] - value
        compared.append(ComparedQuantity(name, value, predicted[name], error))
    return compared


def of_prediction(prediction: Prediction) -> dict[str, float]:
    """Return the predicted values for :func:`quantities`."""
    return {
        "iteration_s": prediction.iteration_s,
        "throughput_samples_per_s": prediction.throughput_samples_per_s,
        "idle_fraction": prediction.idle_fraction.mean,
        "staleness_mean": prediction.staleness.mean if prediction.staleness else 0.0,
    }


def to_dict(run: MeasuredRun, quantities: Sequence[ComparedQuantity]) -> dict[str, object]:
    """Return the contents of the run's file and the quantities, as JSON-like values."""
    return {**msgspec.to_builtins(run), "quantities": msgspec.to_builtins(quantities)}


_SHOWN: dict[str, tuple[str, Callable[[float], str], Callable[[float], str]]] = {
    "iteration_s": ("iteration", lambda s: show(s, "s"), lambda e: f"{e:+.1%}"),
    "throughput_samples_per_s": (
        "throughput", lambda x: f"{x:.5g} samples/s", lambda e: f"{e:+.1%}"
    ),
    "idle_fraction": ("idle", lambda x: f"{x:.1%}", lambda e: f"{e * 100:+.1f} points"),
    "staleness_mean": ("staleness", lambda x: f"{x:.3g} updates", lambda e: f"{e:+.3g} updates"),
}  # fmt: skip


def lines(run: MeasuredRun, quantities: Sequence[ComparedQuantity]) -> list[str]:
    """Return the lines to print."""
    measured = run.measured
    rows = []
    for quantity in quantities:
        label, text, error = _SHOWN[quantity.name]
        row = [label, text(quantity.measured)]
        if quantity.predicted is not None and quantity.error is not None:
            row += [f"predicted {text(quantity.predicted)}", error(quantity.error)]
        elif quantity.name == "iteration_s":
            spread, compute = show(measured.iteration_std_s, "s"), show(measured.compute_s, "s")
            row.append(f"± {spread}, of which {compute} compute")
        rows.append(row)
    if measured.update_per_tensor_s is not None and measured.update_per_byte_s is not None:
        per_tensor, per_byte_ns = (
            show(measured.update_per_tensor_s, "s"),
            measured.update_per_byte_s * 1e9,
        )
        rows.append(["update", f"{per_tensor} per tensor", f"{per_byte_ns:.3g} ns per byte"])
    if measured.sent_bytes is not None:
        rows.append(["sent", show(measured.sent_bytes, "bytes"), "per worker and iteration"])
    head = (
        f"{run.name}: {measured.iterations} iterations after {measured.warmup} warm-up iterations"
    )
    return [head, *aligned(rows)]
