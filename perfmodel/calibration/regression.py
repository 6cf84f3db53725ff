r"""Robust maximum a posteriori fit of parameters to measured values, with intervals.

The logarithm of a value *i* is predicted from parameters with coordinates :math:`\theta`
(logarithms, logits of fractions, or the values themselves), which minimise

.. math:: \sum_i \rho\left( \frac{\ln \hat t_i(\theta) - \ln t_i}{s \, \sigma_i} \right)
   + \sum_j \rho\left( \frac{\theta_j - \theta_j^0}{\tau_j} \right)

with :math:`\rho` the soft L1 loss, which is linear for outliers. The second sum is the prior;
parameters that the values do not identify stay near it. The scale *s* comes from the median misfit.
The interval of a parameter comes from its profile likelihood (Cox, Hinkley, "Theoretical
Statistics", 1974, section 9.3). That of a prediction comes from the covariance, the inverse of the
information at the minimum, and from the misfits of held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.statistics import (
    EVERY,
    LeftOut,
    Rows,
    Status,
    nested,
    rounded,
    spread_of,
)
from perfmodel.inputs.calibration import FEATURES, Calibration
from perfmodel.predicting.intervals import DOUBLING

Misses = Callable[[Mapping[str, Floats], int], Floats]
"""Maps values by name, each of shape (points,), and the number of points to the logarithms of
predicted over measured values, shape (points, rows)."""

WEIGHT = 4.0
"""Weight of the expected spread of the misfits, as a number of rows."""

MEDIAN_EFFICIENCY = 0.37
"""Gaussian efficiency of the median absolute deviation (Rousseeuw, Croux, J. Am. Stat. Assoc. 88,
1993, section 1)."""

TOLERATED = 2.0
"""Standard deviations beyond which a misfit counts linearly."""

IDENTIFIED = 1.0 / 3.0
"""A parameter is identified if its standard deviation is below this fraction of the prior's."""

STARTS, FINALISTS = 256, 2
"""Points evaluated before the search, and how many of the best ones it starts from."""

ENDS = 1.645
"""Half-width of the central 90 % of a normal distribution, in standard deviations."""

SEARCHES, CLOSE, FARTHEST = 6, 0.1, 3.0
"""Search for the end of an interval: maximum steps, tolerance, and largest factor by which it
expands."""

DIFFERENCE = 1e-4
"""Half-width of the central differences for derivatives, in coordinates."""


Exact = Callable[[Floats, NDArray[np.int64]], Floats]
"""Maps a point (parameters,) and row numbers to the exact misfits of these rows."""


class Determination(msgspec.Struct, frozen=True):
    """Status of a parameter, its 90 % interval, and the parameter it is most correlated with."""

    status: Status
    low: float
    high: float
    other: str | None


def _losses(residuals: Floats) -> Floats:
    """The soft L1 loss of residuals in standard deviations."""
    return np.asarray(TOLERATED**2 * (np.sqrt(1.0 + (residuals / TOLERATED) ** 2) - 1.0))


class Regression:
    """Parameters, and the misfits of rows as a function of them; points are coordinates, (points,
    parameters).

    Only the parameters in ``names`` are fitted, initially all; ``misses`` does not get values of
    the others. ``spreads`` (rows,) are the expected standard deviations of the misfits; their
    inverses are weights.
    """

    def __init__(
        self, parameters: Sequence[Parameter], misses: Misses, spreads: Floats | Sequence[float]
    ) -> None:
        self.parameters = {p.name: p for p in parameters}
        self.names = list(self.parameters)
        self.spreads = np.asarray(spreads, np.float64)
        self._misses = misses

    @property
    def centre(self) -> Floats:
        """Prior means."""
        return np.array([self.parameters[name].centre for name in self.names])

    @property
    def prior(self) -> Floats:
        """Prior standard deviations."""
        return np.array([self.parameters[name].spread for name in self.names])

    def values(self, point: Floats) -> dict[str, float]:
        """Values of the parameters at a point, by name."""
        coordinates = zip(self.names, point, strict=True)
        return {name: float(self.parameters[name].at(at)) for name, at in coordinates}

    def misses(self, points: Floats) -> Floats:
        """Logarithms of predicted over measured values, shape (points, rows)."""
        if not len(points):  # differences along no coordinates: nothing is fitted
            return np.empty((0, len(self.spreads)))
        values = {
            name: np.asarray(self.parameters[name].at(points[:, i]))
            for i, name in enumerate(self.names)
        }
        return np.asarray(self._misses(values, len(points)))

    def near(self, x: Floats, difference: float) -> Regression:
        """Return a copy with misfits linearised about a point by central differences of the
        coordinates: it makes hundreds of fits without some of the rows cheap."""
        at, slopes = self.misses(x[None])[0], self._slopes(x, difference)
        parameters = [self.parameters[name] for name in self.names]

        def misses(values: Mapping[str, Floats], points: int) -> Floats:
            moved = [[p.coordinate(v) for v in values[p.name].tolist()] for p in parameters]
            return np.asarray(at + (np.array(moved).T - x) @ slopes)

        return Regression(parameters, misses, self.spreads)

    def _slopes(self, x: Floats, difference: float = DIFFERENCE) -> Floats:
        """Derivatives of the misfits, (parameters, rows)."""
        aside = difference * np.eye(len(x))
        slopes: Floats = (self.misses(x + aside) - self.misses(x - aside)) / (2.0 * difference)
        return slopes

    def effect(self, name: str) -> float:
        """Largest change of any row by one prior standard deviation of a parameter."""
        p = self.parameters[name]
        at = p.centre + p.spread * np.array([-1.0, 0.0, 1.0])
        misses = self._misses({name: np.asarray(p.at(at))}, 3)
        return float(np.abs(misses - misses[1]).max())

    def residuals(self, points: Floats, scale: float, of: Rows = EVERY) -> Floats:
        """Misfits of the rows ``of``, then distances from the prior, in standard deviations."""
        misfits = (self.misses(points) / (scale * self.spreads))[:, of]
        return np.concatenate([misfits, (points - self.centre) / self.prior], axis=1)

    def costs(self, points: Floats, scale: float) -> Floats:
        """The module's cost function at each point."""
        return np.asarray(_losses(self.residuals(points, scale)).sum(axis=1))

    def cost(self, x: Floats, scale: float) -> float:
        """The cost function at one point."""
        return float(self.costs(x[None], scale)[0])

    def data_cost(self, misses: Floats, scale: float) -> float:
        """The part of the cost that comes from misfits of shape (rows,)."""
        return float(_losses(misses / (scale * self.spreads)).sum())

    # -- the minimum -------------------------------------------------------------------------------

    def starts(self) -> list[Floats]:
        """Starting points: the prior means, and the best of many points around them."""
        if not self.names:
            return [self.centre]
        generator = np.random.Generator(np.random.Philox(0))
        off = generator.standard_normal((STARTS, len(self.names)))
        points = self.centre + self.prior * off
        best = np.argsort(self.costs(points, 1.0))[:FINALISTS]
        return [self.centre, *points[best]]

    def solve(self, starts: Sequence[Floats], scale: float = 1.0, of: Rows = EVERY) -> Floats:
        """The best minimum of the cost of the rows ``of`` from these starts."""
        if not self.names:
            return self.centre
        free = np.ones(len(self.names), bool)
        answers = [self._descend(start, free, scale, of) for start in starts]
        return min(answers, key=lambda answer: answer[0])[1]

    def fit(self) -> tuple[Floats, float]:
        """Return the minimum and the scale of the misfits there: fit with a scale of 1, then again
        with the scale found."""
        first = self.solve(self.starts())
        scale = self.scale(first)
        return self.solve([first], scale), scale

    def left_out(
        self,
        groups: Sequence[Hashable],
        x: Floats,
        scale: float,
        advance: Callable[[], None] | None = None,
        exact: Exact | None = None,
    ) -> LeftOut:
        """Predict each row from a fit without all rows of its group.

        ``groups`` (rows,) names the group of each row; ``advance`` is called after each group.
        ``exact`` is needed if misfits are linearised about a point: a parameter that only these
        rows determine may move far.
        """
        misses, explained, wider = np.empty(len(groups)), np.empty(len(groups)), self._wider(x)
        for group in dict.fromkeys(groups):
            inside = np.array([other == group for other in groups])
            of, others = np.flatnonzero(inside), np.flatnonzero(~inside)
            at = self.solve([x], scale, others)
            misses[of] = self.misses(at[None])[0, of] if exact is None else exact(at, of)
            information = self._information(at, scale * wider, others)
            covariance = np.asarray(np.linalg.inv(information), np.float64)
            explained[of] = self.explained(at, covariance)[of]
            if advance is not None:
                advance()
        return LeftOut(misses, explained, self.misses(x[None])[0])

    def _descend(
        self,
        start: Floats,
        free: NDArray[np.bool_],
        scale: float,
        of: Rows = EVERY,
        precision: float = 1e-8,
    ) -> tuple[float, Floats]:
        """Minimum of the cost near a start over the ``free`` coordinates, and its location."""
        from scipy.optimize import least_squares

        slopes: dict[bytes, Floats] = {}

        def whole(some: Floats) -> Floats:
            x = start.copy()
            x[free] = some
            return x

        def residuals(some: Floats) -> Floats:
            values, slopes[some.tobytes()] = self._with_slopes(whole(some), scale, of)
            return values

        def slopes_at(some: Floats) -> Floats:
            if some.tobytes() not in slopes:
                residuals(some)
            return slopes[some.tobytes()][:, free]

        answer = least_squares(
            residuals,
            start[free],
            slopes_at,
            loss="soft_l1",
            f_scale=TOLERATED,
            x_scale=self.prior[free],
            ftol=precision,
            xtol=precision,
            max_nfev=60,
        )
        return float(answer.cost), whole(answer.x)

    def _with_slopes(self, x: Floats, scale: float, of: Rows = EVERY) -> tuple[Floats, Floats]:
        """Residuals and their derivatives, evaluated together: an array costs little more than one
        point."""
        aside = DIFFERENCE * np.eye(len(x))
        values = self.residuals(np.concatenate([x[None], x + aside, x - aside]), scale, of)
        more, less = values[1 : len(x) + 1], values[len(x) + 1 :]
        return values[0], ((more - less) / (2.0 * DIFFERENCE)).T

    # -- what is known -----------------------------------------------------------------------------

    def covariance(self, x: Floats, scale: float) -> Floats:
        """Covariance of the coordinates, widened because the scale is estimated."""
        return np.asarray(np.linalg.inv(self._information(x, scale * self._wider(x))), np.float64)

    def explained(self, x: Floats, covariance: Floats) -> Floats:
        """Variance of each row's misfit that follows from a covariance of the coordinates at a
        point, (rows,)."""
        slopes = self._slopes(x)
        return np.asarray(np.einsum("ir,ij,jr->r", slopes, covariance, slopes))

    def log_covariance(self, x: Floats, scale: float) -> tuple[tuple[float, ...], ...]:
        """Covariance of the logarithms of the values, for
        :class:`perfmodel.inputs.calibration.Calibration`."""
        slopes = []
        for name, at in zip(self.names, x, strict=True):
            p = self.parameters[name]
            ends = np.array([at - DIFFERENCE, at + DIFFERENCE])
            low, high = np.log(np.abs(np.asarray(p.at(ends)))).tolist()
            slopes.append((high - low) / (2.0 * DIFFERENCE))
        times = np.array(slopes)
        return nested(self.covariance(x, scale) * np.outer(times, times))

    def calibration(
        self,
        x: Floats,
        scale: float,
        paths: Mapping[str, str],
        *,
        left_out: LeftOut | None = None,
        groups: int | None = None,
        features: Sequence[Mapping[str, float]] = (),
    ) -> Calibration:
        """Remaining uncertainty of the fit, as :class:`perfmodel.inputs.calibration.Calibration`.

        Parameters
        ----------
        paths : the field of each parameter that the file has, by parameter name.
        left_out : result of :meth:`left_out`; None for a file whose spread is stored in another.
        groups : number of groups left out in turn, if the rows of a group are alike.
        features : of each row's job (rows,), from
            :func:`perfmodel.predicting.intervals.features_of`.
        """
        chosen = [i for i, name in enumerate(self.names) if name in paths]
        covariance = self.log_covariance(x, scale) if chosen else ()
        count = len(self.spreads)
        names = [name for name in FEATURES if features and all(name in row for row in features)]
        columns = {name: np.array([row[name] for row in features]) for name in names}
        return Calibration(
            parameters=tuple(paths[self.names[i]] for i in chosen),
            covariance=tuple(tuple(covariance[i][j] for j in chosen) for i in chosen),
            spread=0.0 if left_out is None else rounded(left_out.spread(groups or count)),
            ranges={n: (float(v.min()), float(v.max())) for n, v in columns.items()},
            growth={n: rounded(self.growth(v, x, scale)) for n, v in columns.items()},
            rows=count,
        )

    def growth(self, feature: Floats, x: Floats, scale: float) -> float:
        """Standard deviation of the misfits per doubling of a feature beyond the fitted range.

        It is learnt from fits to the rows with the smallest values, which predict the others. The
        value assumed without any data (:data:`perfmodel.predicting.intervals.DOUBLING`) counts as
        :data:`WEIGHT` rows one doubling away.
        """
        usual = spread_of(self.misses(x[None])[0], len(feature))
        excess, weights = WEIGHT * DOUBLING**2, WEIGHT
        for most in np.unique(feature)[:-1]:
            near = np.flatnonzero(feature <= most)
            if len(near) <= len(x):
                continue
            beyond = feature > most
            misses = self.misses(self.solve([x], scale, near)[None])[0, beyond]
            doublings = np.log2(feature[beyond] / most)
            excess += float((np.maximum(misses**2 - usual**2, 0.0) * doublings**2).sum())
            weights += float((doublings**4).sum())
        return math.sqrt(excess / weights)

    def _information(self, x: Floats, scale: float, of: Rows = EVERY) -> Floats:
        """Gauss-Newton approximation of the cost's second derivatives, over the rows ``of``."""
        residuals, slopes = self._with_slopes(x, scale, of)
        sizes = (residuals / TOLERATED) ** 2
        curvature: Floats = slopes.T @ (slopes * ((1.0 + sizes) ** -1.5)[:, None])
        return curvature + 1e-9 * np.diag(self.prior**-2.0)

    def _free(self, x: Floats) -> float:
        """Degrees of freedom: the number of rows minus the parameters that they identify."""
        determined = 0.0
        if self.names:
            covariance = np.linalg.inv(self._information(x, 1.0))
            determined = len(x) - float(np.trace(covariance @ np.diag(self.prior**-2.0)))
        return max(len(self.spreads) - max(determined, 0.0), 0.0)

    def scale(self, x: Floats) -> float:
        """Scale of the misfits in units of the expected spreads, from their median, which is robust
        to outliers."""
        sizes = np.abs(self.residuals(x[None], 1.0)[0, : len(self.spreads)])
        free = self._free(x)
        off = 1.4826 * float(np.median(sizes)) * math.sqrt(len(sizes) / max(free, 1.0))
        return math.sqrt((WEIGHT + free * off**2) / (WEIGHT + free))

    def _wider(self, x: Floats) -> float:
        """Factor that widens intervals because the scale is estimated, as in Student's t."""
        from scipy.special import ndtri, stdtrit

        known = WEIGHT + MEDIAN_EFFICIENCY * self._free(x)
        return float(stdtrit(known, 0.95) / ndtri(0.95))

    def identified(self, x: Floats, scale: float) -> dict[str, Determination]:
        """Status and interval of each parameter, by name."""
        if not self.names:
            return {}
        scale *= self._wider(x)
        information = self._information(x, scale)
        alone = np.diag(information) ** -0.5
        known = {}
        for i, name in enumerate(self.names):
            low, high, other = self._ends(i, x, information, scale)
            status: Status = "not identified"
            if (high - low) / (2.0 * ENDS) < IDENTIFIED * self.prior[i]:
                status = "identified"
            elif other is not None and alone[i] < IDENTIFIED * self.prior[i]:
                status = "confounded"
            p = self.parameters[name]
            known[name] = Determination(status, float(p.at(low)), float(p.at(high)), other)
        return known

    def _ends(
        self, i: int, x: Floats, information: Floats, scale: float
    ) -> tuple[float, float, str | None]:
        """Ends of a parameter's 90 % interval, as coordinates, and the parameter that compensates
        most.

        At the ends the cost, minimised over the other parameters, is higher by ENDS^2 / 2 (profile
        likelihood).
        """
        least = self.cost(x, scale)
        first = ENDS * math.sqrt(float(np.linalg.inv(information)[i, i]))
        ends, moved = [], np.zeros(len(x))
        for sign in (-1.0, 1.0):
            off, at = first, x
            for _ in range(SEARCHES):
                at = self._following(i, float(x[i]) + sign * off, at, scale)
                more = max(self.cost(at, scale) - least, 0.0)
                times = math.sqrt(2.0 * more) / ENDS
                if abs(times - 1.0) < CLOSE:
                    break
                off *= min(max(1.0 / max(times, 1e-9), 1.0 / FARTHEST), FARTHEST)
            ends.append(float(x[i]) + sign * off)
            moved = np.maximum(moved, np.abs(at - x) / self.prior)
        moved[i] = 0.0
        other = self.names[int(np.argmax(moved))] if len(x) > 1 else None
        return ends[0], ends[1], other

    def _following(self, i: int, value: float, start: Floats, scale: float) -> Floats:
        """Minimum of the cost with one coordinate fixed."""
        moved = start.copy()
        moved[i] = value
        free = np.arange(len(start)) != i
        return self._descend(moved, free, scale, precision=1e-4)[1] if free.any() else moved
