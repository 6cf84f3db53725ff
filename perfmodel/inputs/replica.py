"""A worker of several devices that hold one copy of the model together: a replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import msgspec

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.ranges import COUNT, Ranged
from perfmodel.inputs.expert_parallel import ExpertParallel

MOST_DEGREE = 10_000
"""Most devices along one dimension of a replica; a limit that catches typing errors."""

RankOrder = Literal["tp-dp-pp", "tp-pp-dp"]

ContextExchange = Literal["ring", "all-gather", "all-to-all", "hierarchical"]
"""How devices that divide a sequence get what attention needs of the other parts."""

ContextSplit = Literal["zigzag", "contiguous", "documents"]
"""Which parts of a sequence each of these devices has."""

Transfers = Literal["torch", "gloo", "blocking", "ahead"]
"""When stages post and await what they send: see :mod:`perfmodel.training.transfers`."""


class Replica(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the devices of a worker divide the model between them.

    Attributes
    ----------
    tensor : devices that divide every layer (tensor parallelism).
    context : devices that divide every sequence (context parallelism); each has all layers of its
        stage, divided by ``tensor``.
    context_exchange : how attention gets the other parts: keys and values pass round a *ring*,
        while the part before is computed; an *all-gather* comes first; an *all-to-all* gives each
        device whole sequences of some heads; *hierarchical*: an all-to-all among
        ``context_inside`` neighbours, and a ring of such groups.
    context_split : of 2 x ``context`` equal parts each device has the k-th first and the k-th last
        (*zigzag*), which all take the same time under a causal mask; or *contiguous*; or, of packed
        sequences, such parts of each of the *documents*.
    pipeline : stages, each of which has some of the layers (pipeline parallelism).
    virtual_stages : chunks of layers per stage.
    schedule : name of the order in which stages work on micro-batches, or the path of its file.
    stage_layers : layers, or blocks of a language model, of each chunk in order; empty for equal
        numbers.
    balance : whether layers are divided by their times instead of in equal numbers.
    sequence_parallel : whether the devices of a stage also divide what is between their products,
        along the sequence.
    overlap_sums : whether the gradients of a layer's inputs are summed while those of its weights
        are computed, as in Megatron-LM without sequence parallelism.
    transfers : between stages: *torch*: as torch.distributed.pipelining posts and awaits them;
        *gloo*: the same over gloo, which asks for data behind what it sends to the same device;
        *blocking*: a stage waits for what it sends and receives before it goes on (Megatron-LM
        without interleaving); *ahead*: posted ahead, and never waited for (Megatron-LM with
        ``overlap_p2p_comm``).
    order : in which devices are numbered, innermost first; nodes are filled in this order.
    experts : how devices of a stage, of one replica or of several, divide its experts; None if each
        has its part of all of them.
    """

    RANGES: ClassVar = dict.fromkeys(
        ("tensor", "context", "context_inside", "pipeline", "virtual_stages", "stage_layers"),
        COUNT._replace(at_most=MOST_DEGREE),
    )

    tensor: int = 1
    context: int = 1
    context_exchange: ContextExchange = "ring"
    context_inside: int = 1
    context_split: ContextSplit = "zigzag"
    pipeline: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    stage_layers: tuple[int, ...] = ()
    balance: bool = False
    sequence_parallel: bool = False
    overlap_sums: bool = False
    transfers: Transfers = "torch"
    order: RankOrder = "tp-dp-pp"
    experts: ExpertParallel | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise InputError(
                f"virtual_stages: {self.virtual_stages} chunks need several stages (pipeline: 1)"
            )
        if self.stage_layers and len(self.stage_layers) != self.chunks:
            raise InputError(
                f"stage_layers: {len(self.stage_layers)} numbers, but there are {self.chunks} "
                f"(pipeline {self.pipeline} x virtual_stages {self.virtual_stages})"
            )
        if self.stage_layers and self.balance:
            raise InputError("stage_layers and balance: give only one of them")
        if self.sequence_parallel and self.tensor == 1:
            raise InputError("sequence_parallel: needs tensor parallelism (tensor: 1)")

        if self.overlap_sums and self.tensor == 1:
            raise InputError("overlap_sums: needs tensor parallelism (tensor: 1)")
        self._check_context()

    def _check_context(self) -> None:
        """Raise InputError if what divides sequences is contradictory."""
        if self.context_exchange not in get_args(ContextExchange):
            raise unknown_name("context_exchange", self.context_exchange, get_args(ContextExchange))
        if self.context_split not in get_args(ContextSplit):
            raise unknown_name("context_split", self.context_split, get_args(ContextSplit))
        defaults = Replica.__struct_defaults__
        for name, default in zip(Replica.__struct_fields__, defaults, strict=True):
            changed = name.startswith("context_") and getattr(self, name) != default
            if changed and self.context == 1:
                raise InputError(f"{name}: needs context parallelism (context: 1)")
        inside, possible = (
            self.context_inside,
            [k for k in range(2, self.context) if self.context % k == 0],
        )
        if self.context_exchange != "hierarchical":
            if inside > 1:
                raise InputError("context_inside: needs context_exchange hierarchical")
        elif inside not in possible:
            numbers = ", ".join(map(str, possible)) or "none; context has no divisors"
            raise InputError(
                f"context_inside: {inside} of {self.context} devices cannot form the all-to-alls "
                f"of a hierarchical exchange (possible: {numbers})"
            )

    @property
    def context_all_to_all(self) -> int:
        """Devices of each all-to-all among those that divide sequences; 1 if there is none."""
        return self.context if self.context_exchange == "all-to-all" else self.context_inside

    @property
    def asks_as_torch(self) -> bool:
        """Whether transfers are those of torch.distributed.pipelining."""
        return self.transfers in ("torch", "gloo")

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.tensor * self.context * self.pipeline

    @property
    def chunks(self) -> int:
        """Chunks of layers of all stages together."""
        return self.pipeline * self.virtual_stages


class Sums(msgspec.Struct, frozen=True):
    """What the devices that divide a layer or its sequences send to each other, in one pass of a
    micro-batch.

    ``seconds`` do not depend on other traffic; then ``bytes`` pass the links of the devices' nodes,
    at most at ``rate_bytes_per_s``, in so many ``collectives`` one after the other.
    """

    seconds: float = 0.0
    bytes: float = 0.0
    rate_bytes_per_s: float = math.inf
    collectives: int = 1


class Tied(msgspec.Struct, frozen=True):
    """A table that the first and the last stage both have: the ``layer`` of the stage that has it,
    and the ``bytes`` of its gradient, of all devices of the stage together."""

    layer: int
    bytes: float


def total(sums: Sequence[Sums]) -> Sums:
    """Return several collectives one after the other, at the lowest of their rates."""
    moved = [one for one in sums if one.bytes]
    return Sums(
        sum(one.seconds for one in sums),
        sum(one.bytes for one in moved),
        min((one.rate_bytes_per_s for one in moved), default=math.inf),
        max(sum(one.collectives for one in moved), 1),
    )


class RoutedLayers(msgspec.Struct, frozen=True):
    """What the layers of a stage send to the devices of their experts in a micro-batch.

    Attributes
    ----------
    workers : of the stage's job that exchange tokens, in a row.
    forward, backward : exchanges of each layer with balanced loads, (layers,).
    forward_waits_s, backward_waits_s : for the device with the largest load, on average, (layers,).
    """

    workers: int = 1
    forward: tuple[Sums, ...] = ()
    backward: tuple[Sums, ...] = ()
    forward_waits_s: tuple[float, ...] = ()
    backward_waits_s: tuple[float, ...] = ()


class ReplicaStage(msgspec.Struct, frozen=True):
    """What the devices of one stage do for a replica.

    Attributes
    ----------
    number : of the stage, from 0.
    replica : that it is a part of.
    chunk_layers : layers of each of its chunks, (chunks,).
    context_workers : devices that divide a sequence and are workers of their own to the
        architecture; 1 if they count as one.
    forward_sums, backward_sums : among the devices that divide each of its layers, (layers,);
        empty if there are none.
    forward_exchanges, backward_exchanges : the same among the devices that divide sequences.
    forward_waits_s, backward_waits_s : for the slowest of these, on average, (layers,).
    gradient_sums : of each layer, over the devices that divide sequences, after its last backward
        pass, (layers,); empty if the architecture's own collectives include them.
    tied : the table that it has in common with another stage; None if there is none.
    copies : devices of a replica that hold these layers, each for an equal part of the
        micro-batches.
    routing : what each of its layers sends to experts, and the waits for the slowest.
    """

    number: int
    replica: Replica
    chunk_layers: tuple[int, ...]
    context_workers: int = 1
    forward_sums: tuple[Sums, ...] = ()
    backward_sums: tuple[Sums, ...] = ()
    forward_exchanges: tuple[Sums, ...] = ()
    backward_exchanges: tuple[Sums, ...] = ()
    forward_waits_s: tuple[float, ...] = ()
    backward_waits_s: tuple[float, ...] = ()
    gradient_sums: tuple[Sums, ...] = ()
    tied: Tied | None = None
    copies: int = 1
    routing: RoutedLayers | None = None


def read_stage_layers(given: str | tuple[int, ...] | None) -> tuple[int, ...]:
    """Read the layers of each chunk, such as ``5+4+4+5``.

    >>> read_stage_layers("5+4+4+5")
    (5, 4, 4, 5)

    Raises
    ------
    InputError : a part is not a whole number.
    """
    if given is None or isinstance(given, tuple):
        return given or ()
    try:
        return tuple(int(part) for part in given.split("+"))
    except ValueError:
        raise InputError(
            f"stage_layers: cannot read {given!r}; expected one number per chunk such as 5+4+4+5"
        ) from None
