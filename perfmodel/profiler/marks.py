"""Hooks that only take time marks of the events in a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from perfmodel.foreign.pytorch import import_torch
from perfmodel.profiler.clocks import Clock
from perfmodel.profiler.layers import ObservedStep, in_backward, samples_of
from perfmodel.profiler.operators import tensors
from perfmodel.profiler.steps import Mark, MarkKind

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


class Marks:
    """The marks of the current step; hooks can be installed and removed at any time."""

    def __init__(self, clock: Clock[Any]) -> None:
        self._clock = clock
        self._marks: list[Mark] = []
        self._stack = ExitStack()
        self._outputs: list[RemovableHandle] = []
        self.updates = 0
        """Number of optimiser runs since the marks were last returned."""

    def add(self, kind: MarkKind, number: int = 0) -> None:
        """Mark the current moment."""
        self._marks.append((kind, number, self._clock.mark()))

    def take(self) -> list[Mark]:
        """Return the marks so far, and clear them."""
        marks = self._marks[:]
        self._marks.clear()
        self.updates = 0
        self._remove_output_hooks()
        return marks

    def remove(self) -> None:
        """Remove all hooks."""
        self._stack.close()
        self._remove_output_hooks()

    def watch_updates(self, optimizers: Sequence[Optimizer]) -> None:
        """Install hooks on optimisers."""

        def before(*_: object) -> None:
            self.add(MarkKind.UPDATE)

        def after(*_: object) -> None:
            self.add(MarkKind.UPDATED)
            self.updates += 1

        for optimizer in optimizers:
            self._stack.callback(optimizer.register_step_pre_hook(before).remove)
            self._stack.callback(optimizer.register_step_post_hook(after).remove)

    def watch(self, step: ObservedStep) -> None:
        """Install hooks on the layers that were observed in a step."""
        add, mark = self._marks.append, self._clock.mark
        number = import_torch()._C._current_graph_task_id
        recomputing = in_backward()

        def opened(_: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
            if not recomputing():
                add((MarkKind.OPEN, samples_of(args, kwargs), mark()))

        def closed(_module: object, _args: object, output: object) -> None:
            if recomputing():
                return
            add((MarkKind.CLOSE, 0, mark()))
            for tensor in tensors(output):
                if tensor.grad_fn is not None:
                    self._outputs.append(tensor.register_hook(gradient))

        def gradient(_: object) -> None:
            add((MarkKind.GRADIENT, number(), mark()))

        def started(index: int) -> Callable[[object, object], None]:
            def hook(_module: object, _args: object) -> None:
                if not recomputing():
                    add((MarkKind.LAYER, index, mark()))

            return hook

        def ready(index: int) -> Callable[[object], None]:
            return lambda _: add((MarkKind.READY, index, mark()))

        handles = []
        for top in step.tops:
            handles.append(top.register_forward_pre_hook(opened, with_kwargs=True))
            handles.append(top.register_forward_hook(closed))
        for index, layer in enumerate(step.layers):
            handles.append(layer.module.register_forward_pre_hook(started(index)))
            for _, parameter, _ in layer.parameters:
                handles.append(parameter.register_post_accumulate_grad_hook(ready(index)))
        for handle in handles:
            self._stack.callback(handle.remove)

    def _remove_output_hooks(self) -> None:
        for handle in self._outputs:
            handle.remove()
        self._outputs.clear()
