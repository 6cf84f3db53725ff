r"""Fits data-parallel training to steps measured on few nodes, to predict other placements of
devices.

The formula is in :mod:`perfmodel.calibration.placements.model`. All DNNs on a cluster share its
links. Traits of a DNN are fitted as far as its steps identify them, and otherwise shrunk to those
of most DNNs. The time its bytes take on the network is fitted to steps on several nodes or, with
weight :data:`CARRIED` (of logarithms), to steps on one node. Regularised least squares of
logarithms with soft tails (Gelman, Hill, "Data Analysis Using Regression and
Multilevel/Hierarchical Models", 2007, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.uncertainty import WIDTH, Uncertainty
from perfmodel.calibration.placements import model
from perfmodel.calibration.placements.model import PRIORS, TRAITS, Own, Placed, Prior
from perfmodel.calibration.placements.table import OneNode, Training, check_devices, stall_fraction
from perfmodel.calibration.placements.traits import (
    UNSEEN,
    UNSEEN_GROWTH,
    Scale,
    Spreads,
)

CARRIED = 0.5
"""Fraction of a DNN's logarithmic deviation on one node that carries over to the network."""

KEPT = 0.5
"""Fraction of a one-node step's logarithmic deviation from the formula that carries over to
others."""

GIVEN_SPREAD = 0.2
"""Standard deviation, of the logarithm, of a parameter whose expectation the caller gives."""

STEP_SPREAD, NODE_STEP_SPREAD, GROWTH_SPREAD = 0.07, 0.1, 0.1
"""Expected standard deviations of logarithms: of steps on several nodes, of steps on one, and of
the growth of computing time on a node."""

AS_MANY, AS_MANY_GROWTHS = (200, 60), 20
"""Effective number of steps of each DNN on several nodes and on one, whatever their actual number;
and effective number of observed growths of computing time."""

LEAST_SPREAD = 0.02
"""Lower limit of fitted standard deviations."""

DOUBLING_SPREAD, BATCH_SPREAD = 0.1, 0.1
"""Standard deviation added to an exchange for each doubling of nodes beyond those fitted to, and to
computing for each doubling of the batch beyond those measured. Assumptions."""


class PlacedStep(msgspec.Struct, frozen=True):
    """A predicted step: seconds, waiting fraction of the first device, and uncertainty."""

    step_s: float
    idle_fraction: float
    uncertainty: Uncertainty


class DataParallelFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A calibrated cluster (schema ``perfmodel.data-parallel-fit/1``).

    Attributes
    ----------
    parameters : by name, as in :data:`perfmodel.calibration.placements.model.PRIORS`; SI.
    scales : of each DNN that was run on several nodes or devices.
    carried_fraction : fraction of a DNN's logarithmic deviation on one node that carries over to
    the network; 0 where no other DNN was measured on one node.
    stall_fraction : fraction of the fullest node's extra computing time that appears as computing
    on the first node, in logarithms; the rest appears as waiting.
    most_nodes : of the steps that were fitted to.
    steps : how many were fitted to.
    """

    schema: Literal["perfmodel.data-parallel-fit/1"] = "perfmodel.data-parallel-fit/1"
    parameters: dict[str, float]
    scales: dict[str, Scale]
    spreads: Spreads
    carried_fraction: float
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
        """How a DNN differs from others: as fitted, or from its steps on one node."""
        found = self.scales.get(training.name)
        return _own_scale(self, training) if found is None else found


class Predictor:
    """Predicts steps of one DNN from its steps on one node and a calibrated cluster."""

    def __init__(self, fit: DataParallelFit, training: Training) -> None:
        self.fit, self._table = fit, OneNode(training)
        self.scale = fit.scale(training)

    def predict(self, devices: Sequence[int], batch_size: int) -> PlacedStep:
        """A step with so many devices on each node, and so many samples on each device.

        Uses the computing time on as many devices of one node as the fullest node has; if that was
        not measured, or its waiting time is unknown, the computing time on one device. A step on
        one node is the measured one, if there is one.

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
        own = self.scale.of(len(wanted))
        steps, shares = model.predicted_s(self.fit.parameters, rows, own)
        steps = steps * self._beyond_formula(wanted) ** KEPT
        found = []
        for index, (devices, batch_size) in enumerate(wanted):
            first = self._computing_s(devices[0], batch_size)
            full = self._computing_s(max(devices), batch_size)
            stalled = self.fit.stall_fraction
            shown = first ** (1.0 - stalled) * full**stalled
            alone = self._table.step_s(devices[0], batch_size) if len(devices) == 1 else None
            step = float(steps[index]) if alone is None else alone
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

    def _beyond_formula(self, wanted: Sequence[tuple[tuple[int, ...], int]]) -> Floats:
        """Ratio of measured steps on the fullest node alone to those of the formula."""
        alone = [((max(devices),), batch_size) for devices, batch_size in wanted]
        rows = self._table.placed(alone)
        found, _ = model.predicted_s(self.fit.parameters, rows, self.scale.of(len(wanted)))
        measured = [self._table.step_s(devices[0], batch_size) for devices, batch_size in alone]
        return np.array(
            [1.0 if step is None else step / own for step, own in zip(measured, found, strict=True)]
        )

    def _computing_s(self, devices: int, batch: int) -> float:
        """Computing time of the first of so many devices on one node, without waiting."""
        known = devices == 1 or self._table.tells_waiting
        found = self._table.computing_s(devices, batch) if known else None
        if found is None:
            count = np.array([float(devices)])
            shared = model.shared(count, self.scale.of(1).contention)
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
    """Expectation for a cluster without measurements, except possibly of its network.

    ``expected`` are parameters by name; the others are as in
    :data:`perfmodel.calibration.placements.model.PRIORS`. Intervals are accordingly wide.

    Raises
    ------
    InputError : no such parameter, or not a number above 0.
    """
    priors = _priors(expected)
    return DataParallelFit(
        parameters={name: prior.value for name, prior in priors.items()},
        scales={},
        spreads=UNSEEN,
        carried_fraction=0.0,
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
        name: msgspec.structs.replace(prior, value=float(expected[name]), spread=GIVEN_SPREAD)
        if name in expected
        else prior
        for name, prior in PRIORS.items()
    }


def fit_data_parallel(
    trainings: Sequence[Training], expected: Mapping[str, float] | None = None
) -> DataParallelFit:
    """Fit to steps of DNNs on one cluster.

    ``expected`` are prior values of parameters by name, in place of those of
    :data:`perfmodel.calibration.placements.model.PRIORS`, for example of a fast network.

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
    measured = _MeasuredSteps(trainings)
    parameters, point = measured.fitted(_priors(expected or {}))
    fit = DataParallelFit(
        parameters={name: _rounded(value) for name, value in parameters.items()},
        scales=dict(zip(names, measured.scales(point), strict=True)),
        spreads=measured.spreads(parameters, point),
        carried_fraction=CARRIED,
        stall_fraction=0.0,
        most_nodes=int(measured.placed.nodes.max()),
        steps=sum(len(training.steps) for training in trainings),
    )
    return msgspec.structs.replace(fit, stall_fraction=stall_fraction(trainings))


class _MeasuredSteps:
    """Measured steps on more than one device, in arrays for the fit."""

    def __init__(self, trainings: Sequence[Training], carried: float = CARRIED) -> None:
        self.names, self.carried = len(trainings), carried
        priors = TRAITS.values()
        self.usual = np.repeat([prior.to_fit(prior.value) for prior in priors], self.names)
        self.spread = np.repeat([prior.spread for prior in priors], self.names)
        placed: list[Placed] = []
        step_s: list[float] = []
        dnn: list[int] = []
        grown: list[tuple[float, float, float]] = []
        for index, training in enumerate(trainings):
            own = OneNode(training)
            steps = [step for step in training.steps if sum(step.devices) > 1]
            placed.append(own.placed((step.devices, step.batch_size) for step in steps))
            step_s.extend(step.step_s for step in steps)
            dnn.extend([index] * len(steps))
            grown.extend((index, *growth) for growth in own.growths())
        columns = (np.concatenate(each) for each in zip(*map(_columns, placed), strict=True))
        self.placed, self.step_s = Placed(*columns), np.array(step_s)
        self.dnn = np.array(dnn, np.int64)
        self.several = self.placed.nodes > 1
        table = np.array(grown).reshape(-1, 3)
        self.grower, self.growing, self.growth = (
            table[:, 0].astype(np.int64),
            table[:, 1],
            table[:, 2],
        )
        self.weight, self.growth_weight = np.zeros(len(step_s)), np.zeros(len(grown))
        for index in range(self.names):
            mine = self.dnn == index
            _weigh(self.weight, mine & self.several, AS_MANY[0], STEP_SPREAD)
            _weigh(self.weight, mine & ~self.several, AS_MANY[1], NODE_STEP_SPREAD)
            _weigh(self.growth_weight, self.grower == index, AS_MANY_GROWTHS, GROWTH_SPREAD)

    def traits(self, point: Floats) -> dict[str, Floats]:
        """Traits of each DNN, by name."""
        fitted = dict(zip(TRAITS, point.reshape(len(TRAITS), self.names), strict=True))
        found = {
            name: np.array([prior.from_fit(float(value)) for value in fitted[name]])
            for name, prior in TRAITS.items()
        }
        found["network"] = found["network"] * found["node"] ** self.carried
        return found

    def misses(self, given: dict[str, float], point: Floats) -> tuple[Floats, Floats]:
        """Logarithms of predicted over measured steps, and their elasticity in the exchange."""
        own = Own(**{name: values[self.dnn] for name, values in self.traits(point).items()})
        found, share = model.predicted_s(given, self.placed, own)
        return np.log(found / self.step_s), share

    def growth_misses(self, point: Floats) -> Floats:
        """The same for the growth of computing time on a node."""
        contention = self.traits(point)["contention"][self.grower]
        return np.asarray(np.log(model.shared(self.growing, contention) / self.growth))

    def residuals(self, given: dict[str, float], point: Floats) -> Floats:
        """Weighted misfits, and deviations of traits from their priors."""
        misses, _ = self.misses(given, point)
        return np.concatenate(
            [
                self.weight * misses,
                self.growth_weight * self.growth_misses(point),
                (point - self.usual) / self.spread,
            ]
        )

    def fitted_traits(self, given: dict[str, float]) -> Floats:
        """The most likely traits, given the parameters of a cluster."""
        return _least(lambda point: self.residuals(given, point), self.usual, self.spread)

    def fitted(self, priors: Mapping[str, Prior]) -> tuple[dict[str, float], Floats]:
        """The most likely parameters, and traits on the scales of a fit."""
        usual = np.array([prior.to_fit(prior.value) for prior in priors.values()])
        spread = np.array([prior.spread for prior in priors.values()])
        count = len(usual)

        def residuals(point: Floats) -> Floats:
            own = self.residuals(model.parameters(point[:count]), point[count:])
            return np.concatenate([own, (point[:count] - usual) / spread])

        start, spreads = (
            np.concatenate(each) for each in ((usual, self.usual), (spread, self.spread))
        )
        found = _least(residuals, start, spreads)
        return model.parameters(found[:count]), found[count:]

    def scales(self, point: Floats) -> list[Scale]:
        """How each DNN differs from others."""
        found = []
        traits = self.traits(point)
        for index in range(self.names):
            own = self.dnn == index
            known: Literal["nodes", "node", "device"] = "device"
            if own.any():
                known = "nodes" if (self.several & own).any() else "node"
            values = {name: _rounded(float(each[index])) for name, each in traits.items()}
            found.append(Scale(**values, known=known))
        return found

    def spreads(self, given: dict[str, float], point: Floats) -> Spreads:
        """Residual standard deviations."""
        misses, share = self.misses(given, point)
        several, size = self.several, np.abs(misses)
        least = several & (share <= np.median(share[several])) if several.any() else several
        most = several & ~least
        step = max(LEAST_SPREAD, self._of_another(size, least))
        excess = np.maximum(size[most] ** 2 - (WIDTH * step) ** 2, 0.0)
        exchange = max(LEAST_SPREAD, _spread(np.sqrt(excess) / np.maximum(share[most], 0.1)))
        traits = self.traits(point)
        node, network = np.log(traits["node"]), np.log(traits["network"])
        of_node, beyond = TRAITS["node"].spread, TRAITS["network"].spread
        run = np.array([bool((several & (self.dnn == i)).any()) for i in range(self.names)])
        growth = _spread(np.abs(self.growth_misses(point)))
        return Spreads(
            step=_rounded(step),
            exchange=_rounded(exchange),
            node=_rounded(_among(node, of_node)),
            carried=_rounded(_among((network - CARRIED * node)[run], beyond)),
            network=_rounded(_among(network[run], math.hypot(beyond, CARRIED * of_node))),
            growth=_rounded(max(growth, LEAST_SPREAD) if growth else UNSEEN_GROWTH),
            contention=_rounded(_among(traits["contention"], TRAITS["contention"].spread)),
        )

    def _of_another(self, size: Floats, chosen: NDArray[np.bool_]) -> float:
        """Spread of the chosen misfits for a new DNN; each DNN in the data counts once."""
        found = [_spread(size[chosen & (self.dnn == index)]) for index in range(self.names)]
        found = [spread for spread in found if spread]
        return math.sqrt(sum(spread**2 for spread in found) * (1 + len(found))) / max(len(found), 1)


def _weigh(weight: Floats, chosen: NDArray[np.bool_], many: int, spread: float) -> None:
    """Weigh the chosen residuals as so many in total, each with this spread."""
    if chosen.any():
        weight[chosen] = math.sqrt(many / chosen.sum()) / spread


def _least(residuals: Callable[[Floats], Floats], start: Floats, spread: Floats) -> Floats:
    """Minimum of the soft L1 loss of residuals."""
    from scipy.optimize import least_squares

    found = least_squares(
        residuals, start, loss="soft_l1", x_scale=spread, diff_step=1e-4, max_nfev=60
    )
    return np.asarray(found.x)


def _own_scale(fit: DataParallelFit, training: Training) -> Scale:
    """How a DNN differs from others, from its steps on one node."""
    steps = tuple(step for step in training.steps if len(step.devices) == 1)
    if all(step.devices == (1,) for step in steps):
        return Scale()
    measured = _MeasuredSteps(
        [msgspec.structs.replace(training, steps=steps)], fit.carried_fraction
    )
    return measured.scales(measured.fitted_traits(fit.parameters))[0]


def _columns(placed: Placed) -> tuple[Floats, ...]:
    return tuple(getattr(placed, name) for name in Placed.__dataclass_fields__)


def _spread(sizes: Floats) -> float:
    """Standard deviation of a normal distribution with the same 90 % quantile of sizes; 0 for
    none."""
    return float(np.quantile(sizes, 0.9)) / WIDTH if len(sizes) else 0.0


def _among(values: Floats, expected: float) -> float:
    """Predictive standard deviation of a new value, from the values and the expected one."""
    count = len(values)
    variance = (expected**2 + float(np.sum(values**2))) / (1 + count)
    return math.sqrt(variance * (1.0 + 1.0 / max(count, 1)))


def _rounded(value: float) -> float:
    """Round to six digits, which is more than any measurement has."""
    return float(f"{value:.6g}")
