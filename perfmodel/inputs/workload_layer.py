"""A layer of a workload."""

import msgspec

from perfmodel.inputs.expert_parallel import Routed


class WorkloadLayer(msgspec.Struct, frozen=True):
    """A layer of a resolved workload.

    ``tensor_bytes`` are the sizes of its gradients in the order backward produces them;
    ``activation_bytes`` is what it keeps for backward, for the whole batch, and ``output_bytes``
    its output (None: the same). ``kind`` and ``temporary_bytes`` are as in profiles.
    ``weight_gradient_s`` is the part of ``backward_s`` for the gradients of weights (None: half).
    ``forward_summed_bytes`` and ``backward_summed_bytes`` are what devices that divide the layer
    sum after each of its passes; its times are then those of one of these devices. ``keys_bytes``
    are the keys and values of attention, and ``queries_bytes`` its queries and outputs, of whole
    sequences on one of the devices that divide the layer, if sequences are divided as well; its
    times are then those of a part of the sequences. ``frozen_bytes`` is the size of its parameters
    that are not trained, as they are stored. ``routed`` is what it sends to experts on other
    devices. ``launching`` is the fraction of its times in which a device waits for the host to
    launch operators, and can sum what it divides with others. ``varying`` is the fraction that
    grows with the squared lengths of documents, if sequences are packed.
    """

    name: str
    forward_s: float
    backward_s: float
    tensor_bytes: tuple[float, ...]
    activation_bytes: float = 0.0
    kind: str = ""
    output_bytes: float | None = None
    temporary_bytes: float | None = None
    weight_gradient_s: float | None = None
    forward_summed_bytes: float = 0.0
    backward_summed_bytes: float = 0.0
    keys_bytes: float = 0.0
    queries_bytes: float = 0.0
    frozen_bytes: float = 0.0
    routed: Routed | None = None
    launching: float = 0.0
    varying: float = 0.0

    @property
    def of_weights_s(self) -> float:
        """Part of the backward pass for the gradients of weights."""
        return self.backward_s / 2.0 if self.weight_gradient_s is None else self.weight_gradient_s

    @property
    def passed_on_bytes(self) -> float:
        """Its output, for the whole batch."""
        return self.activation_bytes if self.output_bytes is None else self.output_bytes
