"""Parameter server: workers push gradients to servers and pull parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from perfmodel.architectures.base import Architecture, Coarse
from perfmodel.architectures.parts.messages import TRANSMISSION_HELP
from perfmodel.architectures.ps.graph import build
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.phases import exact, leaves_out, phases
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.inputs.job import Job


def server_bytes(job: Job) -> float:
    """Memory of the fullest server: parameters, optimizer state, a receive buffer per worker."""
    slices = slices_of(job.workload, job.options)
    state = job.workload.optimizer_state_bytes / job.workload.gradient_bytes
    return float(np.bincount(slices.server, slices.bytes).max() * (1 + state + job.workers))


def _unused(options: Any) -> Collection[str]:
    names: set[str] = options.unused
    return names


ARCHITECTURE = Architecture(
    name="ps",
    title="parameter server",
    options=Options,
    build=build,
    asynchronous=lambda options: bool(options.sync != "bsp"),
    server_bytes=server_bytes,
    option_help={
        "sync": "bsp: an update waits for every worker; asp: every push is applied at once; ssp: "
        "asp, but no worker runs further ahead than staleness_bound",
        "staleness_bound": "iterations that a worker may be ahead of the slowest (ssp), or inf",
        "servers": "number of servers the parameters are spread over",
        "overlap": "push a layer as soon as its gradient is ready, start it as soon as it is back",
        "duplex": "answer each pushed slice at once (MXNet) instead of one pull phase per step",
        "pull": "reply: a push is answered with the new parameters; request: with an "
        "acknowledgement, after which the worker asks for them, behind its pushes (MXNet)",
        "sharding": "where whole tensors go: bytes (the emptiest server) or hash (of their number)",
        "split_above_bytes": "larger tensors are cut evenly over all servers; inf: none is cut",
        "local_aggregation": "sum gradients inside each node first; the node pushes once (bsp)",
        "backup_workers": "updates do not wait for so many of the slowest workers (bsp)",
        "softsync": "gradients from any workers that make one update (asp)",
        **TRANSMISSION_HELP,
    },
    assumptions=(
        "one connection per worker and server and direction, one message at a time, in order; the "
        "tensors that a layer keeps on one server travel together",
        "all connections share a full link alike, unless queue_bytes of the cluster says that "
        "losses make their parts unequal",
        "every pushed tensor costs the server its update time, also under BSP; without overlap "
        "(and without duplex) nothing is applied before a worker's whole gradient is in",
        "a worker's copy is the one right after its own push was applied (asp), with the update "
        "that this push completes (softsync), or the one at the reply that the bound allows (ssp)",
        "the optimizer runs on the server: the worker's optimizer time does not count",
        "compression shrinks what is pushed; what is pulled are whole parameters",
        "servers contend with workers for cores only where workers compute on them "
        "(worker_threads of the cluster)",
    ),
    source="Li et al., IEEE TPDS 33(11), 2022, doi 10.1109/TPDS.2022.3151739; "
    "Jia et al., IPCCC 2020; SSP: Ho et al., NIPS 2013; backup workers: Chen et al., 2016, "
    "arXiv 1604.00981; n-softsync: Zhang et al., IJCAI 2016, arXiv 1511.05950; priorities and "
    "slices: Jayarajan et al., MLSys 2019, arXiv 1905.03960; credit: Peng et al., SOSP 2019, "
    "doi 10.1145/3341301.3359642",
    aliases={sync: {"sync": sync} for sync in ("bsp", "asp", "ssp")},
    unused=_unused,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
