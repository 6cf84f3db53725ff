"""SGD with momentum and weight decay, and its learning-rate schedule."""

from __future__ import annotations

import dataclasses

from perfmodel.base.errors import InputError, number, unknown_name

MOMENTUM_AT = ("server", "worker")
SCALING = ("none", "linear", "square-root")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """SGD, :math:`v := \\mu v + g + \\lambda x` and :math:`x := x - \\eta v`, as in PyTorch.

    Attributes
    ----------
    learning_rate : learning rate for one worker's batch, after the warm-up.
    momentum, weight_decay : :math:`\\mu`, less than 1, and :math:`\\lambda`.
    momentum_at : where v is kept and weight decay is added. *server*: with the model that is
        updated; the gradients of all workers enter one v, however stale they are. *worker*: with
        the worker, which sends its v instead of the gradient. The two differ if gradients are
        stale, and agree for the sum of synchronous gradients. A worker that updates its own model
        has the same v either way. Mixing models does not change v.
    scaling : how the learning rate grows with k, the average number of gradients gathered per
        step: not at all, *linear* (Goyal et al., 2017), or *square-root*, with the root of k.
    by_staleness : divide each gradient by its staleness + 1 (after Zhang et al., IJCAI 2016).
    warmup_epochs : passes over the training samples in which the learning rate grows linearly
        from 0; 0 for none.
    decay_epochs : epochs at which the learning rate is multiplied by ``decay_factor``.

    Raises
    ------
    InputError : a value is out of range, or a name is unknown.
    """

    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    momentum_at: str = "server"
    scaling: str = "none"
    by_staleness: bool = False
    warmup_epochs: float = 0.0
    decay_epochs: tuple[float, ...] = ()
    decay_factor: float = 0.1

    def __post_init__(self) -> None:
        number("learning_rate", self.learning_rate, above=0.0)
        for name in ("momentum", "weight_decay", "warmup_epochs"):
            number(name, getattr(self, name))
        if self.momentum >= 1.0:
            raise InputError(f"momentum: must be less than 1, got {self.momentum:g}")
        number("decay_factor", self.decay_factor, above=0.0, at_most=1.0)
        if self.momentum_at not in MOMENTUM_AT:
            raise unknown_name("momentum_at", self.momentum_at, MOMENTUM_AT)
        if self.scaling not in SCALING:
            raise unknown_name("scaling", self.scaling, SCALING)
        for k, epoch in enumerate(self.decay_epochs):
            number(f"decay_epochs[{k}]", epoch)

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate is the same throughout."""
        return not self.warmup_epochs and not self.decay_epochs

    def rate(self, epochs: float, gathered: float) -> float:
        """Return the learning rate after ``epochs`` passes over the training samples.

        ``gathered`` is the average number of gradients that a step sums up.
        """
        rate = self.learning_rate
        if self.scaling == "linear":
            rate *= gathered
        elif self.scaling == "square-root":
            rate *= gathered**0.5
        for epoch in self.decay_epochs:
            if epochs >= epoch:
                rate *= self.decay_factor
        return rate * min(1.0, epochs / self.warmup_epochs) if self.warmup_epochs else rate
