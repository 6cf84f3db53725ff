"""A model as a whole instead of layer by layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import msgspec

from perfmodel.base.quantities import Quantity

if TYPE_CHECKING:
    from perfmodel.phases.layers import Made, Send, Stage


class Whole(msgspec.Struct, frozen=True, eq=False):
    r"""A model as a whole instead of layer by layer: overlap is approximated by a p-norm.

    Two overlapping times together take their p-norm, with p the ``sharpness``: 1 means no overlap,
    infinity that the longer one hides the shorter one. This needs no knowledge of the layers and
    keeps formulas short, but it guesses the overlap that :class:`Layers` computes. ``part`` is the
    fraction of the gradients at the place that holds the most.
    """

    forward_s: Quantity
    backward_s: Quantity
    gradient_bytes: Quantity
    tensors: Quantity
    sharpness: float = math.inf
    part: Quantity = 1.0

    def once(self, name: Hashable, make: Callable[[], Made], *, of_bytes: bool = False) -> Made:
        """Return ``make()``."""
        return make()

    @property
    def bytes(self) -> tuple[Quantity, ...]:
        """Bytes of all gradients."""
        return (self.gradient_bytes,)

    def beside_s(self, *seconds: Quantity) -> Quantity:
        """Return the seconds that overlapping times take together."""
        from perfmodel.theory.overlap import blend

        return functools.reduce(lambda a, b: blend(a, b, self.sharpness), seconds)

    def overlapped_s(
        self,
        scale: Quantity,
        send: Send,
        numbers: Sequence[int],
        *,
        encode_per_byte_s: Quantity = 0.0,
    ) -> list[Quantity]:
        """Return the seconds until all gradients are computed, and until all messages are sent."""
        computed = self.backward_s * scale + encode_per_byte_s * self.gradient_bytes
        return [computed, self.beside_s(computed, send([0.0 * computed for _ in numbers]))]

    def pull_and_forward_s(self, per_byte_s: Quantity, scale: Quantity) -> Quantity:
        """Return the end of the forward pass (s)."""
        return self.beside_s(self.forward_s * scale, self.part * self.gradient_bytes * per_byte_s)

    def backward_and_send_s(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        *,
        encode_per_byte_s: Quantity = 0.0,
        latency_s: Quantity = 0.0,
        overlap: bool = True,
        next_forward: bool = False,
    ) -> list[Quantity]:
        """Return the seconds until all gradients are computed, until they have passed each of the
        ``stages``, and until ``latency_s`` after that."""
        computed = self.backward_s * scale + encode_per_byte_s * self.gradient_bytes
        begun, end = (0.0, computed) if overlap else (computed, 0.0)
        ends = [computed]
        for stage in stages:
            per_tensor_s, per_byte_s = stage.each_s
            seconds = self.part * (self.tensors * per_tensor_s + self.gradient_bytes * per_byte_s)
            end = self.beside_s(end, seconds)
            ends.append(begun + end)
        return [*ends, ends[-1] + latency_s]

    def step_s(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        pull_per_byte_s: Quantity,
        *,
        encode_per_byte_s: Quantity = 0.0,
    ) -> tuple[list[Quantity], Quantity]:
        """Return :meth:`backward_and_send_s` without the latency, and the forward pass after it."""
        *ends, _ = self.backward_and_send_s(scale, stages, encode_per_byte_s=encode_per_byte_s)
        return ends, self.pull_and_forward_s(pull_per_byte_s, scale)
