"""A training step of any model, with its batches, loss and optimiser.

:func:`training` makes one from the name of a model. ``step()`` runs a whole step. Its parts can
also be called separately, to time them or to send gradients in between::

    batch = trained.next_batch()
    loss = trained.compute_loss(trained.model, batch)  # or a model that wraps it
    loss.backward()
    trained.optimizer.step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.foreign.functions import call, load, reported
from perfmodel.foreign.pytorch import (
    Batch,
    Loss,
    Nested,
    check_device,
    forward,
    import_torch,
    is_tensor,
    moved,
    targets_of,
)
from perfmodel.profiler import libraries
from perfmodel.profiler.even_choices import META
from perfmodel.profiler.libraries import Built

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer

MakeBatch: TypeAlias = "Callable[[int], Batch | Tensor]"
"""Function of the batch size."""

OPTIMIZERS = ("sgd", "adam", "adamw")
LOSSES = ("cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "mean")
DTYPES = ("float32", "bf16")

LEARNING_RATE = 1e-4
"""Learning rate; it is small because only the times matter."""
MOMENTUM = 0.9


@dataclass
class TrainableModel:
    """A model that can be trained, step by step.

    Attributes
    ----------
    model, optimizer, optimizer_name : a ``torch.nn.Module`` in training mode; a
        ``torch.optim.Optimizer`` of its trainable parameters, and its description.
    batch_size : samples in one batch.
    built : name and source of the model.
    device, dtype : device of the model, and *float32* or *bf16* (autocast).
    data : description of the training data.
    load : returns the next batch on the host: ``(inputs, targets)``, or a dict of keyword
        arguments.
    loss, loss_name : the loss, and its description.
    """

    model: Module
    optimizer: Optimizer
    optimizer_name: str
    batch_size: int
    built: Built
    device: str
    dtype: str
    data: str
    load: Callable[[], Batch]
    loss: Loss
    loss_name: str = ""

    def copy(self, batch: Batch) -> Batch:
        """Return a batch copied to the model's device."""
        return moved(batch, self.device)

    def next_batch(self) -> Batch:
        """Return the next batch on the model's device."""
        return self.copy(self.load())

    def precision(self) -> AbstractContextManager[object]:
        """Return the autocast context for mixed precision; it does nothing for float32."""
        if self.dtype == "float32":
            return nullcontext()
        torch = import_torch()
        kind = torch.device(self.device).type
        return torch.autocast(kind, dtype=torch.bfloat16)  # type: ignore[no-any-return]

    def compute_loss(self, model: Module, batch: Batch) -> Tensor:
        """Run the forward pass of ``model`` (this one, or a wrapper of it); return the loss, a
        scalar tensor."""
        with self.precision():
            return self.loss(forward(model, batch), targets_of(batch))

    def step(self) -> Tensor:
        """Run a whole step on the next batch, and return the loss."""
        batch = self.next_batch()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.compute_loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def training(
    model_spec: str | Built,
    *,
    batch_size: int,
    input_shape: Sequence[int] | None = None,
    batch: str | MakeBatch | None = None,
    loss: str | Loss | None = None,
    optimizer: str = "sgd",
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
) -> TrainableModel:
    """Make a training setup from the name of a model, and try one forward pass.

    It has many parameters because each sets an independent part of the training.

    Parameters
    ----------
    model_spec : ``torchvision:resnet50``, ``transformers:bert-base``, ``package.module:function``
        (called without arguments; returns a ``torch.nn.Module``), or the result of :func:`build`.
    batch_size : samples in one batch.
    input_shape : shape of one sample, filled with random numbers; for a language model, the number
        of random tokens. None for the usual shape of a library's model.
    batch : ``package.module:function`` or a function, called with the batch size for each step;
        returns ``(inputs, targets)``, inputs alone, or a dict of keyword arguments for the model.
        The inputs are a tensor, or a tuple or dict of arguments.
    loss : a name in ``LOSSES``, ``package.module:function`` or a function, called with the
        model's output and the targets. None: ``output.loss`` if there is one; else the cross
        entropy of a tensor of logits (with random classes if there are no targets); else the mean.
    optimizer : a name in ``OPTIMIZERS``. SGD has a momentum of 0.9.
    device : *cpu*, *cuda*, *cuda:N*, or *meta*.
    dtype : *float32*, or *bf16* for autocast; parameters and gradients remain float32.
    seed : seed of the weights and the random batches; it sets torch's global seed.

    Raises
    ------
    InputError : PyTorch or a library is missing; a name is unknown; there is no such device; model
        or loss do not accept the shape of inputs or targets.
    """
    torch = import_torch()
    whole_number("batch_size", batch_size)
    if device != META:
        check_device(device)
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", optimizer, OPTIMIZERS)
    torch.manual_seed(seed)
    built = libraries.build(model_spec) if isinstance(model_spec, str) else model_spec
    model = built.model.to(device).train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise InputError(f"model: {built.name} has no trainable parameters")
    load_batch, data = _batches(built, batch, batch_size, input_shape)
    trained = TrainableModel(
        model,
        *_optimizer(optimizer, trainable),
        batch_size=batch_size,
        built=built,
        device=device,
        dtype=dtype,
        data=data,
        load=load_batch,
        loss=lambda output, _: _logits(output),
    )
    first = load_batch()
    output = _try_forward(trained, first, "the batch" if input_shape is None else "--input-shape")
    if isinstance(first, tuple) and first[1] is None and loss in (None, "cross_entropy"):
        logits = _logits(output)
        if logits.dim() in (2, 3) and logits.is_floating_point():  # (batch, [tokens,] classes)
            classes = torch.randint(0, logits.shape[-1], tuple(logits.shape[:-1]))
            trained.load = _with_targets(load_batch, classes)
            first = trained.load()
    trained.loss, trained.loss_name = _loss(loss, output, targets_of(first))
    _try_loss(trained, output, targets_of(trained.copy(first)))
    return trained


def build(spec: str, seed: int = 0) -> Built:
    """Make the model that ``spec`` names, with random weights, for several trainings.

    Raises
    ------
    InputError : see :func:`perfmodel.profiler.libraries.build`.
    """
    import_torch().manual_seed(seed)
    return libraries.build(spec)


@contextmanager
def fitting(batch_size: int, device: str) -> Iterator[None]:
    """Report running out of memory as an InputError of one line."""
    try:
        yield
    except RuntimeError as error:
        if "out of memory" in str(error) or "not enough memory" in str(error):
            raise InputError(
                f"batch_size: {batch_size} does not fit in the memory of {device}"
            ) from error
        raise


def _batches(
    built: Built,
    batch: str | MakeBatch | None,
    batch_size: int,
    input_shape: Sequence[int] | None,
) -> tuple[Callable[[], Batch], str]:
    """Return a function that makes batches, and its description.

    It is the user's function, or a function that always returns the same random batch.
    """
    if batch is not None:
        if input_shape is not None:
            raise InputError("input_shape and batch: give one of them")
        spec = batch if isinstance(batch, str) else getattr(batch, "__name__", "batch")
        function = load(batch, "batch") if isinstance(batch, str) else batch
        return lambda: _checked_batch(call(function, spec, batch_size), spec), f"data of {spec}"
    shape = input_shape if input_shape is not None else built.input_shape
    if shape is None:
        raise InputError(
            f"model: the input shape of {built.name} is unknown; give the shape of one sample "
            "(--input-shape 3,224,224) or a function that makes batches (--batch module:function)"
        )
    for size in shape:
        whole_number("input_shape", size)
    torch = import_torch()
    if built.tokens:
        if len(shape) != 1:
            raise InputError(f"input_shape: {built.name} needs one number of tokens, got {shape}")
        ids = torch.randint(0, built.tokens, (batch_size, *shape))
        return lambda: {"input_ids": ids, "labels": ids}, f"random texts of {shape[0]} tokens"
    inputs = torch.randn(batch_size, *shape)
    return lambda: (inputs, None), f"random inputs of {'x'.join(map(str, shape))}"


def _checked_batch(batch: object, spec: str) -> Batch:
    if isinstance(batch, dict):
        return dict(batch)
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    if is_tensor(batch):
        return batch, None
    raise InputError(
        f"batch: {spec} returned a {type(batch).__name__}; expected (inputs, targets), a tensor of "
        "inputs, or a dict of the model's arguments"
    )


def _with_targets(load_batch: Callable[[], Batch], targets: Tensor) -> Callable[[], Batch]:
    """Return a function that makes batches with these targets."""

    def load_both() -> Batch:
        batch = load_batch()
        return batch if isinstance(batch, dict) else (batch[0], targets)

    return load_both


def _try_forward(trained: TrainableModel, batch: Batch, source: str) -> Nested:
    """Return the output of a forward pass without gradients, to detect wrong shapes."""
    batch = trained.copy(batch)
    shape = shapes(batch if isinstance(batch, dict) else batch[0])
    refusal = f"model: {trained.built.name} does not accept {source}, with inputs of shape {shape}"
    with (
        reported(refusal),
        fitting(trained.batch_size, trained.device),
        import_torch().no_grad(),
        trained.precision(),
    ):
        return forward(trained.model, batch)


def _try_loss(trained: TrainableModel, output: Nested, targets: Nested | None) -> None:
    """Compute the loss once, to detect wrong shapes."""
    name = trained.loss_name
    refusal = (
        f"loss: {name} does not accept an output of shape {shapes(output)} and targets of shape "
        f"{shapes(targets)}"
    )
    with reported(refusal), trained.precision():
        value = trained.loss(output, targets)
        if value.dim() != 0:
            raise InputError(
                f"loss: {name} returns a tensor of shape {shapes(value)}, not a scalar"
            )


def shapes(value: object) -> str:
    """Return the shapes of the tensors in a batch as text, for error messages."""
    if is_tensor(value):
        return "x".join(map(str, value.shape)) or "scalar"
    if isinstance(value, dict):
        return ", ".join(f"{key} {shapes(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(shapes, value))
    return type(value).__name__


def _logits(output: object) -> Tensor:
    """Return the part of a model's output that the loss uses: its own loss, else its logits, else
    the first tensor."""
    for name in ("loss", "logits"):
        part = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if part is not None:
            return part
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple | list) and output:
        return _logits(output[0])
    if not is_tensor(output):
        raise InputError(
            f"loss: the model's output is a {type(output).__name__}, not a tensor; give a loss "
            "(--loss module:function)"
        )
    return output


def _loss(loss: str | Loss | None, output: Nested, targets: Nested | None) -> tuple[Loss, str]:
    """Return the loss function and its description."""
    if loss is not None and not isinstance(loss, str):
        return loss, getattr(loss, "__name__", "own loss")
    if loss is not None and ":" in loss:
        return load(loss, "loss"), loss
    if loss is None:
        head = _logits(output)
        if head.dim() == 0:
            return (lambda output, _: _logits(output)), "the model's own loss"
        numbers = is_tensor(targets) and not targets.is_floating_point()
        loss = "cross_entropy" if numbers and head.dim() >= 2 else "mean"
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    if loss == "mean":
        return (lambda output, _: _logits(output).float().mean()), "mean of the output"
    if targets is None:
        raise InputError(
            f"loss: {loss} needs targets; give a function that makes batches "
            "(--batch module:function)"
        )
    if loss == "cross_entropy":
        return _cross_entropy, "cross entropy"
    function = getattr(import_torch().nn.functional, loss)
    return (lambda output, targets: function(_logits(output), targets)), loss


def _cross_entropy(output: Nested, targets: Tensor) -> Tensor:
    """Return the cross entropy of logits with classes in the last dimension, or in the second as
    torch expects."""
    logits = _logits(output)
    if logits.dim() > 2 and targets.shape == logits.shape[:-1]:
        logits, targets = logits.flatten(0, -2), targets.flatten()
    return import_torch().nn.functional.cross_entropy(logits, targets)


def _optimizer(name: str, parameters: list[Parameter]) -> tuple[Optimizer, str]:
    optim = import_torch().optim
    if name == "sgd":
        sgd = optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
        return sgd, f"SGD momentum {MOMENTUM:g}"
    kind = {"adam": optim.Adam, "adamw": optim.AdamW}[name]
    return kind(parameters, lr=LEARNING_RATE), kind.__name__
