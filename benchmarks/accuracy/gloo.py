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


SEGMENTS, QUEUE_S = 2, 2 * 1.2 / 1024
"""What a connection keeps in the queue of a node's link: two segments, or what the link sends in
2.34 ms.

Linux lets a connection queue two segments, or what it sends in 1/1024 s at its pacing rate
(``tcp_small_queue_check``), if that is more. The rate is 1.2 times the window per round trip
(``tcp_pacing_ca_ratio``). The window grows to twice what is under way (``tcp_is_cwnd_limited``),
which is what is in the queue, and so the round trip is the time in the queue: 2.4 times the rate of
the link.
"""

SEGMENT_BYTES = 16 * 1024
"""Longest segment that is handed to the queue, if a run does not say (``gso_max_size``)."""

STAGE_MESSAGE_S = 0.43e-3
"""Least latency of a message between stages of torch.distributed.pipelining, and of a request.

Measured apart from the runs, between two namespaces on two slow cores: from the end of a pass to
the beginning of the next, whose input of 4 KB is ready, 0.82 and 0.92 ms (medians of two runs with
147 passes each), for a request and a message. gloo alone takes 0.33 ms for both; the rest is the
runtime of the schedule.
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
    if config["mesh"]["pp"] > 1:
        latency_s = max(latency_s, STAGE_MESSAGE_S)
    efficiency = min(net["tcp_goodput_bps"] / rate, 1.0)
    nic, *nics = [pm.Link(bits / 8, latency_s, efficiency) for bits in (rate, *config["rates_bps"])]
    return pm.Cluster(
        name="testbed",
        nic=nic,
        nodes=config["n_nodes"],
        overrides=tuple(pm.NodeOverride(i, other) for i, other in enumerate(nics) if other != nic),
        collectives=gloo_collectives(rate, gloo, ranks),
        burst_bytes=net.get("burst", 0.0),
        send_queue_bytes=SEGMENTS * net.get("gso", SEGMENT_BYTES),
        send_queue_s=QUEUE_S,
        source=pm.Source("measured", "the network of the same run"),
    )
