"""How the devices of a worker divide the model between them."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How the devices of a worker divide the model between them.

    Attributes
    ----------
    devices : of a worker: tensor x context x pipeline.
    tensor, sequence_parallel : devices that divide each layer, and whether along the sequence too.
    context, context_exchange : devices that divide each sequence, and how they exchange keys.
    pipeline, virtual_stages, schedule : stages, chunks of layers of each, and their schedule.
    micro_batches : of a worker's batch.
    stage_layers : layers of each stage.
    expert, expert_tensor : devices that divide the experts, and each expert; they may be those of
        several workers.
    """

    devices: Count
    tensor: Count
    sequence_parallel: bool
    context: Count = 1
    context_exchange: str = "ring"
    pipeline: Count
    virtual_stages: Count
    schedule: str
    micro_batches: Count
    stage_layers: tuple[int, ...]
    expert: Count = 1
    expert_tensor: Count = 1

    @property
    def text(self) -> str:
        """The layout in words."""
        words = []
        if self.tensor > 1:
            along = " and sequence" if self.sequence_parallel else ""
            words.append(f"{self.tensor} tensor{along} parallel")
        if self.context > 1:
            words.append(f"{self.context} context parallel by {self.context_exchange}")
        if self.expert > 1 or self.expert_tensor != self.tensor:
            words.append(f"experts on {self.expert} x {self.expert_tensor}")
        if self.pipeline > 1:
            chunks = f" x {self.virtual_stages}" if self.virtual_stages > 1 else ""
            words.append(f"{self.pipeline}{chunks} stages by {self.schedule}")
        if self.micro_batches > 1:
            words.append(f"{self.micro_batches} micro-batches")
        return ", ".join(words)
