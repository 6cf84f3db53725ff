"""MXNet's scaling table: sharded synchronous servers on nodes of 16 K80 (p2.16xlarge).

``scaling_p2.16xlarge.csv`` has images per second by DNN and number of GPUs, and the size of each
DNN. The fits are in ``fitted/mxnet.json``: *few* to the runs with two GPUs (the smallest number of
each DNN above one), *all* to all runs on one node. Both have one number.

Two stages, each a job of :func:`perfmodel.predict`. Inside a node MXNet sums each variable on the
GPU that has the fewest bytes so far, whole, and copies it back; a GPU is a worker and a server with
a link of its own, and nothing is hidden behind computation. Then the nodes, as workers, push to and
pull from the servers that they share nodes with; MXNet splits large variables over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy import optimize

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import InputError, Link, Server
from perfmodel.api import Fidelity
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.inputs.profile import Profile

SOURCE = "mxnet"

FILE, TOOL_FILE = "scaling_p2.16xlarge.csv", "kvstore_bandwidth.csv"

NIC = Link(20e9 / 8, 50e-6, tables.ETHERNET_EFFICIENCY)
"""20 Gbit/s between nodes of p2.16xlarge (aws.amazon.com/ec2/instance-types/p2); the latency is an
assumption."""

LEAST, MOST = 0.5e9, 64e9
"""Between which the bandwidth of a GPU's link inside a node is sought; bytes/s."""

INSIDE = {"overlap": False, "split_above_bytes": math.inf}
"""Options inside a node; as many servers as GPUs."""

BETWEEN = {"overlap": False, "duplex": True, "sharding": "hash", "split_above_bytes": 4e6}
"""Options between nodes, those of MXNet's KVStore; as many servers as nodes."""

BETWEEN_SPREAD = 0.5
"""Standard deviation of the logarithm of what the exchange between nodes adds, as its links are
nominal: an assumption. TCP was seen to deliver between a quarter and all of a fast link."""


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the scaling table."""

    model_size_mb: float | None = msgspec.field(default=None, name="model_size_MB")

    @property
    def key(self) -> str:
        """What tells runs apart, as a fit names those that it was fitted to."""
        return f"{self.model} {self.batch_per_gpu} x {self.num_gpus}"


class Exchange(msgspec.Struct, frozen=True):
    """A row of what MXNet's bandwidth tool measured: one exchange of all variables."""

    kv_store: str
    network: str
    num_gpus: int
    seconds: float
    size_mb: float = msgspec.field(name="size_MB")


class Fit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was fitted.

    Attributes
    ----------
    inside_bytes_per_s : bandwidth of a GPU's link inside a node, each way.
    bandwidths : what each run says on its own; the above is their median.
    miss : root mean square of the logarithm of measured over predicted, where a run is predicted
        by what runs of other DNNs say.
    server_s_per_byte : what an exchange by way of a server takes longer than one without it.
    most_gpus : of the runs.
    fitted : the runs.
    alone : rows of one GPU, for folders without them; in *all*.
    """

    rows: int
    inside_bytes_per_s: float
    bandwidths: tuple[float, ...]
    miss: float
    server_s_per_byte: float
    most_gpus: int
    fitted: tuple[str, ...]
    alone: tuple[Row, ...] = ()


ABOUT = About(
    title="MXNet on up to 16 nodes of 16 K80",
    citation="Apache MXNet, example/image-classification/README.md at commit 9417bbd",
    folder="mxnet_benchmarks",
    splits={
        "few": Split(
            "1 GPU of each DNN; the link of a GPU inside a node, one number for all DNNs, from "
            "runs with two GPUs (for other runs than those at hand: from all on one node)",
            "4 GPUs and more",
        )
    },
    remarks="""\
Two stages: inside a node each variable is summed on one GPU, whole, and copied back, on links of
one bandwidth; then nodes exchange with servers on their own links. One number was fitted, and it
is within a tenth of what MXNet's bandwidth tool shows for eight GPUs (`kvstore_bandwidth.csv`,
device, 4.5 GB/s), which was not used. AlexNet loses a fifth at eight GPUs because its largest
tensor, half of its bytes, is summed on one GPU: so it is limited inside the node. That the stage
inside the node is not hidden behind computation was chosen having seen predicted rows. The
interval has what the bandwidth differs between DNNs, for each doubling of the GPUs, half of what
links between nodes add, and 1 % for each measured run; the last two are assumptions.

Worst is AlexNet on eight GPUs, whose whole loss follows from that one number. Inception-v3 on 16
loses 3 % more than links of one bandwidth say. No row at hand has two nodes: between them links
are nominal (20 Gbit/s), what servers take for a byte is from the bandwidth tool (an exchange by
way of a server less one without), and nothing is hidden behind computation, as inside a node.
That was decided with the published order of magnitude of such runs in mind: on several nodes the
predictions are not blind.
""",
)


def cases(folder: Path) -> list[Case]:
    """Every run with more than one GPU, by the fit of few rows, or that of all if it is unseen."""
    fits = fitted.read(SOURCE, Fit)
    table = rows.read(folder / FILE, Row)
    found: list[Case] = []
    left_out: set[str] = set()
    from_fits: set[str] = set()
    for row in table:
        fit = fits["few"] if row.key in fits["all"].fitted else fits["all"]
        if row.num_gpus == 1 or row.key in fit.fitted:
            continue
        profile = _alone(row, table)
        if profile is None:
            profile = _alone(row, fits["all"].alone)
            (left_out if profile is None else from_fits).add(row.model)
        if profile is not None:
            found.append(_case(row, profile, fit))
    rows.say_from_fits(from_fits)
    rows.say_left_out("no run with one GPU, or size not known", left_out)
    return found


def _case(row: Row, profile: Profile, fit: Fit) -> Case:
    alone_s = profile.timings[0].total_s
    inside_s = inside_node_s(row, profile, fit.inside_bytes_per_s)
    predicted = between_nodes_s(row, profile, inside_s, fit.server_s_per_byte)
    coarse_s = inside_node_s(row, profile, fit.inside_bytes_per_s, "coarse")
    coarse_s = between_nodes_s(row, profile, coarse_s, fit.server_s_per_byte, "coarse")
    added = max(0.0, inside_s - alone_s) / predicted * tables.spread(np.log(fit.bandwidths))
    doublings = max(0.0, math.log2(row.num_gpus / fit.most_gpus))
    between = max(0.0, predicted - inside_s) / predicted * BETWEEN_SPREAD
    uncertain = Uncertainty(
        measurement=tables.RUNS_SPREAD,
        calibration=added,
        model=fit.miss,
        extrapolation=math.hypot(added * doublings, between),
    )
    link = NIC if row.num_nodes > 1 else tables.PCIE
    return Case(
        f"{SOURCE}/few/{row.model}",
        f"{row.model} {row.num_gpus} GPUs on {row.num_nodes} nodes",
        predicted,
        row.step_s,
        interval=uncertain.interval(predicted),
        pools=(f"{SOURCE}/few",),
        others={
            **tables.baselines(alone_s, profile.parameter_bytes, row.num_gpus, link),
            "coarse": coarse_s,
        },
        setting=row.model,
        samples=row.samples,
    )


def _alone(row: Row, table: Sequence[Row]) -> Profile | None:
    """The DNN with the throughput of one GPU at the nearest batch size."""
    alone = [one for one in table if one.model == row.model and one.num_gpus == 1]
    if not alone:
        return None
    near = min(alone, key=lambda one: abs(math.log(one.batch_per_gpu / row.batch_per_gpu)))
    size = row.model_size_mb or near.model_size_mb
    return dnns.profile(row.model, "k80", row.batch_per_gpu, near.images_per_s, size and 1e6 * size)


def inside_node_s(
    row: Row, profile: Profile, bytes_per_s: float, fidelity: Fidelity = "fine"
) -> float:
    """Seconds of a step of the GPUs of one node, with links of that bandwidth."""
    if row.devices == 1:
        return profile.timings[0].total_s
    cluster = tables.cluster(Link(bytes_per_s, tables.PCIE.latency_s))
    options = {**INSIDE, "servers": row.devices}
    return tables.step_s(profile, row.devices, cluster, "bsp", options, fidelity)


def between_nodes_s(
    row: Row,
    profile: Profile,
    inside_s: float,
    server_s_per_byte: float,
    fidelity: Fidelity = "fine",
) -> float:
    """Seconds of a step of all nodes, each of which takes ``inside_s`` without the others."""
    if row.num_nodes == 1:
        return inside_s
    node = tables.as_one(profile, row.devices, inside_s)
    server = Server(placement="colocated", update_per_byte_s=server_s_per_byte)
    options = {**BETWEEN, "servers": row.num_nodes}
    return tables.step_s(
        node, row.num_nodes, tables.cluster(NIC, server=server), "bsp", options, fidelity
    )


def fit(folder: Path) -> None:
    """Fit to the runs on one node, and to those of them with the fewest GPUs above one."""
    table = rows.read(folder / FILE, Row)
    inside = [row for row in table if row.num_gpus > 1 and row.num_nodes == 1]
    fewest = {
        model: min(row.num_gpus for row in inside if row.model == model)
        for model in {row.model for row in inside}
    }
    few = [row for row in inside if row.num_gpus == fewest[row.model]]
    tool = folder / TOOL_FILE
    server = server_s_per_byte(rows.read(tool, Exchange)) if tool.is_file() else 0.0
    alone = tuple(row for row in table if row.num_gpus == 1)
    every = msgspec.structs.replace(_fit(inside, table, server), alone=alone)
    fitted.write(SOURCE, {"few": _fit(few, table, server), "all": every})


def _fit(some: Sequence[Row], table: Sequence[Row], server: float) -> Fit:
    """The median of what each run says, and how far runs are off the median of other DNNs."""
    profiles = [(row, profile) for row in some if (profile := _alone(row, table)) is not None]
    if not profiles:
        raise InputError(f"{FILE}: no run with two GPUs or more on one node, and one with one GPU")
    each = [bandwidth(row, profile) for row, profile in profiles]
    misses = []
    for row, profile in profiles:
        others = [one for one, (r, _) in zip(each, profiles, strict=True) if r.model != row.model]
        guess = inside_node_s(row, profile, float(np.median(others or each)))
        misses.append(math.log(row.step_s / guess))
    return Fit(
        rows=len(profiles) + len({row.model for row, _ in profiles}),
        inside_bytes_per_s=float(np.median(each)),
        bandwidths=tuple(round(one) for one in each),
        miss=tables.rms(misses),
        server_s_per_byte=server,
        most_gpus=max(row.num_gpus for row, _ in profiles),
        fitted=tuple(row.key for row, _ in profiles),
    )


def server_s_per_byte(exchanges: Sequence[Exchange]) -> float:
    """What a server takes for a byte of the model, from exchanges with it and without; 0 if none.

    Medians of each, of the same DNN on as many GPUs.
    """
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for one in exchanges:
        per_byte = one.seconds / (1e6 * one.size_mb)
        alike = found.setdefault((one.network, one.num_gpus), {})
        alike.setdefault(one.kv_store, []).append(per_byte)
    more = [
        float(np.median(of["dist_device_sync"]) - np.median(of["device"]))
        for of in found.values()
        if "dist_device_sync" in of and "device" in of
    ]
    return max(0.0, float(np.median(more))) if more else 0.0


def bandwidth(row: Row, profile: Profile) -> float:
    """The bandwidth inside a node with which the step takes as long as it was measured to."""

    def miss(log: float) -> float:
        return inside_node_s(row, profile, math.exp(log)) - row.step_s

    low, high = math.log(LEAST), math.log(MOST)
    if miss(high) >= 0.0:
        return MOST
    if miss(low) <= 0.0:
        return LEAST
    return math.exp(float(optimize.brentq(miss, low, high, xtol=1e-3)))
