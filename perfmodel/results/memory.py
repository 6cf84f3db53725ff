"""Memory of a job by component."""

from __future__ import annotations

import msgspec


class Reserved(msgspec.Struct, frozen=True):
    """Bytes that a process takes of its device: 90 % of runs are between ``p5`` and ``p95``."""

    p5: float
    median: float
    p95: float


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one worker or server by component, in bytes.

    Attributes
    ----------
    parameters_bytes, gradients_bytes, optimizer_states_bytes : what this process keeps of them.
    copies_bytes : parameters in another precision: master copies, or what products use.
    activations_bytes : kept for the backward pass of one pass, by kind of layer.
    logits_bytes : the logits, their logarithmic softmax, and its gradient.
    gathered_bytes : parameters and gradients of other workers' shards, while they are whole.
    buckets_bytes : gradients that are copied together to be communicated.
    module_buffers_bytes : such as running means.
    model_copies_bytes : copies of the model, or of its gradients, that the architecture keeps.
    library_bytes : the context and the kernels of the device's libraries, outside of the allocator.
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
    gathered_bytes: float = 0.0
    buckets_bytes: float = 0.0
    module_buffers_bytes: float = 0.0
    model_copies_bytes: dict[str, float] = {}
    library_bytes: float = 0.0
    host_bytes: float = 0.0
    reserved_bytes: Reserved | None = None

    @property
    def allocated_bytes(self) -> float:
        """Peak of the allocated memory: the sum of all tensors."""
        return sum(self.tensors.values())

    @property
    def tensors(self) -> dict[str, float]:
        """Bytes of tensors by component, in words."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer states": self.optimizer_states_bytes,
            "copies of parameters": self.copies_bytes,
            "activations": sum(self.activations_bytes.values(), 0.0),
            "logits and loss": self.logits_bytes,
            "gathered units": self.gathered_bytes,
            "buckets": self.buckets_bytes,
            "module buffers": self.module_buffers_bytes,
            "copies of the model": sum(self.model_copies_bytes.values(), 0.0),
        }


class Memory(msgspec.Struct, frozen=True):
    """Memory that a worker and the fullest server allocate (None without servers).

    ``device_bytes`` is the memory of the device; None if unknown. ``worker`` and ``server`` have
    the components of ``worker_bytes`` and ``server_bytes``.
    """

    worker_bytes: float
    server_bytes: float | None
    device_bytes: float | None
    worker: Footprint = Footprint()
    server: Footprint | None = None

    @classmethod
    def of(cls, worker: Footprint, server: Footprint | None, device_bytes: float | None) -> Memory:
        """Return the memory of a job, given the components of a worker and of a server."""
        of_server = None if server is None else server.allocated_bytes
        return cls(worker.allocated_bytes, of_server, device_bytes, worker, server)
