"""Routing on the device *meta*: choices of the largest scores, which fall evenly on all candidates.

Scores have no values there, so that nobody knows which experts a router chooses. In this mode
PyTorch's ``topk``, ``sort``, ``max``, ``argmax`` and ``multinomial`` choose in turn: row ``r``
takes candidates ``r * k`` to ``r * k + k - 1``, modulo their number, so that numbers of tokens of
experts differ by one at most. These indices have values, on the device *cpu*, and so has what is
computed from such tensors alone, such as masks, counts, orders and offsets. What also depends on
tensors without values has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar, cast

from perfmodel.foreign.pytorch import import_torch, is_tensor
from perfmodel.profiler.operators import tensors

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

META = "meta"
"""PyTorch's device of tensors without values, on which a step computes nothing."""

MOST_VALUES = 2**26
"""Values of a new tensor beyond which it gets none: masks of long sequences would fill memory."""

CHOICES = frozenset({"topk", "sort", "max", "min", "argmax", "argmin", "multinomial"})
"""Operators that return indices of the largest or smallest scores, or of a draw."""

BY_MASK = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "masked_select"})
"""Operators that take truths as indices."""


class Schema(Protocol):
    """The signature of an operator of PyTorch."""

    name: str
    arguments: Sequence[Argument]


class Argument(Protocol):
    """A parameter of an operator; ``alias_info`` says whether it is written to."""

    name: str
    alias_info: Alias | None


class Alias(Protocol):
    """How an operator uses the memory of an argument."""

    is_write: bool


class Operator(Protocol):
    """An operator of PyTorch."""

    _schema: Schema

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run it."""


class UnknownValuesError(RuntimeError):
    """Values on the device meta are needed that do not exist."""


def even_choices() -> AbstractContextManager[object]:
    """Return a context in which choices among scores without values are even, and have values."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class EvenChoices(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self,
            function: Operator,
            types: object,
            args: Sequence[object] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            return _run(function, args, kwargs or {})

    return EvenChoices()


def even_indices(shape: Sequence[int], candidates: int, dimension: int) -> Tensor:
    """Return the even choices of each row along a dimension, as indices of this shape: three rows
    that choose two of four have 0 and 1, 2 and 3, and again 0 and 1."""
    choices = shape[dimension]
    others = [size for at, size in enumerate(shape) if at != dimension % len(shape)]
    chosen = import_torch().arange(math.prod(others) * choices, device="cpu") % max(1, candidates)
    indices: Tensor = chosen.reshape(*others, choices).movedim(-1, dimension).contiguous()
    return indices


def _run(function: Operator, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """Run an operator with values if all it takes has values, and else without any."""
    name = str(function._schema.name).partition("::")[2]
    given = tensors((args, kwargs))
    known = [tensor for tensor in given if tensor.device.type == "cpu"]
    if not given or name.endswith("_like") or name.startswith("new_"):
        return _made(function, args, kwargs)
    if len(known) == len(given):
        if name == "_to_copy" and not _is_real(function(*args, **{**kwargs, "device": META})):
            kwargs = {**kwargs, "device": "cpu"}
        if name == "histc" and not _is_real(known[0]):  # counts of whole numbers, as on a GPU
            counts = function(known[0].double(), *args[1:], **kwargs)
            return tensors(counts)[0].to(known[0].dtype)
        return function(*args, **kwargs)
    if known:
        if any(_is_known(value) for value in _changed(function, args, kwargs)):
            raise UnknownValuesError(f"{name} puts what has no values on {META} among known values")
        if name in BY_MASK:
            args = _with_positions(args)
        if name == "masked_select":
            function = import_torch().ops.aten.index.Tensor
        args, kwargs = _without_values(args), _without_values(kwargs)
    if name == "_grouped_mm":  # PyTorch has no shapes of float32 there
        return _grouped(args, kwargs)
    output = function(*args, **kwargs)
    return _chosen(name, function, args, kwargs, output) if name in CHOICES else output


def _made(function: Operator, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """Make a tensor; whole numbers and truths get values, if they are not too many."""
    if all(argument.name != "device" for argument in function._schema.arguments):
        return function(*args, **kwargs)
    output = function(*args, **{**kwargs, "device": META})
    if not is_tensor(output) or _is_real(output) or output.numel() > MOST_VALUES:
        return output
    return function(*args, **{**kwargs, "device": "cpu"})


def _chosen(
    name: str, function: Operator, args: Sequence[object], kwargs: dict[str, object], output: object
) -> object:
    """Return the output of a choice, with indices that have values."""
    several = isinstance(output, tuple | list)
    if not several and not name.startswith("arg") and name != "multinomial":
        return output  # a maximum without an index
    scores, outputs = tensors(args)[0], tensors(output)
    chosen = outputs[-1]
    one_of_all = name.startswith("arg") and not several
    given = {"dim": None if one_of_all else -1, **_by_name(function, args), **kwargs}
    dimension = cast("int | None", given["dim"])
    if dimension is None or not scores.dim():
        indices = import_torch().zeros(chosen.shape, dtype=chosen.dtype, device="cpu")
    elif chosen.dim() < scores.dim():
        shape = list(scores.shape)
        shape[dimension] = 1
        indices = even_indices(shape, scores.shape[dimension], dimension).squeeze(dimension)
    else:
        indices = even_indices(chosen.shape, scores.shape[dimension], dimension)
    return (outputs[0], indices) if several else indices


def _grouped(args: Sequence[object], kwargs: dict[str, object]) -> Tensor:
    """Return the product of groups of rows, or of columns, or its gradient for the matrices."""
    left, right, offsets = tensors((args, kwargs))[:3]
    shape: list[int] = [int(left.shape[-2]), int(right.shape[-1])]
    if left.dim() == right.dim():  # stacks, or gradients of the matrices of groups
        shape = [int(left.shape[0] if left.dim() == 3 else offsets.shape[0]), *shape]
    return left.new_empty(shape, device=META)


def _with_positions(args: Sequence[object]) -> list[object]:
    """Return arguments of an index with positions in place of known truths."""
    torch = import_torch()
    positions: list[object] = []
    for mask in args[1] if isinstance(args[1], tuple | list) else [args[1]]:
        if _is_known(mask) and mask.dtype in (torch.bool, torch.uint8):
            positions += mask.nonzero().unbind(1)
        else:
            positions.append(mask)
    return [args[0], positions, *args[2:]]


def _without_values(value: T) -> T:
    """Return a tensor without values, and what is nested likewise."""
    replaced: object = value
    if _is_known(value):
        form = {"dtype": value.dtype, "device": META}
        replaced = import_torch().empty_strided(value.shape, value.stride(), **form)
    elif isinstance(value, dict):
        replaced = {key: _without_values(one) for key, one in value.items()}
    elif isinstance(value, tuple | list):
        replaced = type(value)(map(_without_values, value))
    return cast("T", replaced)


def _by_name(function: Operator, args: Sequence[object]) -> dict[str, object]:
    """Return the positional arguments of an operator by their names."""
    return {
        argument.name: value
        for argument, value in zip(function._schema.arguments, args, strict=False)
    }


def _changed(
    function: Operator, args: Sequence[object], kwargs: dict[str, object]
) -> Iterator[object]:
    """Yield the arguments that an operator writes to."""
    given = {**_by_name(function, args), **kwargs}
    for argument in function._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield given.get(argument.name)


def _is_known(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor with values."""
    return is_tensor(value) and value.device.type == "cpu"


def _is_real(tensor: Tensor) -> bool:
    """Return whether a tensor has real or complex numbers."""
    return bool(tensor.is_floating_point() or tensor.is_complex())
