"""The user's own PyTorch model, loss and data as a task; needs the extra ``torch``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.foreign import said
from perfmodel.base.pytorch import check_device, forward, import_torch, moved, targets_of
from perfmodel.replay.tasks import Evaluation

Loss = Callable[[Any, Any], Any]
"""Function of the model's output and the targets that returns a scalar tensor."""

MISTAKES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""Exceptions raised by models, losses and datasets that do not fit together."""


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
        model: Any,
        loss: Loss,
        train: Any,
        test: Any,
        *,
        accuracy: Loss | None = None,
        device: str = "cpu",
        name: str = "own model",
        test_batch_size: int = 256,
    ) -> None:
        self._torch = import_torch()
        check_device(device)
        whole_number("test_batch_size", test_batch_size)
        self.name, self.device, self.test_batch_size = name, device, test_batch_size
        self._loss, self._accuracy = loss, accuracy or _of_classes
        self._train, self._test = _Samples(train, "train"), _Samples(test, "test")
        self.samples = len(self._train)
        self._make = None if isinstance(model, self._torch.nn.Module) else model
        self._module = self._made(self._make) if self._make else model.to(device)
        if not isinstance(self._module, self._torch.nn.Module):
            raise InputError(
                f"model: expected a torch.nn.Module or a function that makes one, got a "
                f"{type(self._module).__name__}"
            )
        self._find_parameters()
        self._state = {key: value.clone() for key, value in self._module.state_dict().items()}
        try:
            start = self._vector(self._trained)
            self.gradient(start, np.arange(min(2, self.samples)))  # batch norm needs two samples
            self._of_batch(self._test.batch(np.zeros(1, np.int64)))
        except MISTAKES as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"task {name}: model, loss and data do not fit together: {said(error)}"
            ) from error

    def initial(self, seed: int) -> Floats:
        """Return the initial parameters; also sets torch's seed, which dropout uses."""
        self._torch.manual_seed(seed)
        if self._make:
            self._module = self._made(self._make)
            self._find_parameters()
        else:
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

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            module = make()
        except Exception as error:
            raise InputError(f"model: {said(error)}") from error
        return module.to(self.device) if isinstance(module, self._torch.nn.Module) else module

    def _find_parameters(self) -> None:
        self._trained = [p for p in self._module.parameters() if p.requires_grad]
        if not self._trained:
            raise InputError(f"task {self.name}: the model has no trainable parameters")
        self.parameters = sum(p.numel() for p in self._trained)

    def _vector(self, tensors: list[Any]) -> Floats:
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

    def _of_batch(self, batch: Any) -> tuple[float, float]:
        """Return loss and accuracy of a test batch."""
        self._module.eval()
        batch = moved(batch, self.device)
        with self._torch.no_grad():
            output, targets = forward(self._module, batch), targets_of(batch)
            return float(self._loss(output, targets)), float(self._accuracy(output, targets))


class _Samples:
    """Makes batches of given samples from a user's data."""

    def __init__(self, data: Any, what: str) -> None:
        utils = import_torch().utils.data
        is_loader = isinstance(data, utils.DataLoader)
        self._data = data.dataset if is_loader else data
        collate = data.collate_fn if is_loader else None
        self._collate = collate or utils.default_collate
        if isinstance(self._data, utils.IterableDataset) or not (
            hasattr(self._data, "__len__") and hasattr(self._data, "__getitem__")
        ):
            raise InputError(
                f"{what}: expected a DataLoader or dataset with a length and indices, got a "
                f"{type(self._data).__name__}"
            )
        if not len(self._data):
            raise InputError(f"{what}: the dataset is empty")
        plain = self._collate is utils.default_collate
        self._tensors = (
            self._data.tensors if plain and isinstance(self._data, utils.TensorDataset) else None
        )

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Ids) -> Any:
        """Return the batch of these samples."""
        if self._tensors is not None:
            at = import_torch().from_numpy(indices)
            made: Any = tuple(tensor[at] for tensor in self._tensors)
        else:
            made = self._collate(list(self._samples(indices)))
        return made if isinstance(made, dict) else tuple(made)

    def _samples(self, indices: Ids) -> Iterator[Any]:
        several = getattr(self._data, "__getitems__", None)
        if several is not None:
            yield from several(indices.tolist())
        else:
            for index in indices.tolist():
                yield self._data[index]


def _of_classes(output: Any, targets: Any) -> Any:
    """Return the fraction of targets whose class has the highest score."""
    if targets is None:
        raise InputError("accuracy: a batch without targets needs its own accuracy function")
    return (output.argmax(1) == targets).double().mean()
