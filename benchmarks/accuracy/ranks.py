"""The part of a language model that one device of a layout has, as a workload."""

from __future__ import annotations

from typing import Protocol

import msgspec

from perfmodel import Source, Workload
from perfmodel.base.errors import whole_number
from perfmodel.inputs import catalogue
from perfmodel.inputs.activations import LOSS, Peaks, by_kind, kind_of
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.peaks import peaks_of
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.recomputation import recomputed
from perfmodel.inputs.storage import Storage

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

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "micro_batch", "microbatches"):
            whole_number(name, getattr(self, name))

    @property
    def shards(self) -> int:
        """Devices that share the optimizer's state, or all of the model."""
        return self.devices // self.tp // self.pp


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


def rank_work(row: Layout, stage: int, storage: Storage, *, fused_loss: bool) -> Workload:
    """Return the workload of a device of a pipeline's ``stage``."""
    profile = profile_of(row, fused_loss=fused_loss)
    whole = catalogue.workload(
        profile,
        device_name="b200",
        precision="mixed",
        batch_size=row.micro_batch,
        storage=storage,
    )
    flight = min(row.pp - stage, row.microbatches)
    first, further, update = peaks_of(_part_of(whole, row, stage, 1), accelerator=True)
    exists = (flight - 1.0 + further.activations) / flight
    peaks = Peaks(first, further._replace(activations=exists), update)
    return msgspec.structs.replace(_part_of(whole, row, stage, flight), peaks=peaks)


def _part_of(whole: Workload, row: Layout, stage: int, flight: int) -> Workload:
    """Return the layers of a stage, with activations of ``flight`` micro-batches."""
    kept = [
        msgspec.structs.replace(
            layer,
            tensor_bytes=tuple(size / row.tp for size in layer.tensor_bytes),
            activation_bytes=layer.activation_bytes
            / row.tp
            * (1 if layer.kind.endswith(LOSS) else flight),
            output_bytes=None
            if layer.output_bytes is None
            else layer.output_bytes / row.tp * flight,
        )
        for layer in whole.layers
        if _stage_of(layer.name, row) == stage
    ]
    sizes = [size for layer in kept for size in layer.tensor_bytes]
    parts = by_kind([(kind_of(one.name, one.kind), one.activation_bytes) for one in kept])
    mine = msgspec.structs.replace(
        whole,
        layers=tuple(kept),
        gradient_bytes=sum(sizes),
        tensors=len(sizes),
        largest_tensor_bytes=max(sizes),
        optimizer_state_bytes=whole.optimizer_state_bytes * sum(sizes) / whole.gradient_bytes,
        activation_bytes=sum(size for _, size in parts),
        activations=parts,
    )
    return recomputed(mine, RECOMPUTATIONS[row.recompute])


def _stage_of(name: str, row: Layout) -> int:
    """Return the stage of a layer: equal blocks, the embedding first, the head last."""
    part, _, rest = name.partition(".")
    if part == "blocks":
        return int(rest.partition(".")[0]) * row.pp // row.layers
    return 0 if part in ("embedding", "positions") else row.pp - 1
