"""Rented machines: instance types with their devices, network and price.

A catalogue is a CSV table with a row for each instance type and region. It has the columns of
SkyPilot's catalogue, and some more for the network; the shipped one is ``profiles/instances``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from perfmodel.base import tables
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.base.tables import TableRow
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Cluster, IntraNode, Link, Server
from perfmodel.inputs.usual_losses import RDMA_LATENCY_S

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
"""Columns that a catalogue must have."""

GBPS = 1.25e8
GIB = 2.0**30

LATENCY_S = 25e-6
"""Assumed latency of a link without a stated one: that of switched Ethernet."""

TCP_EFFICIENCY, RDMA_EFFICIENCY = 0.9415, 0.85
"""Fraction of a nominal rate that protocols leave: TCP headers, and what collectives reach over
RDMA, as in the shipped clusters."""

INSIDE: Mapping[str, float] = {"v100": 150e9, "a100": 300e9, "h100": 450e9}
"""NVLink rate of a device in bytes per second each way, by device."""

PCIE_BYTES_PER_S = 16e9
"""PCIe rate (3.0 x16) in bytes per second each way, for other devices."""

INSIDE_EFFICIENCY, INSIDE_LATENCY_S = 0.78, 1.9e-6
"""Efficiency and latency inside a node, as in the shipped DGX clusters."""

MOST_USD_PER_H = 10_000.0
"""Maximum price of an instance; a limit that catches typing errors."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance type in a region.

    Attributes
    ----------
    name : InstanceType.
    accelerator, devices : name and number of its accelerators.
    region, place : region of the price, and place of the row in the catalogue.
    price_usd_per_h, spot_usd_per_h : on-demand price and spot (preemptible) price; None if not
        given.
    network_bytes_per_s : total of all ``nics``, each way; None if not given.
    flow_bytes_per_s : maximum rate of one connection, headers included; None if only the links
        limit.
    latency_s : one way; None if not given.
    inside_bytes_per_s : rate at which a device sends inside the node; None if not given.
    egress_usd_per_byte : price of traffic out of the region; plans do not use it.
    source, date : of the row and its on-demand price.
    spot_source, spot_date : of the spot price; empty if not given.
    """

    name: str
    accelerator: str
    devices: int
    region: str
    price_usd_per_h: float | None
    spot_usd_per_h: float | None = None
    vcpus: float | None = None
    memory_bytes: float | None = None
    network_bytes_per_s: float | None = None
    flow_bytes_per_s: float | None = None
    nics: int = 1
    latency_s: float | None = None
    inside_bytes_per_s: float | None = None
    egress_usd_per_byte: float | None = None
    source: str = ""
    date: str = ""
    spot_source: str = ""
    spot_date: str = ""
    place: str = ""

    @property
    def label(self) -> str:
        """The name with its accelerators."""
        return f"{self.name} ({self.devices} x {self.accelerator})" if self.devices else self.name

    @property
    def device(self) -> str | None:
        """The catalogue's device that computes like its accelerator; None if there is none.

        >>> Instance(name="x", accelerator="A100-80GB", devices=8, region="", price_usd_per_h=1.0
        ... ).device
        'a100'
        """
        name = self.accelerator.partition("-")[0].lower()
        return name if name in catalogue.device_names() else None

    @property
    def device_bytes(self) -> float | None:
        """Memory of an accelerator, from its name or from the catalogue's device."""
        size = re.search(r"-(\d+)GB", self.accelerator)
        if size is not None:
            return float(size[1]) * GIB
        return catalogue.device(self.device).memory_bytes if self.device is not None else None

    @property
    def nic(self) -> Link:
        """Each of its network links.

        Raises
        ------
        InputError : the network bandwidth is unknown.
        """
        if self.network_bytes_per_s is None:
            raise InputError(f"{self.place}: NetworkGbps: is empty")
        latency_s = LATENCY_S if self.latency_s is None else self.latency_s
        efficiency = RDMA_EFFICIENCY if latency_s < RDMA_LATENCY_S else TCP_EFFICIENCY
        return Link(self.network_bytes_per_s / self.nics, latency_s, efficiency)

    def price(self, spot: bool) -> float | None:
        """Price in USD per hour."""
        return self.spot_usd_per_h if spot else self.price_usd_per_h

    def rented(self, spot: bool) -> Instance:
        """Return the instance with the source and date of the price that is paid; those of the row
        if none are given for its spot price."""
        if not spot:
            return self
        source, date = self.spot_source or self.source, self.spot_date or self.date
        return msgspec.structs.replace(self, source=source, date=date)

    def cluster(self, servers: Instance | None = None) -> Cluster:
        """A cluster of as many of these instances as a job needs.

        Parameter servers run on the workers' nodes, or on instances ``servers`` of their own.

        Raises
        ------
        InputError : the network bandwidth is unknown.
        """
        nic = self.nic
        flows = [nic.efficiency * self.flow_bytes_per_s] if self.flow_bytes_per_s else []
        if servers is None:
            server = Server(placement="colocated")
        else:
            server = Server(placement="dedicated", nic=servers.nic)
            flow_limit = servers.flow_bytes_per_s
            flows += [servers.nic.efficiency * flow_limit] if flow_limit else []
        nvlink = INSIDE.get(self.device or "")
        inside = IntraNode(
            self.inside_bytes_per_s or nvlink or PCIE_BYTES_PER_S,
            INSIDE_LATENCY_S,
            INSIDE_EFFICIENCY,
            kind="per_device",
            interconnect="pcie" if nvlink is None else "nvlink",
        )
        return Cluster(
            name=self.name,
            title=self.label,
            nic=nic,
            devices_per_node=self.devices,
            nics_per_node=self.nics,
            intra_node=inside if self.devices > 1 else None,
            server=server,
            flow_bytes_per_s=min(flows, default=None),
            source=Source("published", self.source or self.place, None, self.date or None),
        )


def shipped() -> Path:
    """The catalogue that comes with the package."""
    return catalogue.folder() / "instances" / "instances.csv"


def read_instances(path: str | Path | None = None, *, bare: bool = False) -> tuple[Instance, ...]:
    """Read the rows of a catalogue that have accelerators; by default, of the shipped one.

    Rows without an accelerator are skipped unless ``bare`` is set; so are accelerators priced
    separately from a machine (rows without an InstanceType). Network values missing for an instance
    type are taken from the shipped catalogue, if it has them.

    Raises
    ------
    InputError : the file cannot be read, a column is missing, a number is out of range, or no row
        has both an instance type and an accelerator.
    """
    catalogued = path is None
    place = shipped() if path is None else Path(path)
    table = tables.read(place)
    table.need(*NEEDED)
    called = place.name if catalogued else table.name
    rows = [
        _instance(msgspec.structs.replace(row, table=called))
        for row in table
        if row.has("InstanceType") and (bare or row.has("AcceleratorName"))
    ]
    if not rows:
        raise InputError(f"{place}: no row has both an InstanceType and an AcceleratorName")
    return tuple(rows if catalogued else _with_networks(rows))


def _instance(row: TableRow) -> Instance:
    """The instance of a row, in SI units."""

    def given(column: str, unit: float = 1.0, *, most: float | None = None) -> float | None:
        if not row.has(column):
            return None
        return unit * row.number(column, above=0.0, at_most=most)

    return Instance(
        name=row.text("InstanceType"),
        accelerator=row.text("AcceleratorName") if row.has("AcceleratorName") else "",
        devices=row.whole("AcceleratorCount") if row.has("AcceleratorName") else 0,
        region=row.text("Region"),
        price_usd_per_h=given("Price", most=MOST_USD_PER_H),
        spot_usd_per_h=given("SpotPrice", most=MOST_USD_PER_H),
        vcpus=given("vCPUs"),
        memory_bytes=given("MemoryGiB", GIB),
        network_bytes_per_s=given("NetworkGbps", GBPS),
        flow_bytes_per_s=given("FlowGbps", GBPS),
        nics=row.whole("NicCount") if row.has("NicCount") else 1,
        latency_s=given("LatencyUs", 1e-6),
        inside_bytes_per_s=given("InsideGBps", 1e9),
        egress_usd_per_byte=1e-9 * row.number("EgressPerGB") if row.has("EgressPerGB") else None,
        source=row.text("Source") if row.has("Source") else "",
        date=row.text("Date") if row.has("Date") else "",
        spot_source=row.text("SpotSource") if row.has("SpotSource") else "",
        spot_date=row.text("SpotDate") if row.has("SpotDate") else "",
        place=row.place,
    )


def _with_networks(rows: Iterable[Instance]) -> list[Instance]:
    """The rows, with missing network values taken from the shipped catalogue."""
    known = {(row.name, row.devices): row for row in read_instances()}
    connected = []
    for row in rows:
        like = known.get((row.name, row.devices))
        if row.network_bytes_per_s is None and like is not None:
            network = {
                name: getattr(like, name)
                for name in (
                    *("network_bytes_per_s", "flow_bytes_per_s", "nics", "latency_s"),
                    "inside_bytes_per_s",
                )
            }
            source = f"{row.source or row.place}; network: {like.source}"
            row = msgspec.structs.replace(row, **network, source=source)
        connected.append(row)
    return connected


def choose(
    rows: Iterable[Instance],
    *,
    types: Collection[str] = (),
    region: str | None = None,
    spot: bool = False,
) -> tuple[list[Instance], list[str]]:
    """Return the cheapest row of each instance type and accelerator, and why others are left out.

    Parameters
    ----------
    types : instance types to consider; default all.
    region : region to consider; by default all, so that the cheapest one is chosen.
    spot : use spot prices; types without one are left out.

    Raises
    ------
    InputError : a type or region is unknown, or an on-demand price is missing.
    """
    rows = list(rows)
    for name in types:
        if name not in {row.name for row in rows}:
            raise unknown_name("instance type", name, {row.name for row in rows}, None)
    if region is not None and region not in {row.region for row in rows}:
        raise unknown_name("region", region, {row.region for row in rows})
    groups: dict[tuple[str, str, int], list[Instance]] = {}
    for row in rows:
        if (not types or row.name in types) and region in (None, row.region):
            groups.setdefault((row.name, row.accelerator, row.devices), []).append(row)
    chosen, out = [], []
    for several in groups.values():
        priced = {row.place: cost for row in several if (cost := row.price(spot)) is not None}
        first = several[0]
        if not priced and not spot:
            raise InputError(f"{first.place}: Price: is empty, for {first.name} in {first.region}")
        if not priced:
            out.append(f"{first.label}: no spot price")
        elif first.device is None:
            out.append(f"{first.label}: the catalogue has no device {first.accelerator!r}")
        elif first.network_bytes_per_s is None:
            out.append(f"{first.label}: network bandwidth unknown (column NetworkGbps)")
        else:
            known = [row for row in several if row.place in priced]
            chosen.append(min(known, key=lambda row: priced[row.place]).rented(spot))
    return chosen, out


def choose_servers(
    rows: Iterable[Instance], types: Collection[str], *, spot: bool = False
) -> list[Instance]:
    """Return the cheapest row of each type in each region, for parameter servers.

    Raises
    ------
    InputError : a type is unknown, has no price, or has no known network bandwidth.
    """
    rows, chosen = list(rows), list[Instance]()
    for name in types:
        mine = [row for row in rows if row.name == name]
        if not mine:
            raise unknown_name("instance type", name, {row.name for row in rows}, None)
        priced = [row for row in mine if row.price(spot) is not None]
        if not priced:
            column = "SpotPrice" if spot else "Price"
            raise InputError(f"{mine[0].place}: {column}: is empty, for {name}")
        if priced[0].network_bytes_per_s is None:
            raise InputError(f"{mine[0].place}: NetworkGbps: is empty, for {name}")
        cheapest: dict[str, Instance] = {}
        for row in sorted(priced, key=lambda row: row.price(spot) or 0.0):
            cheapest.setdefault(row.region, row.rented(spot))
        chosen += cheapest.values()
    return chosen
