r"""Tokens that a language model has to be trained on for a loss, by a scaling law.

With N parameters and D tokens, each seen once, and a learning rate that decays over the training,
the loss per token (nats) on text like that of the training is about (Hoffmann et al., "Training
compute-optimal large language models", 2022, arXiv 2203.15556, section 3.3)

.. math:: L(N, D) = E + A / N^\alpha + B / D^\beta

It holds for dense decoders; the constants depend on text, vocabulary and architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from perfmodel.base.errors import InputError, number
from perfmodel.base.ranges import NOT_NEGATIVE, POSITIVE, Ranged

SCHEMA = "perfmodel.scaling-law/1"

MOST_LOSS = 100.0
"""Largest loss in nats per token; a limit that catches typing errors."""


class ScalingLaw(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    r"""The constants of a scaling law.

    Attributes
    ----------
    irreducible_loss : E, in nats per token.
    parameters_factor, parameters_exponent : A and :math:`\alpha`.
    tokens_factor, tokens_exponent : B and :math:`\beta`.
    dense : whether the law is of dense models only.
    source : where the constants are from.
    """

    RANGES: ClassVar = {
        "irreducible_loss": NOT_NEGATIVE,
        "parameters_factor": NOT_NEGATIVE,
        **dict.fromkeys(("parameters_exponent", "tokens_factor", "tokens_exponent"), POSITIVE),
    }

    irreducible_loss: float
    parameters_factor: float
    parameters_exponent: float
    tokens_factor: float
    tokens_exponent: float
    dense: bool = False
    source: str = ""
    schema: str = SCHEMA

    def lowest_loss(self, parameters: float) -> float:
        """Loss that a model tends to with ever more tokens.

        >>> round(LAWS["chinchilla"].lowest_loss(7e9), 4)
        1.9987
        """
        of_size = self.parameters_factor * math.pow(parameters, -self.parameters_exponent)
        return self.irreducible_loss + of_size

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss of a model after so many tokens.

        >>> round(LAWS["chinchilla"].loss(7e9, 1.4e11), 3)
        2.173
        """
        of_tokens = self.tokens_factor * math.pow(tokens, -self.tokens_exponent)
        return self.lowest_loss(parameters) + of_tokens

    def tokens(self, parameters: float, loss: float) -> float:
        """Tokens after which a model has a loss.

        Raises
        ------
        InputError : no number of tokens gives a loss that low, or the loss is out of range.

        >>> law = LAWS["chinchilla"]
        >>> round(law.tokens(7e9, law.loss(7e9, 1.4e11)) / 1.4e11, 6)
        1.0
        """
        number("loss", loss, above=0.0, at_most=MOST_LOSS)
        lowest = self.lowest_loss(parameters)
        if loss <= lowest:
            raise InputError(
                f"loss: {loss:g} is out of reach: with {parameters:.3g} parameters it stays above "
                f"{lowest:.4f}, and with any number of them above {self.irreducible_loss:g}"
            )
        try:
            return math.pow(self.tokens_factor / (loss - lowest), 1.0 / self.tokens_exponent)
        except OverflowError:
            return math.inf


LAWS: Mapping[str, ScalingLaw] = {
    "chinchilla": ScalingLaw(
        irreducible_loss=1.8172,
        parameters_factor=482.01,
        parameters_exponent=0.3478,
        tokens_factor=2085.43,
        tokens_exponent=0.3658,
        dense=True,
        source="Besiroglu et al., 'Chinchilla scaling: a replication attempt', 2024, "
        "arXiv 2404.10102",
    ),
}
"""Published laws. The constants of *chinchilla* are those of the reanalysis of its runs, whose fit
the originally published ones do not match."""
