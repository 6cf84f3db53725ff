"""Options of all-reduce."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.quantities import Quantity, maximum, minimum
from perfmodel.communication.messages import Compression
from perfmodel.communication.reduction import (
    CHUNKS,
    AlgorithmOption,
    ChunksOption,
    ReduceOption,
    Reduction,
)
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.options import Option, Value
from perfmodel.theory.buckets import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    HOROVOD_CYCLE_S,
    HOROVOD_THRESHOLD_BYTES,
)
from perfmodel.training.passes import IN_PIPELINES, NoSyncOption, reductions_of


class Options(Compression, frozen=True, forbid_unknown_fields=True):
    """Options of all-reduce training."""

    algorithm: AlgorithmOption = "auto"
    chunks: ChunksOption = CHUNKS
    overlap: Annotated[
        bool,
        Option(
            "reduce a bucket as soon as all workers have filled it, during backward",
            lambda o: o.bucketing == "mg_wfbp",
        ),
    ] = True
    bucketing: Annotated[
        Literal["ddp", "one", "layer", "horovod", "mg_wfbp"],
        Option(
            "which tensors are reduced together: ddp (buckets of a given size), one (everything), "
            "layer, horovod (whatever is ready in a cycle) or mg_wfbp (merged if that is faster)"
        ),
    ] = "ddp"
    bucket_cap_bytes: Annotated[
        float,
        Option(
            "with bucketing=ddp, a bucket closes once it reaches this size",
            lambda o: o.bucketing != "ddp",
        ),
    ] = DDP_BUCKET_BYTES
    first_bucket_bytes: Annotated[
        float,
        Option("with bucketing=ddp, size of the first bucket", lambda o: o.bucketing != "ddp"),
    ] = DDP_FIRST_BUCKET_BYTES
    fusion_cycle_s: Annotated[
        float,
        Option("with bucketing=horovod, cycle time", lambda o: o.bucketing != "horovod"),
    ] = HOROVOD_CYCLE_S
    fusion_threshold_bytes: Annotated[
        float,
        Option(
            "with bucketing=horovod, largest fused message; 0: no fusion",
            lambda o: o.bucketing != "horovod",
        ),
    ] = HOROVOD_THRESHOLD_BYTES
    partition_bytes: Annotated[
        float,
        Option(
            "cut larger buckets into parts of at most this size",
            lambda o: o.bucketing == "horovod",
        ),
    ] = math.inf
    priority: Annotated[
        bool,
        Option(
            "among waiting buckets, reduce the one closest to the input first",
            lambda o: o.each_send or o.bucketing == "horovod",
        ),
    ] = False
    credit_bytes: Annotated[
        float,
        Option(
            "gradient bytes that may be in flight at once; 0: limited by concurrent instead",
            lambda o: o.each_send or o.bucketing == "horovod",
        ),
    ] = 0.0
    cross_barrier: Annotated[
        bool,
        Option("a layer's next forward waits only for its own update", lambda o: o.each_send),
    ] = False
    no_sync: NoSyncOption = True
    concurrent: Annotated[
        int,
        Option(
            "concurrent collectives: 1 for NCCL, 2 for gloo",
            lambda o: o.each_send or o.credit_bytes > 0.0 or o.bucketing == "horovod",
        ),
    ] = 1
    each_send: Annotated[
        bool, Option("simulate each send, to show the effect of a straggler inside a collective")
    ] = False
    reduce_per_byte_s: ReduceOption = 0.0
    broadcast_buffers: Annotated[
        bool,
        Option(
            "worker 0 broadcasts the module's buffers (buffer_bytes of the workload) before each "
            "forward pass, as DistributedDataParallel does by default",
            needs="buffer_bytes",
        ),
    ] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.reduction  # validates the options of the reduction
        number("bucket_cap_bytes", self.bucket_cap_bytes)
        number("first_bucket_bytes", self.first_bucket_bytes)
        number("fusion_cycle_s", self.fusion_cycle_s, above=0.0)
        number("fusion_threshold_bytes", self.fusion_threshold_bytes)
        if self.partition_bytes != math.inf:
            number("partition_bytes", self.partition_bytes, above=0.0)
        number("credit_bytes", self.credit_bytes)
        whole_number("concurrent", self.concurrent)
        for conflicts, message in self._conflicts():
            if conflicts:
                raise InputError(message)

    def _conflicts(self) -> Iterator[tuple[bool, str]]:
        """Yield whether options exclude each other, and the message about it."""
        horovod, cut = self.bucketing == "horovod", self.partition_bytes != math.inf
        if self.each_send:
            several = "each_send: simulates one collective at a time, so concurrent must be 1"
            yield self.concurrent > 1, several
            tree = self.algorithm == "node_tree"
            yield tree, "each_send: the sends of algorithm=node_tree are not modelled"
            yield horovod, "each_send: cannot simulate horovod, whose messages vary at run time"
            for name in ("priority", "credit_bytes", "cross_barrier"):
                message = f"{name}: not available with each_send, which keeps bucket order"
                yield bool(getattr(self, name)), message
        merged = self.bucketing == "mg_wfbp" and not self.overlap
        yield merged, "bucketing: mg_wfbp plans for overlap, so overlap must be true"
        if horovod:
            for name in ("priority", "credit_bytes"):
                message = f"{name}: horovod fuses tensors in the order they become ready"
                yield bool(getattr(self, name)), message
            yield cut, "partition_bytes: horovod fuses tensors and does not cut them"
            several = "concurrent: horovod runs one fused collective at a time"
            yield self.concurrent > 1, several
        if self.sparse:
            yield (
                self.algorithm not in ("auto", "ring"),
                f"algorithm: {self.compression} gradients are gathered on a ring (allowed: auto "
                "or ring)",
            )
            yield (
                self.reduce_per_byte_s > 0.0,
                f"reduce_per_byte_s: {self.compression} gradients are gathered and then added; set "
                "decode_per_byte_s instead",
            )
        if not self.no_sync:
            yield (
                horovod,
                "no_sync: horovod reduces once per update (backward_passes_per_step), so no_sync "
                "must be true",
            )
            yield (
                self.cross_barrier,
                "no_sync: cross_barrier lets updates overtake each other, so no_sync must be true",
            )
        yield (
            self.credit_bytes > 0.0 and self.concurrent > 1,
            "credit_bytes: already limits what is in flight, so concurrent must be 1",
        )

    def defaults_on(self, cluster: Cluster, devices: int) -> dict[str, tuple[Value, str]]:
        """Copies through the memory of a single node hold up the backward pass."""
        alone = devices > 1 and cluster.nodes_for(devices) == 1
        if self.bucketing == "mg_wfbp" or not (alone and cluster.copies_through_host):
            return {}
        return {"overlap": (False, "copies through the host hold up the backward pass")}

    @property
    def one_collective(self) -> bool:
        """Yes: replicas' gradients are reduced over all devices that have the same parameters."""
        return True

    @property
    def in_pipelines(self) -> dict[str, tuple[Value, str]]:
        """Gradients are complete, and reduced, after the last micro-batch only."""
        return IN_PIPELINES

    def reductions(self, passes: int) -> int:
        """Return how often the gradients of an update of ``passes`` passes are reduced."""
        return reductions_of(self.no_sync, passes)

    @property
    def holds_backward(self) -> bool:
        """Whether a backward pass returns only once its gradients have been reduced: the reducer of
        DistributedDataParallel waits for its buckets at the end (``Reducer::finalize_backward``).
        """
        return self.bucketing == "ddp" and self.overlap

    @property
    def reduction(self) -> Reduction:
        """The algorithm that sums gradients, and its options."""
        return Reduction(self.algorithm, self.chunks, self.reduce_per_byte_s)


def largest_bytes(options: Options, gradient_bytes: Quantity) -> Quantity | None:
    """Return the message size that decides the algorithm for all; None if each has its own."""
    match options.bucketing:
        case "mg_wfbp":
            return options.sent_share * gradient_bytes
        case "horovod":
            sent = options.sent_share * gradient_bytes
            return minimum(sent, maximum(options.fusion_threshold_bytes, 1.0))
        case _:
            return None


def decode_per_byte_s_of(options: Options, workers: Quantity) -> Quantity:
    """Return the time a device takes to decompress what it receives, per byte of gradients."""
    return options.decode_per_byte_s * (workers - 1 if options.sparse else 1)
