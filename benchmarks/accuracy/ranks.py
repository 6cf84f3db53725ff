"""Language models and their layouts, as rows of tables describe them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from perfmodel import Source
from perfmodel.base.errors import whole_number
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.profile import Profile

RECOMPUTATIONS = {"none": "none", "selective": "selective:products", "full": "full"}
"""Kinds of recomputation by their word in the tables; torchtitan's *selective* is by product."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A gated decoder, and how it is divided among devices."""

    hidden: int
    layers: int
    heads: int
    vocab: int
    ffn: int
    seq_len: int
    devices: int
    recompute: str
    micro_batch: int
    kv_heads: int | None = None
    experts: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    microbatches: int = 1
    seq_parallel: int | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "micro_batch", "microbatches"):
            whole_number(name, getattr(self, name))

    @property
    def shards(self) -> int:
        """Devices that share the optimizer's state, or all of the model."""
        return self.devices // self.tp // self.pp

    @property
    def sequence_parallel(self) -> bool:
        """Whether what is between products is divided as well; yes unless the table says no."""
        return self.seq_parallel != 0


class Dimensions(Protocol):
    """The dimensions of a decoder in a row of a table."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int | None: ...
    @property
    def ffn(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def seq_len(self) -> int: ...


def gated_decoder(row: Dimensions, *, split: int = 1, fused_loss: bool = False) -> Decoder:
    """Return the gated decoder of a row; ``split`` devices share each sequence."""
    return Decoder(
        hidden=row.hidden,
        blocks=row.layers,
        heads=row.heads,
        kv_heads=row.kv_heads,
        feed_forward=row.ffn,
        gated=True,
        vocabulary=row.vocab,
        sequence_length=row.seq_len // split,
        tied=False,
        biases=False,
        fused_loss=fused_loss,
    )


def profile_of(row: Layout, *, fused_loss: bool) -> Profile:
    """Return the profile of a row's model, by its dimensions."""
    decoder = gated_decoder(row, split=row.cp, fused_loss=fused_loss)
    return Profile(
        name="llama", decoder=decoder, source=Source("published", "dimensions of a layout")
    )


def arguments_of(row: Layout) -> dict[str, Any]:
    """Return the arguments of :func:`perfmodel.make_job` that say how a row divides its model."""
    given: dict[str, Any] = {
        "precision": "mixed",
        "batch_size": row.micro_batch * row.microbatches,
        "accumulation": row.microbatches,
        "recompute": RECOMPUTATIONS[row.recompute],
        "workers": row.shards,
    }
    if row.tp > 1:
        given |= {"tensor": row.tp, "sequence_parallel": row.sequence_parallel}
    if row.pp > 1:
        given |= {"pipeline": row.pp, "transfers": "blocking"}
    return given
