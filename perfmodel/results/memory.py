"""Memory of a job by component."""

from __future__ import annotations

import math

import msgspec

from perfmodel.base.uncertainty import WIDTH
from perfmodel.base.units import show

SURE = 0.9
"""Probability from which a job is said to fit without reserve."""


ABSENT = "not at the same time"
"""Name of what does not exist when memory is largest."""


class Reserved(msgspec.Struct, frozen=True):
    """Bytes that a process takes of its device: 90 % of runs are between ``p5`` and ``p95``."""

    p5: float
    median: float
    p95: float

    def below(self, size: float) -> float:
        """Return the probability that at most ``size`` bytes are reserved.

        Logarithms below and above the median are two halves of normal distributions, each through
        its quantile.
        """
        end = self.p5 if size < self.median else self.p95
        if end == self.median:
            return float(size >= self.median)
        scores = WIDTH * math.log(size / self.median) / abs(math.log(end / self.median))
        return 0.5 * math.erfc(-scores / math.sqrt(2.0))

    def quantile(self, probability: float) -> float:
        """Return the bytes that suffice with a probability, the inverse of :meth:`below`."""
        end = self.p5 if probability < 0.5 else self.p95
        from statistics import NormalDist  # a slow import that predictions do not need

        scores = NormalDist().inv_cdf(probability) / WIDTH
        return self.median * math.exp(scores * abs(math.log(end / self.median)))


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one worker or server by component, in bytes.

    Attributes
    ----------
    parameters_bytes, gradients_bytes, optimizer_states_bytes : what this process keeps of them.
    copies_bytes : parameters in another precision: master copies, or what products use.
    activations_bytes : kept for the backward pass of one pass, by kind of layer.
    logits_bytes : the logits and their logarithmic softmax.
    temporary_bytes : gradients of activations, or temporary copies of the optimizer, when memory is
        largest.
    absent_bytes : *activations* (with logits) and *gradients* that do not exist when memory is
        largest.
    gathered_bytes : parameters and gradients of other workers' shards, while they are whole.
    buckets_bytes : gradients that are copied together to be communicated.
    module_buffers_bytes : such as running means.
    model_copies_bytes : copies of the model, or of its gradients, that the architecture keeps.
    replica_buffers_bytes : activations and their gradients on their way between the devices of a
        replica.
    library_bytes : outside of the allocator: the context and the kernels of the device's libraries,
        and communicators.
    host_bytes : optimizer states and master copies offloaded to the host, not part of the rest.
    reserved_bytes : ``allocated_bytes``, what the allocator reserves beyond, and the libraries;
        None for a process without an accelerator.
    """

    parameters_bytes: float = 0.0
    gradients_bytes: float = 0.0
    optimizer_states_bytes: float = 0.0
    copies_bytes: float = 0.0
    activations_bytes: dict[str, float] = {}
    logits_bytes: float = 0.0
    temporary_bytes: float = 0.0
    absent_bytes: dict[str, float] = {}
    gathered_bytes: float = 0.0
    buckets_bytes: float = 0.0
    module_buffers_bytes: float = 0.0
    model_copies_bytes: dict[str, float] = {}
    replica_buffers_bytes: float = 0.0
    library_bytes: float = 0.0
    host_bytes: float = 0.0
    reserved_bytes: Reserved | None = None

    def towards(self, end: Footprint, part: float) -> Footprint:
        """Return what is this part of the way from here to another."""

        def between(name: str) -> float | dict[str, float] | Reserved | None:
            here, there = getattr(self, name), getattr(end, name)
            if isinstance(here, dict):
                keys = dict.fromkeys((*here, *there))
                return {key: here.get(key, 0.0) + part * (there.get(key, 0.0) - here.get(key, 0.0))
                        for key in keys}  # fmt: skip
            if isinstance(here, float) and isinstance(there, float):
                return here + part * (there - here)
            return here if here is None or isinstance(here, Reserved) else None

        fields = {name: between(name) for name in self.__struct_fields__}
        return msgspec.structs.replace(self, **fields)

    @property
    def allocated_bytes(self) -> float:
        """Peak of the allocated memory: the sum of all tensors that exist at a time."""
        return sum(self.tensors.values())

    @property
    def tensors(self) -> dict[str, float]:
        """Bytes of tensors by component, in words; what is absent at the peak is negative."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer states": self.optimizer_states_bytes,
            "copies of parameters": self.copies_bytes,
            "activations": sum(self.activations_bytes.values(), 0.0),
            "logits and loss": self.logits_bytes,
            "temporary tensors": self.temporary_bytes,
            "gathered units": self.gathered_bytes,
            "buckets": self.buckets_bytes,
            "module buffers": self.module_buffers_bytes,
            "copies of the model": sum(self.model_copies_bytes.values(), 0.0),
            "buffers of the replica": self.replica_buffers_bytes,
            ABSENT: -sum(self.absent_bytes.values(), 0.0),
        }

    @property
    def at_peak(self) -> dict[str, float]:
        """Bytes of each component that exists when memory is largest, in words."""
        sizes = self.tensors
        sizes.pop(ABSENT)
        activations = self.absent_bytes.get("activations", 0.0)
        of_loss = min(activations, self.logits_bytes)  # freed first
        sizes["logits and loss"] -= of_loss
        sizes["activations"] -= activations - of_loss
        sizes["gradients"] -= self.absent_bytes.get("gradients", 0.0)
        return {name: size for name, size in sizes.items() if size > 0.0}


class Memory(msgspec.Struct, frozen=True):
    """Memory that a worker and the fullest server allocate (None without servers).

    ``device_bytes`` is the memory of the device; None if unknown. ``fits`` is the probability that
    a worker fits into it. ``worker`` and ``server`` have the components of ``worker_bytes`` and
    ``server_bytes``. If workers are replicas of several devices, ``stages`` has a device of each of
    their stages, and ``worker`` is the fullest of these.
    """

    worker_bytes: float
    server_bytes: float | None
    device_bytes: float | None
    worker: Footprint = Footprint()
    server: Footprint | None = None
    fits: float | None = None
    stages: tuple[Footprint, ...] = ()

    @classmethod
    def of(
        cls,
        worker: Footprint,
        server: Footprint | None,
        device_bytes: float | None,
        stages: tuple[Footprint, ...] = (),
    ) -> Memory:
        """Return the memory of a job, given the components of a worker and of a server."""
        of_server = None if server is None else server.allocated_bytes
        allocated = worker.allocated_bytes
        fits = None
        if device_bytes is not None:
            reserved = worker.reserved_bytes or Reserved(allocated, allocated, allocated)
            fits = reserved.below(device_bytes)
        return cls(allocated, of_server, device_bytes, worker, server, fits, stages)

    @property
    def fullest_stage(self) -> int | None:
        """Number of the stage whose devices have least memory left; None without stages."""
        return self.stages.index(self.worker) if self.stages else None

    @property
    def _fullest(self) -> str:
        """The fullest device in words."""
        if not self.stages:
            return "a worker"
        return "a device" + f" of stage {self.fullest_stage}" * (len(self.stages) > 1)

    @property
    def largest_part(self) -> str:
        """Say what takes most of the memory of a worker."""
        name, size = max(self.worker.at_peak.items(), key=lambda part: part[1], default=("all", 0))
        allocated = show(self.worker_bytes, "bytes")
        return f"of the {allocated} that {self._fullest} needs, {name} take {show(size, 'bytes')}"

    def needed_bytes(self, confidence: float) -> float:
        """Return the memory with which a worker fits into its device with a probability."""
        reserved = self.worker.reserved_bytes
        return self.worker_bytes if reserved is None else reserved.quantile(confidence)

    def is_enough(self, confidence: float = SURE) -> bool:
        """Return whether a worker fits into its device with a probability; True if the memory of
        the device is unknown."""
        return self.fits is None or self.fits >= confidence

    def shortage(self, device: str) -> str:
        """Say by how much a worker does not fit into its device; "" if it surely does."""
        if self.is_enough() or self.fits is None or self.device_bytes is None:
            return ""
        has, reserved = show(self.device_bytes, "bytes"), self.worker.reserved_bytes
        if reserved is None:
            need, verb = self.worker_bytes, "needs"
        else:
            need, verb = reserved.median, "reserves"
        if self.fits >= 0.5 and reserved is not None:
            low, high = show(reserved.p5, "bytes"), show(reserved.p95, "bytes")
            return (
                f"may not fit: {self._fullest} reserves {low} to {high}, {device} has {has}; "
                f"it fits with a probability of {self.fits:.0%}"
            )
        needs = f"{verb} about {show(need, 'bytes')}"
        ratio = need / self.device_bytes
        above = f"{ratio:.3g} times" if ratio >= 1.005 else "just above"
        return f"does not fit: {self._fullest} {needs}, {above} the {has} of {device}"
