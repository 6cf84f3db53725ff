"""A real model on a parameter server: hooks push gradients and wait for parameters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.foreign.pytorch import import_torch
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.measuring.torchrun import Array
from perfmodel.measuring.training.shards import ELEMENT_BYTES
from perfmodel.measuring.training.worker import Client
from perfmodel.profiler.training import TrainableModel

if TYPE_CHECKING:
    from torch import Tensor


class HookedModel:
    """A model whose layers wait for their parameters, and push their gradients as soon as these are
    complete.

    A layer is a module that is called and has its own parameters. A module that is not called, but
    whose parameters are used, belongs to the module that contains it. Layers are in the order of
    their calls in the first forward pass.
    """

    def __init__(self, training: TrainableModel) -> None:
        self._torch = import_torch()
        self._training = training
        self.layers = _layers(training)
        self._layer_of = {id(p): i for i, (_, ps) in enumerate(self.layers) for p in ps}
        self._missing = [0] * len(self.layers)
        self._fresh = [True] * len(self.layers)
        self._client: Client | None = None
        self._waited_s = 0.0
        modules = dict(training.model.named_modules())
        for index, (name, parameters) in enumerate(self.layers):
            modules[name].register_forward_pre_hook(lambda *_, index=index: self._refresh(index))
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._ready)

    @property
    def workload(self) -> Workload:
        """The sizes of the layers' gradients, without times."""
        return Workload.of(
            self._training.built.name,
            [
                WorkloadLayer(
                    name, 0.0, 0.0, tuple(float(p.numel() * ELEMENT_BYTES) for p in reversed(ps))
                )
                for name, ps in self.layers
            ],
            batch_size=self._training.batch_size,
        )

    def values(self, layer: int) -> Array:
        """Return a layer's parameters, all in one array."""
        return _flat(self.layers[layer][1])

    def iteration(self, client: Client) -> float:
        """Run forward and backward pass; return the seconds in which it did not wait."""
        self._client = client
        self._fresh = [False] * len(self.layers)
        self._missing = [len(parameters) for _, parameters in self.layers]
        begin_s, self._waited_s = time.monotonic(), 0.0
        batch = self._training.next_batch()
        for parameter in self._training.model.parameters():
            parameter.grad = None
        self._training.compute_loss(self._training.model, batch).backward()
        for index in reversed(range(len(self.layers))):
            if self._missing[index]:  # a parameter that the loss does not depend on
                self._push(index)
        return time.monotonic() - begin_s - self._waited_s

    def finish(self, client: Client) -> None:
        """Wait for the final parameters."""
        self._client = client
        self._fresh = [False] * len(self.layers)
        for index in range(len(self.layers)):
            self._refresh(index)

    def _refresh(self, index: int) -> None:
        if self._fresh[index] or self._client is None:
            return
        self._fresh[index] = True
        begin_s = time.monotonic()
        pushed = self._client.wait(index)
        self._waited_s += time.monotonic() - begin_s
        if not pushed:
            return
        flat = self._torch.from_numpy(self._client.parameters[index])
        first = 0
        with self._torch.no_grad():
            for parameter in self.layers[index][1]:
                part = flat[first : first + parameter.numel()]
                parameter.copy_(part.view(parameter.shape))
                first += parameter.numel()

    def _ready(self, parameter: Tensor) -> None:
        index = self._layer_of[id(parameter)]
        self._missing[index] -= 1
        if self._missing[index] == 0:
            self._push(index)

    def _push(self, index: int) -> None:
        self._missing[index] = 0
        if self._client is not None:
            zeros, parameters = self._torch.zeros_like, self.layers[index][1]
            gradients = [zeros(p) if p.grad is None else p.grad for p in parameters]
            self._client.push(index, _flat(gradients))


def _layers(training: TrainableModel) -> list[tuple[str, list[Tensor]]]:
    """Return the names of called modules and their trainable parameters."""
    model = training.model
    called: dict[str, None] = {}
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: called.setdefault(name))
        for name, module in model.named_modules()
    ]
    try:
        with import_torch().no_grad():
            training.compute_loss(model, training.next_batch())
    finally:
        for hook in hooks:
            hook.remove()
    parameters: dict[str, list[Tensor]] = {name: [] for name in called}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner = name.rpartition(".")[0]
            while owner not in called:
                owner = owner.rpartition(".")[0]
            parameters[owner].append(parameter)
    return [(name, trained) for name, trained in parameters.items() if trained]


def _flat(tensors: list[Tensor]) -> Array:
    """Concatenate tensors into a new float32 array on the host."""
    joined = import_torch().cat([tensor.detach().reshape(-1).float() for tensor in tensors])
    return np.asarray(joined.cpu().numpy(), np.float32)
