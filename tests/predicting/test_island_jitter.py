"""The jitter of islands' rounds, against draws of every device's time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from tests.jobs import workload

ROUNDS = 20_000


def islands(devices: int, steps: int, jitter: pm.Jitter, **more: Any) -> pm.Job:
    """Two islands whose devices compute for 1 + 2 s, and then exchange 8 bytes at 4 bytes/s."""
    where = pm.Cluster(
        name="nodes",
        nic=pm.Link(1.0),
        devices_per_node=devices,
        intra_node=pm.IntraNode(4.0, kind="per_device"),
        source=pm.Source("exact", "by hand"),
    )
    return pm.make_job(
        workload=workload([1.0], [2.0], [8.0]),
        cluster=where,
        workers=2,
        arch="allreduce",
        island_devices=devices,
        island_steps=steps,
        island_options={"algorithm": "ring", "bucketing": "one"},
        jitter=jitter,
        **more,
    )


def drawn_cv(devices: int, steps: int, jitter: pm.Jitter) -> float:
    """Coefficient of variation of rounds of ``steps`` steps, each with the slowest device's time
    and an exchange among the devices: 2 (n - 1) / n of 8 bytes at 4 bytes/s."""
    rng = np.random.default_rng(5)
    shape = (ROUNDS, steps, devices)
    if jitter.kind == "gamma":
        factors = rng.gamma(jitter.cv**-2, jitter.cv**2, shape)
    else:
        variance = math.log1p(jitter.cv**2)
        factors = rng.lognormal(-variance / 2.0, math.sqrt(variance), shape)
    exchange_s = 2.0 * (devices - 1) / devices * 8.0 / 4.0
    rounds_s = (3.0 * factors.max(axis=2) + exchange_s).sum(axis=1)
    return float(rounds_s.std() / rounds_s.mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "steps", "kind"),
    [(8, 1, "lognormal"), (1, 4, "lognormal"), (2, 4, "gamma"), (4, 9, "lognormal")],
)
def test_a_round_varies_as_the_sum_of_its_steps(devices: int, steps: int, kind: Any) -> None:
    jitter = pm.Jitter(0.3, kind)
    found = islands(devices, steps, jitter).jitter
    assert found is not None
    assert found.cv == pytest.approx(drawn_cv(devices, steps, jitter), rel=0.03)


@pytest.mark.slow
def test_nine_steps_of_one_device_vary_a_third_as_much_as_one() -> None:
    """The sum of nine independent times has 9 times the mean and 3 times the deviation. The device
    counts as one of few quantiles, whose deviation is within 1 %."""
    found = islands(1, 9, pm.Jitter(0.3)).jitter
    assert found is not None
    assert found.cv == pytest.approx(0.1, rel=0.01)


def test_one_device_and_one_step_keep_the_jitter() -> None:
    jitter = pm.Jitter(0.3, "gamma")
    assert islands(1, 1, jitter).jitter == jitter


@pytest.mark.slow
def test_a_round_of_the_slowest_islands_lasts_as_long_as_drawn() -> None:
    """Four steps of two devices, then 8 bytes to and from the other island at 1 byte/s."""
    jitter = pm.Jitter(0.3)
    variance = math.log1p(0.3**2)
    rng = np.random.default_rng(6)
    factors = rng.lognormal(-variance / 2.0, math.sqrt(variance), (ROUNDS, 2, 4, 2))
    rounds_s = (3.0 * factors.max(axis=3) + 2.0).sum(axis=2).max(axis=1)
    asked = islands(2, 4, jitter, options={"algorithm": "ring", "bucketing": "one"})
    found = pm.predict(asked, fidelity="coarse")
    assert found.iteration_s == pytest.approx(rounds_s.mean() + 8.0, rel=0.01)
