"""Layers of transformers of any kind that several devices divide, by their names.

Profiles of encoder-decoders and of vision transformers have no dimensions, but layers with the
names of a decoder's. Products into attention and into the feed-forward part are divided by columns,
those out of them by rows, as in Megatron-LM (Shoeybi et al., 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.inputs.device import Device
from perfmodel.inputs.operator_shapes import Attention, MemoryBound, OperatorShape, Product
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.precisions import SHORT
from perfmodel.inputs.profile import Layer
from perfmodel.inputs.recomputation import block_of
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.workload import Workload
from perfmodel.times.operator_times import kernels_of, layers_s, most_kernels_of
from perfmodel.times.tensor_parallel import launched

BY_COLUMNS = ("attention.qkv", "attention.q", "attention.kv", "feed_forward.up")
BY_ROWS = ("attention.out", "feed_forward.down")
"""Ends of the names of products that devices divide by columns, and by rows."""

TABLE, HEAD, LOSS = "embedding", "head", "loss"
"""Names of the layers with the vocabulary, which devices divide if there is a table of words."""


def divisible(workload: Workload, replica: Replica, profiled: Sequence[Layer]) -> bool:
    """Return whether devices can divide a workload by the names of its layers: those, and the
    operators, of a transformer, of which nothing else says what is summed."""
    known = [layer for layer in profiled if layer.name.endswith((*BY_COLUMNS, *BY_ROWS))]
    one = one_pass(workload)
    return (
        replica.tensor > 1
        and replica.context == 1
        and replica.experts is None
        and len(known) > 1
        and all(layer.operators for layer in known)
        and len(one.layers) == len(profiled)
        and not any(layer.forward_summed_bytes for layer in one.layers)
    )


def divided_by_name(
    workload: Workload,
    replica: Replica,
    profiled: Sequence[Layer],
    devices: Mapping[str, Device],
    launches: str,
) -> Workload:
    """Return a workload, of these layers of a profile, with the times of one of the devices that
    divide its layers; bytes stay those of all together.

    Parameters
    ----------
    devices : all of them by name.
    launches : how the host launches operators, which takes as long on each of the devices as on one
        (:func:`perfmodel.inputs.software.launch_s`).

    Raises
    ------
    InputError : the devices cannot divide heads or columns evenly.
    """
    one, tensor = one_pass(workload), replica.tensor
    device = devices.get(one.device) or next(iter(devices.values()))
    part = on_one_of(profiled, tensor)
    whole_s, part_s = (
        layers_s(device, layers, one.batch_size, one.precision, devices)
        for layers in (tuple(profiled), part)
    )
    words = any(layer.name == TABLE for layer in profiled)
    value_bytes = one.batch_size * (2.0 if one.precision in SHORT else 4.0)
    along = tensor if replica.sequence_parallel else 1
    layers = []
    for layer, known, before, after in zip(one.layers, profiled, whole_s, part_s, strict=True):
        undivided = layer.kind in ("layernorm", "sum")
        forward, backward = (
            (now / then if then > 0.0 else 1.0) / (along if undivided else 1)
            for then, now in zip(before, after, strict=True)
        )
        sums, gradients = (value_bytes * values for values in summed_values(known, words))
        again = one.recompute == "full" and bool(block_of(layer))
        layers.append(
            msgspec.structs.replace(
                layer,
                forward_s=layer.forward_s * forward,
                backward_s=layer.backward_s * backward,
                forward_summed_bytes=sums,
                backward_summed_bytes=gradients + (sums if again else 0.0),
            )
        )
    kernels = kernels_of(part), most_kernels_of(part)
    made, slow_host = launched(one, tuple(layers), *kernels, launches)
    whole = msgspec.structs.replace(
        one,
        layers=made,
        forward_s=sum(layer.forward_s for layer in made),
        backward_s=sum(layer.backward_s for layer in made),
        optimizer_s=one.optimizer_s / tensor,
        slow_host=slow_host,
    )
    return accumulated(whole, workload.accumulation, workload.batch_size)


def on_one_of(layers: Sequence[Layer], tensor: int) -> tuple[Layer, ...]:
    """Return the layers with the operators of one of ``tensor`` devices.

    Raises
    ------
    InputError : the devices cannot divide heads or columns evenly.
    """
    words = any(layer.name == TABLE for layer in layers)
    return tuple(_part(layer, tensor, words) for layer in layers)


def summed_values(layer: Layer, words: bool) -> tuple[float, float]:
    """Return how many values per sample devices sum after a layer in forward, and of the gradient
    of its input in backward."""
    products = [one for one in layer.operators if isinstance(one, Product)]
    if layer.name.endswith(BY_ROWS):
        return float(sum(one.rows * one.columns for one in products)), 0.0
    if layer.name == TABLE and words:
        return layer.activation_bytes / 4.0, 0.0
    if layer.name.endswith(BY_COLUMNS) or (layer.name == HEAD and words):
        return 0.0, float(sum(one.rows * one.depth for one in products))
    return 0.0, 0.0


def _part(layer: Layer, tensor: int, words: bool) -> Layer:
    """Return a layer with the operators of one of the devices."""
    of_words = words and layer.name in (HEAD, LOSS, TABLE)
    by_columns = layer.name.endswith(BY_COLUMNS) or (of_words and layer.name == HEAD)
    if layer.name.endswith(BY_ROWS):
        made = tuple(_by_rows(layer, one, tensor) for one in layer.operators)
    elif by_columns:
        made = tuple(_by_columns(layer, one, tensor, even=not of_words) for one in layer.operators)
    elif layer.kind in ("attention", "activation") or (of_words and layer.name == LOSS):
        made = tuple(_by_heads(layer, one, tensor) for one in layer.operators)
    elif of_words:  # each looks up its own rows, and gives zeros for all others
        made = tuple(
            msgspec.structs.replace(one, fixed_backward_values=one.fixed_backward_values / tensor)
            if isinstance(one, MemoryBound)
            else one
            for one in layer.operators
        )
    else:
        return layer
    return msgspec.structs.replace(layer, operators=made)


def _by_rows(layer: Layer, one: OperatorShape, tensor: int) -> OperatorShape:
    if not isinstance(one, Product):
        return one
    return msgspec.structs.replace(one, depth=_share(layer, "rows", one.depth, tensor))


def _by_columns(layer: Layer, one: OperatorShape, tensor: int, *, even: bool) -> OperatorShape:
    if isinstance(one, Product):
        columns = (
            _share(layer, "columns", one.columns, tensor) if even else -(-one.columns // tensor)
        )
        return msgspec.structs.replace(one, columns=columns)
    return _less(one, tensor)


def _by_heads(layer: Layer, one: OperatorShape, tensor: int) -> OperatorShape:
    if isinstance(one, Product):
        return msgspec.structs.replace(one, count=_share(layer, "heads", one.count, tensor))
    if isinstance(one, Attention):
        heads = _share(layer, "heads", one.heads, tensor)
        groups = max(one.kv_heads // tensor, 1)
        return msgspec.structs.replace(one, heads=heads, kv_heads=groups)
    return _less(one, tensor)


def _less(one: OperatorShape, tensor: int) -> OperatorShape:
    if not isinstance(one, MemoryBound):
        return one
    return msgspec.structs.replace(
        one,
        forward_values=one.forward_values / tensor,
        backward_values=one.backward_values / tensor,
    )


def _share(layer: Layer, what: str, count: int, tensor: int) -> int:
    """Return an equal part.

    Raises
    ------
    InputError : there is none; the text says for how many devices there is.
    """
    if count % tensor:
        divisors = [k for k in range(1, count + 1) if count % k == 0]
        below, above = [k for k in divisors if k < tensor], [k for k in divisors if k > tensor]
        possible = ", ".join(map(str, [*below[-2:], *above[:2]]))
        raise InputError(
            f"tensor: {tensor} devices cannot divide {count} {what} of {layer.name} evenly "
            f"(possible: {possible})"
        )
    return count // tensor
