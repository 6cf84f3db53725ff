"""How much training a plan is for: samples, tokens, or a loss, and the goal with its limits."""

from __future__ import annotations

import math
from typing import Literal, get_args

from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.profile import Profile
from perfmodel.planning.search import Goal, PlanLimits

Objective = Literal["cost", "time", "throughput", "samples-per-usd"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

MOST_TOKENS = 1e18
"""Most tokens of a training; a limit that catches typing errors."""


def goal_of(
    objective: str,
    limits: PlanLimits,
    dataset_size: int | None,
    epochs: int | None,
    failures: Failures | None,
) -> Goal:
    """Return the goal of a plan.

    Raises
    ------
    InputError : an unknown objective, a number out of range, or what needs ``dataset_size`` is
        given without.
    """
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    for name, value in (("dataset_size", dataset_size), ("epochs", epochs)):
        if value is not None:
            whole_number(name, value)
    if dataset_size is None:
        for name in ("deadline_s", "budget_usd"):
            if getattr(limits, name) is not None:
                raise InputError(f"{name}: needs dataset_size, the samples per epoch")
        if epochs is not None:
            raise InputError("epochs: needs dataset_size as well")
        if failures is not None:
            raise InputError("failures: need dataset_size too: they lengthen a whole training")
    return Goal(
        objective=objective, limits=limits, dataset_size=dataset_size, epochs=epochs or 1,
        failures=failures,
    )  # fmt: skip


def sequences(tokens: float, dataset_size: int | None, profile: Profile, length: int | None) -> int:
    """Return the sequences of a training of a language model over so many tokens.

    Raises
    ------
    InputError : ``dataset_size`` is given too, the model is no language model, or the number of
        tokens is out of range.
    """
    if dataset_size is not None:
        raise InputError("tokens and dataset_size: give one of them")
    if profile.decoder is None:
        raise InputError(f"tokens: {profile.name!r} is no language model (give dataset_size)")
    number("tokens", tokens, above=0.0, at_most=MOST_TOKENS)
    return math.ceil(tokens / (length or profile.decoder.sequence_length))
