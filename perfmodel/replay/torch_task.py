"""The user's own PyTorch model, loss and data as a task; needs the extra ``torch``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, whole_number
from perfmodel.foreign.functions import reported
from perfmodel.foreign.pytorch import (
    Batch,
    Loss,
    Nested,
    check_device,
    forward,
    import_torch,
    moved,
    targets_of,
)
from perfmodel.replay.tasks import Evaluation

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.utils.data import DataLoader, Dataset

Accuracy: TypeAlias = "Callable[[Nested, Nested | None], Tensor | float]"
"""Function of the model's output and the targets."""


class TorchTask:
    """A task whose gradients PyTorch computes, on the CPU or a GPU.

    The replay copies its parameters into the model before each use. They are the model's trainable
    parameters as one vector, in the order of ``model.parameters()``. Buffers, such as running means
    of batch normalisation, stay in the model, so all workers share them.

    Parameters
    ----------
    model : a function that makes the ``torch.nn.Module``, called once per replay after the seed is
        set; or a module, whose current parameters and buffers are then the initial ones.
    loss : function of the model's output and the targets; returns the mean over the batch.
    train, test : a ``DataLoader``, whose dataset and ``collate_fn`` are used, or a dataset with
        ``len`` and indices. The replay chooses the samples of each batch. A batch is
        ``(inputs, targets)`` or a dict of the model's arguments.
    accuracy : function of the model's output and the targets; returns the fraction of correct
        answers in the batch. None: accuracy of classes, with scores in the output's second
        dimension as in torch's cross entropy.
    device : *cpu*, *cuda* or *cuda:N*.
    name : name of the task in reports.
    test_batch_size : number of samples evaluated at a time.

    It has many parameters because each sets an independent part of the training.

    Raises
    ------
    InputError : PyTorch is missing, there is no such device, the data have no length or no indices,
        or model, loss and data do not fit together.
    """

    def __init__(
        self,
        model: Module | Callable[[], Module],
        loss: Loss,
        train: DataLoader[object] | Dataset[object],
        test: DataLoader[object] | Dataset[object],
        *,
        accuracy: Accuracy | None = None,
        device: str = "cpu",
        name: str = "own model",
        test_batch_size: int = 256,
    ) -> None:
        self._torch = import_torch()
        check_device(device)
        whole_number("test_batch_size", test_batch_size)
        self.name, self.device, self.test_batch_size = name, device, test_batch_size
        self._loss, self._accuracy = loss, accuracy or _class_accuracy
        self._train, self._test = _Samples(train, "train"), _Samples(test, "test")
        self.samples = len(self._train)
        self._model = model
        self._use_model()
        self._state = {key: value.clone() for key, value in self._module.state_dict().items()}
        with reported(f"task {name}: model, loss and data do not fit together"):
            start = self._vector(self._trained)
            self.gradient(start, np.arange(min(2, self.samples)))  # batch norm needs two samples
            self._of_batch(self._test.batch(np.zeros(1, np.int64)))

    def initial(self, seed: int) -> Floats:
        """Return the initial parameters; also sets torch's seed, which dropout uses."""
        self._torch.manual_seed(seed)
        self._use_model()
        if isinstance(self._model, self._torch.nn.Module):
            self._module.load_state_dict(self._state)
        return self._vector(self._trained)

    def gradient(self, parameters: Floats, indices: Ids) -> tuple[float, Floats]:
        """Return the mean loss of some training samples, and its gradient."""
        torch = self._torch
        self._set(parameters)
        self._module.train()
        self._module.zero_grad(set_to_none=True)
        batch = moved(self._train.batch(indices), self.device)
        with torch.enable_grad():
            loss = self._loss(forward(self._module, batch), targets_of(batch))
            loss.backward()
        return float(loss.detach()), self._vector(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
        )

    def evaluate(self, parameters: Floats) -> Evaluation:
        """Return loss and accuracy on the test samples, with the model in evaluation mode."""
        self._set(parameters)
        count, size = len(self._test), self.test_batch_size
        total = np.zeros(2)
        for begin in range(0, count, size):
            indices = np.arange(begin, min(begin + size, count))
            total += len(indices) * np.array(self._of_batch(self._test.batch(indices)))
        return Evaluation(*(total / count).tolist())

    def _use_model(self) -> None:
        """Train the user's model, or a new one of the function that makes it."""
        module = self._model
        with reported("model"):
            module = module if isinstance(module, self._torch.nn.Module) else module()
        if not isinstance(module, self._torch.nn.Module):
            raise InputError(
                f"model: expected a torch.nn.Module or a function that makes one, got a "
                f"{type(module).__name__}"
            )
        self._module: Module = module.to(self.device)
        self._trained = [p for p in self._module.parameters() if p.requires_grad]
        if not self._trained:
            raise InputError(f"task {self.name}: the model has no trainable parameters")
        self.parameters = sum(p.numel() for p in self._trained)

    def _vector(self, tensors: Sequence[Tensor]) -> Floats:
        """Copy tensors into one vector."""
        flat = self._torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        return np.array(flat.cpu().numpy(), np.float64)

    def _set(self, parameters: Floats) -> None:
        """Copy a parameter vector into the model."""
        torch = self._torch
        kind = torch.promote_types(torch.float32, self._trained[0].dtype)
        flat = torch.from_numpy(parameters).to(kind).to(self.device)
        parts = torch.split(flat, [p.numel() for p in self._trained])
        with torch.no_grad():
            for parameter, part in zip(self._trained, parts, strict=True):
                parameter.copy_(part.view_as(parameter))

    def _of_batch(self, batch: Batch) -> tuple[float, float]:
        """Return loss and accuracy of a test batch."""
        self._module.eval()
        batch = moved(batch, self.device)
        with self._torch.no_grad():
            output, targets = forward(self._module, batch), targets_of(batch)
            return float(self._loss(output, targets)), float(self._accuracy(output, targets))


class _Samples:
    """Makes batches of given samples from a user's data."""

    def __init__(self, data: DataLoader[object] | Dataset[object], name: str) -> None:
        utils = import_torch().utils.data
        is_loader = isinstance(data, utils.DataLoader)
        self._dataset = data.dataset if is_loader else data
        self._collate = (data.collate_fn if is_loader else None) or utils.default_collate
        if isinstance(self._dataset, utils.IterableDataset) or not (
            hasattr(self._dataset, "__len__") and hasattr(self._dataset, "__getitem__")
        ):
            raise InputError(
                f"{name}: expected a DataLoader or dataset with a length and indices, got a "
                f"{type(self._dataset).__name__}"
            )
        if not len(self._dataset):
            raise InputError(f"{name}: the dataset is empty")
        self._is_plain = self._collate is utils.default_collate and isinstance(
            self._dataset, utils.TensorDataset
        )

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Ids) -> Batch:
        """Return the batch of these samples."""
        if self._is_plain:  # faster than sample by sample
            return tuple(self._dataset[import_torch().from_numpy(indices)])
        get_all = getattr(self._dataset, "__getitems__", None)
        numbers = indices.tolist()
        samples = get_all(numbers) if get_all else [self._dataset[k] for k in numbers]
        batch = self._collate(list(samples))
        return batch if isinstance(batch, dict) else tuple(batch)


def _class_accuracy(output: Tensor, targets: Tensor | None) -> Tensor:
    """Return the fraction of targets whose class has the highest score."""
    if targets is None:
        raise InputError("accuracy: a batch without targets needs its own accuracy function")
    return (output.argmax(1) == targets).double().mean()
