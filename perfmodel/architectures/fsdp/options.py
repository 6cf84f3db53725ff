"""Options of sharded training."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perfmodel.base.errors import number, whole_number
from perfmodel.base.quantities import Quantity, is_symbol, minimum
from perfmodel.inputs.options import Option, Options as Base, Value
from perfmodel.training.passes import IN_PIPELINES, NoSyncOption, reductions_of

UNIT_BYTES = 25 * 2**20
"""Size at which a unit is closed (25 MiB), the same as for an unsharded bucket."""


class Options(Base, frozen=True, forbid_unknown_fields=True):
    """Options of sharded training."""

    stage: Annotated[
        Literal[1, 2, 3],
        Option("1: shard the optimizer state; 2: gradients as well; 3: parameters as well"),
    ] = 3
    unit_bytes: Annotated[
        float, Option("close a unit of layers once it reaches this size; 0: one layer per unit")
    ] = UNIT_BYTES
    prefetch: Annotated[
        int,
        Option(
            "units that may be gathered ahead of the one that computes (stage 3)",
            lambda o: o.stage != 3,
        ),
    ] = 1
    reshard_after_forward: Annotated[
        bool,
        Option(
            "free parameters after forward, and gather them again (stage 3)", lambda o: o.stage != 3
        ),
    ] = True
    reshard_after_backward: Annotated[
        bool,
        Option(
            "free parameters after each backward pass, also if it reduces no gradients, as FSDP2 "
            "does (stage 3)",
            lambda o: o.stage != 3,
            needs="earlier_passes",
        ),
    ] = False
    copy_per_byte_s: Annotated[
        float,
        Option(
            "time in which a worker copies parameters and gradients into and out of the buffers of "
            "collectives, between passes, as FSDP2 does, per byte (stage 3)",
            lambda o: o.stage != 3,
        ),
    ] = 0.0
    collective_host_s: Annotated[
        float,
        Option(
            "time of a worker's host around each gather and each reduction of a unit, between "
            "passes (stage 3)",
            lambda o: o.stage != 3,
        ),
    ] = 0.0
    blocking_reduce: Annotated[
        bool,
        Option(
            "the host waits for each collective, as FSDP2's does over gloo: backward goes on once "
            "gradients are reduced, and later units are gathered once the present one is copied",
            formulas=False,
        ),
    ] = False
    no_sync: NoSyncOption = True
    shard_group: Annotated[
        int,
        Option(
            "consecutive workers that share one copy of the model; with several such groups, "
            "gradients are all-reduced across them (hybrid sharding); 0: all workers; node: as "
            "many as a node has devices",
            by_cluster={"node": "devices_per_node"},
        ),
    ] = 0
    reduce_per_byte_s: Annotated[float, Option("time to add gradients, per byte")] = 0.0
    mixed_precision: Annotated[
        bool, Option("send parameters and gradients in 16 bits if the device computes in 16 bits")
    ] = True
    gather_8_bits: Annotated[
        bool,
        Option(
            "gather parameters in 8 bits if products have 8 bits, as torchao and Megatron-LM can"
        ),
    ] = False

    def __post_init__(self) -> None:
        whole_number("shard_group", self.shard_group, at_least=0)
        number("unit_bytes", self.unit_bytes)
        whole_number("prefetch", self.prefetch, at_least=0)
        for name in ("reduce_per_byte_s", "copy_per_byte_s", "collective_host_s"):
            number(name, getattr(self, name))

    @property
    def copies(self) -> bool:
        """Whether workers copy, or their hosts take time, around collectives."""
        return self.stage == 3 and (self.copy_per_byte_s > 0.0 or self.collective_host_s > 0.0)

    def around_gather_s(self, size_bytes: Quantity, shards: Quantity) -> Quantity:
        """Return the seconds around a gather: a worker's shard is copied in, the unit out."""
        return self._around_s(size_bytes + size_bytes / shards)

    def around_reduction_s(self, size_bytes: Quantity) -> Quantity:
        """Return the seconds around a reduction: the gradients of a unit are copied in."""
        return self._around_s(size_bytes)

    def _around_s(self, copied_bytes: Quantity) -> Quantity:
        return self.collective_host_s + copied_bytes * self.copy_per_byte_s

    def ahead(self, units: int) -> list[int]:
        """Return how many units are gathered ahead of each computation: the forward passes of all
        units, and their backward passes.

        FSDP2 gathers one ahead in backward unless told otherwise, also if the host waits for it
        (torch/distributed/fsdp, ``_fully_shard/_fsdp_param_group.py``: ``_backward_prefetch``).
        """
        backward = max(self.prefetch, 1) if self.blocking_reduce else self.prefetch
        return [self.prefetch] * units + [backward] * units

    @property
    def group_size(self) -> int:
        """Workers of a shard group; 1 if all workers form one group."""
        return max(self.shard_group, 1)

    @property
    def shares_update(self) -> bool:
        """Yes: each updates its shard."""
        return True

    @property
    def one_collective(self) -> bool:
        """Yes: parameters are sharded over all devices that would have the same."""
        return True

    def among(self, devices: int) -> Options:
        """Return the options with shard groups of so many times as many devices."""
        return msgspec.structs.replace(self, shard_group=devices * self.shard_group)

    @property
    def in_pipelines(self) -> dict[str, tuple[Value, str]]:
        """Parameters stay gathered from one micro-batch to the next, as in torchtitan
        (``reshard_after_forward_policy``) and in every schedule of PyTorch (``UNSHARD``)."""
        why = "pipelines keep parameters gathered between micro-batches"
        if self.stage != 3:
            return IN_PIPELINES
        waits = "the stages of a pipeline do not wait for reductions"
        kept = {
            "reshard_after_forward": (False, why),
            "reshard_after_backward": (False, why),
            "blocking_reduce": (False, waits),
        }
        return {**kept, **IN_PIPELINES}

    @property
    def needs_flush(self) -> str | None:
        """At stage 3 no worker has a whole version of the weights."""
        return (
            "parameters are sharded: only the newest are there (stage: 3)"
            if (self.stage == 3)
            else None
        )

    def reductions(self, passes: int) -> int:
        """Return how often the gradients of an update of ``passes`` passes are reduced."""
        return reductions_of(self.no_sync, passes)

    @property
    def sends_in_each_pass(self) -> bool:
        """Also if each pass gathers the parameters that the one before has freed."""
        return (self.stage == 3 and self.reshard_after_forward) or self.reductions(2) > 1

    def shards(self, workers: Quantity) -> Quantity:
        """Return the number of workers of a shard group, out of this many in total."""
        if self.shard_group == 0:
            return workers
        return self.shard_group if is_symbol(workers) else minimum(self.shard_group, workers)
