"""How much training a plan is for: samples, tokens or a loss, and what a large batch adds."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from perfmodel.base import files
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.profile import Profile
from perfmodel.planning.plans import LossTarget
from perfmodel.planning.search import Goal, PlanLimits
from perfmodel.planning.space import BatchNoise
from perfmodel.theory.scaling_laws import LAWS, SCHEMA, ScalingLaw

Objective = Literal["cost", "time", "throughput", "samples-per-usd"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

MOST_TOKENS = 1e18
"""Most tokens of a training; a limit that catches typing errors."""


class Amount(NamedTuple):
    """How much training a plan is for, as it was asked for; see :func:`perfmodel.plan`."""

    dataset_size: int | None
    epochs: int | None
    tokens: float | None
    loss: float | None
    scaling_law: str | None
    noise_scale_samples: float | None
    reference_batch_size: int | None
    failures: Failures | None

    def goal(
        self, objective: str, limits: PlanLimits, profile: Profile, length: int | None
    ) -> Goal:
        """Return the goal of a plan with this amount of training.

        Raises
        ------
        InputError : an unknown objective or law, a number out of range, a loss out of reach, or
            what needs ``dataset_size`` is given without.
        """
        if objective not in OBJECTIVES:
            raise unknown_name("objective", objective, OBJECTIVES)
        target, tokens = None, self.tokens
        if self.loss is not None or self.scaling_law is not None:
            target = self._target(profile)
            tokens = target.tokens
        size = self.dataset_size
        if tokens is not None:
            if size is not None:
                raise InputError("tokens and dataset_size: give one of them")
            size = sequences(tokens, profile, length)
        for name, value in (("dataset_size", size), ("epochs", self.epochs)):
            if value is not None:
                whole_number(name, value)
        if size is None:
            for name in ("deadline_s", "budget_usd"):
                if getattr(limits, name) is not None:
                    raise InputError(f"{name}: needs dataset_size, the samples per epoch")
            if self.epochs is not None:
                raise InputError("epochs: needs dataset_size as well")
            if self.failures is not None:
                raise InputError("failures: need dataset_size too: they lengthen a whole training")
        return Goal(
            objective=objective, limits=limits, dataset_size=size, epochs=self.epochs or 1,
            failures=self.failures, target=target, noise=self._noise(profile),
        )  # fmt: skip

    def _target(self, profile: Profile) -> LossTarget:
        """Return the tokens to a loss."""
        if self.loss is None:
            raise InputError("scaling_law: needs a loss, which it gives tokens for")
        if self.tokens is not None or self.dataset_size is not None or self.epochs is not None:
            raise InputError("loss: gives tokens; leave out tokens, dataset_size and epochs")
        if profile.decoder is None:
            raise InputError(f"loss: {profile.name!r} is no language model with dimensions")
        name = self.scaling_law or "chinchilla"
        law = scaling_law(name)
        if law.dense and profile.decoder.experts is not None:
            raise InputError(
                f"scaling_law: {name!r} is of dense models, and {profile.name!r} has experts "
                "(give tokens, or a law of your own)"
            )
        parameters = float(profile.decoder.parameters(profile.decoder.sequence_length))
        tokens = law.tokens(parameters, self.loss)
        if tokens > MOST_TOKENS:
            raise InputError(
                f"loss: {self.loss:g} takes {tokens:.3g} tokens with {parameters:.3g} parameters "
                f"(at most {MOST_TOKENS:g}); the lowest that they tend to is "
                f"{law.lowest_loss(parameters):.4f}"
            )
        further = law.tokens_exponent * (self.loss - law.lowest_loss(parameters))
        return LossTarget(
            loss=self.loss, law=name, source=law.source, parameters=parameters, tokens=tokens,
            lowest_loss=law.lowest_loss(parameters), percent_per_hundredth=1.0 / further,
        )  # fmt: skip

    def _noise(self, profile: Profile) -> BatchNoise | None:
        """Return what batches other than that of reference need more, or less."""
        scale, reference = self.noise_scale_samples, self.reference_batch_size
        if scale is None and reference is not None and profile.noise_scale is not None:
            scale = profile.noise_scale.samples
        if scale is None:
            if reference is not None:
                raise InputError("reference_batch_size: needs noise_scale_samples")
            return None
        if reference is None:
            raise InputError(
                "noise_scale_samples: needs reference_batch_size, the samples of an update with "
                "which the training takes that many samples"
            )
        if scale != math.inf:
            number("noise_scale_samples", scale)
        whole_number("reference_batch_size", reference)
        return BatchNoise(scale, reference)


def sequences(tokens: float, profile: Profile, length: int | None) -> int:
    """Return the sequences of a training of a language model over so many tokens.

    Raises
    ------
    InputError : the model is no language model, or the number of tokens is out of range.
    """
    if profile.decoder is None:
        raise InputError(f"tokens: {profile.name!r} is no language model (give dataset_size)")
    number("tokens", tokens, above=0.0, at_most=MOST_TOKENS)
    return math.ceil(tokens / (length or profile.decoder.sequence_length))


def scaling_law(name_or_path: str) -> ScalingLaw:
    """Return a law of :data:`perfmodel.theory.scaling_laws.LAWS`, or that of a file.

    Raises
    ------
    InputError : neither a law nor a file, or see :func:`perfmodel.base.files.read`.
    """
    if name_or_path in LAWS:
        return LAWS[name_or_path]
    if files.looks_like_path(name_or_path):
        return files.read(name_or_path, ScalingLaw, SCHEMA)
    raise unknown_name("scaling law", name_or_path, LAWS)
