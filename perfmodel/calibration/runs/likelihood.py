r"""How well parameters explain past runs: the least cost, and what is left unknown at it.

A run's step time is predicted by the coarse model. Parameters :math:`\theta` (logarithms, logits of
fractions) minimise

.. math:: \sum_i \rho\left( \frac{\ln t_i - \ln \hat t_i(\theta)}{s \, \sigma_i} \right)
   + \sum_j \rho\left( \frac{\theta_j - \theta_j^0}{\tau_j} \right)

with :math:`\rho` the soft L1 loss, for which a wrong run counts linearly, not squared. The second
sum is what was known before: the current value, right within a decade two times in three. So what
runs do not tell stays where it was. The scale *s* comes from the median misfit. The interval
of a parameter is where the cost is little greater if all others follow (profile likelihood: Cox,
Hinkley, "Theoretical Statistics", 1974, section 9.3). That of a prediction is of points drawn in
proportion to exp(-cost), by importance sampling (Gelman et al., "Bayesian Data Analysis", 2013,
section 10.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.calibration.runs.parameters import PARAMETERS, groups_of, now, step_s, with_overlap
from perfmodel.calibration.runs.table import PastRun
from perfmodel.calibration.statistics import Told

RUN_SPREAD = 0.03
"""Standard deviation of equal runs as a fraction of their mean, until their misfits tell better: as
in :mod:`perfmodel.calibration.servers.asynchronous_fit`."""

WEIGHT = 4.0
"""How many runs that figure counts for, against the misfits found."""

MEDIAN_EFFICIENCY = 0.37
"""Part of the runs that would tell the scale as well by their standard deviation (Rousseeuw,
Croux, J. Am. Stat. Assoc. 88, 1993, section 1: the median absolute deviation)."""

TOLERATED = 2.0
"""Standard deviations beyond which a misfit counts linearly."""

TOLD = 1.0 / 3.0
"""A parameter is told if its standard deviation is below this part of that before."""

STARTS, FINALISTS = 256, 2
"""Points that the first search looks at, and from how many of them it goes on."""

ENDS = 1.645
"""Standard deviations from the middle of a normal distribution to the ends of 90 % of it."""

SEARCHES, CLOSE, FARTHEST = 6, 0.1, 3.0
"""Steps of the search for such an end, how near it must come, and how many times as far it goes."""

DIFFERENCE = 1e-4
"""Half-width of the central differences that make derivatives, in logarithms and logits."""

DRAWS, KEPT = 2048, 512
"""Points that intervals are made of: drawn, and kept in proportion to their likelihood."""

FREEDOM = 5.0
"""Degrees of freedom of the t distribution that points are drawn from: wider than the fit's own."""


class Known(msgspec.Struct, frozen=True):
    """What runs tell of a parameter, its 90 % interval, and what else most makes up for it."""

    told: Told
    low: float
    high: float
    other: str | None


class Problem:
    """Runs with one choice of the overlap; points are coordinates, (points, parameters)."""

    def __init__(self, runs: Sequence[PastRun], overlap: bool | None, run_spread: float) -> None:
        self.overlap, self.run_spread = overlap, run_spread
        self.names: list[str] = []
        self._groups = groups_of([with_overlap(r.job, overlap) for r in runs])
        self._measured = np.log([r.step_s for r in runs])
        self._spreads = np.array([math.hypot(run_spread, r.spread_fraction) for r in runs])
        before = now(runs[0].job)
        self._centres = {name: p.coordinate(before[name]) for name, p in PARAMETERS.items()}

    @property
    def centre(self) -> Floats:
        """What was known before."""
        return np.array([self._centres[name] for name in self.names])

    @property
    def prior(self) -> Floats:
        """Standard deviations of it."""
        return np.array([PARAMETERS[name].spread for name in self.names])

    def misses(self, points: Floats) -> Floats:
        """Logarithms of predicted over measured, shape (points, runs)."""
        values = {n: PARAMETERS[n].value(points[:, i]) for i, n in enumerate(self.names)}
        found: Floats = np.log(step_s(self._groups, values, len(points))) - self._measured
        return found

    def effect(self, name: str) -> float:
        """By how much a parameter changes the run that it changes most."""
        p, centre = PARAMETERS[name], self._centres[name]
        at = centre + p.spread * np.array([-1.0, 0.0, 1.0])
        found = np.log(step_s(self._groups, {name: p.value(at)}, 3))
        return float(np.abs(found - found[1]).max())

    def residuals(self, points: Floats, scale: float, of: Any = slice(None)) -> Floats:
        """Misfits of the runs ``of``, then distances from what was known, in deviations."""
        misfits = (self.misses(points) / (scale * self._spreads))[:, of]
        return np.concatenate([misfits, (points - self.centre) / self.prior], axis=1)

    def costs(self, points: Floats, scale: float) -> Floats:
        """The module's sum at each point."""
        sizes = (self.residuals(points, scale) / TOLERATED) ** 2
        found: Floats = TOLERATED**2 * (np.sqrt(1.0 + sizes) - 1.0).sum(axis=1)
        return found

    def cost(self, x: Floats, scale: float) -> float:
        """The same at one point."""
        return float(self.costs(x[None], scale)[0])

    def starts(self) -> list[Floats]:
        """Where to begin: what was known, and the best of many points around it."""
        if not self.names:
            return [self.centre]
        generator = np.random.Generator(np.random.Philox(0))
        off = generator.standard_normal((STARTS, len(self.names)))
        points = self.centre + self.prior * off
        best = np.argsort(self.costs(points, 1.0))[:FINALISTS]
        return [self.centre, *points[best]]

    def solve(self, starts: Sequence[Floats], scale: float, of: Any = slice(None)) -> Floats:
        """The least cost of the runs ``of`` that is found from these starts."""
        if not self.names:
            return self.centre
        every = np.ones(len(self.names), bool)
        answers = [self._descend(start, every, scale, of) for start in starts]
        return min(answers, key=lambda answer: answer[0])[1]

    def _descend(
        self,
        start: Floats,
        free: NDArray[np.bool_],
        scale: float,
        of: Any = slice(None),
        precision: float = 1e-8,
    ) -> tuple[float, Floats]:
        """The least cost near a start, where only some coordinates are free; and where it is."""
        from scipy.optimize import least_squares

        slopes: dict[bytes, Floats] = {}

        def whole(some: Floats) -> Floats:
            x = start.copy()
            x[free] = some
            return x

        def residuals(some: Floats) -> Floats:
            found, slopes[some.tobytes()] = self._with_slopes(whole(some), scale, of)
            return found

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

    def _with_slopes(self, x: Floats, scale: float, of: Any = slice(None)) -> tuple[Floats, Floats]:
        """Residuals and their derivatives, all found at once: arrays cost little more than one."""
        aside = DIFFERENCE * np.eye(len(x))
        found = self.residuals(np.concatenate([x[None], x + aside, x - aside]), scale, of)
        more, less = found[1 : len(x) + 1], found[len(x) + 1 :]
        return found[0], ((more - less) / (2.0 * DIFFERENCE)).T

    def _information(self, x: Floats, scale: float) -> Floats:
        """Second derivatives of the cost, but for those of the step times."""
        residuals, slopes = self._with_slopes(x, scale)
        sizes = (residuals / TOLERATED) ** 2
        found: Floats = slopes.T @ (slopes * ((1.0 + sizes) ** -1.5)[:, None])
        return found + 1e-9 * np.diag(self.prior**-2.0)

    def _free(self, x: Floats) -> float:
        """Runs that are left when parameters are told: what is known of these before counts not."""
        told = 0.0
        if self.names:
            covariance = np.linalg.inv(self._information(x, 1.0))
            told = len(x) - float(np.trace(covariance @ np.diag(self.prior**-2.0)))
        return max(len(self._measured) - max(told, 0.0), 0.0)

    def scale(self, x: Floats) -> float:
        """How many times RUN_SPREAD runs are off, by the median: wrong runs do not count."""
        sizes = np.abs(self.residuals(x[None], 1.0)[0, : len(self._measured)])
        free = self._free(x)
        off = 1.4826 * float(np.median(sizes)) * math.sqrt(len(sizes) / max(free, 1.0))
        return math.sqrt((WEIGHT + free * off**2) / (WEIGHT + free))

    def _wider(self, x: Floats) -> float:
        """By how much intervals are wider because the scale is not known either: as Student's."""
        from scipy.special import ndtri, stdtrit

        known = WEIGHT + MEDIAN_EFFICIENCY * self._free(x)
        return float(stdtrit(known, 0.95) / ndtri(0.95))

    def told(self, x: Floats, scale: float) -> tuple[dict[str, Floats], dict[str, Known]]:
        """Draws of each parameter, and what is known of it."""
        if not self.names:
            return {}, {}
        scale *= self._wider(x)
        information = self._information(x, scale)
        points = self._drawn(x, information, scale)
        alone = np.diag(information) ** -0.5
        known = {}
        for i, name in enumerate(self.names):
            low, high, other = self._ends(i, x, information, scale)
            told: Told = "as before"
            if (high - low) / (2.0 * ENDS) < TOLD * self.prior[i]:
                told = "told"
            elif other is not None and alone[i] < TOLD * self.prior[i]:
                told = "not apart"
            p = PARAMETERS[name]
            known[name] = Known(told, float(p.value(low)), float(p.value(high)), other)
        draws = {n: PARAMETERS[n].value(points[:, i]) for i, n in enumerate(self.names)}
        return draws, known

    def _ends(
        self, i: int, x: Floats, information: Floats, scale: float
    ) -> tuple[float, float, str | None]:
        """Coordinates between which a parameter is in 90 % of cases, and what makes up for it.

        There the cost is greater by ENDS^2 / 2, if the others follow (profile likelihood).
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
        """The least cost with one coordinate given."""
        moved = start.copy()
        moved[i] = value
        free = np.arange(len(start)) != i
        return self._descend(moved, free, scale, precision=1e-4)[1] if free.any() else moved

    def _drawn(self, x: Floats, information: Floats, scale: float) -> Floats:
        """Points in proportion to exp(-cost), (KEPT, parameters); the same every time."""
        generator = np.random.Generator(np.random.Philox(2))
        normal = generator.standard_normal((DRAWS, len(x)))
        longer = np.sqrt(FREEDOM / generator.chisquare(FREEDOM, DRAWS))
        off = normal * longer[:, None]
        points: Floats = x + off @ np.linalg.cholesky(np.linalg.inv(information)).T
        proposed = -0.5 * (FREEDOM + len(x)) * np.log1p((off**2).sum(axis=1) / FREEDOM)
        weights = -self.costs(points, scale) - proposed
        shares = np.cumsum(np.exp(weights - weights.max()))
        at = (np.arange(KEPT) + 0.5) / KEPT * shares[-1]
        kept: Floats = points[np.searchsorted(shares, at)]
        return kept
