"""Parameter server: workers push gradients to servers and pull parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.architectures.ps.formulas import exact, leaves_out, phases, queues
from perfmodel.architectures.ps.graph import build
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.communication.network import SERVER_ASSUMPTION
from perfmodel.inputs.job import Job
from perfmodel.results.memory import Footprint

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder


def memory(job: Job) -> Parts:
    """Return the memory of a worker, and of the fullest server.

    A worker keeps parameters and gradients, but no state of the optimizer; where a node sums its
    gradients first, also those of a second device. A server keeps its share of the parameters in 32
    bits, and of the optimizer's state, and a buffer for the gradients of each worker.
    """
    options, work = Options.of(job), job.workload
    slices = slices_of(work, options)
    share = float(np.bincount(slices.server, slices.bytes).max()) / work.gradient_bytes
    worker = replica_of(work, updates=False)
    summed = options.local_aggregation and job.cluster.fullest(job.workers) > 1
    worker = msgspec.structs.replace(
        worker, buckets_bytes=worker.gradients_bytes if summed else 0.0
    )
    server = Footprint(
        parameters_bytes=share * work.gradient_bytes,
        optimizer_states_bytes=share * work.optimizer_state_bytes,
    )
    received = job.workers * share * work.gradient_bytes
    return Parts(worker, with_copies(server, receive_buffers=received))


MANY_WORKERS = 256
"""Workers from which errors of the formulas of asynchronous jobs are measured by themselves."""

MANY = {sync: f"ps {sync} with many workers" for sync in ("asp", "ssp")}
"""The names of their groups."""


def group(job: Job) -> str:
    """Return the group that errors of formulas are measured for: how the servers synchronise."""
    options = Options.of(job)
    sync: str = options.sync
    if sync == "ssp":  # SSP with bound 0 or without bound behaves like BSP or ASP
        sync = {0.0: "bsp", math.inf: "asp"}.get(options.staleness_bound, sync)
    if sync in MANY and job.workers >= MANY_WORKERS:
        return MANY[sync]
    return f"ps {sync}{' with backup workers' if options.backup_workers else ''}"


def traffic(job: Job) -> Traffic | None:
    """Return a worker's bytes: its gradients to the servers, the parameters from them.

    None if servers hold unequal parts, or if some gradients come too late.
    """
    options, slices = Options.of(job), slices_of(job.workload, Options.of(job))
    kept = np.bincount(slices.server, slices.bytes, options.servers)
    if options.backup_workers or not np.allclose(kept, kept[0]):
        return None
    pulled = job.workload.gradient_bytes
    pushed, per_server = pulled * options.sent_share, job.workers / options.servers
    return Traffic(pushed, pulled, per_server * pulled, per_server * pushed)


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record reads of slices of the centre, and updates of them."""
    from perfmodel.architectures.ps import recording

    return recording.meaning(job, recorder)


VARIANTS: tuple[Mapping[str, object], ...] = (
    {"sync": "bsp"},
    {"sync": "asp"},
    {"sync": "bsp", "duplex": True},
    {"sync": "asp", "duplex": True, "servers": 2},
    {"sync": "bsp", "overlap": False},
    {"sync": "asp", "overlap": False, "servers": 3, "split_above_bytes": math.inf},
    {"sync": "ssp", "staleness_bound": 1},
    {"sync": "ssp", "staleness_bound": 0, "duplex": True, "sharding": "hash", "servers": 2},
    {"sync": "ssp", "staleness_bound": 2, "duplex": True, "pull": "request"},
    {"sync": "bsp", "duplex": True, "servers": 3, "split_above_bytes": 4, "uneven": 0.4},
    {"local_aggregation": True, "servers": 2},
    {"local_aggregation": True, "overlap": False},
    {"local_aggregation": True, "duplex": True},
    {"backup_workers": 1},
    {"backup_workers": 1, "overlap": False, "servers": 2},
    {"sync": "asp", "softsync": 2},
    {"sync": "asp", "softsync": 3, "duplex": True},
    {"duplex": True, "pull": "request"},
    {"sync": "asp", "duplex": True, "pull": "request", "servers": 2},
    {"transmission": "priority", "partition_bytes": 7, "duplex": True},
    {"transmission": "quantum", "quantum_bytes": 11, "compression": "top_k", "density": 0.2},
    {"transmission": "quantum", "quantum_bytes": 11, "duplex": True, "sync": "asp"},
    {"transmission": "shared", "sync": "asp", "compression": "dgc", "encode_per_byte_s": 0.1},
    {"transmission": "priority", "credit_bytes": 20, "partition_bytes": 10},
    {"transmission": "random", "sync": "asp", "servers": 2},
    {"compression": "quantised", "quantised_bits": 4, "decode_per_byte_s": 0.01},
)
"""Options under which the laws of all architectures are checked."""

ARCHITECTURE = Architecture(
    name="ps",
    title="parameter server",
    options=Options,
    build=build,
    few=build,
    memory=memory,
    updates_on_servers=True,
    assumptions=(
        "there is one connection per worker, server and direction; it carries one message at a "
        "time, in order, and the tensors that a layer keeps on one server travel together; a "
        "random order is drawn once per worker and is the same in all iterations",
        "all connections get equal shares of a full link, unless queue_bytes of the cluster makes "
        "losses skew the shares; asynchronous pushes that overlap and vary differ by 2 %",
        "every pushed tensor costs the server its update time, also under BSP; without overlap "
        "(and without duplex) nothing is applied before a worker's whole gradient has arrived",
        "a worker's copy is the version right after its own push was applied (asp), the update "
        "that this push completes (softsync), or the version at the reply that the bound allows "
        "(ssp)",
        "the optimizer runs on the server: the worker's optimizer time does not count",
        "compression shrinks what is pushed; pulls carry uncompressed parameters",
        SERVER_ASSUMPTION,
        "servers contend with workers for cores only if workers compute on them (worker_threads of "
        "the cluster)",
    ),
    source="Li et al., IEEE TPDS 33(11), 2022, doi 10.1109/TPDS.2022.3151739; "
    "Jia et al., IPCCC 2020; SSP: Ho et al., NIPS 2013; backup workers: Chen et al., 2016, "
    "arXiv 1604.00981; n-softsync: Zhang et al., IJCAI 2016, arXiv 1511.05950; priorities and "
    "slices: Jayarajan et al., MLSys 2019, arXiv 1905.03960; credit: Peng et al., SOSP 2019, "
    "doi 10.1145/3341301.3359642; random order in TensorFlow: Hashemi et al. (TicTac), MLSys 2019, "
    "arXiv 1803.03288",
    aliases={
        "bsp": {"sync": "bsp"},
        "asp": {"sync": "asp"},
        "ssp": {"sync": "ssp"},
        "parameter_server": {},
        "ps_lite": {},
        "mxnet": {"duplex": True, "sharding": "hash", "pull": "request"},
    },
    group=group,
    variants=VARIANTS,
    traffic=traffic,
    meaning=meaning,
    slices=lambda job: slices_of(job.workload, Options.of(job)).bytes.tolist(),
    central=True,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out, queues=queues),
)
