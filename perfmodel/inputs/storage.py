"""How a job stores its parameters, gradients and optimizer states: optimizer, precision, LoRA."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perfmodel.base.errors import InputError, spelling, unknown_name, whole_number
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.precisions import RECIPES, SHORT

VALUE_BYTES = 4.0
"""Bytes per value of the gradients in a workload's profile: float32."""


class Policy(msgspec.Struct, frozen=True):
    """Bytes per parameter: the parameter, its gradient in all precisions, a value of the
    optimizer's state, the master copy that the optimizer updates, the copies that products use, and
    copies of its gradient while the optimizer updates it."""

    parameter: float
    gradient: float
    state: float
    master: float = 0.0
    cast: float = 0.0
    updating: float = 0.0


POLICIES: Mapping[str, Policy] = {
    "fp32": Policy(4.0, 4.0, 4.0),
    "amp": Policy(4.0, 4.0, 4.0, cast=2.0),
    "bf16_master": Policy(2.0, 2.0, 4.0, master=4.0),
    "bf16_master_fp32_gradients": Policy(2.0, 4.0, 4.0, master=4.0),
    "bf16_master_cast_gradients": Policy(2.0, 2.0, 4.0, master=4.0, updating=6.0),
    "bf16_master_flat_update": Policy(2.0, 2.0, 4.0, master=4.0, updating=14.0),
    "bf16_master_two_gradients": Policy(2.0, 6.0, 4.0, master=4.0),
    "bf16": Policy(2.0, 2.0, 2.0),
    **{
        name: Policy(2.0, 4.0, 4.0, master=4.0, cast=recipe.weight_bytes)
        for name, recipe in RECIPES.items()
    },
}
"""Precision policies.

*amp* is PyTorch's autocast, which keeps the 16-bit casts of weights until backward. *bf16_master*
has the 16 bytes per parameter with Adam of Rajbhandari et al., SC 2020; Megatron-LM has gradients
in 32 bits. DeepSpeed's ZeRO with fp16 joins the gradients that a device updates in 16 bits, and
casts them to 32 (``deepspeed/runtime/zero/stage_1_and_2.py``, ``step``). InternEvo's ZeRO does so
with bf16, and updates all as one tensor by the AdamW of PyTorch 1.13 (*flat_update*), which takes
the root of the second moments and divides it: two copies of them (``torch/optim/adamw.py``,
``_single_tensor_adamw``). DeepSpeed's optimizer for bf16 has gradients in 16 bits, and sums all of
them in 32 (``deepspeed/runtime/bf16_optimizer.py``, ``_setup_for_real_optimizer``). *fp8* adds
weights and their transposes in 8 bits, as Transformer Engine on Hopper.
"""

OF_DEEPSPEED = (
    "bf16_master_cast_gradients",
    "bf16_master_flat_update",
    "bf16_master_two_gradients",
)
"""Policies of DeepSpeed and frameworks after it, whose processes reserve more."""

QUANTISATION_BLOCK = 256.0
"""Values that share a 32-bit scale in 8-bit optimizer states (Dettmers et al., 2022, arXiv
2110.02861, as in bitsandbytes)."""

STATES: Mapping[str, float] = {"sgd": 0.0, "momentum": 1.0, "adam": 2.0, "adamw": 2.0, "lion": 1.0}
"""Values of state per parameter of optimizers that treat all parameters alike."""

OPTIMIZERS = (*STATES, "adam_8bit", "adafactor", "muon")

OTHER_OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("adamw8bit", "pagedadamw8bit", "pagedadam8bit", "adamwbnb8bit"), "adam_8bit"),
    **dict.fromkeys(("adamwtorch", "adamwtorchfused", "fusedadamw"), "adamw"),
    "fusedadam": "adam",
}
"""What bitsandbytes, Transformers and DeepSpeed call optimizers, as
:func:`perfmodel.base.errors.spelling` spells it, and their names here."""

TARGETS: Mapping[str, tuple[str, ...]] = {
    "attention": ("q", "k", "v", "o"),
    "mlp": ("gate", "up", "down"),
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
}
"""Groups of matrices that LoRA may adapt, besides each by its name."""


class Lora(msgspec.Struct, frozen=True):
    """Low-rank adapters of frozen weights, which have ``bits`` bits (Hu et al., 2022, arXiv
    2106.09685; with 4 bits: Dettmers et al., 2023, arXiv 2305.14314)."""

    rank: int
    targets: tuple[str, ...] = ("q", "v")
    bits: int = 16

    def __post_init__(self) -> None:
        whole_number("lora: rank", self.rank)
        for target in self.targets:
            if target not in TARGETS["all"]:
                raise unknown_name("lora target", target, (*TARGETS["all"], *TARGETS))
        if self.bits not in (4, 8, 16, 32):
            raise InputError(f"lora: base weights have 4, 8, 16 or 32 bits, got {self.bits}")

    @classmethod
    def parse(cls, text: str) -> Lora:
        """Read ``RANK``, ``RANK:TARGETS`` or ``RANK:TARGETS:BITS``, with targets joined by ``+``.

        >>> Lora.parse("16:attention:4")
        Lora(rank=16, targets=('q', 'k', 'v', 'o'), bits=4)
        """
        rank, targets, bits = (*str(text).split(":"), "", "")[:3]
        names = [name for word in targets.split("+") if word for name in TARGETS.get(word, (word,))]
        try:
            numbers = int(rank), int(bits or cls.__struct_defaults__[1])
        except ValueError:
            raise InputError(
                f"lora: cannot read {text!r}; expected a rank, and optionally targets and the bits "
                "of the base weights, such as 16, 16:q+v or 16:all:4"
            ) from None
        return cls(numbers[0], tuple(dict.fromkeys(names)) or ("q", "v"), numbers[1])

    def matrices(self, decoder: Decoder) -> dict[str, list[tuple[int, int]]]:
        """Return the shapes of adapted matrices, by the end of the name of their layer."""
        if decoder.latent is not None or decoder.experts is not None:
            raise InputError("lora: not of models with experts or latent attention")
        h, kv, inner = decoder.hidden, decoder.kv_width, decoder.inner
        queries = decoder.heads * decoder.key_width
        shapes = {
            "attention.qkv": {"q": (h, queries), "k": (h, kv), "v": (h, kv)},
            "attention.out": {"o": (queries, h)},
            "feed_forward.up": {"gate": (h, inner)} if decoder.gated else {},
            "feed_forward.down": {"down": (inner, h)},
        }
        shapes["feed_forward.up"]["up"] = (h, inner)
        return {
            layer: [shape for name, shape in named.items() if name in self.targets]
            for layer, named in shapes.items()
        }


class Stored(msgspec.Struct, frozen=True):
    """Bytes of a model: parameters, of which ``frozen`` are not trained, gradients, optimizer
    states, master copies, copies that products use, and copies of gradients in the update."""

    parameters: float
    frozen: float
    gradients: float
    states: float
    masters: float
    casts: float
    updating: float


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stores parameters, gradients and optimizer states.

    Attributes
    ----------
    optimizer : one of :data:`OPTIMIZERS`; None for the size of the states in the profile.
    policy : one of :data:`POLICIES`; None for *amp* if the device computes in 16 bits, that of the
        recipe with 8, else *fp32*.
    lora : adapters, which alone are trained; None if all parameters are.
    offload : whether the optimizer's states and master copies are in the memory of the host.
    """

    optimizer: str | None = None
    policy: str | None = None
    lora: Lora | None = None
    offload: bool = False

    def __post_init__(self) -> None:
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        if self.policy is not None and self.policy not in POLICIES:
            raise unknown_name("precision policy", self.policy, POLICIES)

    def policy_at(self, precision: str) -> Policy:
        """Return the policy of a job that computes at ``precision``."""
        usual = precision if precision in RECIPES else "amp" if precision in SHORT else "fp32"
        name = self.policy or usual
        return POLICIES[name]

    def autocasts(self, precision: str) -> bool:
        """Whether weights are kept in 32 bits and cast for products, as by PyTorch's autocast."""
        return self.policy_at(precision) == POLICIES["amp"]

    def state_bytes(self, tensors: Sequence[tuple[float, bool]], policy: Policy) -> float:
        """Return the bytes of the optimizer's states.

        ``tensors`` are the numbers of values of each tensor, and whether it is a matrix inside of a
        block, which Muon (Jordan et al., 2024) updates with momentum alone and all others with
        Adam. Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235) keeps a row and a column of a
        matrix, here counted as a square one.
        """
        values = sum(size for size, _ in tensors)
        if self.optimizer == "adam_8bit":
            return 2.0 * values * (1.0 + VALUE_BYTES / QUANTISATION_BLOCK)
        if self.optimizer == "adafactor":
            return policy.state * sum(2.0 * math.sqrt(size) for size, _ in tensors)
        if self.optimizer == "muon":
            return policy.state * sum(size * (1.0 if inside else 2.0) for size, inside in tensors)
        return policy.state * values * STATES[self.optimizer or "sgd"]

    def stored(
        self, gradient_bytes: float, state_bytes: float, frozen_bytes: float, precision: str
    ) -> Stored:
        """Return what is stored of a model with these gradients in 32 bits, these optimizer states,
        and these frozen parameters."""
        policy, values = self.policy_at(precision), gradient_bytes / VALUE_BYTES
        return Stored(
            values * policy.parameter + frozen_bytes,
            frozen_bytes,
            values * policy.gradient,
            state_bytes,
            values * policy.master,
            values * policy.cast,
            values * policy.updating,
        )


def moved_bytes(values: float, policy: Policy, state_bytes: float) -> float:
    """Return the bytes that an update of ``values`` parameters reads and writes: gradients are
    read, states and masters read and written, parameters written, and read if no master is.

    >>> moved_bytes(1.0, POLICIES["fp32"], 8.0), moved_bytes(1.0, POLICIES["bf16_master"], 8.0)
    (28.0, 28.0)
    """
    parameter = policy.parameter * (1.0 if policy.master else 2.0)
    return values * (parameter + policy.gradient + 2.0 * policy.master) + 2.0 * state_bytes


DEFAULT = Storage()

OF_STORAGE = ("optimizer", "precision_policy", "lora", "offload_optimizer")
"""Arguments of :func:`perfmodel.make_job` that make a :class:`Storage`."""


def _called(name: str | None, known: Iterable[str], others: Mapping[str, str]) -> str | None:
    """The known name that is spelled in another way, or called so elsewhere; else the same name."""
    if name is None:
        return None
    return {**others, **{spelling(one): one for one in known}}.get(spelling(name), name)


def read_storage(arguments: Mapping[str, Any]) -> Storage:
    """Read the arguments :data:`OF_STORAGE`; None stands for the default.

    Names may be spelled in another way, or be those of :data:`OTHER_OPTIMIZERS`.

    Raises
    ------
    InputError : an unknown word, or text that cannot be read.
    """
    lora = arguments["lora"]
    return Storage(
        optimizer=_called(arguments["optimizer"], OPTIMIZERS, OTHER_OPTIMIZERS),
        policy=_called(arguments["precision_policy"], POLICIES, {}),
        lora=None if lora is None else Lora.parse(lora),
        offload=bool(arguments["offload_optimizer"]),
    )
