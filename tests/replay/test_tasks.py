"""Shipped tasks, user tasks, and their data."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.replay.batches import Batches
from perfmodel.replay.data import digits, mixture
from perfmodel.replay.tasks import TASKS, make_task

OWN = """
from perfmodel.replay.data import mixture
from perfmodel.replay.tasks import network_task

def small():
    return network_task("small", mixture(samples=40), hidden=4)

def nothing():
    return 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tasks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_tasks", raising=False)


def test_a_mixture_depends_only_on_its_seed() -> None:
    first, again, other = mixture(3), mixture(3), mixture(4)
    np.testing.assert_array_equal(first.inputs, again.inputs)
    assert not np.array_equal(first.inputs, other.inputs)
    assert first.inputs.shape == (4000, 20)
    assert first.test_targets.shape == (1000,)
    assert set(first.targets.tolist()) == set(range(10))


def test_a_mixture_has_unit_variance_around_its_centres() -> None:
    data = mixture(classes=2, clusters=1, samples=20000, features=3, distance=5.0)
    for label in range(2):
        np.testing.assert_allclose(data.inputs[data.targets == label].var(axis=0), 1.0, atol=0.06)


def test_digits_are_split_once() -> None:
    pytest.importorskip("sklearn")
    data = digits()
    assert data.inputs.shape == (1438, 64)
    assert data.test_inputs.shape == (359, 64)
    assert 0.0 == data.inputs.min() < data.inputs.max() == 1.0
    assert not np.array_equal(data.targets, digits(1).targets)


def test_without_scikit_learn_digits_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"pip install 'perfmodel\[converge\]'"):
        make_task("digits-softmax")


def test_the_nearest_task_name_is_suggested() -> None:
    with pytest.raises(InputError, match="unknown task 'mixture-sofmax'; did you mean 'mixture-s"):
        make_task("mixture-sofmax")


@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("mixture")])
def test_a_shipped_task_knows_its_sizes(name: str) -> None:
    task = make_task(name)
    start = task.initial(1)
    assert task.name == name
    assert start.shape == (task.parameters,)
    np.testing.assert_array_equal(start, task.initial(1))
    assert not np.array_equal(start, task.initial(2))
    loss, gradient = task.gradient(start, np.arange(task.samples))
    assert task.gradient(start - 0.05 * gradient, np.arange(task.samples))[0] < loss


@pytest.mark.usefixtures("own")
def test_a_task_of_the_user() -> None:
    task = make_task("own_tasks:small")
    assert (task.name, task.samples, task.parameters) == ("small", 40, 21 * 4 + 5 * 10)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("own_tasks:smal", "did you mean 'small'"),
        ("own_tasks:nothing", "returned a int, not a task"),
        ("no_such_tasks:small", "no module named"),
        (":small", "expected package.module:function"),
    ],
)
def test_an_invalid_task_is_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_task(spec)


@pytest.mark.parametrize(("samples", "workers", "size"), [(12, 3, 2), (10, 3, 4), (5, 8, 3)])
def test_workers_together_draw_the_batches_of_one(samples: int, workers: int, size: int) -> None:
    many = Batches(samples, workers, size, seed=7)
    one = Batches(samples, 1, workers * size, seed=7)
    for _ in range(9):
        drawn = [many.take(worker) for worker in range(workers)]
        np.testing.assert_array_equal(np.stack(drawn, axis=1).ravel(), one.take(0))


def test_each_epoch_has_every_sample_once_in_another_order() -> None:
    batches = Batches(12, 3, 2, seed=0)
    epochs = [
        np.concatenate([batches.take(worker) for _ in range(2) for worker in range(3)])
        for _ in range(2)
    ]
    for drawn in epochs:
        assert sorted(drawn.tolist()) == list(range(12))
    assert not np.array_equal(*epochs)


def test_a_fast_worker_changes_no_other_workers_batches() -> None:
    even, uneven = (Batches(20, 2, 4, seed=1) for _ in range(2))
    for _ in range(40):
        uneven.take(0)
    for _ in range(6):
        even.take(0)
        np.testing.assert_array_equal(even.take(1), uneven.take(1))
