"""Fits the links and collectives of a cluster file to measurement files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

import msgspec

from perfmodel.base import files, tables
from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.base.files import finite
from perfmodel.base.provenance import Source
from perfmodel.base.tables import aligned
from perfmodel.base.units import show
from perfmodel.calibration.network.collectives import (
    CollectiveFit,
    Point,
    bus_bandwidth,
    fit_collective,
)
from perfmodel.calibration.network.links import LinkFit, fit_link
from perfmodel.calibration.statistics import Estimate, Residuals, rounded
from perfmodel.inputs.cluster import Cluster, IntraNode, Link
from perfmodel.measuring import outputs
from perfmodel.measuring.measurements import Measurement, Measurements, Operation as Measured, times
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.theory.collective_times import Operation

SCHEMA = "perfmodel.calibration/1"

TABLE_COLUMNS = ("operation", "ranks", "bytes", "seconds")
"""Required columns of a measurement table; at_once and count are optional."""


class NetworkFit(Drawn, frozen=True, kw_only=True):
    """A measured cluster and the fits behind it; what was not measured is None or absent.

    Attributes
    ----------
    link, inside : fits of the link between nodes, and of that between the devices of a node.
    collectives : one per measured operation.
    notes : what was left out, and why.
    measured : the measurements of the fit, for the figure.
    """

    cluster: Cluster
    link: LinkFit | None
    inside: LinkFit | None
    collectives: tuple[CollectiveFit, ...]
    notes: tuple[str, ...] = ()
    measured: tuple[Measurements, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return JSON-like values, without ``measured``; unknown interval ends are None."""
        values: dict[str, object] = finite(msgspec.to_builtins(self))
        kept = {name: value for name, value in values.items() if name != "measured"}
        return {"schema": SCHEMA, "kind": "network", **kept}

    def figure(self) -> Figure:
        """Measured and fitted times over size."""
        return times(self.measured, f"cluster {self.cluster.name}", self._fitted_s)

    def _fitted_s(self, measured: Measurements, m: Measurement) -> float | None:
        """Fitted seconds of a measurement; None if it was not part of the fit."""
        for fit in self.collectives:
            if fit.collective.operation == m.operation:
                return fit.predict(m.ranks, m.bytes, at_once=m.at_once, extrapolate=True)
        link = self.inside if _inside(measured) else self.link
        return None if link is None or m.at_once > 1 else link.seconds(m)

    def lines(self) -> list[str]:
        """Return a printable table: estimates with their 90 % intervals, pieces, and residuals."""
        rows = []
        for name, link in (("link", self.link), ("link inside a node", self.inside)):
            rows += [] if link is None else _link_rows(name, link)
        for fit in self.collectives:
            rows += _collective_rows(fit)
        return [*aligned(rows), *(f"note: {note}" for note in self.notes)]


def _is_table(path: str | Path) -> bool:
    """Whether a file is a table: by its name, or by its content where it has none."""
    if str(path) == files.STDIN:
        return not files.is_json(files.read_bytes(path))
    return Path(path).suffix.lower() == ".csv"


def read(path: str | Path) -> Measurements:
    """Read a measurement file, a table (CSV) with one measurement per row, or the output of a
    program in :mod:`perfmodel.measuring.outputs`.

    Raises
    ------
    InputError : the file cannot be read, or a row is out of range.
    """
    if outputs.reads(path) or not _is_table(path):
        return outputs.read(path)
    table = tables.read(path)
    table.need(*TABLE_COLUMNS)
    measurements = []
    for line in table:
        operation = line.text("operation")
        if operation not in get_args(Measured):
            unknown = unknown_name("operation", operation, get_args(Measured))
            raise InputError(f"{line.place}: {unknown}")
        measurements.append(
            Measurement(
                operation=cast(Measured, operation),
                ranks=line.whole("ranks", at_least=2),
                bytes=line.number("bytes"),
                seconds=(line.number("seconds", above=0.0),),
                count=line.whole("count") if line.has("count") else 1,
                at_once=line.whole("at_once") if line.has("at_once") else 1,
            )
        )
    return outputs.measured(str(path), "table", "table", measurements)


def fit_network(
    measured: Sequence[Measurements],
    *,
    name: str | None = None,
    nominal_bytes_per_s: float | None = None,
    devices_per_node: int | None = None,
    base: Cluster | None = None,
) -> NetworkFit:
    """Fit a cluster to measurements.

    Messages are between ranks 0 and 1. If these are on two nodes they measure the link between
    nodes; on one node, the link inside. If some collectives span several nodes, those within one
    node are left out.

    Parameters
    ----------
    name : name of the cluster; defaults to that of ``base``, or else of the first measurements.
    nominal_bytes_per_s : nominal bandwidth of the link between nodes; the achieved fraction becomes
        its efficiency. By default the achieved bandwidth is taken as nominal.
    devices_per_node : defaults to the number of ranks on one node.
    base : a cluster that provides all values that were not measured.

    Raises
    ------
    InputError : there are no measurements; messages cannot determine a link; the link between nodes
        is neither measured nor given.
    """
    if not measured:
        raise InputError("measurements: needs at least one file")
    if devices_per_node is not None:
        whole_number("devices_per_node", devices_per_node)
    link = _link([m for m in measured if not _inside(m)])
    inside = _link([m for m in measured if _inside(m)])
    together = max(_ranks_of_a_node(m) for m in measured)
    fits, notes = _collectives(measured, devices_per_node or together)
    one_node = all(m.nodes and len(set(m.nodes)) == 1 for m in measured)
    if link is not None:
        nic = link.link(nominal_bytes_per_s, 0.0 if base is None else base.nic.latency_s)
        if not link.latency_measured:
            note = "so 0; give a base cluster (--base), or also ping_pong times"
            if base is not None:
                note = f"that of cluster {base.name}"
            notes.append(f"latency: not measured{'; ' if base else ', '}{note}")
    elif base is not None:
        nic = base.nic
    elif inside is not None and one_node:
        nic = Link(nominal_bytes_per_s) if nominal_bytes_per_s else inside.link()
    else:
        nic, note = _of_collectives(
            fits, devices_per_node or together, one_node, nominal_bytes_per_s
        )
        notes.append(note)
    within = None if inside is None else inside.link()
    if one_node and base is None:
        within = within or nic
    fitted = Cluster(
        name=name or (base.name if base is not None else measured[0].name),
        nic=nic,
        nodes=1 if one_node and base is None else None,
        devices_per_node=devices_per_node or together,
        intra_node=None if within is None else _joined(within, base),
        collectives=tuple(fit.collective for fit in fits),
        source=_source(measured),
    )
    if base is not None:
        known = devices_per_node is not None or any(m.nodes for m in measured)
        fitted = merged(base, fitted, devices=known)
    return NetworkFit(
        cluster=fitted,
        link=link,
        inside=inside,
        collectives=tuple(fits),
        notes=tuple(notes),
        measured=tuple(measured),
    )


def merged(base: Cluster, fitted: Cluster, *, devices: bool = True) -> Cluster:
    """Return ``base`` with the links and collectives of a measured cluster.

    Everything else stays: servers, overrides of nodes, and operations that were not measured again.
    With ``devices``, the devices per node are those of the measured cluster.
    """
    again = {collective.operation for collective in fitted.collectives}
    others = tuple(c for c in base.collectives if c.operation not in again)
    source = Source(
        fitted.source.kind,
        f"{fitted.source.text}; all else from cluster {base.name}: {base.source.text}",
        url=base.source.url,
        date=fitted.source.date,
    )
    return msgspec.structs.replace(
        base,
        name=fitted.name,
        nic=fitted.nic,
        intra_node=fitted.intra_node or base.intra_node,
        devices_per_node=fitted.devices_per_node if devices else base.devices_per_node,
        collectives=(*others, *fitted.collectives),
        source=source,
    )


def _joined(link: Link, base: Cluster | None) -> IntraNode:
    """The links inside a node, measured between two devices; of the same kind as in ``base``."""
    known = None if base is None else base.intra_node
    kind = "bus" if known is None else known.kind
    return IntraNode(link.bandwidth_bytes_per_s, link.latency_s, link.efficiency, kind=kind)


def _inside(measured: Measurements) -> bool:
    """Return whether ranks 0 and 1 share a node."""
    return len(measured.nodes) > 1 and measured.nodes[0] == measured.nodes[1]


def _ranks_of_a_node(measured: Measurements) -> int:
    return max((measured.nodes.count(node) for node in measured.nodes), default=1)


def _link(measured: Sequence[Measurements]) -> LinkFit | None:
    messages = [message for m in measured for message in m.measurements]
    fits = any(message.operation in ("ping_pong", "stream") for message in messages)
    return fit_link(messages) if fits else None


def _collectives(
    measured: Sequence[Measurements], devices_per_node: int
) -> tuple[list[CollectiveFit], list[str]]:
    """Fit each operation; also return notes on what was left out."""
    fits, notes = [], []
    for operation in get_args(Operation):
        points = [
            Point(m.ranks, m.bytes, seconds, m.at_once)
            for file in measured
            for m in file.measurements
            if m.operation == operation
            for seconds in m.seconds
        ]
        if not points:
            continue
        beyond = [point for point in points if point.ranks > devices_per_node]
        if beyond and len(beyond) < len(points):
            notes.append(f"{operation}: runs within one node are left out: others span nodes")
        fits.append(fit_collective(operation, beyond or points))
    return fits, notes


def _of_collectives(
    fits: Sequence[CollectiveFit],
    devices_per_node: int,
    one_node: bool,
    nominal_bytes_per_s: float | None,
) -> tuple[Link, str]:
    """The link with the bandwidth that collectives reached, and a note on it.

    Raises
    ------
    InputError : no collective uses that link, and no nominal bandwidth is given.
    """
    crossing = [f for f in fits if one_node or f.collective.ranks[1] > devices_per_node]
    best = max(crossing, key=bus_bandwidth, default=None)
    achieved = 0.0 if best is None else rounded(bus_bandwidth(best))
    if best is None or achieved == 0.0:
        if nominal_bytes_per_s is None:
            raise InputError(
                "measurements: no ping_pong, stream or collective between two nodes; give a base "
                "cluster (--base) or the nominal bandwidth (--nominal)"
            )
        return Link(nominal_bytes_per_s), "link: not measured; the nominal bandwidth"
    nominal = max(achieved, nominal_bytes_per_s or 0.0)
    note = (
        f"link: {show(achieved, 'bytes_per_s')}, the bus bandwidth of {best.collective.operation}; "
        "its latency is not measured, so 0; ping_pong times or iperf3 would show both"
    )
    return Link(nominal, efficiency=rounded(achieved / nominal)), note


def _source(measured: Sequence[Measurements]) -> Source:
    text = "; ".join(f"{m.name} ({m.backend}): {m.source.text}" for m in measured)
    dates = [m.source.date for m in measured if m.source.date is not None]
    return Source("measured", f"fitted to {text}", date=max(dates, default=None))


Row = tuple[str, str, str]
"""A label, a value and a remark."""


def _link_rows(name: str, link: LinkFit) -> list[Row]:
    estimates: tuple[tuple[str, Estimate | None, str], ...] = (
        ("latency", link.latency_s if link.latency_measured else None, "s"),
        ("bandwidth", link.bandwidth_bytes_per_s, "bytes_per_s"),
        ("each further message", link.per_message_s, "s"),
        ("duplex, rate over one way alone", link.duplex_fraction, ""),
        ("incast, time over even sharing", link.incast_factor, ""),
    )
    rows = [_row(f"{name}: {what}", e, unit) for what, e, unit in estimates if e is not None]
    return [*rows, _errors(name, link.residuals)]


def _collective_rows(fit: CollectiveFit) -> list[Row]:
    measured, rows = fit.collective, []
    begins = [show(piece.above_bytes, "bytes") for piece in measured.pieces]
    ends = [*(f"to {begin}" for begin in begins[1:]), "on"]
    for piece, startup, per_byte, begin, end in zip(
        measured.pieces, fit.startup_s, fit.per_byte_s, begins, ends, strict=True
    ):
        where = f"{measured.operation} from {begin} {end}"
        growths = [f", grows as {g}" for g in (piece.startup_growth, piece.per_byte_growth)]
        per_mb = Estimate(*(1e6 * getattr(per_byte, name) for name in ("value", "low", "high")))
        rows.append(_row(f"{where}: startup", startup, "s", growths[0]))
        rows.append(_row(f"{where}: each MB", per_mb, "s", growths[1]))
    if fit.contention is not None:
        label = f"{measured.operation}: each further concurrent one adds, over one alone"
        rows.append(_row(label, fit.contention, ""))
    least, most = measured.ranks
    span = " to ".join(show(size, "bytes") for size in measured.bytes)
    rows.append((f"{measured.operation}: measured", f"{least} to {most} ranks", span))
    return [*rows, _errors(measured.operation, fit.residuals)]


def _row(label: str, estimate: Estimate, unit: str, more: str = "") -> Row:
    interval = f"({show(estimate.low, unit)} to {show(estimate.high, unit)})"
    if math.isinf(estimate.high):
        interval = "(interval unknown: too few points)"
    return label, show(estimate.value, unit), interval + more


def _errors(label: str, r: Residuals) -> Row:
    return f"{label}: errors", f"median {r.median:.1%}", f"9 in 10 within {r.p90:.1%}"
