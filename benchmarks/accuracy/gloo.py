"""Clusters of emulated nodes on which gloo was measured: links, and times of collectives."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import perfmodel as pm
from perfmodel.calibration.network.collectives import Operation, Point, fit_collective
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.theory.collective_times import per_byte_growth

OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter")

STEPS = 4
"""Pieces between two measured sizes: within 2 % of a line between them on logarithmic scales, if
times grow at most with the size to the power of 1.1."""


SEND_QUEUE_BYTES = 64 * 1024
"""What waits in the queue of a node's link while it sends 100 to 400 KB over TCP.

Measured apart from the runs, between three namespaces with the same links: a request of one byte
to another node waits for 18 to 240 KB (medians at 80 to 400 Mbit/s), mostly for 50 to 65 KB.
"""


def gloo_collectives(
    rate: float, gloo: list[dict[str, Any]], ranks: int | None = None
) -> tuple[Collective, ...]:
    """Return gloo's collectives on links of a ``rate``, from those on the links nearest to it.

    Those of so many ``ranks`` are interpolated between measured sizes, if that number was measured;
    else times are fitted over all numbers of ranks. gloo's reduce-scatter sends as much as its
    all-reduce.
    """
    if not gloo:
        return ()
    near = min(gloo, key=lambda times: abs(times["rate"] - rate))["rate"]
    tables = [times for times in gloo if times["rate"] == near]
    same = [times for times in tables if times["n_workers"] == ranks]
    return tuple(_collective(name, same[:1] or tables, near / rate) for name in OPERATIONS)


def _collective(name: Operation, tables: list[dict[str, Any]], slower: float) -> Collective:
    points = [
        Point(times["n_workers"], float(size), seconds * slower)
        for times in tables
        for size, seconds in times[name].items()
    ]
    fitted = fit_collective(name, points).collective
    if len(tables) > 1 or len(points) < 2:
        return fitted
    points.sort(key=lambda point: point.bytes)
    sizes, seconds = (np.log([getattr(point, field) for point in points])
                      for field in ("bytes", "seconds"))  # fmt: skip
    begins = np.concatenate(
        [np.linspace(a, z, STEPS, endpoint=False) for a, z in itertools.pairwise(sizes)]
    )
    middles = begins + np.diff(np.append(begins, sizes[-1])) / 2
    per_byte_s = np.exp(np.interp(middles, sizes, seconds) - middles)
    per_byte_s /= float(per_byte_growth("ring", points[0].ranks))
    above = [0.0, *(math.exp(begin) for begin in begins[1:])]
    return Collective(
        operation=name,
        pieces=tuple(
            Piece(0.0, float(each), begin) for each, begin in zip(per_byte_s, above, strict=True)
        ),
        ranks=fitted.ranks,
        bytes=fitted.bytes,
    )


def link_of(links: list[dict[str, Any]], rate: float) -> dict[str, Any]:
    """Return what was measured on the links nearest to a rate; nothing without measurements."""
    return min(links, key=lambda link: abs(link["rate"] - rate), default={})


def cluster_of(
    config: dict[str, Any], net: dict[str, Any], gloo: list[dict[str, Any]]
) -> pm.Cluster:
    rate, groups = config["rate"], {config["mesh"][axis] for axis in ("tp", "dp")} - {1}
    if config.get("shard"):
        groups = {config["shard"]}
    ranks = groups.pop() if len(groups) == 1 else None
    # a stage waits for its message: the receiver has to wake up
    latency_s = net.get("msg_time_after_idle_s", {}).get("1", net["rtt_s"] / 2.0)
    efficiency = min(net["tcp_goodput_bps"] / rate, 1.0)
    nic, *nics = [pm.Link(bits / 8, latency_s, efficiency) for bits in (rate, *config["rates_bps"])]
    return pm.Cluster(
        name="testbed",
        nic=nic,
        nodes=config["n_nodes"],
        overrides=tuple(pm.NodeOverride(i, other) for i, other in enumerate(nics) if other != nic),
        collectives=gloo_collectives(rate, gloo, ranks),
        burst_bytes=net.get("burst", 0.0),
        send_queue_bytes=SEND_QUEUE_BYTES,
        source=pm.Source("measured", "the network of the same run"),
    )
