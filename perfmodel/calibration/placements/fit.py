r"""Fits a cluster's links and traits of DNNs to measured steps on placements of devices.

The formula is in :mod:`perfmodel.calibration.placements.model`. All DNNs on a cluster share its
links. The traits of a DNN are fitted as far as its steps identify them, and otherwise shrunk
towards those of most DNNs (Gelman, Hill, "Data Analysis Using Regression and
Multilevel/Hierarchical Models", 2007, chapter 12). The results are a :class:`Cluster`, and a
:class:`Profile` for each DNN, which :func:`perfmodel.predict` takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from perfmodel.api import make_job
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.calibration import figures
from perfmodel.calibration.parameters import Parameter, expanded, of_workload
from perfmodel.calibration.placements import model
from perfmodel.calibration.placements.model import LINKS, TRAITS, PlacedSteps, link_parameters
from perfmodel.calibration.placements.spreads import NOISE, Left, Spreads, learnt, noise_of
from perfmodel.calibration.placements.table import OneNode, Step, Training, check_devices
from perfmodel.calibration.regression import WEIGHT, Regression
from perfmodel.calibration.statistics import Fitted, nested, rounded
from perfmodel.inputs.calibration import Calibration, scaled, value_at, with_value
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Layer, Profile, Tensor, Timing
from perfmodel.predicting.intervals import DOUBLING, STEP
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn

KEPT = 0.5
"""Fraction of a one-node step's logarithmic deviation from the formula that carries over to other
placements, as compute time. Values from 0.3 to 0.7 do as well on two published clusters."""

STEP_SPREAD, NODE_STEP_SPREAD = 0.07, 0.1
"""Expected standard deviations of the logarithm of a step time, on several nodes and on one."""

AS_MANY = (200, 60)
"""Effective number of steps of each DNN on several nodes and on one, whatever the actual number:
neighbouring batch sizes give similar steps."""

ROUNDS = 3
"""Rounds of learning the spreads. The less the DNNs differ, the better they determine the links,
and the spreads are what the links leave unexplained."""

FIRM = 1e-3
"""Standard deviation of the logarithm of a link value that is kept as it is."""

SOURCE = Source("measured", "fitted to measured steps (perfmodel.calibration.placements)")

USUAL = {p.name: p.value for p in TRAITS}

SCHEMA = "perfmodel.calibration/1"


class Traits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a DNN differs from others, see :data:`perfmodel.calibration.placements.model.TRAITS`.

    ``known`` names the measurements that the traits come from: steps on several *nodes*, on several
    devices of one *node*, or on one *device* only. ``spread`` is the standard deviation of the
    logarithm of its cost per byte on the network, ``noise`` that of repeated steps.
    """

    bytes: float = USUAL["bytes"]
    node_bytes: float = USUAL["node_bytes"]
    hidden_fraction: float = USUAL["hidden_fraction"]
    messages: float = USUAL["messages"]
    known: str = "device"
    spread: float = 0.0
    noise: float = NOISE


class Placements(Drawn, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A calibrated cluster, and the traits of the DNNs that it was calibrated with.

    Attributes
    ----------
    cluster : the cluster with the fitted links.
    traits : of each DNN that ran on several devices.
    spreads : the remaining uncertainty for other DNNs.
    """

    cluster: Cluster
    traits: dict[str, Traits]
    spreads: Spreads

    def to_dict(self) -> dict[str, object]:
        """As JSON-like values."""
        return {"schema": SCHEMA, "kind": "placements", **msgspec.to_builtins(self)}

    @property
    def estimates(self) -> list[Fitted]:
        """The links with their intervals."""
        known, estimates = self.cluster.calibration or Calibration(), []
        for i, path in enumerate(known.parameters):
            unit, spread = "s" if path.endswith("_s") else "", math.sqrt(known.covariance[i][i])
            estimates.append(Fitted.spread(path, unit, value_at(self.cluster, path), spread))
        return estimates

    def figure(self) -> Figure:
        """The links with their intervals."""
        title = f"{self.cluster.name}: {len(self.traits)} models on several devices"
        return figures.fit(self.estimates, [], title)

    def traits_of(self, training: Training) -> Traits:
        """Traits of a DNN: as fitted, or else estimated from its steps on one node."""
        fitted = self.traits.get(training.name)
        return fitted or _node_traits(self.cluster, self.spreads, training)

    def knowing(self, training: Training) -> Placements:
        """Return a copy that stores the traits of a DNN, so that they are not fitted each time."""
        traits = self.traits | {training.name: self.traits_of(training)}
        return msgspec.structs.replace(self, traits=traits)

    def profile(self, training: Training, devices: int = 1) -> Profile:
        """Make the workload of a DNN with ``devices`` devices on the fullest node.

        Compute time is the one measured on that many devices of one node. If that was not measured,
        or its waiting time is unknown, it is extrapolated from one device by the DNN's known
        growth.
        """
        node, traits = OneNode(training), self.traits_of(training)
        sizes = node.batches(devices)
        computing = np.array([node.computing_s(devices, size) for size in sizes])
        if devices > 1 and node.step_s(devices, sizes[0]) is not None:
            steps = [Step((devices,), size, 1.0) for size in sizes]
            measured = np.array([node.step_s(devices, size) or math.nan for size in sizes])
            deviation = measured / formula_s(self.cluster, traits, node, steps)
            computing = computing * deviation**KEPT
        hidden = traits.hidden_fraction * training.overlap_fraction
        count = max(round(min(traits.messages, model.MOST_MESSAGES)), 1)
        more = float(model.network_bytes(np.array(traits.bytes), np.array(traits.node_bytes)))
        size = training.gradient_bytes * more / count
        timings = [
            Timing(
                device="device",
                batch_size=batch,
                source=SOURCE,
                forward_s=(seconds * (1.0 - hidden), *[0.0] * count),
                backward_s=(0.0, *[seconds * hidden / count] * count),
            )
            for batch, seconds in zip(sizes, computing.tolist(), strict=True)
        ]
        messages = [Layer(f"message {i}", tensors=(Tensor("all", size),)) for i in range(count)]
        return Profile(
            name=training.name,
            source=SOURCE,
            timings=tuple(timings),
            layers=(Layer("before"), *messages),
            calibration=self._left_unknown(traits, node, devices),
        )

    def job(self, profile: Profile, devices: Sequence[int], batch_size: int) -> Job:
        """Make a job with ``devices`` devices on each node and ``batch_size`` samples per device.

        ``profile`` is the workload for as many devices as the fullest node has.

        Raises
        ------
        InputError : there is no node, a node has no device, or ``batch_size`` is not positive.
        """
        check_devices(tuple(devices))
        most = max(*devices, self.cluster.devices_per_node)
        where = msgspec.structs.replace(
            self.cluster,
            devices_per_node=most,
            devices_on_nodes=tuple(devices),
            losses="none",  # they are in what is fitted
        )
        return make_job(
            workload=profile,
            batch_size=batch_size,
            cluster=where,
            workers=sum(devices),
            arch="allreduce",
            options={"algorithm": "ring", "bucketing": "layer"},
        )

    def _left_unknown(self, traits: Traits, node: OneNode, devices: int) -> Calibration:
        compute = 0.0
        if devices > 1 and not node.knows(devices):
            part = 1.0 - 1.0 / devices if traits.known == "device" else 0.0
            compute = max(self.spreads.contention * part, self.spreads.growth)
        # repeated steps vary: the measured one, and those that the compute time comes from
        noise = self.spreads.noise if traits.known == "device" else traits.noise
        spreads = np.array([traits.spread, math.hypot(compute, noise)])
        return Calibration(
            spread=noise,
            parameters=("gradient_bytes", "compute_s"),
            covariance=tuple(map(tuple, np.diag(spreads**2).tolist())),
        )


def calibrate_placements(
    trainings: Sequence[Training],
    cluster: Cluster,
    spreads: Mapping[str, float] | None = None,
) -> Placements:
    """Fit a cluster's links and the traits of DNNs to measured steps on it.

    ``cluster`` has the expected link values. ``spreads`` overrides how firmly they are expected:
    standard deviations of logarithms, by names of
    :data:`perfmodel.calibration.placements.model.LINKS`. Without steps on more than one device the
    links stay as expected, with correspondingly wide intervals.

    Raises
    ------
    InputError : two DNNs have the same name; the cluster has no links inside nodes, or a bus; an
        unknown name in ``spreads``.
    """
    names = [training.name for training in trainings]
    if len(set(names)) < len(names):
        raise InputError(f"trainings: names must differ: {', '.join(sorted(names))}")
    if cluster.intra_node is None or cluster.intra_node.kind == "bus":
        raise InputError("cluster: needs intra_node of kind per_device")
    for name, spread in (spreads or {}).items():
        if name not in LINKS:
            raise unknown_name("fitted link", name, LINKS)
        number(name, spread, above=0.0)
    measured = _Measured(cluster, trainings, link_parameters(cluster, spreads or {}))
    point = measured.solve()
    left = [_left_out(measured, trainings, point, index) for index in range(len(trainings))]
    growths, learned = [OneNode(training).growth for training in trainings], Spreads()
    for _ in range(ROUNDS):
        learned = learnt(left, growths, measured.link_covariance(point, learned.node))
    return Placements(
        cluster=_calibrated(measured, trainings, point, learned),
        traits=measured.traits(point),
        spreads=learned,
    )


class _Measured:
    """Measured steps on more than one device, as arrays for the fit.

    ``links`` are the parameters of the links.
    """

    def __init__(
        self, cluster: Cluster, trainings: Sequence[Training], links: Sequence[Parameter]
    ) -> None:
        self.cluster = cluster
        self.names = [training.name for training in trainings]
        steps = [[s for s in t.steps if sum(s.devices) > 1] for t in trainings]
        self.placed = PlacedSteps.joined(
            [PlacedSteps.of(OneNode(t), of_dnn) for t, of_dnn in zip(trainings, steps, strict=True)]
        )
        self.log_step_s = np.log([step.step_s for of_dnn in steps for step in of_dnn])
        self.batch_size = np.array([step.batch_size for of_dnn in steps for step in of_dnn])
        self.dnn = np.repeat(np.arange(len(steps)), [len(of_dnn) for of_dnn in steps])
        weight, several = np.ones(len(self.dnn)), self.placed.nodes > 1
        for index in range(len(steps)):
            for chosen, many, spread in (
                (several, AS_MANY[0], STEP_SPREAD),
                (~several, AS_MANY[1], NODE_STEP_SPREAD),
            ):
                rows = (self.dnn == index) & chosen
                weight[rows] = spread * math.sqrt(rows.sum() / many)
        traits = expanded(TRAITS, self.names)
        self.regression = Regression([*links, *traits], self._misses, weight)

    def _misses(self, values: Mapping[str, Floats], points: int) -> Floats:
        """Logarithms of predicted over measured step times, (points, steps)."""
        if not len(self.dnn):
            return np.zeros((points, 0))
        links = {name: values[name][:, None] for name in LINKS}
        by_dnn = [of_workload(TRAITS, values, name) for name in self.names]
        traits = {
            trait: np.stack([fields[trait] for fields in by_dnn], axis=-1)[..., self.dnn]
            for trait in USUAL
        }
        return np.log(model.steps_s(self.cluster, links, traits, self.placed)) - self.log_step_s

    def solve(self) -> Floats:
        """The most likely parameters, as coordinates."""
        return self.regression.solve([self.regression.centre])

    def without(self, index: int, point: Floats) -> dict[str, float]:
        """The most likely links without the steps of one DNN, by name."""
        others = np.flatnonzero(self.dnn != index)
        values = self.regression.values(self.regression.solve([point], of=others))
        return {name: values[name] for name in LINKS}

    def link_covariance(self, point: Floats, bytes_spread: float) -> Floats:
        """Covariance of the logarithms of the links, in the order of :data:`LINKS`, if the cost per
        byte of a DNN has the spread ``bytes_spread``."""
        parameters = [
            msgspec.structs.replace(p, spread=bytes_spread) if name.startswith("bytes ") else p
            for name, p in self.regression.parameters.items()
        ]
        regression = Regression(parameters, self._misses, self.regression.spreads)
        links = slice(len(LINKS))
        return np.array(regression.log_covariance(point, 1.0))[links, links]

    def traits(self, point: Floats) -> dict[str, Traits]:
        """How each DNN with steps on several devices differs from others."""
        values = self.regression.values(point)
        # given the links: their own uncertainty belongs to the cluster
        precision = np.linalg.inv(self.regression.covariance(point, 1.0))
        covariance = np.linalg.inv(precision[len(LINKS) :, len(LINKS) :])
        names = self.regression.names[len(LINKS) :]
        misses, traits = self.regression.misses(point[None])[0], {}
        for index, name in enumerate(self.names):
            rows = self.dnn == index
            if not rows.any():
                continue
            on_nodes = bool((self.placed.nodes[rows] > 1).any())
            node = rows & (self.placed.nodes == 1)
            noise = noise_of(misses[node], self.placed.devices[node], self.batch_size[node])
            at = [names.index(f"{trait} {name}") for trait in ("bytes", "node_bytes")]
            part = np.array([1.0, model.CARRIED])
            traits[name] = Traits(
                **{trait: rounded(values[f"{trait} {name}"]) for trait in USUAL},
                known="nodes" if on_nodes else "node",
                spread=rounded(math.sqrt(part @ covariance[np.ix_(at, at)] @ part)),
                noise=rounded(noise),
            )
        return traits


def _left_out(
    measured: _Measured, trainings: Sequence[Training], point: Floats, index: int
) -> Left:
    """Prediction errors of a DNN's steps on several nodes if only other DNNs determine the links.

    If there are none on several nodes, those on several devices of one node.
    """
    training, links = trainings[index], measured.without(index, point)
    alone = tuple(step for step in training.steps if len(step.devices) == 1)
    several = [step for step in training.steps if len(step.devices) > 1]
    away = bool(several)
    several = several or [step for step in training.steps if sum(step.devices) > 1]
    known = msgspec.structs.replace(training, steps=alone)
    node, cluster = OneNode(known), with_links(measured.cluster, links)
    steps = np.array([step.step_s for step in several])
    traits = _node_traits(cluster, Spreads(), known)
    from_node = formula_s(cluster, traits if away else Traits(), node, several)
    from_device, *changed = (
        formula_s(other, Traits(bytes=factor, node_bytes=1.0 if away else factor), node, several)
        for other, factor in [
            (cluster, 1.0),
            (cluster, STEP),
            *((scaled(cluster, name, STEP), 1.0) for name in LINKS),
        ]
    )
    exchanged, *slopes = np.log(np.array(changed) / from_device) / math.log(STEP)
    latencies = sum(
        slope for name, slope in zip(LINKS, slopes, strict=True) if name.endswith("latency_s")
    )
    computing_s = np.array([step.computing_s for step in several])
    waits = any(step.waiting_s for step in several)
    return Left(
        node=np.log(from_node / steps),
        device=np.log(from_device / steps),
        exchanged=exchanged,
        computing=1.0 - exchanged - latencies,
        links=np.array(slopes),
        noise=traits.noise,
        computed=np.log(PlacedSteps.of(node, several).computing_s / computing_s) if waits else None,
    )


def _node_traits(cluster: Cluster, spreads: Spreads, training: Training) -> Traits:
    """Traits of a DNN from its steps on one node.

    Links that other DNNs determined are kept as they are; otherwise they may deviate from the
    expected values.
    """
    steps = tuple(step for step in training.steps if len(step.devices) == 1)
    if all(step.devices == (1,) for step in steps):
        return Traits(spread=spreads.device)
    alone = msgspec.structs.replace(training, steps=steps)
    fitted = cluster.calibration is None or cluster.calibration.rows > 0
    firm = dict.fromkeys(LINKS, FIRM) if fitted else {}
    measured = _Measured(cluster, [alone], link_parameters(cluster, firm))
    traits = measured.traits(measured.solve())[training.name]
    return msgspec.structs.replace(traits, spread=spreads.node)


def formula_s(cluster: Cluster, traits: Traits, node: OneNode, steps: Sequence[Step]) -> Floats:
    """Step times of a DNN by the formula, (steps,)."""
    if not steps:
        return np.zeros(0)
    links = {name: np.full((1, 1), value_at(cluster, name)) for name in LINKS}
    fields = {trait: np.full((1, len(steps)), getattr(traits, trait)) for trait in USUAL}
    return np.asarray(model.steps_s(cluster, links, fields, PlacedSteps.of(node, steps))[0])


def with_links(cluster: Cluster, links: Mapping[str, float]) -> Cluster:
    """Return a cluster with other values of fitted links, by name."""
    for name, value in links.items():
        cluster = with_value(cluster, name, rounded(value))
    return cluster


def _calibrated(
    measured: _Measured, trainings: Sequence[Training], point: Floats, spreads: Spreads
) -> Cluster:
    """Return the cluster with the most likely links and their remaining uncertainty."""
    nodes, values = measured.placed.nodes, measured.regression.values(point)
    cluster = with_links(measured.cluster, {name: values[name] for name in LINKS})
    growth = DOUBLING
    if nodes.max(initial=1.0) > 2.0:  # only steps on two nodes determine pair_efficiency
        firm = link_parameters(cluster, {"pair_efficiency": FIRM})
        growth = _growth(_Measured(cluster, trainings, firm))
    return msgspec.structs.replace(
        cluster,
        source=SOURCE,
        calibration=Calibration(
            parameters=tuple(LINKS),
            covariance=nested(measured.link_covariance(point, spreads.node)),
            spread=spreads.step,
            computing_spread=spreads.computing,
            ranges={"nodes": (1.0, float(nodes.max(initial=1.0)))},
            growth={"nodes": rounded(growth)},
            rows=len(nodes),
        ),
    )


def _growth(measured: _Measured) -> float:
    """Standard deviation added per doubling of the nodes: the excess of the errors on more than
    two nodes, predicted from those on at most two, over the errors of the latter.

    The general assumption for all jobs counts as :data:`WEIGHT` steps one doubling away.
    """
    far, regression = measured.placed.nodes > 2.0, measured.regression
    misses = regression.misses(regression.solve([regression.centre], of=~far)[None])[0]
    doublings = np.log2(measured.placed.nodes[far] / 2.0)
    beyond = misses[far] ** 2 - float(np.mean(misses[~far] ** 2))
    excess = WEIGHT * DOUBLING**2 + max(float(beyond @ doublings**2), 0.0)
    return math.sqrt(excess / (WEIGHT + float((doublings**4).sum())))
