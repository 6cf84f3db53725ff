r"""From steps measured on few nodes to data-parallel training on other placements of devices.

The formula is in :mod:`perfmodel.calibration.placements`. All DNNs on a cluster have its parameters
in common, but for how much their bytes take: of a DNN that was run on several nodes this is fitted;
of one that was run on one node, the part :data:`CARRIED` of what its bytes take more there (in
logarithms) is carried over to the network; of one that was run on one device nothing is known, and
its bytes count like others'. Regularised least squares of logarithms with soft tails (Gelman, Hill,
"Data Analysis Using Regression and Multilevel/Hierarchical Models", 2007, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.calibration import placements
from perfmodel.calibration.placements import PRIORS, Own, Placed, Prior
from perfmodel.calibration.trainings import OneNode, Training, check_devices
from perfmodel.errors import InputError, number, unknown_name, whole_number
from perfmodel.uncertainty import WIDTH, Uncertainty

Floats = NDArray[np.float64]

CARRIED = 0.6
"""How much of a DNN's own logarithm on one node holds for the network too."""

NODE_SPREAD, NETWORK_SPREAD = 0.5, 0.25
"""Standard deviations of a DNN's own logarithm: on one node, and on the network what it is beyond
the part carried over. Of the size of what DNNs differ by that were measured on one cluster."""

CONTENTION_SPREAD = 0.1
"""Standard deviation among DNNs of how much computing grows with the devices of a node."""

STEP_SPREAD, GROWTH_SPREAD = 0.07, 0.3
"""Standard deviation that a fit expects of logarithms: of steps on several nodes, where the step on
one is known; of steps on one node, where only that on one device is."""

AS_MANY = (200, 60)
"""Steps on several nodes, and on one, that those of each DNN count as, however many they are."""

LEAST_SPREAD = 0.02
"""Standard deviation below which no fit is believed."""

DOUBLING_SPREAD, BATCH_SPREAD = 0.1, 0.1
"""Standard deviation that an exchange gets for each doubling of nodes beyond those fitted to, and
computing for each doubling of the batch beyond those measured. Assumptions."""

UNSEEN_GROWTH = 0.15
"""Standard deviation of how computing grows on a node, where no fit could learn it."""


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a DNN differs from others.

    Attributes
    ----------
    node, network : how much its bytes take, over those of others: on one node, on the network.
    contention : how much more its computing grows with the devices of a node.
    known : from its steps on several nodes, on one node, or on one device only.
    """

    node: float = 1.0
    network: float = 1.0
    contention: float = 0.0
    known: Literal["nodes", "node", "device"] = "device"

    def of(self, steps: int) -> Own:
        """The same for each of so many steps."""
        ones = np.ones(steps)
        return Own(self.node * ones, self.network * ones, self.contention * ones)


class Spreads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Standard deviations of logarithms that a fit leaves.

    Attributes
    ----------
    step, exchange : of measured steps, and of exchanges on top of it, around the fit.
    node, carried, network : of the scale of a DNN that was not fitted to: on one node; on the
        network, if it was run on one node; on the network, if it was not.
    growth : of a step on one node, if only that on one device is known, for a DNN fitted to.
    contention : of the contention of a DNN that was not (no logarithm).
    """

    step: float
    exchange: float
    node: float
    carried: float
    network: float
    growth: float
    contention: float


UNSEEN = Spreads(
    step=STEP_SPREAD,
    exchange=0.2,
    node=NODE_SPREAD,
    carried=0.5,
    network=0.6,
    growth=UNSEEN_GROWTH,
    contention=0.1,
)
"""What is left open before any run: transports reach a half to twice of what is expected."""


class PlacedStep(msgspec.Struct, frozen=True):
    """A predicted step: seconds, waiting part of the first device, and what is not known of it."""

    step_s: float
    idle_fraction: float
    uncertainty: Uncertainty


class DataParallelFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A calibrated cluster (schema ``perfmodel.data-parallel-fit/1``).

    Attributes
    ----------
    parameters : by name, as in :data:`perfmodel.calibration.placements.PRIORS`; SI.
    scales : of each DNN that was run on several nodes or devices.
    stall_fraction : how much of the fullest node's computing shows on the first node, in
        logarithms; the rest of the difference shows as waiting.
    most_nodes : of the steps that were fitted to.
    steps : how many were fitted to.
    """

    schema: Literal["perfmodel.data-parallel-fit/1"] = "perfmodel.data-parallel-fit/1"
    parameters: dict[str, float]
    scales: dict[str, Scale]
    spreads: Spreads
    stall_fraction: float
    most_nodes: int
    steps: int

    def __post_init__(self) -> None:
        for name in PRIORS:
            if name not in self.parameters:
                raise InputError(f"parameters: {name!r} is missing")

    def predict(self, training: Training, devices: Sequence[int], batch_size: int) -> PlacedStep:
        """See :meth:`Predictor.predict`."""
        return Predictor(self, training).predict(devices, batch_size)

    def scale(self, training: Training) -> Scale:
        """How a DNN differs from others: as fitted, or as its steps on one node tell."""
        found = self.scales.get(training.name)
        return _own_scale(self, training) if found is None else found


class Predictor:
    """Predicts steps of one DNN: from what it took on one node, and a calibrated cluster."""

    def __init__(self, fit: DataParallelFit, training: Training) -> None:
        self.fit, self._table = fit, OneNode(training)
        self.scale = fit.scale(training)

    def predict(self, devices: Sequence[int], batch_size: int) -> PlacedStep:
        """A step with so many devices on each node, and so many samples on each device.

        Rests on the steps on one node. If there are none on as many devices as the fullest node
        has, on that on one device.

        Raises
        ------
        InputError : no device on a node, or no sample.
        """
        return self.predict_all([(tuple(devices), batch_size)])[0]

    def predict_all(self, wanted: Sequence[tuple[tuple[int, ...], int]]) -> list[PlacedStep]:
        """Steps by placement and batch size; see :meth:`predict`."""
        for devices, batch_size in wanted:
            check_devices(devices)
            whole_number("batch_size", batch_size)
        rows = self._table.placed(wanted)
        steps, shares = placements.predicted_s(
            self.fit.parameters, rows, self.scale.of(len(wanted))
        )
        found = []
        for index, (devices, batch_size) in enumerate(wanted):
            own = self._computing_s(devices[0], batch_size)
            full = self._computing_s(max(devices), batch_size)
            stalled = self.fit.stall_fraction
            shown = own ** (1.0 - stalled) * full**stalled
            step = float(steps[index])
            found.append(
                PlacedStep(
                    step,
                    max(0.0, 1.0 - shown / step),
                    self._uncertainty(
                        devices,
                        float(shares[index]),
                        rows.base[index] < rows.fullest[index],
                        self._table.beyond(batch_size),
                    ),
                )
            )
        return found

    def _computing_s(self, devices: int, batch: int) -> float:
        """Seconds in which the first of so many devices on one node does not wait."""
        found = self._table.computing_s(devices, batch)
        if found is None:
            count = np.array([float(devices)])
            shared = placements.shared(self.fit.parameters, count, self.scale.of(1))
            found = (self._table.computing_s(1, batch) or 0.0) * float(shared[0])
        return found

    def _uncertainty(
        self, devices: tuple[int, ...], share: float, grown: bool, doublings: float
    ) -> Uncertainty:
        spreads = self.fit.spreads
        nodes = len(devices)
        several = {"nodes": 0.0, "node": spreads.carried, "device": spreads.network}
        alone = {"nodes": 0.0, "node": 0.0, "device": spreads.node}
        own = (several if nodes > 1 else alone)[self.scale.known]
        shared = 1.0 - 1.0 / max(devices) if self.scale.known == "device" else 0.0
        growth = math.hypot(spreads.growth, shared * spreads.contention)
        beyond = max(0.0, math.log2(nodes / max(self.fit.most_nodes, 1)))
        return Uncertainty(
            measurement=math.hypot(spreads.step, share * spreads.exchange),
            calibration=share * own,
            model=(1.0 - share) * growth if grown else 0.0,
            extrapolation=math.hypot(
                share * DOUBLING_SPREAD * beyond, (1.0 - share) * BATCH_SPREAD * doublings
            ),
        )


def expected_data_parallel(expected: Mapping[str, float]) -> DataParallelFit:
    """What is expected of a cluster on which nothing was measured but, at most, its network.

    ``expected`` are parameters by name; the others are as in
    :data:`perfmodel.calibration.placements.PRIORS`. Intervals are as wide as that is vague.

    Raises
    ------
    InputError : no such parameter, or not a number above 0.
    """
    priors = _priors(expected)
    return DataParallelFit(
        parameters={name: prior.value for name, prior in priors.items()},
        scales={},
        spreads=UNSEEN,
        stall_fraction=0.0,
        most_nodes=1,
        steps=0,
    )


def _priors(expected: Mapping[str, float]) -> dict[str, Prior]:
    for name, value in expected.items():
        if name not in PRIORS:
            raise unknown_name("parameter", name, PRIORS)
        number(name, value, above=0.0)
    return {
        name: msgspec.structs.replace(prior, value=float(expected.get(name, prior.value)))
        for name, prior in PRIORS.items()
    }


def fit_data_parallel(
    trainings: Sequence[Training], expected: Mapping[str, float] | None = None
) -> DataParallelFit:
    """Fit to steps of DNNs on one cluster.

    ``expected`` are parameters by name that are expected where the steps tell little, in place of
    those of :data:`perfmodel.calibration.placements.PRIORS`, as of a fast network.

    Raises
    ------
    InputError : no DNN at all, two of one name, none that was run on more than one device; no such
        parameter, or not a number above 0.
    """
    names = [training.name for training in trainings]
    if len(set(names)) < len(names):
        raise InputError(f"trainings: more than one of a name: {', '.join(sorted(names))}")
    if not any(sum(step.devices) > 1 for training in trainings for step in training.steps):
        raise InputError("trainings: at least one step on more than one device is needed")
    told = _Told.of(trainings)
    point = told.fitted(_priors(expected or {}))
    parameters = placements.parameters(point)
    fit = DataParallelFit(
        parameters={name: _rounded(value) for name, value in parameters.items()},
        scales=dict(zip(names, told.scales(point), strict=True)),
        spreads=told.spreads(point),
        stall_fraction=0.0,
        most_nodes=int(told.placed.nodes.max()),
        steps=sum(len(training.steps) for training in trainings),
    )
    return msgspec.structs.replace(fit, stall_fraction=_stall(trainings))


class _Told:
    """Measured steps on more than one device, as a fit sees them."""

    def __init__(self, placed: Placed, step_s: Floats, who: NDArray[np.int64], names: int) -> None:
        self.placed, self.step_s, self.who, self.names = placed, step_s, who, names
        several = placed.nodes > 1
        self.several = several
        self.weight = np.zeros(len(step_s))
        for index in range(names):
            for chosen, many, spread in (
                (several, AS_MANY[0], STEP_SPREAD),
                (~several, AS_MANY[1], GROWTH_SPREAD),
            ):
                own = chosen & (who == index)
                if own.any():
                    self.weight[own] = math.sqrt(many / own.sum()) / spread

    @classmethod
    def of(cls, trainings: Sequence[Training]) -> _Told:
        parts: list[Placed] = []
        measured: list[float] = []
        who: list[int] = []
        for index, training in enumerate(trainings):
            table = OneNode(training)
            for several in (True, False):
                steps = [
                    step
                    for step in training.steps
                    if (len(step.devices) > 1) == several and sum(step.devices) > 1
                ]
                wanted = [(step.devices, step.batch_size) for step in steps]
                parts.append(table.placed(wanted, alone=not several))
                measured.extend(step.step_s for step in steps)
                who.extend([index] * len(steps))
        columns = (np.concatenate(each) for each in zip(*map(_columns, parts), strict=True))
        return cls(Placed(*columns), np.array(measured), np.array(who, np.int64), len(trainings))

    def own(self, point: Floats) -> tuple[Floats, Floats, Floats]:
        """Logarithms of each DNN's scales on one node and on the network; its contention."""
        node, beyond, contention = point[len(PRIORS) :].reshape(3, self.names)
        return node, CARRIED * node + beyond, contention

    def scales(self, point: Floats) -> list[Scale]:
        """How each DNN differs from others."""
        found = []
        for index, (node, network, contention) in enumerate(zip(*self.own(point), strict=True)):
            several = bool((self.several & (self.who == index)).any())
            known: Literal["nodes", "node", "device"] = "nodes" if several else "node"
            if not (self.who == index).any():
                known = "device"
            found.append(
                Scale(
                    _rounded(math.exp(node)),
                    _rounded(math.exp(network)),
                    _rounded(float(contention)),
                    known,
                )
            )
        return found

    def misses(self, point: Floats) -> tuple[Floats, Floats]:
        """Logarithms of predicted over measured steps, and how much of each is the exchange."""
        node, network, contention = self.own(point)
        who = self.who
        own = Own(np.exp(node)[who], np.exp(network)[who], contention[who])
        found, share = placements.predicted_s(placements.parameters(point), self.placed, own)
        return np.log(found / self.step_s), share

    def fitted(self, priors: Mapping[str, Prior]) -> Floats:
        """The most likely parameters and scales, on the scales of a fit."""
        from scipy.optimize import least_squares

        usual = [prior.to_fit(prior.value) for prior in priors.values()]
        common = [prior.spread for prior in priors.values()]
        start = np.concatenate([usual, np.zeros(3 * self.names)])
        each = (NODE_SPREAD, NETWORK_SPREAD, CONTENTION_SPREAD)
        spread = np.concatenate([common, np.repeat(each, self.names)])

        def residuals(point: Floats) -> Floats:
            misses, _ = self.misses(point)
            return np.concatenate([self.weight * misses, (point - start) / spread])

        found = least_squares(
            residuals, start, loss="soft_l1", x_scale=spread, diff_step=1e-4, max_nfev=60
        )
        return np.asarray(found.x)

    def spreads(self, point: Floats) -> Spreads:
        """What the fit leaves open."""
        misses, share = self.misses(point)
        several, size = self.several, np.abs(misses)
        least = several & (share <= np.median(share[several])) if several.any() else several
        most = several & ~least
        step = max(LEAST_SPREAD, _spread(size[least]))
        excess = np.maximum(size[most] ** 2 - (WIDTH * step) ** 2, 0.0)
        exchange = max(LEAST_SPREAD, _spread(np.sqrt(excess) / np.maximum(share[most], 0.1)))
        node, network, contention = self.own(point)
        run = np.array([bool((several & (self.who == i)).any()) for i in range(self.names)])
        growth = _spread(size[~several])
        return Spreads(
            step=_rounded(step),
            exchange=_rounded(exchange),
            node=_rounded(_among(node, NODE_SPREAD)),
            carried=_rounded(_among((network - CARRIED * node)[run], NETWORK_SPREAD)),
            network=_rounded(
                _among(network[run], math.hypot(NETWORK_SPREAD, CARRIED * NODE_SPREAD))
            ),
            growth=_rounded(max(growth, LEAST_SPREAD) if growth else UNSEEN_GROWTH),
            contention=_rounded(_among(contention, CONTENTION_SPREAD)),
        )


def _own_scale(fit: DataParallelFit, training: Training) -> Scale:
    """How a DNN differs from others, from its steps on one node."""
    from scipy.optimize import least_squares

    steps = [s for s in training.steps if len(s.devices) == 1 and s.devices[0] > 1]
    if not steps:
        return Scale()
    wanted = [(step.devices, step.batch_size) for step in steps]
    placed = OneNode(training).placed(wanted, alone=True)
    measured = np.array([step.step_s for step in steps])
    weight = math.sqrt(AS_MANY[1] / len(steps)) / GROWTH_SPREAD
    spread = np.array([NODE_SPREAD, CONTENTION_SPREAD])

    def scale(point: Floats) -> Scale:
        own = float(point[0])
        return Scale(math.exp(own), math.exp(CARRIED * own), float(point[1]), "node")

    def residuals(point: Floats) -> Floats:
        own = scale(point).of(len(steps))
        found, _ = placements.predicted_s(fit.parameters, placed, own)
        return np.concatenate([weight * np.log(found / measured), point / spread])

    start = np.zeros(2)
    return scale(least_squares(residuals, start, loss="soft_l1", diff_step=1e-4).x)


def _stall(trainings: Sequence[Training]) -> float:
    """How much of the fullest node's computing shows on a first node that is less full."""
    shown, full = [], []
    for training in trainings:
        table = OneNode(training)
        for step in training.steps:
            if max(step.devices) > step.devices[0] and step.waiting_s < step.step_s:
                own = table.computing_s(step.devices[0], step.batch_size)
                most = table.computing_s(max(step.devices), step.batch_size)
                if own and most:
                    shown.append(math.log((step.step_s - step.waiting_s) / own))
                    full.append(math.log(most / own))
    x, y = np.array(full), np.array(shown)
    if not (x**2).sum() > 0.0:
        return 0.0
    return _rounded(float(np.clip((x @ y) / (x @ x), 0.0, 1.0)))


def _columns(placed: Placed) -> tuple[Floats, ...]:
    return tuple(getattr(placed, name) for name in Placed.__dataclass_fields__)


def _spread(sizes: Floats) -> float:
    """Standard deviation of which 9 in 10 are within these sizes; 0 of none."""
    return float(np.quantile(sizes, 0.9)) / WIDTH if len(sizes) else 0.0


def _among(values: Floats, expected: float) -> float:
    """Standard deviation of another value, from those at hand and what was expected of them."""
    count = len(values)
    variance = (expected**2 + float(np.sum(values**2))) / (1 + count)
    return math.sqrt(variance * (1.0 + 1.0 / max(count, 1)))


def _rounded(value: float) -> float:
    """Six digits: no measurement has more."""
    return float(f"{value:.6g}")
