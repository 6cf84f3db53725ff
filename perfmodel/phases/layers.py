"""Overlap of computation and communication, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity, axes_of, column, many, maximum
from perfmodel.base.same import kept
from perfmodel.inputs.workload import Workload, WorkloadLayer, expanded

if TYPE_CHECKING:
    from perfmodel.phases import cumulative, lines
    from perfmodel.theory.fronts import Lines

Made = TypeVar("Made")

FEW_VALUES = 128
"""Number of values up to which all layers at once are faster than one after the other."""

OF_BYTES, OF_LAYERS, OF_JOB = "known_of_bytes", "known", "known_of_job"
"""Where layers keep what depends on their bytes alone, on the layers, or also on their job."""

MANY_PARTS = 128
"""Number of parts of gradients from which all layers at once are faster for single numbers, too."""

MOST_KNOWN = 64
"""Largest number of values that layers keep of one kind."""

Send = Callable[[list[Quantity]], Quantity]
"""Maps the times at which messages are ready to the time at which the last has been sent (s)."""


class Part(msgspec.Struct, frozen=True):
    """The part of a layer's gradients at one place, such as a server: bytes and tensors."""

    place: int
    bytes: float
    tensors: float


class Stage(NamedTuple):
    """A resource that gradients pass in order, such as a link. Its service time, per tensor and per
    byte, is multiplied by ``times`` if others use it too; ``alone_per_byte_s`` is not. If it has
    several servers at once, such as threads, a part takes ``longer`` times its share of the service
    time."""

    per_tensor_s: Quantity
    per_byte_s: Quantity
    longer: Quantity = 1.0
    times: Quantity = 1
    alone_per_byte_s: Quantity = 0.0

    @property
    def each_s(self) -> tuple[Quantity, Quantity]:
        """Service time per tensor, and per byte."""
        tensor_s, byte_s = self.per_tensor_s, self.times * self.per_byte_s
        return (
            tensor_s if is_nothing(tensor_s) else self.times * tensor_s,
            byte_s if is_nothing(self.alone_per_byte_s) else byte_s + self.alone_per_byte_s,
        )

    @property
    def constants(self) -> lines.StageService | None:
        """The constants, if only ``times`` can vary and parts take turns; else None."""
        from perfmodel.phases.lines import StageService

        values = (self.per_tensor_s, self.per_byte_s, self.alone_per_byte_s)
        one_by_one = isinstance(self.longer, float) and self.longer == 1.0
        plain = one_by_one and all(isinstance(value, (int, float)) for value in values)
        return StageService(*map(float, values)) if plain else None


class Layers(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The layers with parameters, in forward order, and the times of their passes.

    The times of a layer without parameters are added to the preceding layer. All of shape
    (layers,): ``forward_s``; ``backward_s``; ``bytes`` of the gradients; their ``parts`` (for
    places that hold the same parts, those of one place); and ``index``, the number of the layer in
    the workload. ``first_s`` and ``last_s`` are the forward and the backward time of the layers
    before the first one with parameters. Of the times of each layer, ``forward_after_s`` and
    ``backward_after_s`` (layers,) are those of layers without parameters that follow it. If the
    times of a layer are arrays, they have so many ``axes``.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    bytes: tuple[float, ...]
    parts: tuple[tuple[Part, ...], ...]
    index: tuple[int, ...]
    first_s: float
    last_s: float
    forward_after_s: tuple[float, ...]
    backward_after_s: tuple[float, ...]
    axes: int = 0

    @classmethod
    def of(cls, workload: Workload) -> Layers:
        """Return the layers of a workload, with the gradients of each in one part."""
        known = _layers_of(expanded(workload).layers)
        made = msgspec.structs.replace(known)
        for of in (OF_BYTES, OF_LAYERS):
            made.__dict__[of] = known.__dict__.setdefault(of, {})
        return made

    @classmethod
    def each(cls, layers: Sequence[WorkloadLayer]) -> Layers:
        """Return these layers, as :meth:`of`, which makes those of a workload once."""
        rows: list[tuple[float, float, tuple[Part, ...], int]] = []
        after: list[tuple[float, float]] = []
        first = last = 0.0
        for index, layer in enumerate(layers):
            forward, backward = layer.forward_s, layer.backward_s
            if layer.tensor_bytes:
                part = Part(0, sum(layer.tensor_bytes), float(len(layer.tensor_bytes)))
                rows.append((forward, backward, (part,), index))
                after.append((0.0, 0.0))
            elif rows:
                f, b, parts, i = rows[-1]
                rows[-1] = (f + forward, b + backward, parts, i)
                after[-1] = (after[-1][0] + forward, after[-1][1] + backward)
            else:
                first, last = first + forward, last + backward
        forwards, backwards, every, numbers = zip(*rows, strict=True)
        sizes = tuple(part.bytes for (part,) in every)
        forward_after, backward_after = zip(*after, strict=True)
        later = forward_after, backward_after
        return cls(forwards, backwards, sizes, every, numbers, first, last, *later)

    def placed(self, parts: Mapping[int, Sequence[Part]]) -> Layers:
        """Return the same layers with other ``parts`` of their gradients, by layer number."""
        held: dict[int, list[tuple[int, float, float]]] = {}
        for i in self.index:
            for part in parts[i]:
                held.setdefault(part.place, []).append((i, part.bytes, part.tensors))
        unlike = set({tuple(totals): place for place, totals in held.items()}.values())
        return msgspec.structs.replace(
            self,
            bytes=tuple(sum(part.bytes for part in parts[i]) for i in self.index),
            parts=tuple(tuple(p for p in parts[i] if p.place in unlike) for i in self.index),
        )

    def scaled_like(self, without: Layers, times: Quantity) -> Layers:
        """Return the layers such that scaling them scales only the backward times of ``without``.

        After multiplication by ``times``, the rest of the backward pass is unchanged, such as the
        handover of gradients to the network: it does not grow with the batch.
        """
        return self.with_backward(
            tuple(
                less + (more - less) / times
                for less, more in zip(without.backward_s, self.backward_s, strict=True)
            )
        )

    def with_backward(self, backward_s: tuple[Quantity, ...]) -> Layers:
        """Return the same layers with other backward times, (layers,)."""
        return msgspec.structs.replace(self, backward_s=backward_s, axes=axes_of(*backward_s))

    def timed(self, forward_s: Floats, backward_s: Floats) -> Layers:
        """Return the same layers with other times, (layers of the workload, ...) each."""
        first, rows = self.index[0], np.array(self.index)
        forward, backward = (np.add.reduceat(s, rows, axis=0) for s in (forward_s, backward_s))
        made = msgspec.structs.replace(
            self,
            forward_s=tuple(forward),
            backward_s=tuple(backward),
            axes=backward.ndim - 1,
            forward_after_s=tuple(forward - forward_s[rows]),
            backward_after_s=tuple(backward - backward_s[rows]),
            first_s=forward_s[:first].sum(axis=0) if first else 0.0,
            last_s=backward_s[:first].sum(axis=0) if first else 0.0,
        )
        made.__dict__[OF_BYTES] = self.__dict__.setdefault(OF_BYTES, {})
        return made

    def once(
        self,
        name: Hashable,
        make: Callable[[], Made],
        *,
        of_bytes: bool = False,
        of_job: bool = False,
    ) -> Made:
        """Return ``make()``, which depends only on the layers and ``name``, only on their bytes
        (``of_bytes``), or also on their job (``of_job``); the value is cached, also for other jobs
        with these layers unless it is of the job."""
        of = OF_BYTES if of_bytes else OF_JOB if of_job else OF_LAYERS
        known = self.__dict__.setdefault(of, {})
        if name not in known:
            if len(known) >= MOST_KNOWN and of == OF_LAYERS:
                known.clear()
            known[name] = make()
        return cast(Made, known[name])

    def overlapped_s(
        self,
        scale: Quantity,
        send: Send,
        numbers: Sequence[int],
        *,
        encode_per_byte_s: Quantity = 0.0,
    ) -> list[Quantity]:
        """Return the seconds until all gradients are computed, and until all messages are sent.

        Message k is ready when backward has computed the gradients of layer ``numbers[k]``.
        ``send`` maps the times at which messages are ready to the time the last has been sent.
        """
        computed: Quantity = 0.0
        ready: dict[int, Quantity] = {}
        sizes = self.bytes[::-1]
        for number, seconds, size in zip(
            self.index[::-1], self.backward_s[::-1], sizes, strict=True
        ):
            computed = computed + (seconds * scale + encode_per_byte_s * size)
            ready[number] = computed
        computed = computed + self.last_s * scale
        return [computed, maximum(computed, send([ready[number] for number in numbers]))]

    def pull_and_forward_s(self, per_byte_s: Quantity, scale: Quantity) -> Quantity:
        r"""Return the end of the forward pass (s) if each layer waits for its own parameters.

        Parameters arrive in forward order, one after the other from each place, at ``per_byte_s``;
        computation takes ``scale`` times as long as profiled. From one place:

        .. math:: \max_l \left( x \sum_{j \le l} s_j + \sum_{j \ge l} f_j \right)
        """
        if self._all_numbers(per_byte_s, scale):
            if self._has_many_parts:
                return float((self._pulling @ np.array([scale, per_byte_s])).max())
        elif many(per_byte_s, scale):
            from perfmodel.phases import lines  # slow to import

            paths = self.once("pull", lambda: lines.pull(self.first_s, self.forward_s, self._loads))
            if paths is not None:
                return paths.ends_s((scale, per_byte_s))[0]
        elif axes_of(per_byte_s, scale):
            from perfmodel.theory.fronts import largest

            return largest([self._pulling], [scale, per_byte_s])[0]
        arrived: dict[int, Quantity] = {}
        computed: Quantity = self.first_s * scale
        for seconds, parts in zip(self.forward_s, self.parts, strict=True):
            for part in parts:
                there = arrived.get(part.place, 0.0) + part.bytes * per_byte_s
                arrived[part.place] = there
                if type(there) is float and type(computed) is float:
                    computed = computed if computed > there else there
                else:
                    computed = maximum(computed, there)
            computed = computed + seconds * scale
        return computed

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
        r"""Return the seconds until all gradients are computed, until they have passed each of the
        ``stages``, and until ``latency_s`` after that.

        A stage is a link, or the update threads of a server. Each place has its own stages, which
        serve one part after the other. With one stage:

        .. math:: \max_l \left( \sum_{j \ge l} b_j + x \sum_{j \le l} s_j \right)

        Without ``overlap`` nothing enters the first stage before all gradients are computed. With
        ``next_forward`` the layers before the first one with parameters begin the next forward pass
        at that time.
        """
        values = (scale, encode_per_byte_s, 1.0, *(stage.times for stage in stages))
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        paths = None
        if arrays and many(*arrays):
            paths = self._critical_paths(tuple(stages), overlap, not is_nothing(encode_per_byte_s))
        if paths is not None:
            computed, *ends = paths.ends_s(values)
        elif self._fast_at_once(scale, stages, encode_per_byte_s):
            computed, ends = self._at_once(scale, stages, encode_per_byte_s, overlap)
        else:
            computed, ends = self._one_by_one(scale, stages, encode_per_byte_s, overlap)
        if next_forward:
            computed = computed + self.first_s * scale
        return [computed, *(_latest(computed, end) for end in (*ends, ends[-1] + latency_s))]

    def step_s(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        pull_per_byte_s: Quantity,
        *,
        encode_per_byte_s: Quantity = 0.0,
    ) -> tuple[list[Quantity], Quantity]:
        """Return the seconds until all gradients are computed and have passed each of the
        ``stages`` (:meth:`backward_and_send_s`), and those of the forward pass that follows, which
        waits for parameters (:meth:`pull_and_forward_s`)."""
        *ends, _ = self.backward_and_send_s(scale, stages, encode_per_byte_s=encode_per_byte_s)
        return ends, self.pull_and_forward_s(pull_per_byte_s, scale)

    def _fast_at_once(self, scale: Quantity, stages: Sequence[Stage], encode: Quantity) -> bool:
        """Return whether all layers at once are faster: for arrays that are not long, and for
        numbers if there are many parts."""
        values = (scale, encode, *(value for stage in stages for value in stage))
        if self._all_numbers(*values):
            return self._has_many_parts
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        short = all(array.size < FEW_VALUES for array in arrays)
        return short and (any(array.ndim for array in arrays) or self.axes > 0)

    def _all_numbers(self, *values: Quantity) -> bool:
        """Return whether these and the times of layers are numbers."""
        return self.axes == 0 and all(isinstance(value, (int, float)) for value in values)

    @property
    def _has_many_parts(self) -> bool:
        return self.once("many", lambda: sum(map(len, self.parts)) >= MANY_PARTS)

    @property
    def _pulling(self) -> Lines:
        from perfmodel.phases import lines  # slow to import

        return self.once(
            "pulling", lambda: lines.pulling(self.first_s, self.forward_s, self._loads)
        )

    def _at_once(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        encode_per_byte_s: Quantity,
        overlap: bool,
    ) -> tuple[Quantity, list[Quantity]]:
        """Return the same as :meth:`_one_by_one`, with the layers as an axis."""
        from perfmodel.phases import cumulative

        axes = max(self.axes, axes_of(scale, encode_per_byte_s))
        seconds, sizes = self.once(
            ("columns", axes),
            lambda: (column(self.backward_s[::-1], axes), column(self.bytes[::-1], axes)),
        )
        each_s = seconds * scale
        if not is_nothing(encode_per_byte_s):
            each_s = each_s + encode_per_byte_s * sizes
        made = np.cumsum(each_s, axis=0)
        computed = made[-1] + self.last_s * scale
        services = [cumulative.PartService(*stage.each_s, stage.longer) for stage in stages]
        places = self.once("places", lambda: cumulative.places_of(self._loads))
        ends = cumulative.sent_s(made, computed, places, services, overlap=overlap)
        computed, *ends = (end if np.ndim(end) else float(end) for end in (computed, *ends))
        return computed, ends

    def _one_by_one(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        encode_per_byte_s: Quantity,
        overlap: bool,
    ) -> tuple[Quantity, list[Quantity]]:
        """Return the seconds until all gradients are computed and have passed each stage."""
        computed: Quantity = 0.0
        made: list[Quantity] = []
        for seconds, size in zip(self.backward_s[::-1], self.bytes[::-1], strict=True):
            computed = computed + (seconds * scale + encode_per_byte_s * size)
            made.append(computed)
        computed = computed + self.last_s * scale
        ready = made if overlap else [computed] * len(made)
        several = [not (isinstance(s.longer, float) and s.longer == 1.0) for s in stages]
        services = [(*stage.each_s, stage.longer) for stage in stages]
        values = (computed, *(value for service in services for value in service[:2]))
        turns = self.once("turns", self._turns)
        if turns and not any(several) and all(type(value) is float for value in values):
            numbers = cast("list[float]", ready), cast("list[tuple[float, ...]]", services)
            return computed, _in_turn(turns, *numbers)
        free: list[dict[int, Quantity]] = [{} for _ in stages]
        over: list[Quantity] = [0.0 for _ in stages]
        timed = [not is_nothing(stage.per_tensor_s) for stage in stages]
        for begun, parts in zip(ready, self.parts[::-1], strict=True):
            for part in parts:
                end = begun
                for k, (per_tensor_s, per_byte_s, longer) in enumerate(services):
                    last = free[k].get(part.place, 0.0)
                    if type(end) is float and type(last) is float:
                        begin: Quantity = end if end > last else last
                    else:
                        begin = maximum(end, last)
                    busy = part.bytes * per_byte_s
                    if timed[k]:
                        busy = busy + part.tensors * per_tensor_s
                    end = free[k][part.place] = begin + busy
                    if several[k]:
                        end = begin + longer * busy
                        over[k] = maximum(over[k], end)
        ends = [
            _latest(0.0, *places.values(), late) for places, late in zip(free, over, strict=True)
        ]
        return computed, ends

    def _turns(self) -> list[tuple[float, float]]:
        """Return bytes and tensors of the layers in backward order if each is one part, all at the
        same place; else none."""
        parts = [part for layer in self.parts[::-1] for part in layer]
        alone = all(len(layer) == 1 for layer in self.parts)
        alone = alone and len({part.place for part in parts}) == 1
        return [(part.bytes, part.tensors) for part in parts] if alone else []

    def _critical_paths(
        self, stages: tuple[Stage, ...], overlap: bool, encoded: bool
    ) -> lines.CriticalPaths | None:
        """Return the longest paths to the ends of the passes, or None if they are not known."""
        from perfmodel.phases import lines

        services = tuple(stage.constants for stage in stages)

        def search() -> lines.CriticalPaths | None:
            seconds, known = self.backward_s, [s for s in services if s is not None]
            if len(known) < len(services) or not all(isinstance(s, float) for s in seconds):
                return None
            backward = lines.Backward(seconds, self.bytes, self._loads, self.last_s)
            return lines.send(backward, tuple(known), overlap=overlap, encoded=encoded)

        paths: lines.CriticalPaths | None = self.once((services, overlap, encoded), search)
        return paths

    @property
    def _loads(self) -> cumulative.Parts:
        """Place, bytes and tensors of the parts of each layer."""
        return tuple(tuple((p.place, p.bytes, p.tensors) for p in layer) for layer in self.parts)


@kept(64)
def _layers_of(layers: tuple[WorkloadLayer, ...]) -> Layers:
    return Layers.each(layers)


def _in_turn(
    turns: Sequence[tuple[float, float]],
    ready: Sequence[float],
    services: Sequence[tuple[float, ...]],
) -> list[Quantity]:
    """Return when the last of parts has passed each stage, if a stage serves one after the other.

    ``turns`` are bytes and tensors of the parts; ``services`` begin with the seconds per tensor and
    per byte.
    """
    ends: list[Quantity] = []
    for per_tensor_s, per_byte_s, *_ in services:
        last, passed = 0.0, []
        for begun, (size, count) in zip(ready, turns, strict=True):
            last = (begun if begun > last else last) + (size * per_byte_s + count * per_tensor_s)
            passed.append(last)
        ready = passed
        ends.append(last)
    return ends


def _latest(*times: Quantity) -> Quantity:
    """Return the largest of some times; mostly these are numbers."""
    return max(times) if all(type(time) is float for time in times) else maximum(*times)


def is_nothing(value: Quantity) -> bool:
    """Return whether a quantity is the number 0, so that arithmetic with it can be skipped."""
    return isinstance(value, float) and value == 0.0
