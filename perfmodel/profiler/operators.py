"""Records the operators of forward passes as PyTorch runs them, as shapes.

Every operator with a tensor that depends on the batch is recorded. Tensors made from parameters and
buffers alone count as weights, those made from nothing (dropout's noise, masks) as activations
that pass no gradient. A call of ``scaled_dot_product_attention`` is one operator, whatever the
device makes of it. Operators that only view a tensor take no time.

Backward of an operator that is bound by memory reads the gradient of the result and, unless it is
linear, what it was computed from, and writes the gradient of its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perfmodel.foreign.pytorch import import_torch, is_tensor
from perfmodel.inputs.operator_shapes import (
    Attention,
    Grouped,
    MemoryBound,
    OperatorShape,
    Product,
)

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, MADE, BATCH = range(3)
"""What a tensor is made from: parameters alone, nothing, or the batch."""

LINEAR = frozenset(
    {
        *("add", "add_", "sub", "sub_", "rsub", "neg", "sum", "mean"),
        *("cat", "stack", "clone", "copy_", "_to_copy", "roll", "constant_pad_nd", "pixel_shuffle"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("upsample_nearest2d", "upsample_bilinear2d"),
    }
)
"""Operators whose backward does not read what they were computed from."""

TWO_PASSES = frozenset(
    {
        *("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"),
        *("_batch_norm_with_update", "native_group_norm"),
    }
)
"""Norms whose statistics span too much to be kept on chip: their input is read twice."""

ROW_NORMS = frozenset({"native_layer_norm", "_fused_rms_norm", "rms_norm"})
"""Norms of rows; only their backward reads its inputs twice, the second time for the weights."""

LOOK_UPS = frozenset(
    {"embedding", "index_select", "gather", "index", "nll_loss_forward", "nll_loss2d_forward"}
)
"""Operators that read no more than they return, and whose gradient is as large as the table."""

GROUPED = frozenset({"_grouped_mm", "grouped_mm_fallback"})
"""Products of groups of rows with a matrix each, by PyTorch and by Transformers."""

FUSED_ATTENTION = "_scaled_dot_product_"
"""How fused operators of attention begin."""


class RecordedOperator(NamedTuple):
    """An operator of a batch in the pass of this number: ``rows`` of a product with weights,
    ``count`` of another product, ``heads`` and values are those of all samples together."""

    shape: OperatorShape
    pass_number: int


class OperatorRecorder:
    """Makes shapes of operators, and follows what depends on the batch.

    ``add`` is called with each shape. ``storage`` returns a key of a tensor's storage that is not
    used again, None if it has none.
    """

    def __init__(
        self, add: Callable[[OperatorShape], None], storage: Callable[[Tensor], int | None]
    ) -> None:
        self._add = add
        self._storage = storage
        self._made_from: dict[int, int] = {}
        self._paused = False

    def begin(self, weights: Sequence[Tensor]) -> None:
        """Begin a pass; ``weights`` are all parameters and buffers."""
        for tensor in weights:
            self._mark(tensor, WEIGHTS)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which calls of attention are recorded as such."""
        functional = import_torch().nn.functional
        attend = functional.scaled_dot_product_attention

        def watched(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            causal = kwargs.get("is_causal", args[2] if len(args) > 2 else False)
            if not self._paused:
                self._attention(query, key, value, bool(causal))
            before, self._paused = self._paused, True
            try:
                if query.device.type == "meta" and query.dim() == 4:
                    return _fused(query, key, value, *args, **kwargs)
                return attend(query, key, value, *args, **kwargs)
            finally:
                self._paused = before

        functional.scaled_dot_product_attention = watched
        try:
            yield
        finally:
            functional.scaled_dot_product_attention = attend

    def ran(
        self, function: Any, args: Sequence[Any], kwargs: dict[str, object], output: object
    ) -> None:
        """Record an operator of PyTorch."""
        if self._paused:
            return
        inputs, outputs = tensors((args, kwargs)), tensors(output)
        if not outputs:
            return
        name = str(function._schema.name).partition("::")[2]
        made_from = max(map(self._level, inputs), default=MADE)
        if name.endswith("_like") or name.startswith("new_"):
            inputs, made_from = [], MADE
        same = {self._storage(one) for one in outputs} <= {self._storage(one) for one in inputs}
        if not same or function._schema.is_mutable:
            self._record(name, args, inputs, outputs, made_from)
        for tensor in outputs:
            self._mark(tensor, made_from)

    def _record(
        self,
        name: str,
        args: Sequence[Any],
        inputs: list[Tensor],
        outputs: list[Tensor],
        made_from: int,
    ) -> None:
        if name in ("mm", "addmm"):
            left, right = args[-2:] if name == "mm" else args[1:3]
            self._product(left, right)
            if name == "addmm":
                self._bias(outputs[0])
        elif name in ("bmm", "baddbmm"):
            self._products(*(args[:2] if name == "bmm" else args[1:3]))
        elif name in GROUPED:
            self._grouped(args[0], args[1])
        elif name == "convolution":
            self._convolution(args[:9], outputs[0])
        elif name.startswith(FUSED_ATTENTION):
            self._attention(args[0], args[1], args[2], any(one is True for one in args[3:]))
        elif made_from == BATCH:
            self._memory_bound(name, args, inputs, outputs)

    def _product(self, left: Tensor, right: Tensor) -> None:
        rows, depth = left.shape
        columns = right.shape[1]
        if self._level(right) > self._level(left):  # of weights with activations
            rows, columns = columns, rows
        self._add(Product(int(rows), int(columns), int(depth)))

    def _products(self, left: Tensor, right: Tensor) -> None:
        """Record a product of stacks, in which weights may be repeated."""
        count, rows, depth = map(int, left.shape)
        columns = int(right.shape[2])
        of_left, of_right = self._level(left) == BATCH, self._level(right) == BATCH
        if of_left and of_right:
            self._add(Product(rows, columns, depth, count=count, weights=False))
            return
        if of_right:
            left, right, rows, columns = right, left, columns, rows
        if right.stride(0) == 0:  # expanded
            rows, count = rows * count, 1
        self._add(Product(rows, columns, depth, count=count))

    def _grouped(self, left: Tensor, right: Tensor) -> None:
        """Record products of groups of rows, which are of equal size where both are stacks."""
        if left.dim() == right.dim():
            if left.dim() == 3:  # else gradients of weights
                self._products(left, right)
            return
        if left.dim() > right.dim():
            left, right = right.transpose(0, 1), left.transpose(1, 2)
        (rows, depth), (groups, _, columns) = left.shape, right.shape
        self._add(Grouped(int(rows), int(columns), int(depth), int(groups)))

    def _convolution(self, args: Sequence[Any], output: Tensor) -> None:
        image, weight, bias, stride, _, _, transposed, _, groups = args
        kernel = [int(size) for size in weight.shape[2:]]
        strides = [int(step) for step in stride]
        strides *= len(kernel) // len(strides)
        channels, leaving = int(image.shape[1]) // groups, int(output.shape[1]) // groups
        if channels == leaving == 1 < groups:  # kernels of their own, without products
            values = float(image.numel() + output.numel())
            self._add(MemoryBound(values, 2.0 * values))
            return
        if transposed:  # each input makes a patch of the output
            rows = int(image.shape[0]) * math.prod(image.shape[2:])
            shape = Product(rows, leaving * math.prod(kernel), channels, count=groups)
        else:
            rows = int(output.shape[0]) * math.prod(output.shape[2:])
            pairs = zip(kernel, strides, strict=True)
            reuse = math.prod(size / step for size, step in pairs)
            depth = channels * math.prod(kernel)
            shape = Product(rows, leaving, depth, count=groups, reuse=reuse)
        if not _channels_last(image):
            plain = not transposed and set(kernel) | set(strides) == {1}
            shape = msgspec.structs.replace(shape, layout="columns" if plain else "patches")
        self._add(shape)
        if bias is not None:  # added by a kernel of its own
            self._bias(output, 2.0)

    def _bias(self, output: Tensor, passes: float = 0.0) -> None:
        """Record the sum that is the gradient of a bias, and so many passes over the output in
        forward."""
        values = float(output.numel())
        self._add(MemoryBound(passes * values, values))

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> None:
        length = math.isqrt(int(query.shape[-2]) * int(key.shape[-2]))
        heads, kv_heads = (math.prod(map(int, tensor.shape[:-2])) for tensor in (query, key))
        kv_heads = kv_heads if heads % kv_heads == 0 else heads
        width, values = int(query.shape[-1]), int(value.shape[-1])
        other = None if values == width else values
        self._add(Attention(length, heads, kv_heads, width, causal, value_width=other))

    def _memory_bound(
        self, name: str, args: Sequence[Any], inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        levels = [self._level(one) for one in inputs]
        read = sum(_values(t) for t, level in zip(inputs, levels, strict=True) if level != WEIGHTS)
        passed = sum(
            _values(tensor)
            for tensor, level in zip(inputs, levels, strict=True)
            if level == BATCH and tensor.is_floating_point()
        )
        fixed = 0.0
        written = sum(map(_values, outputs))
        if name in TWO_PASSES or name in ROW_NORMS:
            written = _values(outputs[0])
            forward = read * (2.0 if name in TWO_PASSES else 1.0) + written
            backward = 2.0 * (written + passed) + passed
        elif name in LOOK_UPS:
            forward, backward = 2.0 * written, written + passed
            if is_tensor(args[0]) and levels[0] == WEIGHTS:
                backward, fixed = 2.0 * written, float(args[0].numel())
        else:
            forward = read + written
            backward = written + passed * (1.0 if name in LINEAR else 2.0)
            if not passed or not any(one.is_floating_point() for one in outputs):
                backward = 0.0
        self._add(MemoryBound(forward, backward, fixed))

    def _level(self, tensor: Tensor) -> int:
        """Return what a tensor is made from; what was never seen is of the batch."""
        storage = self._storage(tensor)
        return BATCH if storage is None else self._made_from.get(storage, BATCH)

    def _mark(self, tensor: Tensor, made_from: int) -> None:
        storage = self._storage(tensor)
        if storage is not None:
            self._made_from[storage] = made_from


def grouped_flop(left: Tensor, right: Tensor) -> float:
    """Return the operations of a product of groups: each row meets the matrix of its group."""
    rows, matrices = (left, right) if left.dim() <= right.dim() else (right.T, left.mT)
    return 2.0 * float(rows.numel()) * float(matrices.shape[-1])


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention on the device meta, which keeps for backward what it does on a GPU: no scores.

    Its parameters are those of ``scaled_dot_product_attention``. PyTorch itself takes the products
    and the softmax one by one there. Values that are narrower than keys are filled up, since shapes
    are those of queries. No gradient is passed to a mask, which may be a learnt bias.
    """
    if enable_gqa:
        repeats = int(query.shape[1]) // int(key.shape[1])
        key, value = (one.repeat_interleave(repeats, dim=1) for one in (key, value))
    torch = import_torch()
    width = int(value.shape[-1])
    if width < query.shape[-1]:
        value = torch.nn.functional.pad(value, (0, int(query.shape[-1]) - width))
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mask = None if attn_mask is None else attn_mask.detach()
    both = run(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)
    output: Tensor = both[0]
    return output[..., :width] if width < output.shape[-1] else output


def per_sample(
    recorded: Sequence[RecordedOperator], samples: float, passes: int
) -> tuple[OperatorShape, ...]:
    """Return the operators of a layer per sample.

    ``samples`` are those of a forward pass, of which a step has several with accumulation; the
    first ``passes`` passes are those of one batch. What is not divided evenly is rounded up.
    Operators that are bound by memory become one.
    """
    shapes: list[OperatorShape] = []
    moving: list[MemoryBound] = []
    for shape, number in recorded:
        if number >= passes:
            continue
        if isinstance(shape, MemoryBound):
            moving.append(shape)
            continue
        divided = {name: math.ceil(total / samples) for name, total in _totals(shape).items()}
        shapes.append(msgspec.structs.replace(shape, **divided))
    if moving:
        shapes.append(
            MemoryBound(
                sum(operator.forward_values for operator in moving) / samples,
                sum(operator.backward_values for operator in moving) / samples,
                sum(operator.fixed_backward_values for operator in moving),
                max(1, sum(operator.forward_values > 0.0 for operator in moving)),
            )
        )
    return tuple(shapes)


def all_divided(recorded: Sequence[RecordedOperator], samples: float) -> bool:
    """Return whether the samples divide the operators of a layer."""
    return not any(
        total % samples for operator in recorded for total in _totals(operator.shape).values()
    )


def _totals(shape: OperatorShape) -> dict[str, int]:
    """Return the whole numbers that grow with the samples, by field."""
    if isinstance(shape, Attention):
        return {"heads": shape.heads, "kv_heads": shape.kv_heads}
    if isinstance(shape, MemoryBound):
        return {}
    if isinstance(shape, Grouped) or shape.weights:
        return {"rows": shape.rows}
    return {"count": shape.count}


def tensors(value: object) -> list[Tensor]:
    """Return the tensors in a tensor or in nested tuples, lists and dicts."""
    if is_tensor(value):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def _channels_last(image: Tensor) -> bool:
    """Return whether the channels of a pixel are next to each other in memory."""
    return bool(image.shape[1] > 1 and image.stride(1) == 1)


def _values(tensor: Tensor) -> float:
    """Return the values of a tensor that exist: what is expanded exists once."""
    stored = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    return float(min(int(tensor.numel()), int(stored)))
