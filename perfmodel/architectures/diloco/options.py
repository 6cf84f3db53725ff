"""Options of DiLoCo, and the fragments they cut a model into."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.communication.messages import ELEMENT_BITS
from perfmodel.communication.reduction import Reduction
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Option
from perfmodel.inputs.workload import expanded

PERIOD = 100
MOST_PERIOD = 1000
"""Largest number of steps between two exchanges of the same parameters; catches typing errors."""

MOST_MESSAGES = 100_000
"""Largest number of collectives per fragment; catches typing errors."""

MOST_LOCAL = 0.99
"""Greatest weight of a worker's own parameters; with 1 it would ignore the others entirely."""

BITS = {"fp32": 32, "bf16": 16, "int8": 8, "fp4": 4}
"""Bits of an element on the network, by format."""


class Fragments(NamedTuple):
    """The fragments of a model, in the order in which they are exchanged.

    ``share`` (fragments,) are their shares of the parameters; ``step`` (fragments,) is the step of
    a period, from 0, after which each is exchanged.
    """

    share: Floats
    step: Ids


class Options(Reduction, frozen=True, forbid_unknown_fields=True):
    """Options of DiLoCo."""

    period: Annotated[int, Option("steps between two exchanges of the same fragment")] = PERIOD
    fragments: Annotated[
        int, Option("parts of the model, exchanged in turn, one every period/fragments")
    ] = 1
    pattern: Annotated[
        Literal["sequential", "strided"],
        Option(
            "layers of a fragment: sequential (adjacent) or strided (one in every `fragments`)",
            lambda o: o.fragments == 1,
        ),
    ] = "sequential"
    overlap_steps: Annotated[
        int, Option("steps that a worker may compute while a fragment is exchanged")
    ] = 0
    during_backward: Annotated[
        bool,
        Option(
            "also exchange during the backward pass of the last step, as the simulator of "
            "Streaming DiLoCo does; otherwise after that step"
        ),
    ] = False
    sent_as: Annotated[
        Literal["fp32", "bf16", "int8", "fp4"],
        Option("format of pseudo-gradients on the network"),
    ] = "fp32"
    encode_per_byte_s: Annotated[
        float, Option("device time to encode pseudo-gradients, per unencoded byte")
    ] = 0.0
    outer_s: Annotated[
        float, Option("time of the outer optimizer's step for the whole model, wherever it runs")
    ] = 0.0
    messages: Annotated[
        int,
        Option(
            "number of equal collectives per fragment, run one after the other (such as one per "
            "tensor)",
            lambda o: o.exchange == "server",
        ),
    ] = 1
    outer_learning_rate: Annotated[
        float, Option("learning rate of the outer optimizer; no effect on time")
    ] = 0.7
    outer_momentum: Annotated[
        float, Option("Nesterov momentum of the outer optimizer; no effect on time")
    ] = 0.9
    local_weight: Annotated[
        float,
        Option(
            "weight of the worker's own parameters when a fragment that arrives late is merged; "
            "no effect on time",
            lambda o: o.overlap_steps == 0 and not o.during_backward,
        ),
    ] = 0.5
    exchange: Annotated[
        Literal["all_reduce", "server"],
        Option("all_reduce, or server, which sums pseudo-gradients and makes the outer step"),
    ] = "all_reduce"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("period", self.period, at_most=MOST_PERIOD)
        whole_number("fragments", self.fragments)
        if self.fragments > self.period:
            raise InputError(
                f"fragments: at most one per step of a period, so at most period = {self.period}, "
                f"got {self.fragments}"
            )
        whole_number("messages", self.messages, at_most=MOST_MESSAGES)
        whole_number("overlap_steps", self.overlap_steps, at_least=0)
        if self.overlap_steps >= self.period:
            raise InputError(
                f"overlap_steps: a fragment must return before it is sent again, so less than "
                f"period = {self.period}, got {self.overlap_steps}"
            )
        for name in ("encode_per_byte_s", "outer_s"):
            number(name, getattr(self, name))
        number("outer_learning_rate", self.outer_learning_rate, above=0.0)
        number("outer_momentum", self.outer_momentum, at_most=1.0)
        number("local_weight", self.local_weight, at_most=MOST_LOCAL)

    @property
    def server_count(self) -> int:
        """Number of servers."""
        return 1 if self.exchange == "server" else 0

    @property
    def by_server(self) -> bool:
        """Whether fragments are exchanged through a server."""
        return self.exchange == "server"

    @property
    def exchanged_share(self) -> float:
        """Mean share of a model that a worker sends per step."""
        return 1 / self.period

    @property
    def sent_share(self) -> float:
        """Bytes sent for each byte of parameters."""
        return BITS[self.sent_as] / ELEMENT_BITS

    @property
    def kept_weight(self) -> float:
        """Weight of the worker's own parameters in a merge: 0 if it has waited for the fragment."""
        return self.local_weight if self.overlap_steps or self.during_backward else 0.0


def fragments_of(job: Job) -> Fragments:
    """Return the fragments of a job's model. They differ by at most one in their number of layers
    with parameters; a model with fewer such layers than fragments is cut into equal parts.
    """
    options = Options.of(job)
    every, count = expanded(job.workload).layers, options.fragments
    sizes = np.array([sum(a.tensor_bytes) for a in every if a.tensor_bytes], np.float64)
    if count > len(sizes):
        share = np.full(count, 1.0 / count)
    else:
        index = np.arange(len(sizes))
        owner = index % count if options.pattern == "strided" else index * count // len(sizes)
        share = np.bincount(owner, sizes, count) / sizes.sum()
    return Fragments(share, (np.arange(count) + 1) * options.period // count - 1)
