"""A user's PyTorch model against the same model in NumPy, and parts that do not fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.replay.data import mixture
from perfmodel.replay.noise_scale import measure_noise
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import TrainingTask, network_task
from perfmodel.replay.torch_task import TorchTask
from tests.replay import schedules

torch: Any = pytest.importorskip("torch")

torch.set_num_threads(1)  # these models are small

DATA = mixture(samples=96, test_samples=40, features=5, classes=3)
NUMPY = network_task("numpy", DATA, None)
LOSS = torch.nn.functional.cross_entropy


def dataset(test: bool = False) -> Any:
    inputs, targets = (DATA.test_inputs, DATA.test_targets) if test else DATA[:2]
    return torch.utils.data.TensorDataset(torch.tensor(inputs), torch.tensor(targets))


def linear() -> Any:
    return torch.nn.Linear(5, 3).double()


def task(model: Any = linear, **more: Any) -> TorchTask:
    return TorchTask(model, LOSS, dataset(), dataset(test=True), **more)


class Starting:
    """A PyTorch task with the same initial parameters as the NumPy task."""

    def __init__(self, inner: TorchTask) -> None:
        self.inner, self.name = inner, inner.name
        self.samples, self.parameters = inner.samples, inner.parameters
        self.gradient, self.evaluate = inner.gradient, inner.evaluate

    def initial(self, seed: int) -> Any:
        start = NUMPY.initial(seed)
        return np.concatenate([start[:15].reshape(5, 3).T.ravel(), start[15:]])


@pytest.mark.parametrize("workers", [1, 4])
def test_the_replay_equals_that_of_the_same_model_in_numpy(workers: int) -> None:
    optimizer = Optimizer(learning_rate=0.1, momentum=0.9)
    schedule = schedules.asp(workers, 40)
    ours = replay(schedule, NUMPY, optimizer, evaluations=8)
    theirs = replay(schedule, Starting(task()), optimizer, evaluations=8)
    np.testing.assert_allclose(theirs.loss, ours.loss, rtol=1e-9)
    np.testing.assert_allclose(theirs.accuracy, ours.accuracy)


def test_the_replay_of_one_worker_equals_a_pytorch_loop() -> None:
    model = linear()
    made = task(model)
    curve = replay(schedules.plain(15), made, Optimizer(learning_rate=0.1), evaluations=15)
    made.initial(0)  # its first parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rng = np.random.default_rng((0, 14, 0)).permutation(96)
    others = np.random.default_rng((0, 14, 1)).permutation(96)
    for batch in np.concatenate([rng, others])[: 15 * 8].reshape(15, 8):
        optimizer.zero_grad()
        LOSS(model(dataset()[batch][0]), dataset()[batch][1]).backward()
        optimizer.step()
    test = dataset(test=True)[:]
    assert curve.loss[-1] == pytest.approx(float(LOSS(model(test[0]), test[1]).detach()))


def test_the_seed_initialises_a_factory_but_not_a_module() -> None:
    made = task()
    np.testing.assert_array_equal(made.initial(1), made.initial(1))
    assert not np.array_equal(made.initial(1), made.initial(2))
    fixed = task(linear())
    np.testing.assert_array_equal(fixed.initial(1), fixed.initial(2))


def test_a_torch_task_can_measure_its_noise() -> None:
    made: TrainingTask = task()
    assert isinstance(made, TrainingTask)
    noise = measure_noise(made, made.initial(0), batch_size=8, batches=12)
    assert 0.0 < noise.scale_samples < np.inf


def test_frozen_and_unused_parameters() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.unused = linear(), linear(), linear()
            self.frozen.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.frozen(x) + self.used(x)

    made = task(Model)
    assert made.parameters == 36
    _, gradient = made.gradient(made.initial(0), np.arange(8))
    assert np.abs(gradient[:18]).min() > 0.0
    assert not gradient[18:].any()


def test_buffers_are_reset_for_each_replay() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)).double()
    made, optimizer = task(model), Optimizer(learning_rate=0.1)
    first, second = (replay(schedules.asp(2, 20), made, optimizer) for _ in range(2))
    np.testing.assert_array_equal(first.loss, second.loss)


def test_dropout_depends_on_the_seed() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(5, 3)).double()
    made, optimizer = task(model), Optimizer(learning_rate=0.1)
    first, second = (replay(schedules.asp(2, 20), made, optimizer) for _ in range(2))
    np.testing.assert_array_equal(first.loss, second.loss)


def test_a_data_loader_is_decomposed() -> None:
    samples = [{"x": row[0].float(), "y": row[1]} for row in dataset()]
    loader = torch.utils.data.DataLoader(samples, batch_size=5, shuffle=True)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(5, 3)

        def forward(self, x: Any, y: Any) -> Any:
            return self.inner(x), y

    made = TorchTask(
        Model,
        lambda output, _: LOSS(*output),
        loader,
        loader,
        accuracy=lambda output, _: (output[0].argmax(1) == output[1]).float().mean(),
        test_batch_size=7,
    )
    curve = replay(schedules.asp(2, 200), made, Optimizer(learning_rate=0.1), evaluations=2)
    assert curve.loss[-1] < 0.7 * curve.loss[0]
    assert curve.accuracy[-1] > 0.7


def test_a_collate_function_makes_the_batches() -> None:
    def collate(rows: list[Any]) -> Any:
        return torch.stack([r[0] for r in rows]) * 2.0, torch.stack([r[1] for r in rows])

    doubled = torch.utils.data.DataLoader(dataset(), collate_fn=collate)
    one = TorchTask(linear(), LOSS, doubled, doubled)
    half = linear()
    half.load_state_dict(one._module.state_dict())
    start = one.initial(0)
    twice = start.copy()
    twice[:15] *= 2.0
    other = TorchTask(half, LOSS, dataset(), dataset())
    assert one.gradient(start, np.arange(9))[0] == pytest.approx(
        other.gradient(twice, np.arange(9))[0]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model": lambda: 3},
            "expected a torch.nn.Module or a function that makes one, got a int",
        ),
        ({"model": lambda: 1 / 0}, "model: ZeroDivisionError"),
        ({"model": lambda: torch.nn.Linear(4, 3).double()}, "do not fit together: RuntimeError"),
        ({"model": lambda: torch.nn.ReLU()}, "no trainable parameters"),
        ({"train": iter([])}, "train: expected a DataLoader or dataset"),
        ({"test": []}, "test: the dataset is empty"),
        ({"device": "gpu"}, "device: expected cpu, cuda or cuda:N, got 'gpu'"),
        ({"loss": lambda output, _: output}, "do not fit together"),
        (
            {"train": torch.ones(4, 5), "loss": lambda o, _: o.sum()},
            "do not fit together",
        ),
    ],
)
def test_invalid_combinations_are_refused(change: dict[str, Any], said: str) -> None:
    given = {"model": linear, "loss": LOSS, "train": dataset(), "test": dataset(test=True)}
    with pytest.raises(InputError, match=said):
        TorchTask(**(given | change))


def test_batches_without_targets_need_an_accuracy() -> None:
    rows = [{"input": row[0]} for row in dataset()]
    with pytest.raises(InputError, match="accuracy: a batch without targets needs its own"):
        TorchTask(linear, lambda output, _: output.sum(), rows, rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_result() -> None:
    optimizer = Optimizer(learning_rate=0.1, momentum=0.9)
    there = Starting(task(device="cuda"))
    ours = replay(schedules.asp(4, 40), NUMPY, optimizer, evaluations=8)
    theirs = replay(schedules.asp(4, 40), there, optimizer, evaluations=8)
    np.testing.assert_allclose(theirs.loss, ours.loss, rtol=1e-7)
