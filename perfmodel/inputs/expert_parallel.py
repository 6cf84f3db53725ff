"""Experts of a language model on several devices, which send tokens to each other.

References
----------
Lepikhin et al., "GShard", 2020, arXiv 2006.16668 (experts on devices, capacity); Megatron-LM,
``megatron/core/transformer/moe`` (``MoEAlltoAllTokenDispatcher``) and ``parallel_state.py`` (groups
of consecutive ranks, and a degree of tensor parallelism of their own).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import msgspec

from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.base.ranges import COUNT, FRACTION, POSITIVE, Range, Ranged, or_none
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_parts import EXPERTS
from perfmodel.theory.routing import MOST_SKEW

Way = Literal["direct", "pairwise", "hierarchical"]
"""How devices exchange tokens: see :mod:`perfmodel.communication.exchanges`."""

OF_EXPERTS = (
    *("expert", "expert_tensor", "expert_skew", "expert_capacity"),
    *("expert_exchange", "expert_nodes", "expert_overlap"),
)
"""Arguments of :func:`perfmodel.make_job` that define where experts are."""


class ExpertParallel(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How devices divide the experts, and what a router sends them.

    Attributes
    ----------
    degree : devices that have a part of the experts each (expert parallelism).
    tensor : devices that divide each expert (expert tensor parallelism).
    skew : exponent of the power law of the experts' popularity, see
        :mod:`perfmodel.theory.routing`; 0: all are equally popular.
    capacity : places of each expert over the mean number of its tokens. All places are sent and
        computed, and tokens beyond are dropped. None: no token is dropped, and the device with most
        tokens sets the pace.
    exchange : how tokens are sent.
    nodes : most nodes that the experts of a token are on (node-limited routing); None: any.
    overlap : share of the exchanges that computation hides.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("degree", "tensor"), COUNT),
        "skew": Range(0.0, MOST_SKEW),
        "capacity": or_none(POSITIVE),
        "nodes": or_none(COUNT),
        "overlap": FRACTION,
    }

    degree: int = 1
    tensor: int = 1
    skew: float = 0.0
    capacity: float | None = None
    exchange: Way = "direct"
    nodes: int | None = None
    overlap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exchange not in get_args(Way):
            raise unknown_name("expert_exchange", self.exchange, get_args(Way))
        if self.nodes is not None and self.exchange != "hierarchical":
            raise InputError("expert_nodes: needs expert_exchange hierarchical")

    @property
    def devices(self) -> int:
        """Devices that have all experts together."""
        return self.degree * self.tensor

    @property
    def factor(self) -> float:
        """Tokens that devices send and compute over those that are routed."""
        return 1.0 if self.capacity is None else self.capacity


class Routed(msgspec.Struct, frozen=True):
    """What a layer sends to the devices of its experts in a micro-batch.

    Attributes
    ----------
    experts, active : experts, and those that each token passes.
    tokens : of one worker.
    bytes : of all copies of these tokens, with the places that stay empty.
    """

    experts: int
    active: int
    tokens: float
    bytes: float


def experts_of(arguments: Mapping[str, Any], tensor: int) -> ExpertParallel | None:
    """Return where the experts are, from arguments of :func:`perfmodel.make_job`; None if every
    device has its part of all.

    By default as many devices divide each expert as divide other layers.

    Raises
    ------
    InputError : an argument is out of range, or needs another.
    """
    given = {name.removeprefix("expert").removeprefix("_") or "degree": arguments[name]
             for name in OF_EXPERTS if arguments.get(name) is not None}  # fmt: skip
    if not given:
        return None
    degree = whole_number("expert", given.get("degree", 1))
    divided = whole_number("expert_tensor", given.setdefault("tensor", tensor))
    if degree == 1 and divided == tensor:
        others = [f"expert_{name}" for name in given if name not in ("degree", "tensor")]
        if others:
            raise InputError(f"{', '.join(others)}: need expert parallelism (expert: 1)")
        return None
    if tensor % divided:
        allowed = [k for k in range(1, tensor + 1) if tensor % k == 0]
        raise InputError(
            f"expert_tensor: {divided} does not divide the {tensor} devices that divide layers "
            f"(possible: {', '.join(map(str, allowed))})"
        )
    return ExpertParallel(**given)


def check_decoder(experts: ExpertParallel, decoder: Decoder | None, name: str) -> None:
    """Raise InputError unless a model has experts that so many devices can divide."""
    part = None if decoder is None else decoder.experts
    if part is None:
        raise InputError(
            f"expert: {name} is not a language model with experts (its file has no decoder.experts)"
        )
    if part.routed % experts.degree:
        allowed = [k for k in range(1, part.routed + 1) if part.routed % k == 0]
        raise InputError(
            f"expert: {experts.degree} devices cannot share {part.routed} experts evenly "
            f"(possible: {', '.join(map(str, allowed))})"
        )
    if part.width % experts.tensor:
        raise InputError(
            f"expert_tensor: {experts.tensor} devices cannot share {part.width} values of an "
            "expert evenly"
        )


def check_groups(
    experts: ExpertParallel, inside: int, workers: int, *, between: bool, name: str
) -> None:
    """Raise InputError unless groups of devices with all experts fit into replicas, or replicas
    into them.

    Parameters
    ----------
    inside : devices of a stage of a replica.
    between : whether the devices of several replicas can exchange tokens: all of them compute the
        same micro-batch at the same time.
    name : of the architecture.
    """
    many = inside * workers if between else inside
    sizes = [k for k in range(1, many + 1) if many % k == 0]
    sizes = [k for k in sizes if k % experts.tensor == 0 and (k % inside == 0 or inside % k == 0)]
    if experts.devices in sizes:
        return
    degrees = ", ".join(str(k // experts.tensor) for k in sizes) or "none"
    each = f"{experts.degree} x expert_tensor {experts.tensor} devices"
    if between:
        raise InputError(
            f"expert: {each} do not divide the {many} of a stage of all workers, or are no whole "
            f"replicas (possible: {degrees})"
        )
    raise InputError(
        f"expert: {each} exchange tokens in every layer, which replicas of {name} do not: they "
        f"must divide the {inside} devices of a stage of a replica (possible: {degrees})"
    )


def is_of_experts(name: str) -> bool:
    """Return whether a layer of this name computes what experts do with their tokens."""
    return f".feed_forward.{EXPERTS}." in f".{name}"
