"""Divides a step into parts by its marks; the parts add up to the step by construction.

Each interval between two marks belongs to exactly one part:

- forward time of a layer: from its start to the start of the next layer, or to the end of the
  model's forward pass; time before the first layer of a pass counts towards the first layer;
- backward time of a layer: until the last of its gradients is ready, starting when the gradients of
  the previous layer, or the gradient of the model's output, were ready;
- loading, copying and the optimiser: between their marks;
- *other*, by place: between the major events *start*, *forward*, *backward*, *optimizer*, *end*.
  The place from forward to backward is the loss with its gradient.

If loading is not marked, time before a forward pass counts as loading.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

Place = tuple[str, str]

LOADED: frozenset[Place] = frozenset({("start", "forward"), ("backward", "forward")})
"""Places that count as loading if loading is not marked."""


class MarkKind(IntEnum):
    """Kind of a mark. The accompanying number is in brackets."""

    STEP = 0
    """Start, and later end, of the step."""
    OPEN = 1
    """A forward pass begins (samples in its batch, 0 if unknown)."""
    LAYER = 2
    """A layer starts (its index)."""
    CLOSE = 3
    """A forward pass ends."""
    GRADIENT = 4
    """A backward pass reaches the model's output (number of the pass)."""
    READY = 5
    """A gradient is complete (index of its layer)."""
    UPDATE = 6
    """The optimiser begins."""
    UPDATED = 7
    """The optimiser ends."""
    LOAD = 8
    """Loading data begins."""
    COPY = 9
    """Copying begins."""
    PAUSE = 10
    """Time that is not part of the step begins."""
    END = 11
    """The interval begun by LOAD, COPY or PAUSE ends."""


Mark = tuple[int, int, object]
"""Kind, number, and the clock's mark."""


class StepTimes(NamedTuple):
    """Seconds of one step by part; ``forward_s`` and ``backward_s`` have one value per layer.

    ``samples`` gives the samples of each forward pass, ``backwards`` the number of backward passes.
    """

    forward_s: list[float]
    backward_s: list[float]
    optimizer_s: float
    loading_s: float
    copy_s: float
    other_s: dict[Place, float]
    samples: tuple[int, ...]
    backwards: int

    @property
    def total_s(self) -> float:
        """Time of the whole step."""
        return self.device_s + self.loading_s

    @property
    def device_s(self) -> float:
        """Time of the step without loading data."""
        parts = sum(self.forward_s) + sum(self.backward_s) + sum(self.other_s.values())
        return parts + self.optimizer_s + self.copy_s


def parts(marks: Sequence[Mark], seconds: Sequence[float], layers: int) -> StepTimes:
    """Divide a step into parts.

    Parameters
    ----------
    marks : marks in time order; the first and the last are of kind STEP.
    seconds : time of each mark.
    layers : number of layers.
    """
    return _Walk(layers).run(marks, seconds)


class _Walk:
    """State while processing the marks of a step."""

    def __init__(self, layers: int) -> None:
        self.forward = [0.0] * layers
        self.backward = [0.0] * layers
        self.other: defaultdict[Place, float] = defaultdict(float)
        self.spent = {
            MarkKind.UPDATE: 0.0,
            MarkKind.LOAD: 0.0,
            MarkKind.COPY: 0.0,
            MarkKind.PAUSE: 0.0,
        }
        self.samples: list[int] = []
        self.backwards = 0
        self.marked = False
        self.inside: list[MarkKind] = []
        """Open intervals of kind UPDATE, LOAD, COPY and PAUSE."""
        self.before = "start"
        """The last major event."""
        self.gap = 0.0
        """Unassigned seconds since the last major event."""
        self.layer: int | None = None
        """The current layer of the forward pass; None outside a pass, -1 before its first layer."""
        self.lead = 0.0
        """Seconds of the forward pass before its first layer."""
        self.task: int | None = None
        """The current backward pass; None if there is none."""
        self.ready: dict[int, float] = {}
        """In a backward pass: when each layer was ready, in seconds since its start, in order."""
        self.run_s = 0.0
        """Seconds of the backward pass so far."""

    def run(self, marks: Sequence[Mark], seconds: Sequence[float]) -> StepTimes:
        previous = seconds[0]
        for (kind, number, _), now in zip(marks[1:], seconds[1:], strict=True):
            self.spend(now - previous)
            previous = now
            self.take(MarkKind(kind), number)
        if not self.marked:
            for place in LOADED & self.other.keys():
                self.spent[MarkKind.LOAD] += self.other.pop(place)
        return StepTimes(
            self.forward,
            self.backward,
            self.spent[MarkKind.UPDATE],
            self.spent[MarkKind.LOAD],
            self.spent[MarkKind.COPY],
            {place: value for place, value in self.other.items() if value},
            tuple(self.samples),
            self.backwards,
        )

    def spend(self, seconds: float) -> None:
        """Assign an interval to the current part."""
        if self.inside:
            self.spent[self.inside[-1]] += seconds
        elif self.layer is not None:
            if self.layer < 0:
                self.lead += seconds
            else:
                self.forward[self.layer] += seconds
        elif self.task is not None:
            self.run_s += seconds
        else:
            self.gap += seconds

    def take(self, kind: MarkKind, number: int) -> None:
        """Process a mark."""
        if kind in (MarkKind.LOAD, MarkKind.COPY, MarkKind.PAUSE):
            self.marked |= kind == MarkKind.LOAD
            self.inside.append(kind)
        elif kind in (MarkKind.END, MarkKind.UPDATED):
            if self.inside:
                self.inside.pop()
            if kind == MarkKind.UPDATED:
                self.before = "optimizer"
        elif kind == MarkKind.UPDATE:
            self.major("optimizer")
            self.inside.append(kind)
        elif kind == MarkKind.OPEN:
            self.major("forward")
            self.samples.append(number)
            self.layer, self.lead = -1, 0.0
        elif kind == MarkKind.LAYER:
            self.start(number)
        elif kind == MarkKind.CLOSE:
            self.close()
        elif kind == MarkKind.GRADIENT:
            if self.task != number:
                self.begin_backward(number)
        elif kind == MarkKind.READY:
            if self.task is None:  # the loss does not use the model's output
                self.begin_backward(-1)
            self.ready.pop(number, None)  # so that it moves to the end
            self.ready[number] = self.run_s
        elif kind == MarkKind.STEP:
            self.major("end")

    def start(self, layer: int) -> None:
        """Begin the forward pass of a layer."""
        if self.layer is None:  # outside of a known pass
            self.major("forward")
            self.lead = 0.0
        self.layer = layer
        self.forward[layer] += self.lead
        self.lead = 0.0

    def close(self) -> None:
        """End a forward pass."""
        if self.layer == -1 and self.forward:  # it ran no layer
            self.forward[0] += self.lead
        self.layer, self.before = None, "forward"

    def begin_backward(self, task: int) -> None:
        """Begin the backward pass ``task``."""
        self.major("backward")
        self.backwards += 1
        self.task, self.run_s, self.ready = task, 0.0, {}

    def major(self, event: str) -> None:
        """End the current part at a major event, and assign the gap before it to a place."""
        if self.layer is not None:
            self.close()
        if self.task is not None:
            self.end_backward()
        self.other[self.before, event] += self.gap
        self.gap = 0.0
        self.before = event

    def end_backward(self) -> None:
        """Divide a backward pass among its layers; time after its last gradient joins the gap."""
        done = 0.0
        for layer, ready in self.ready.items():
            self.backward[layer] += ready - done
            done = ready
        self.gap = self.run_s - done
        self.task = None
