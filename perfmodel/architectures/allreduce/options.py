"""Options of all-reduce."""

from __future__ import annotations

import math
from typing import Literal

from perfmodel.architectures.parts.messages import Compression
from perfmodel.architectures.parts.reduction import CHUNKS, Algorithm, Reduction
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.quantities import Quantity, maximum, minimum
from perfmodel.theory.buckets import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    HOROVOD_CYCLE_S,
    HOROVOD_THRESHOLD_BYTES,
)


class Options(Compression, frozen=True, forbid_unknown_fields=True):
    """Options of all-reduce training; the registry entry below says what each means."""

    algorithm: Algorithm = "auto"
    chunks: int = CHUNKS
    reduce_per_byte_s: float = 0.0
    overlap: bool = True
    bucketing: Literal["ddp", "one", "layer", "horovod", "mg_wfbp"] = "ddp"
    bucket_cap_bytes: float = DDP_BUCKET_BYTES
    first_bucket_bytes: float = DDP_FIRST_BUCKET_BYTES
    fusion_cycle_s: float = HOROVOD_CYCLE_S
    fusion_threshold_bytes: float = HOROVOD_THRESHOLD_BYTES
    partition_bytes: float = math.inf
    priority: bool = False
    credit_bytes: float = 0.0
    cross_barrier: bool = False
    concurrent: int = 1
    each_send: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.reduction  # checks its own
        number("bucket_cap_bytes", self.bucket_cap_bytes)
        number("first_bucket_bytes", self.first_bucket_bytes)
        number("fusion_cycle_s", self.fusion_cycle_s, above=0.0)
        number("fusion_threshold_bytes", self.fusion_threshold_bytes)
        if self.partition_bytes != math.inf:
            number("partition_bytes", self.partition_bytes, above=0.0)
        number("credit_bytes", self.credit_bytes)
        whole_number("concurrent", self.concurrent)
        self._check_sends()
        self._check_fusion()
        self._check_sparse()
        if self.credit_bytes > 0.0 and self.concurrent > 1:
            raise InputError(
                "credit_bytes: says how much may be under way at once, so concurrent must be 1"
            )

    def _check_sends(self) -> None:
        if not self.each_send:
            return
        if self.concurrent > 1:
            raise InputError(
                "each_send: simulates one collective at a time, so concurrent must be 1"
            )
        if self.bucketing == "horovod":
            raise InputError("each_send: what is fused is not known before, so no horovod")
        for name in ("priority", "credit_bytes", "cross_barrier"):
            if getattr(self, name):
                raise InputError(f"{name}: with each_send, buckets go in the order they fill")

    def _check_fusion(self) -> None:
        if self.bucketing == "mg_wfbp" and not self.overlap:
            raise InputError("bucketing: mg_wfbp plans the overlap, so overlap must be true")
        if self.bucketing != "horovod":
            return
        for name in ("priority", "credit_bytes"):
            if getattr(self, name):
                raise InputError(f"{name}: horovod fuses what is ready, in the order it is ready")
        if self.partition_bytes != math.inf:
            raise InputError("partition_bytes: horovod fuses tensors, it does not cut them")
        if self.concurrent > 1:
            raise InputError("concurrent: horovod runs one fused collective at a time")

    def _check_sparse(self) -> None:
        if not self.sparse:
            return
        if self.algorithm not in ("auto", "ring"):
            raise InputError(
                f"algorithm: {self.compression} gradients are gathered round a ring (allowed: auto "
                "or ring)"
            )
        if self.reduce_per_byte_s > 0.0:
            raise InputError(
                f"reduce_per_byte_s: {self.compression} gradients are gathered, then added; "
                "give decode_per_byte_s"
            )

    @property
    def reduction(self) -> Reduction:
        """How the sum is made."""
        return Reduction(self.algorithm, self.chunks, self.reduce_per_byte_s)

    @property
    def unused(self) -> set[str]:
        """Options that have no effect, given the others."""
        ddp = {"bucket_cap_bytes", "first_bucket_bytes"}
        horovod = {"fusion_cycle_s", "fusion_threshold_bytes"}
        ordered = {"partition_bytes", "priority", "credit_bytes"}
        found = super().unused | self.reduction.unused
        found |= set() if self.bucketing == "ddp" else ddp
        found |= ordered | {"concurrent"} if self.bucketing == "horovod" else horovod
        found |= {"overlap"} if self.bucketing == "mg_wfbp" else set()
        found |= {"algorithm", "chunks", "reduce_per_byte_s"} if self.sparse else set()
        found |= {"concurrent"} if self.credit_bytes > 0.0 else set()
        if self.each_send:
            found |= {"priority", "credit_bytes", "cross_barrier", "concurrent"}
        return found


def largest_bytes(options: Options, gradient_bytes: Quantity) -> Quantity | None:
    """The size of message by which one algorithm is chosen for all; None if each has its own."""
    match options.bucketing:
        case "mg_wfbp":
            return options.sent_share * gradient_bytes
        case "horovod":
            sent = options.sent_share * gradient_bytes
            return minimum(sent, maximum(options.fusion_threshold_bytes, 1.0))
        case _:
            return None


def decode_per_byte_s_of(options: Options, workers: Quantity) -> Quantity:
    """Time of a device to decompress what it received for a byte of gradients."""
    return options.decode_per_byte_s * (workers - 1 if options.sparse else 1)
