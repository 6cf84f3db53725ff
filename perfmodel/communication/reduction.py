"""Options of an all-reduce, and the algorithms that *auto* chooses from."""

from __future__ import annotations

from typing import Annotated, Literal

from perfmodel.base.errors import number, whole_number
from perfmodel.inputs.options import Option, Options

Algorithm = Literal[
    "auto", "ring", "halving_doubling", "tree", "double_tree", "node_tree", "hierarchical"
]

CHUNKS = 16
"""Number of pieces of each half of the bytes in a double tree."""

MOST_CHUNKS = 1000


AlgorithmOption = Annotated[
    Algorithm,
    Option(
        "how gradients are summed: auto (for each message the fastest of ring, double_tree and "
        "node_tree, as NCCL chooses; or as measured, if the cluster has measurements), ring, "
        "halving_doubling (Rabenseifner), tree, double_tree, node_tree (a tree among nodes and "
        "chains inside them, as in NCCL) or hierarchical (inside each node, then rings among "
        "nodes; with several sites inside each site, then rings among sites)",
        lambda o: o.sparse,
    ),
]
ChunksOption = Annotated[
    int,
    Option(
        "pieces of each half of the bytes, with algorithm=double_tree; upper limit with auto",
        lambda o: o.sparse or o.algorithm not in ("auto", "double_tree"),
    ),
]
ReduceOption = Annotated[
    float,
    Option("time to add gradients, per byte", lambda o: o.sparse),
]


class Reduction(Options, frozen=True):
    """Options of an all-reduce, which some architectures include in their own."""

    algorithm: AlgorithmOption = "auto"
    chunks: ChunksOption = CHUNKS
    reduce_per_byte_s: ReduceOption = 0.0

    def __post_init__(self) -> None:
        whole_number("chunks", self.chunks, at_most=MOST_CHUNKS)
        number("reduce_per_byte_s", self.reduce_per_byte_s)

    @property
    def sparse(self) -> bool:
        """Whether members gather all gradients instead of summing them on the way."""
        return False

    @property
    def by_measurements(self) -> bool:
        """Whether measured collectives replace these options."""
        return self.algorithm in ("auto", "ring")


MEASURED_ASSUMPTION = (
    "if the cluster file has measured collectives, they replace rings and the choice of auto: they "
    "take as long as measured, and load every link with the bytes that a ring moves over it"
)

REDUCTION_ASSUMPTIONS = (
    "a ring moves 2(n-1)/n of the bytes from each member to the next, at the pace of the slowest "
    "link; nodes with several NICs have several rings, which share the bytes",
    "other algorithms go round by round; in each round a member sends to one other and receives "
    "from one, and the round takes as long as the slowest of its sends",
    "a tree handles all bytes at once; a double tree splits each half into chunks, each a message "
    "with its own latency; a node tree starts as fast as a hierarchical all-reduce and loads links "
    "as a ring does",
    "devices of a node share its bus if it has one; otherwise each has its own port",
    MEASURED_ASSUMPTION,
)


def candidates(options: Reduction, *, several_nodes: bool, several_devices: bool,
               trees: bool = True) -> list[Reduction]:  # fmt: skip
    """Return the options that *auto* chooses from, the first on ties; else the options themselves.

    They include a double tree with 1, 4, 16 ... chunks, up to ``chunks``. A node tree is no better
    than a ring unless there are several nodes with several devices. No library uses a hierarchical
    all-reduce, which moves fewer bytes between nodes, without being told to.

    NVIDIA's NCCL also chooses by the predicted time of a message, from a latency and a bandwidth
    for rings and for double binary trees (src/graph/tuning.cc); its trees are chains inside nodes.
    """
    if options.algorithm != "auto":
        return [options]

    def variant(algorithm: Algorithm, chunks: int = CHUNKS) -> Reduction:
        return Reduction(algorithm, chunks, options.reduce_per_byte_s)

    variants = [variant("ring")]
    if several_nodes and several_devices:
        variants.append(variant("node_tree"))
    chunks = 1
    while trees and chunks <= options.chunks:
        variants.append(variant("double_tree", chunks))
        chunks *= 4
    return variants
