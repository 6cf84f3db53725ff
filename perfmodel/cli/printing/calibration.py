"""Tables of calibrations."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import show as quantity
from perfmodel.calibration.placements import Placements
from perfmodel.calibration.runs.fit import Overlap, RunsFit
from perfmodel.calibration.servers.costs import ServerCosts
from perfmodel.calibration.servers.results import ServersFit
from perfmodel.calibration.statistics import Fitted, Residuals
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, show
from perfmodel.inputs.calibration import value_at
from perfmodel.inputs.cluster import Cluster

WORDS = {
    "latency_s": "latency",
    "efficiency": "efficiency",
    "update_per_tensor_s": "update per tensor",
    "update_per_byte_s": "update per byte",
    "compute_factor": "compute factor",
    "jitter": "jitter",
}
"""Names of parameters in a table."""


def runs(fit: RunsFit) -> None:
    """Print a fit to past runs."""
    show(bold(fit.seen))
    _estimates(fit.estimates, fit.overlap)
    show("")
    errors = {"of the fit": fit.residuals, "held out": fit.held_out}
    heads = ("errors of the step time", "median", "9 in 10 within", "worst")
    print_table(heads, [(name, *_errors(r)) for name, r in errors.items()])
    _notes(fit.notes)


def placements(fit: Placements, before: Cluster) -> None:
    """Print a fit to steps on placements of devices."""
    known = fit.cluster.calibration
    if known is None:
        return
    show(bold(f"{known.rows} steps of {len(fit.traits)} models on several devices"))
    rows = []
    for e in fit.estimates:
        was = value_at(before, e.name)
        value, low, high, former = (quantity(v, e.unit) for v in (e.value, e.low, e.high, was))
        rows.append((e.name, value, f"{low} to {high}", former))
    print_table(("", "value", "90 % interval", "was"), rows)
    show("")
    print_table(
        ("model", "its bytes take", "inside a node", "can hide behind", "messages"),
        [
            (
                *(name, f"{traits.bytes:.2f} x", f"{traits.node_bytes:.2f} x"),
                *(f"{traits.hidden_fraction:.0%} of computing", f"{traits.messages:.0f}"),
            )
            for name, traits in fit.traits.items()
        ],
    )
    show(f"\nother models: steps are about {known.spread:.0%} off, and their bytes differ more")


def server(costs: ServerCosts) -> None:
    """Print what updates cost a server."""
    show(bold(f"server costs {costs.seen}"))
    _estimates(costs.estimates)
    _notes(costs.notes)


def servers(fit: ServersFit) -> None:
    """Print a fit of servers that several workloads share."""
    show(bold(fit.seen))
    rows = []
    for e in fit.estimates:
        value, low, high = (quantity(v, e.unit) for v in (e.value, e.low, e.high))
        name = WORDS.get(e.name, e.name.removesuffix("_s").replace("_", " "))
        rows.append((name, value, f"{low} to {high}"))
    print_table(("", "value", "90 % interval"), rows)
    spreads = [served.known[0].spread for served in fit.workloads.values()]
    show(f"\nheld-out steps are about {max(spreads):.1%} off")
    for name, served in fit.workloads.items():
        if served.uneven > 0.0:
            uneven = f"--option uneven={served.uneven:.3g}"
            show(f"files do not store {uneven} of {name}: give it to predict")


def _estimates(estimates: Sequence[Fitted], overlap: Overlap | None = None) -> None:
    """Print a line for each parameter; with an interval where the runs identify it."""
    rows = []
    for e in estimates:
        value, was, low, high = (quantity(v, e.unit) for v in (e.value, e.was, e.low, e.high))
        interval = f"{low} to {high}" if e.low < e.high else ""
        status = "" if e.status == "identified" else e.status
        about = ": ".join(filter(None, (status, e.note)))
        rows.append((WORDS.get(e.name, e.name), value, interval, was, about))
    if overlap is not None:
        about = f"e^{overlap.margin:.0f} times as likely as the opposite"
        if overlap.status == "not identified":
            about = "not identified: the runs do not determine it"
        value, was = ("yes" if v else "no" for v in (overlap.value, overlap.was))
        rows.append(("overlap", value, "", was, about))
    print_table(("", "value", "90 % interval", "was", ""), rows)


def _errors(r: Residuals | None) -> tuple[str, str, str]:
    if r is None:
        return "too few runs", "", ""
    return f"{r.median:.1%}", f"{r.p90:.1%}", f"{r.worst:.1%}"


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        show(f"note: {note}")
