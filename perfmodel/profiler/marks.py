"""Hooks that only take time marks of the events in a training step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from perfmodel.base.pytorch import import_torch
from perfmodel.profiler.clocks import Clock
from perfmodel.profiler.layers import InspectedStep, in_backward, samples_of, tensors
from perfmodel.profiler.steps import Kind, Mark


class Marks:
    """The marks of the current step; hooks can be installed and removed at any time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[Mark] = []
        self._stack = ExitStack()
        self._outputs: list[Any] = []
        self.updates = 0
        """Number of optimiser runs since the marks were last returned."""

    def add(self, kind: Kind, number: int = 0) -> None:
        """Mark the current moment."""
        self._marks.append((kind, number, self._clock.mark()))

    def taken(self) -> list[Mark]:
        """Return the marks so far, and clear them."""
        found = self._marks[:]
        self._marks.clear()
        self.updates = 0
        self._forget_outputs()
        return found

    def remove(self) -> None:
        """Remove all hooks."""
        self._stack.close()
        self._forget_outputs()

    def watch_updates(self, optimizers: Sequence[Any]) -> None:
        """Install hooks on optimisers."""

        def update(*_: Any) -> None:
            self.add(Kind.UPDATE)

        def updated(*_: Any) -> None:
            self.add(Kind.UPDATED)
            self.updates += 1

        for optimizer in optimizers:
            self._stack.callback(optimizer.register_step_pre_hook(update).remove)
            self._stack.callback(optimizer.register_step_post_hook(updated).remove)

    def watch(self, found: InspectedStep) -> None:
        """Install hooks on the layers found in a step."""
        add, mark = self._marks.append, self._clock.mark
        number = import_torch()._C._current_graph_task_id
        recomputing = in_backward()

        def opened(_module: Any, args: Any, kwargs: Any) -> None:
            if not recomputing():
                add((Kind.OPEN, samples_of(args, kwargs), mark()))

        def closed(_module: Any, _args: Any, output: Any) -> None:
            if recomputing():
                return
            add((Kind.CLOSE, 0, mark()))
            for tensor in tensors(output):
                if tensor.grad_fn is not None:
                    self._outputs.append(tensor.register_hook(gradient))

        def gradient(_gradient: Any) -> None:
            add((Kind.GRADIENT, number(), mark()))

        def started(index: int) -> Any:
            def hook(_module: Any, _args: Any) -> None:
                if not recomputing():
                    add((Kind.LAYER, index, mark()))

            return hook

        def ready(index: int) -> Any:
            return lambda _parameter: add((Kind.READY, index, mark()))

        handles = []
        for top in found.tops:
            handles.append(top.register_forward_pre_hook(opened, with_kwargs=True))
            handles.append(top.register_forward_hook(closed))
        for index, layer in enumerate(found.layers):
            handles.append(layer.module.register_forward_pre_hook(started(index)))
            for _, parameter, _ in layer.parameters:
                handles.append(parameter.register_post_accumulate_grad_hook(ready(index)))
        for handle in handles:
            self._stack.callback(handle.remove)

    def _forget_outputs(self) -> None:
        for handle in self._outputs:
            handle.remove()
        self._outputs.clear()
