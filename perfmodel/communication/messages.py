"""Messages of gradients: their order, compression, and scheduling on connections."""

import itertools
import math
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.base.ranges import COUNT, NOT_NEGATIVE, POSITIVE, or_inf
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis
from perfmodel.inputs.options import Option, Options
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.training.workers import Workers

ELEMENT_BITS = 32
"""Bits of a gradient element before compression: float32."""

TOP_K_BITS = 32 + 32
"""Bits that top-k sends per element: a value and an index."""

DGC_BITS = 32 + 16
"""Bits that deep gradient compression sends per element: a value and a 16-bit run length.
Lin et al., ICLR 2018, arXiv 1712.01887."""

TURNS, TURNS_OF_EACH = 1024, 8
"""Turns that a worker's messages to all servers, or to one peer, may take in an iteration, or each
on average if they are many; more change little but the time of a simulation (decision 0113)."""


class Tensors(msgspec.Struct, frozen=True, eq=False):
    """Gradient tensors in the order in which backward computes them.

    All of shape (tensors,): ``layer`` index, ``bytes``, and ``key``, the number of the tensor in
    forward order.
    """

    layer: Ids
    bytes: Floats
    key: Ids


def tensors_of(workload: Workload) -> Tensors:
    """Return all gradient tensors of a workload."""
    layers = expanded(workload).layers
    counts = [len(layer.tensor_bytes) for layer in layers]
    first = list(itertools.accumulate(counts, initial=0))
    tensors = [
        (i, size, first[i] + k)
        for i, layer in reversed(list(enumerate(layers)))
        for k, size in enumerate(layer.tensor_bytes)
    ]
    layer, size, key = zip(*tensors, strict=True)
    return Tensors(np.array(layer), np.array(size, np.float64), np.array(key))


MOST_PARTS = 200_000
"""Largest number of messages in one iteration; catches typing errors."""


def parts_of(sizes: Floats, partition_bytes: float) -> Ids:
    """Return the number of parts of at most ``partition_bytes`` each message is cut into.

    Raises
    ------
    InputError : there are more than MOST_PARTS parts in total.
    """
    parts = np.maximum(np.ceil(sizes / partition_bytes), 1.0)
    if parts.sum() > MOST_PARTS:
        raise InputError(
            f"partition_bytes: {partition_bytes:g} cuts the gradients into "
            f"{parts.sum():.0f} parts (at most {MOST_PARTS})"
        )
    return parts.astype(np.int64)


class Compression(Options, frozen=True):
    """Options of gradient compression, which some architectures include in their own."""

    RANGES: ClassVar = {
        "density": POSITIVE._replace(at_most=1.0),
        "quantised_bits": COUNT._replace(at_most=ELEMENT_BITS),
        **dict.fromkeys(("encode_per_byte_s", "decode_per_byte_s"), NOT_NEGATIVE),
    }

    compression: Annotated[
        Literal["none", "top_k", "dgc", "quantised"],
        Option("gradient compression: none, top_k, dgc (deep gradient compression) or quantised"),
    ] = "none"
    density: Annotated[
        float, Option("fraction of elements that top_k and dgc send", lambda o: not o.sparse)
    ] = 0.001
    quantised_bits: Annotated[
        int,
        Option("bits per element with quantised", lambda o: o.compression != "quantised"),
    ] = 8
    encode_per_byte_s: Annotated[
        float,
        Option(
            "device time to compress gradients, per uncompressed byte",
            lambda o: o.compression == "none",
        ),
    ] = 0.0
    decode_per_byte_s: Annotated[
        float,
        Option(
            "receiver's time to decompress gradients, per uncompressed byte",
            lambda o: o.compression == "none",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("encode_per_byte_s", "decode_per_byte_s"):
            if getattr(self, name) > 0.0 and self.compression == "none":
                raise InputError(f"{name}: has no effect without compression")

    @property
    def sparse(self) -> bool:
        """Whether workers send different elements, so that sums are denser than gradients."""
        return self.compression in ("top_k", "dgc")

    @property
    def sent_share(self) -> float:
        """Bytes sent for each byte of gradients."""
        share = {
            "none": 1.0,
            "top_k": self.density * TOP_K_BITS / ELEMENT_BITS,
            "dgc": self.density * DGC_BITS / ELEMENT_BITS,
            "quantised": self.quantised_bits / ELEMENT_BITS,
        }[self.compression]
        return min(share, 1.0)

    def sent_bytes(self, dense: Floats) -> Floats:
        """Return the bytes sent for gradients of ``dense`` bytes, of the same shape."""
        return dense * self.sent_share

    def encoded(self, b: GraphBuilder, workers: Workers, dense_by_layer: Floats) -> Ids:
        """Return the ops that end a layer's gradient, after any encoding: (workers, layers).

        ``dense_by_layer`` (layers,) are the bytes to encode. Encoding occupies the device right
        after the layer's backward pass.
        """
        seconds = self.encode_per_byte_s * dense_by_layer
        if not seconds.any():
            return workers.backward
        encode = workers.compute(b, "encode", seconds, names=workers.layer_names, priority=-1)
        b.edge(workers.backward, encode)
        return encode


class Transmission(Compression, frozen=True):
    """Options of compression, and of scheduling messages on a connection."""

    RANGES: ClassVar = {
        **Compression.RANGES,
        "quantum_bytes": POSITIVE,
        "partition_bytes": or_inf(POSITIVE),
        "credit_bytes": NOT_NEGATIVE,
    }

    transmission: Annotated[
        Literal["fifo", "quantum", "shared", "priority", "random"],
        Option(
            "order on a connection: fifo, quantum (round robin), shared (all at once), "
            "priority (what the next forward needs first) or random (TensorFlow)",
            formulas=False,
        ),
    ] = "fifo"
    quantum_bytes: Annotated[
        float,
        Option(
            "bytes a message sends per turn, with transmission=quantum; more if a worker would "
            "take over 1024 turns per step",
            lambda o: o.transmission != "quantum",
        ),
    ] = 65536.0
    partition_bytes: Annotated[
        float, Option("cut larger messages into parts of at most this size")
    ] = math.inf
    credit_bytes: Annotated[
        float,
        Option(
            "bytes that may be in flight at once on a connection; 0: one message",
            lambda o: o.transmission in ("quantum", "shared"),
            formulas=False,
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit_bytes > 0.0 and self.transmission in ("quantum", "shared"):
            raise InputError(
                f"credit_bytes: has no effect with transmission={self.transmission} "
                "(allowed: fifo, priority, random)"
            )

    def priority(self, layer: Ids, workers: int, stream: tuple[int, ...]) -> Ids:
        """Return the priorities of the messages of these layers, (messages,) or (workers,
        messages).

        What the next forward pass needs first goes first; or the order is drawn for each of the
        ``workers``, with random numbers specific to ``stream``; or all are equal: first come, first
        served.
        """
        if self.transmission == "random":
            sequence = np.random.SeedSequence(stream)
            generator = np.random.Generator(np.random.Philox(sequence))
            order: Ids = np.argsort(generator.random((workers, len(layer))), axis=1)
            return order
        return layer if self.transmission == "priority" else np.zeros_like(layer)

    def connections(
        self,
        b: GraphBuilder,
        label: str,
        shape: tuple[int, ...],
        bytes: Floats,
        *,
        place: Ids,
        axes: tuple[Axis, ...],
    ) -> tuple[Ids, Ids]:
        """Return slots for connections of ``shape``, and the units that messages of ``bytes`` hold.

        A slot takes one message at a time or, with credit, as many bytes as the credit allows; with
        *shared* there is no slot at all.
        """
        one = np.ones(np.shape(bytes), np.int64)
        if self.transmission == "shared":
            return np.full(shape, -1), one
        credit = max(int(self.credit_bytes), 1)
        connections = b.slots(label, shape, capacity=credit, place=place, axes=axes)
        if self.credit_bytes == 0.0:
            return connections, one
        units = np.clip(np.ceil(bytes), 1, credit).astype(np.int64)
        return connections, units

    def finish(self, b: GraphBuilder, messages: Ids, bytes: Floats) -> None:
        """Serve ``messages`` round robin if that option is set; those of one worker to all servers,
        or to one peer, have these ``bytes``, (messages,)."""
        if self.transmission == "quantum":
            least = float(bytes.sum()) / max(TURNS, TURNS_OF_EACH * bytes.size)
            b.quantum(messages, max(self.quantum_bytes, least))
