"""Gradients in a trace: from shapes in backward, from parameters of layers, or from messages."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.inputs.profile import Layer, Tensor
from perfmodel.traces.attribution import Attribution, HostPass
from perfmodel.traces.events import MOST_COUNT, DeviceEvent, count_of, element_bytes, listed

_PARAMETERS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv", "linear"), (1, 2)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), (1, 2)),
    **dict.fromkeys(("batch_norm", "instance_norm"), (1, 2)),
    **dict.fromkeys(("layer_norm", "group_norm"), (2, 3)),
    "rms_norm": (2,),
    "embedding": (0,),
    "embedding_bag": (0,),
    "prelu": (1,),
}
"""Indices of an operator's inputs that are parameters."""

_ADDMM = (2, 0)
_OF_PARTS = re.compile(r"(?:nccl:|gloo:|mpi:|c10d::)(all_to_all|alltoall|send|recv)")
_REDUCTIONS = ("allreduce", "all_reduce", "reduce_scatter")
_BATCHED = ("conv", "linear", "embedding")


class Gradient(NamedTuple):
    """A gradient: its layer (None if unknown), bytes, number of dimensions, and element type."""

    layer: int | None
    bytes: int
    dimensions: int
    kind: str


class GradientReduction(NamedTuple):
    """A collective that reduces gradients: launch time, bytes, and element type."""

    host_s: float
    bytes: int
    kind: str


def gradients_of(p: HostPass) -> tuple[list[Gradient], str]:
    """Gradients of a pass, and the origin of their sizes; none if no shapes were recorded.

    Shapes of accumulated gradients are complete. Without them, the parameters among the inputs of
    layers are used, which misses those of other operators.
    """
    gradients = [
        Gradient(layer, size, len(shape), kind)
        for layer, op in p.accumulated
        for shape, kind in _tensors(op.args)[:1]
        if (size := _bytes(shape, kind))
    ]
    if gradients:
        return gradients, "shapes of the gradients"
    return parameters_of(p), "parameters of layers"


def parameters_of(p: HostPass) -> list[Gradient]:
    """Parameters among the inputs of the operators that begin layers, as gradients."""
    parameters = []
    for layer, op in zip(p.order, p.ops, strict=True):
        inputs = _tensors(op.args)
        places = _ADDMM if op.name == "aten::addmm" else _PARAMETERS.get(p.kinds[layer], ())
        for shape, kind in (inputs[i] for i in places if i < len(inputs)):
            if shape and (size := _bytes(shape, kind)):
                parameters.append(Gradient(layer, size, len(shape), kind))
    return parameters


def layers(work: Attribution, gradients: Sequence[Gradient]) -> tuple[Layer, ...]:
    """Layers with their tensors, those with more dimensions first."""
    layers = []
    for i, (name, kind) in enumerate(zip(work.names, work.kinds, strict=True)):
        ranked = sorted((g for g in gradients if g.layer == i), key=lambda g: -g.dimensions)
        count = len(ranked)
        words = ["weight", "bias"] if count < 3 else [f"parameter_{j}" for j in range(count)]
        tensors = (Tensor(f"{name}.{w}", g.bytes) for w, g in zip(words, ranked, strict=False))
        layers.append(Layer(name, kind, tuple(tensors)))
    return tuple(layers)


def messages(work: Attribution) -> list[GradientReduction]:
    """Collectives in backward that reduce gradients, from the events that record sizes."""
    if not work.passes:
        return []
    starts = [p.start_s for p in work.passes]
    recorded: list[GradientReduction] = []
    shaped: list[GradientReduction] = []
    for event in work.events:
        host = event.host
        at, a, name = host.start_s, host.args, host.name
        if name == "record_param_comms":
            target, label = recorded, str(a.get("Collective name", ""))
            kind = str(a.get("dtype", ""))
            sizes = [((count_of(a.get("In msg nelems")) or 0) * (element_bytes(kind) or 0), kind)]
        elif name.startswith(("nccl:", "gloo:")):
            target, label = shaped, name
            sizes = [(_bytes(shape, kind), kind) for shape, kind in _tensors(a)]
        else:
            continue
        if not any(word in label for word in _REDUCTIONS):
            continue
        i = bisect_right(starts, at) - 1
        current = work.passes[i]
        # the CPU backend runs them on its own threads, possibly after the end of backward; hooks of
        # the last gradient may run after its node
        may_be_late = name.startswith("gloo:") or host.thread in work.autograd
        end_s = current.update_s if may_be_late else current.end_s
        if i >= 0 and current.backward_s <= at < end_s:
            target += [GradientReduction(at, size, kind) for size, kind in sizes if size]
    return recorded or shaped


def model_parallel(
    work: Attribution, device: Sequence[DeviceEvent], spans: Sequence[tuple[float, float]]
) -> str | None:
    """Collective in a training step that data parallel workers do not have; None if there is none.

    ``spans`` are start and end of the steps on the host, (steps,). Kernels count only if nothing
    was recorded on the host: NCCL has the same kernel for gathering values at one rank.
    """
    operations: set[str] = set()
    if not any(event.context.communication for event in work.events):
        sent = [e.launched_s or 0.0 for e in device if "ncclkernel_sendrecv" in _folded(e.name)]
        if any(start <= at < end for at in sent for start, end in spans):
            operations.add("send")
    for event in work.events:
        host = event.host
        name = host.name
        if name == "record_param_comms":
            name = f"nccl:{host.args.get('Collective name', '')}"
        inside = any(start <= host.start_s < end for start, end in spans)
        if inside and (match := _OF_PARTS.match(name)):
            operations.add(match[1].replace("alltoall", "all_to_all"))
    return next((name for name in ("all_to_all", "send", "recv") if name in operations), None)


def _folded(kernel: str) -> str:
    """Name of a kernel as in older releases of NCCL, in lower case."""
    return kernel.lower().replace("nccldevkernel", "ncclkernel")


def samples(p: HostPass) -> int | None:
    """Samples of a pass: the first dimension of the first input that is a batch.

    That is the input of a convolution or linear layer, or the (batch, length) indices of an
    embedding.
    """
    for layer, op in zip(p.order, p.ops, strict=True):
        kind = p.kinds[layer]
        place = 1 if kind == "embedding" or op.name == "aten::addmm" else 0
        inputs = _tensors(op.args)
        if kind.startswith(_BATCHED) and len(inputs) > place:
            shape = inputs[place][0]
            if len(shape) > 1:
                return shape[0]
    return None


def precision(kinds: Sequence[str]) -> str | None:
    """Element type as named in workload files; None if there are several or none.

    >>> precision(["float", "float"]), precision(["c10::Half"]), precision(["float", "double"])
    ('float32', 'float16', None)
    """
    names = {kind.lower().removeprefix("c10::") for kind in kinds}
    called = {"float": "float32", "double": "float64", "half": "float16"}
    return called.get(name := names.pop(), name) if len(names) == 1 else None


def _tensors(arguments: dict[str, object]) -> list[tuple[list[int], str]]:
    """Shape and type of each input, as recorded with ``record_shapes``; lists have no type."""
    shapes, kinds = listed(arguments.get("Input Dims")), listed(arguments.get("Input type"))
    tensors = []
    for shape, kind in zip(shapes, kinds, strict=False):
        sizes = [size for size in map(count_of, listed(shape)) if size is not None]
        complete = isinstance(shape, list) and len(sizes) == len(shape)
        tensors.append((sizes, str(kind)) if complete else ([], ""))
    return tensors


def tensors_of(arguments: dict[str, object]) -> list[tuple[int, str]]:
    """Bytes and type of each input that is a tensor."""
    return [(size, kind) for shape, kind in _tensors(arguments) if (size := _bytes(shape, kind))]


def _bytes(shape: Sequence[int], kind: str) -> int:
    """Bytes of a tensor; 0 if ``kind`` is not the type of a tensor."""
    size = math.prod(shape) * (element_bytes(kind) or 0)
    return size if size <= MOST_COUNT else 0
