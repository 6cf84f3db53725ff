"""Data-parallel training calibrated from placements, on made-up clusters that are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.calibration.placements.fit import (
    DataParallelFit,
    Predictor,
    expected_data_parallel,
    fit_data_parallel,
)
from perfmodel.calibration.placements.table import OneNode, Step, Training

TRUTH = {"flow": 1.2e-9, "pair": 1.5, "inside": 0.4e-9, "share": 0.15, "hide": 0.5, "sharp": 4.0}
"""Seconds per byte between and within nodes, and the factors of the module's text."""

FEW = [(1,), (2,), (3,), (4,)]
SEVERAL = [(1, 1), (2, 2), (4, 4), (1, 4), (1, 1, 1), (2, 2, 2), (4, 4, 4)]
MORE = [(2,) * 4, (4,) * 4, (4,) * 8, (1, 3, 3, 4)]
BATCHES = (8, 16, 32, 64)


def true_step_s(
    devices: Sequence[int], batch: int, size: float, each_s: float, own: float = 1.0
) -> tuple[float, float]:
    """Step and computing of a DNN with so many bytes that computes ``each_s`` for a sample."""
    n, nodes, most = sum(devices), len(devices), max(devices)
    computing = (0.02 + each_s * batch) * (1.0 + 0.05 * (1.0 - 1.0 / most))
    if nodes == 1:
        wire = TRUTH["inside"] * 2 * (n - 1) / n
    else:
        pair = TRUTH["pair"] if nodes == 2 else 1.0
        wire = TRUTH["flow"] * 2 * (n - 1) / n * pair * (n / nodes) ** TRUTH["share"]
    exchange = 1e-4 * (n - 1) + own * wire * size
    hide, sharp = TRUTH["hide"], TRUTH["sharp"]
    both = ((hide * computing) ** sharp + exchange**sharp) ** (1.0 / sharp)
    return (1.0 - hide) * computing + both, computing


DNNS = {"small": (20e6, 2e-3, 1.0), "middle": (100e6, 4e-3, 1.2), "large": (300e6, 8e-3, 0.85)}


def training(
    name: str,
    placements: Sequence[tuple[int, ...]],
    *,
    noise: float = 0.01,
    factor: float = 1.0,
) -> Training:
    """Steps of a DNN; ``factor`` makes those on several nodes longer than they are."""
    size, each_s, own = DNNS[name]
    generator = np.random.Generator(np.random.Philox(len(name)))
    steps = []
    for devices in placements:
        for batch in BATCHES:
            step, computing = true_step_s(devices, batch, size, each_s, own)
            step *= math.exp(noise * generator.standard_normal())
            step *= factor if len(devices) > 1 else 1.0
            steps.append(Step(devices, batch, step, max(0.0, step - computing)))
    return Training(name=name, gradient_bytes=size, steps=tuple(steps))


def errors(fit: DataParallelFit, known: Training, wanted: Sequence[tuple[int, ...]]) -> list[float]:
    size, each_s, own = DNNS[known.name]
    predictor = Predictor(fit, known)
    return [
        predictor.predict(devices, batch).step_s / true_step_s(devices, batch, size, each_s, own)[0]
        - 1.0
        for devices in wanted
        for batch in BATCHES
    ]


@pytest.fixture(scope="module")
def fit() -> DataParallelFit:
    return fit_data_parallel([training(name, [*FEW, *SEVERAL]) for name in DNNS])


@pytest.fixture(scope="module")
def others() -> DataParallelFit:
    """Nothing of the middle DNN."""
    return fit_data_parallel([training(name, [*FEW, *SEVERAL]) for name in ("small", "large")])


def test_what_was_fitted_to_is_met(fit: DataParallelFit) -> None:
    for name in DNNS:
        found = np.abs(errors(fit, training(name, FEW), SEVERAL))
        assert np.median(found) < 0.02
        assert found.max() < 0.08


def test_parameters_are_found(fit: DataParallelFit) -> None:
    found = fit.parameters
    assert found["network_s_per_byte"] == pytest.approx(TRUTH["flow"], rel=0.25)
    assert found["pair_factor"] == pytest.approx(TRUTH["pair"], rel=0.15)
    assert found["sharing_exponent"] == pytest.approx(TRUTH["share"], rel=0.2)
    scales = [fit.scales[name].network for name in DNNS]
    assert scales[1] / scales[2] == pytest.approx(1.2 / 0.85, rel=0.25)


def test_more_nodes_are_predicted(fit: DataParallelFit) -> None:
    for name in DNNS:
        assert np.abs(errors(fit, training(name, FEW), MORE)).max() < 0.12


def test_a_dnn_known_on_one_node_is_predicted(others: DataParallelFit) -> None:
    """Half of what its bytes take more is carried over from one node; the rest nothing tells."""
    found = np.abs(errors(others, training("middle", FEW), [*SEVERAL, *MORE]))
    assert np.median(found) < 0.12
    assert found.max() < 0.25


def test_a_dnn_known_on_one_device_is_predicted(others: DataParallelFit) -> None:
    """But for its bytes, which take a fifth more than those of others: nothing tells."""
    found = np.abs(errors(others, training("middle", [(1,)]), [*FEW, *SEVERAL, *MORE]))
    assert np.median(found) < 0.2
    assert found.max() < 0.35


def test_waiting_need_not_be_known() -> None:
    """What of a step on one node is waiting follows from the step on one device, too."""

    def plain(name: str, placements: Sequence[tuple[int, ...]]) -> Training:
        known = training(name, placements)
        steps = tuple(msgspec.structs.replace(step, waiting_s=0.0) for step in known.steps)
        return msgspec.structs.replace(known, steps=steps)

    found = fit_data_parallel([plain(name, [*FEW, *SEVERAL]) for name in DNNS])
    for name in DNNS:
        assert np.median(np.abs(errors(found, plain(name, FEW), [*SEVERAL, *MORE]))) < 0.06
    assert found.predict(plain("large", FEW), (4, 4), 8).idle_fraction > 0.2


def test_how_much_is_hidden_is_told_by_steps(fit: DataParallelFit) -> None:
    """A DNN whose exchange follows computing, among two whose exchange hides behind it."""
    known = training("middle", [*FEW, *SEVERAL])
    size, each_s, own = DNNS["middle"]
    steps = []
    for step in known.steps:
        exchange_s = true_step_s(step.devices, step.batch_size, size, 1e-9, own)[0] - 0.02
        computing_s = true_step_s((1,), step.batch_size, size, each_s, own)[1]
        waiting_s = max(0.0, exchange_s)
        steps.append(msgspec.structs.replace(step, step_s=computing_s + waiting_s))
        steps[-1] = msgspec.structs.replace(steps[-1], waiting_s=waiting_s)
    bare = msgspec.structs.replace(known, steps=tuple(steps))
    others = [training(name, [*FEW, *SEVERAL]) for name in ("small", "large")]
    found = fit_data_parallel([*others, bare]).scales["middle"].hidden_fraction
    assert found < 0.7 * fit.scales["middle"].hidden_fraction


def test_canary_slower_runs_make_a_slower_network(others: DataParallelFit) -> None:
    wrong = fit_data_parallel(
        [training(name, [*FEW, *SEVERAL], factor=2.0) for name in ("small", "large")]
    )
    assert wrong.parameters["network_s_per_byte"] > 1.5 * others.parameters["network_s_per_byte"]
    found = errors(wrong, training("middle", FEW), SEVERAL)
    assert np.median(found) > 0.25


def test_steps_on_one_node_are_as_measured(fit: DataParallelFit) -> None:
    known = training("large", FEW)
    for step in known.steps:
        found = fit.predict(known, step.devices, step.batch_size)
        assert found.step_s == pytest.approx(step.step_s, rel=1e-6)


def test_batches_in_between_are_interpolated(fit: DataParallelFit) -> None:
    size, each_s, own = DNNS["large"]
    known = training("large", FEW, noise=0.0)
    for devices in ((1,), (4, 4), (4, 4, 4)):
        found = fit.predict(known, devices, 24).step_s
        assert found == pytest.approx(true_step_s(devices, 24, size, each_s, own)[0], rel=0.1)


def test_waiting_is_what_is_not_computing(fit: DataParallelFit) -> None:
    size, each_s, own = DNNS["large"]
    known = training("large", FEW)
    for devices in ((1, 1), (4, 4), (2, 2, 2)):
        step, computing = true_step_s(devices, 16, size, each_s, own)
        found = fit.predict(known, devices, 16).idle_fraction
        assert found == pytest.approx(1.0 - computing / step, abs=0.04)
    assert fit.predict(known, (1,), 16).idle_fraction == pytest.approx(0.0, abs=0.02)


def test_an_embedding_cannot_be_hidden(others: DataParallelFit) -> None:
    known = training("middle", FEW)
    late = msgspec.structs.replace(known, overlap_fraction=0.0)
    devices, batch = (2, 2, 2), 64
    plain = expected_data_parallel({"network_s_per_byte": TRUTH["flow"]})
    assert (
        plain.predict(late, devices, batch).step_s
        > 1.1 * plain.predict(known, devices, batch).step_s
    )


# -- intervals -------------------------------------------------------------------------------------


def spread(fit: DataParallelFit, known: Training, devices: tuple[int, ...], batch: int) -> float:
    return fit.predict(known, devices, batch).uncertainty.total


def test_intervals_widen_with_what_is_not_known(
    fit: DataParallelFit, others: DataParallelFit
) -> None:
    device, node = training("middle", [(1,)]), training("middle", FEW)
    nodes = (4, 4, 4)
    known = [
        spread(fit, node, nodes, 16),
        spread(others, node, nodes, 16),
        spread(others, device, nodes, 16),
    ]
    assert known == sorted(known)
    assert known[0] < 0.5 * known[2]
    unseen = expected_data_parallel({})
    assert spread(unseen, device, nodes, 16) > known[2]


def test_intervals_widen_beyond_what_was_fitted_to(fit: DataParallelFit) -> None:
    known = training("large", FEW)
    within, twice, far = (fit.predict(known, (4,) * n, 16).uncertainty for n in (3, 6, 48))
    assert within.extrapolation == 0.0
    assert 0.0 < twice.extrapolation < 0.5 * far.extrapolation
    assert spread(fit, known, (4, 4), 64) < spread(fit, known, (4, 4), 512)


def test_intervals_hold_nine_in_ten(others: DataParallelFit) -> None:
    """With noise of 5 %, as much in the steps predicted as in those fitted to."""
    noisy = fit_data_parallel(
        [training(name, [*FEW, *SEVERAL], noise=0.05) for name in ("small", "large")]
    )
    every = training("middle", [*FEW, *SEVERAL], noise=0.05)
    known = training("middle", FEW, noise=0.05)
    inside = []
    for step in every.steps[len(known.steps) :]:
        found = noisy.predict(known, step.devices, step.batch_size)
        low, high = found.uncertainty.interval(found.step_s)
        inside.append(low <= step.step_s <= high)
    assert np.mean(inside) >= 0.8


# -- files and mistakes ----------------------------------------------------------------------------


def test_a_fit_can_be_written_and_read(fit: DataParallelFit) -> None:
    again = msgspec.json.decode(msgspec.json.encode(fit), type=DataParallelFit)
    assert again == fit
    known = training("small", FEW)
    assert again.predict(known, (4, 4), 8) == fit.predict(known, (4, 4), 8)


def test_one_node_tells_nothing_of_a_network_where_no_link_is_known(
    others: DataParallelFit,
) -> None:
    """Slow bytes on one node are the DNN's, or the node's: other DNNs tell which."""
    slow = training("middle", FEW)
    steps = [
        msgspec.structs.replace(
            step,
            step_s=step.step_s + (0.1 if step.devices[0] > 1 else 0.0),
            waiting_s=step.waiting_s + (0.1 if step.devices[0] > 1 else 0.0),
        )
        for step in slow.steps
    ]
    slow = msgspec.structs.replace(slow, steps=tuple(steps))
    assert others.scale(slow).network > 1.1
    assert expected_data_parallel({}).scale(slow).network == pytest.approx(1.0, abs=0.01)


def test_expected_parameters_matter_where_steps_tell_nothing() -> None:
    one = [training("small", FEW), training("large", FEW)]
    expected = {"network_s_per_byte": 1e-11}
    assert fit_data_parallel(one, expected).parameters["network_s_per_byte"] == pytest.approx(1e-11)
    assert fit_data_parallel(one).parameters["network_s_per_byte"] > 1e-10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"devices": ()}, "devices: at least one node is needed"),
        ({"devices": (0, 2)}, r"devices\[0\]: must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
        ({"step_s": 0.0}, "step_s: must be more than 0, got 0"),
        ({"waiting_s": 2.0}, "waiting_s: must be at most 1, got 2"),
    ],
)
def test_wrong_steps_are_named(changed: Mapping[str, object], message: str) -> None:
    good = Step((1,), 8, 1.0, 0.1)
    with pytest.raises(InputError, match=message):
        msgspec.structs.replace(good, **changed)


def test_mistakes_are_named(fit: DataParallelFit) -> None:
    small = training("small", FEW)
    with pytest.raises(InputError, match="small: steps: at least one on a single device"):
        training("small", SEVERAL)
    with pytest.raises(InputError, match="more than one of a name: small, small"):
        fit_data_parallel([small, small])
    for none in ([], [training("small", [(1,)])]):
        with pytest.raises(InputError, match="at least one step on more than one device"):
            fit_data_parallel(none)
    with pytest.raises(InputError, match=r"devices\[1\]: must be at least 1"):
        fit.predict(small, (2, 0), 8)
    with pytest.raises(InputError, match="batch_size: must be at least 1"):
        fit.predict(small, (2, 2), 0)
    with pytest.raises(InputError, match="unknown parameter 'latency'; did you mean 'latency_s'"):
        expected_data_parallel({"latency": 1e-4})
    with pytest.raises(InputError, match="latency_s: must be more than 0"):
        fit_data_parallel([small], {"latency_s": 0.0})
    with pytest.raises(InputError, match="parameters: 'pair_factor' is missing"):
        msgspec.structs.replace(
            fit, parameters={k: v for k, v in fit.parameters.items() if k != "pair_factor"}
        )


def test_equal_steps_count_as_their_mean() -> None:
    steps = (Step((1,), 8, 1.0), Step((1,), 8, 3.0))
    table = OneNode(Training(name="any", gradient_bytes=1e6, steps=steps))
    assert table.step_s(1, 8) == 2.0
    assert table.step_s(2, 8) is None
