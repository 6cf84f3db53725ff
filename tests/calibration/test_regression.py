"""The regression used by all calibrations: its estimates and their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from perfmodel.base.arrays import Floats
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.regression import Regression
from perfmodel.calibration.statistics import spread_of

SIZES = np.geomspace(1.0, 1000.0, 40)
TRUTH = {"startup_s": 5.0, "per_byte_s": 0.25}
PRIORS = [Parameter("startup_s", 1.0, 2.3, "s"), Parameter("per_byte_s", 1.0, 2.3, "s")]


def line(noise: float = 0.0, seed: int = 0, wrong: tuple[int, ...] = ()) -> Regression:
    """Message times: a startup plus a part proportional to size."""
    times = TRUTH["startup_s"] + TRUTH["per_byte_s"] * SIZES
    logs = np.log(times) + noise * np.random.default_rng(seed).standard_normal(len(SIZES))
    logs[list(wrong)] += 3.0

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        startup_s = values.get("startup_s", np.ones(points))[:, None]
        found: Floats = np.log(startup_s + values["per_byte_s"][:, None] * SIZES) - logs
        return found

    return Regression(PRIORS, misses, np.full(len(SIZES), max(noise, 0.01)))


def test_the_true_parameters_are_recovered() -> None:
    problem = line()
    x, _ = problem.fit()
    assert problem.values(x) == pytest.approx(TRUTH, rel=1e-3)


def test_near_a_point_residuals_are_those_of_the_line_through_it() -> None:
    problem = line()
    x, step = problem.centre, np.array([0.01, -0.01])
    points = np.array([x, x + step, x + 200.0 * step])
    apart = np.abs(problem.near(x, 0.02).misses(points) - problem.misses(points)).max(axis=1)
    assert apart[0] < 1e-12
    assert apart[1] < 1e-4
    assert apart[2] > 0.1


def test_outliers_move_the_fit_little() -> None:
    problem = line(0.02, wrong=(3, 30))
    x, _ = problem.fit()
    assert problem.values(x) == pytest.approx(TRUTH, rel=0.05)


def test_without_values_the_prior_stays() -> None:
    problem = line()
    x = problem.solve([problem.centre + 1.0], of=slice(0))
    assert problem.values(x) == pytest.approx({"startup_s": 1.0, "per_byte_s": 1.0}, rel=1e-4)


@pytest.mark.slow
def test_the_covariance_matches_repeated_fits() -> None:
    found, covariances = [], []
    for seed in range(200):
        problem = line(0.05, seed)
        x, scale = problem.fit()
        found.append(x)
        covariances.append(problem.log_covariance(x, scale))
    seen = np.sqrt(np.diag(np.cov(np.array(found).T)))
    expected = np.sqrt(np.diag(np.mean(covariances, axis=0)))
    assert expected == pytest.approx(seen, rel=0.3)


def test_covariances_of_other_scales_are_converted_to_logarithms() -> None:
    """A fraction of 0.8 whose logit is known to 0.1, which is 0.02 of its logarithm."""
    p = Parameter("fraction", 0.5, 1.4, scale="logit")

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        at = np.log(values["fraction"] / (1.0 - values["fraction"]))
        return np.repeat((at - math.log(4.0))[:, None], 100, axis=1)

    problem = Regression([p], misses, np.ones(100))
    x = problem.solve([problem.centre])
    variance = problem.log_covariance(x, 1.0)[0][0]
    assert problem.values(x)["fraction"] == pytest.approx(0.8, rel=0.01)
    assert math.sqrt(variance) == pytest.approx(0.1 * 0.2, rel=0.1)


def test_groups_are_predicted_by_fits_without_them() -> None:
    """The largest messages say little about the startup, so fits to them miss the smallest."""
    problem = line(0.05)
    x, scale = problem.fit()
    apart = problem.left_out(["small"] * 32 + ["large"] * 8, x, scale).misses
    one_by_one = problem.left_out(list(range(40)), x, scale).misses
    bias, usual = abs(apart[:10].mean()), abs(one_by_one[:10].mean())
    assert bias > 3.0 * usual
    # canary: residuals of the full fit are smaller
    assert np.std(problem.misses(x[None])[0]) < np.std(one_by_one)


def machines(noise: float, count: int = 20, runs: int = 3) -> tuple[Regression, list[int]]:
    """Runs of machines with a factor each, whose prior standard deviation is 1."""
    generator = np.random.default_rng(1)
    of = np.repeat(np.arange(count), runs)
    logs = generator.standard_normal(count)[of] + noise * generator.standard_normal(len(of))

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        found: Floats = np.log(np.stack([values[f"m{i}"] for i in of], axis=1)) - logs
        return found

    factors = [Parameter(f"m{i}", 1.0, 1.0) for i in range(count)]
    return Regression(factors, misses, np.full(len(of), noise)), of.tolist()


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_a_spread_excludes_what_parameters_explain(noise: float) -> None:
    """The error for a held-out machine is as large as its factor is unknown: no further spread."""
    problem, groups = machines(noise)
    x, scale = problem.fit()
    found = problem.left_out(groups, x, scale)
    assert np.sqrt(found.explained) == pytest.approx(np.ones(len(groups)), rel=0.2)
    assert found.spread(20) == pytest.approx(noise, rel=0.3)
    assert spread_of(found.misses, 20) > 0.5  # canary: the effect of the factors is larger


def test_large_moves_are_refitted_exactly() -> None:
    """Steps 1 + f, with f near 10 by each of two groups of its own, and expected to be 1."""

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        steps = np.repeat(1.0 + np.stack([values["a"], values["b"]], axis=1), 3, axis=1)
        found: Floats = np.log(steps / 11.0)
        return found

    both = [Parameter(name, 1.0, 1.0) for name in "ab"]
    problem = Regression(both, misses, np.full(6, 0.02))
    x, scale = problem.fit()
    near, groups = problem.near(x, 0.01), [0, 0, 0, 1, 1, 1]
    linear = near.left_out(groups, x, scale)
    exact = near.left_out(groups, x, scale, exact=lambda at, of: problem.misses(at[None])[0, of])
    assert exact.misses == pytest.approx(np.full(6, math.log(2.0 / 11.0)), abs=0.05)
    assert linear.misses.max() < math.log(2.0 / 11.0) - 0.2  # canary


def test_only_named_parameters_are_fitted() -> None:
    problem = line()
    problem.names = ["per_byte_s"]
    x, _ = problem.fit()
    assert list(problem.values(x)) == ["per_byte_s"]
    assert problem.effect("per_byte_s") > 1.0


def features(of: Floats) -> list[dict[str, float]]:
    return [{"workers": float(value), "nodes": 1.0} for value in of]


def test_remaining_uncertainty_is_recorded() -> None:
    problem = line(0.05)
    x, scale = problem.fit()
    apart = problem.left_out(list(range(40)), x, scale)
    paths = {"per_byte_s": "nic.latency_s"}
    found = problem.calibration(x, scale, paths, left_out=apart, features=features(SIZES))
    assert found.parameters == ("nic.latency_s",)
    assert found.covariance == ((problem.log_covariance(x, scale)[1][1],),)
    assert found.spread == pytest.approx(0.05, rel=0.3)
    assert found.ranges == {"workers": pytest.approx((1.0, 1000.0)), "nodes": (1.0, 1.0)}
    assert found.growth["nodes"] == pytest.approx(0.03)  # no information: the prior
    assert found.rows == 40


def test_growth_measures_how_errors_increase_with_size() -> None:
    """Times that grow with the square root of the size, fitted as proportional to it."""
    logs = np.log(np.sqrt(SIZES))

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        found: Floats = np.log(values["per_byte_s"][:, None] * SIZES) - logs
        return found

    wrong = Regression(PRIORS[1:], misses, np.full(len(SIZES), 0.1))
    x, scale = wrong.fit()
    right = line(0.02)
    y, other = right.fit()
    assert wrong.growth(SIZES, x, scale) > 0.2 > 3.0 * right.growth(SIZES, y, other)
