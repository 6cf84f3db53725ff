"""Tables of calibrations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perfmodel.base.units import show
from perfmodel.calibration.placements import Placements
from perfmodel.calibration.runs.fit import Overlap, RunsFit
from perfmodel.calibration.servers.costs import ServerCosts
from perfmodel.calibration.servers.results import ServersFit
from perfmodel.calibration.statistics import Fitted, Residuals
from perfmodel.cli.printing.console import new_console, new_table
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
    out = new_console()
    out.print(f"[bold]{escape(fit.seen)}[/]")
    table = _estimates(fit.estimates)
    if fit.overlap is not None:
        table.add_row("overlap", *_overlap(fit.overlap))
    out.print(table)
    out.print()
    out.print(_errors({"of the fit": fit.residuals, "held out": fit.held_out}))
    _say(out, fit.notes)


def placements(fit: Placements, before: Cluster) -> None:
    """Print a fit to steps on placements of devices."""
    out, known = new_console(), fit.cluster.calibration
    if known is None:
        return
    out.print(f"[bold]{known.rows} steps of {len(fit.traits)} models on several devices[/]")
    table = new_table("", "value", "90 % interval", "was")
    for e in fit.estimates:
        was = value_at(before, e.name)
        value, low, high, former = (show(v, e.unit) for v in (e.value, e.low, e.high, was))
        table.add_row(e.name, value, f"{low} to {high}", former)
    out.print(table)
    out.print()
    table = new_table("model", "its bytes take", "inside a node", "can hide behind", "messages")
    for name, own in fit.traits.items():
        hidden = f"{own.hidden_fraction:.0%} of computing"
        row = (f"{own.bytes:.2f} x", f"{own.node_bytes:.2f} x", hidden, f"{own.messages:.0f}")
        table.add_row(escape(name), *row)
    out.print(table)
    out.print()
    out.print(f"other models: steps are about {known.spread:.0%} off, and their bytes differ more")


def server(costs: ServerCosts) -> None:
    """Print what updates cost a server."""
    out = new_console()
    out.print(f"[bold]server costs {escape(costs.seen)}[/]")
    out.print(_estimates(costs.estimates))
    _say(out, costs.notes)


def servers(fit: ServersFit) -> None:
    """Print a fit of servers that several workloads share."""
    out = new_console()
    out.print(f"[bold]{escape(fit.seen)}[/]")
    table = new_table("", "value", "90 % interval")
    for e in fit.estimates:
        value, low, high = (show(v, e.unit) for v in (e.value, e.low, e.high))
        name = WORDS.get(e.name, e.name.removesuffix("_s").replace("_", " "))
        table.add_row(escape(name), value, f"{low} to {high}")
    out.print(table)
    out.print()
    spreads = [served.known[0].spread for served in fit.workloads.values()]
    out.print(f"held-out steps are about {max(spreads):.1%} off")
    for name, served in fit.workloads.items():
        if served.uneven > 0.0:
            uneven = f"--option uneven={served.uneven:.3g}"
            out.print(f"files do not store {uneven} of {escape(name)}: give it to predict")


def _estimates(estimates: Sequence[Fitted]) -> Table:
    """A line for each parameter; with an interval where the runs identify it."""
    table = new_table("", "value", "90 % interval", "was", "")
    for e in estimates:
        value, was, low, high = (show(v, e.unit) for v in (e.value, e.was, e.low, e.high))
        interval = f"{low} to {high}" if e.low < e.high else ""
        said = "" if e.status == "identified" else e.status
        about = ": ".join(filter(None, (said, e.note)))
        table.add_row(WORDS.get(e.name, e.name), value, interval, was, escape(about))
    return table


def _overlap(found: Overlap) -> tuple[str, str, str, str]:
    value, was = ("yes" if v else "no" for v in (found.value, found.was))
    if found.status == "not identified":
        return value, "", was, "not identified: the runs do not determine it"
    return value, "", was, f"e^{found.margin:.0f} times as likely as the opposite"


def _errors(found: dict[str, Residuals | None]) -> Table:
    table = new_table("errors of the step time", "median", "9 in 10 within", "worst")
    for name, r in found.items():
        cells = (f"{v:.1%}" for v in (r.median, r.p90, r.worst)) if r else ("too few runs", "", "")
        table.add_row(name, *cells)
    return table


def _say(out: Console, notes: Sequence[str]) -> None:
    for note in notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
