"""What a layer computes: the shapes of its operators, per sample, whatever the device.

Times of operators on a device follow from these shapes (:mod:`perfmodel.theory.products` and
others). Backward is part of an operator: its products have the same three dimensions in another
order.
"""

from typing import ClassVar, Literal, TypeAlias

from perfmodel.base.errors import InputError
from perfmodel.base.ranges import COUNT, POSITIVE, Range, Ranged, or_none

VALUES = Range(0.0, 1e16)
"""Range of a number of values: long sequences of large vocabularies have more than 1e9."""


class _Shape(
    Ranged, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="operator"
):
    """An operator in files, which have only what differs from the defaults."""


class Product(_Shape, frozen=True, tag="product"):
    """A matrix product, also that of a convolution, of ``rows`` x ``depth`` values of a sample.

    The second matrix (``depth`` x ``columns``) has weights: then samples of a batch add rows, and
    backward has two products, for the gradients of the input and of the weights. Without
    ``weights`` it is an activation as well, and samples of a batch add products.

    Attributes
    ----------
    count : equal products of a sample, such as groups of a convolution or heads.
    reuse : times that a value of the input is part of a row: 1, but the size of the kernel over
        the stride of a convolution.
    layout : how the values are stored. *rows*: those of a row are next to each other. Images that
        are stored channel by channel are *columns* if a row has the channels of one pixel, and else
        *patches*.
    wide : whether it has 16 bits also where products have 8, as the output layer has.
    normed : whether its input is the output of a norm, which may cast it as well.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("rows", "columns", "depth", "count"), COUNT),
        "reuse": POSITIVE,
    }

    rows: int
    columns: int
    depth: int
    count: int = 1
    weights: bool = True
    reuse: float = 1.0
    layout: Literal["rows", "columns", "patches"] = "rows"
    wide: bool = False
    normed: bool = False

    @property
    def flop(self) -> float:
        """Floating-point operations of forward per sample: two per multiply-add."""
        return 2.0 * self.rows * self.columns * self.depth * self.count


class Grouped(_Shape, frozen=True, tag="grouped"):
    """Products of groups of rows with a matrix of weights each, such as those of experts.

    Attributes
    ----------
    rows : of all groups of a sample together, which have equal numbers of them on average.
    columns, depth : of each matrix of weights, which is ``depth`` x ``columns``.
    groups : number of matrices.
    """

    RANGES: ClassVar = dict.fromkeys(("rows", "columns", "depth", "groups"), COUNT)

    rows: int
    columns: int
    depth: int
    groups: int

    @property
    def flop(self) -> float:
        """Floating-point operations of forward per sample: two per multiply-add."""
        return 2.0 * self.rows * self.columns * self.depth


class Attention(_Shape, frozen=True, tag="attention"):
    """Attention of a sample whose scores are not stored (flash attention).

    Attributes
    ----------
    length, heads, kv_heads, head_width : tokens, heads of queries and of keys, and their width.
    causal : whether a token attends only to those before it.
    value_width : width of a head's values, if it differs.
    window : tokens before it that a token attends to at most; None: all.
    count : equal sequences of a sample.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("length", "heads", "kv_heads", "head_width", "count"), COUNT),
        **dict.fromkeys(("value_width", "window"), or_none(COUNT)),
    }

    length: int
    heads: int
    kv_heads: int
    head_width: int
    causal: bool = True
    value_width: int | None = None
    window: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads: {self.kv_heads} do not divide {self.heads} heads")

    @property
    def mean_width(self) -> float:
        """Mean of the widths of a head's keys and values, which have a product each."""
        values = self.head_width if self.value_width is None else self.value_width
        return (self.head_width + values) / 2.0

    @property
    def flop(self) -> float:
        """Floating-point operations of forward per sample.

        Those beyond a causal diagonal count too; with a window, as many as before it.
        """
        s, window = float(self.length), self.window
        pairs = s * s if window is None or window >= s else 2.0 * window * s - float(window) ** 2
        return 4.0 * self.count * pairs * self.heads * self.mean_width


class MemoryBound(_Shape, frozen=True, tag="memory_bound"):
    """An operator bound by memory: a norm, an activation, a sum, a look-up, a loss.

    Attributes
    ----------
    forward_values, backward_values : read and written per sample.
    fixed_backward_values : read and written whatever the batch, such as the gradient of a table.
    kernels : launched in forward; backward launches as many.
    unfused : times as many values where a framework computes each part by a kernel of its own.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("forward_values", "backward_values", "fixed_backward_values"), VALUES),
        "kernels": Range(1.0, 10_000.0, whole=True),
        "unfused": Range(1.0, 1000.0),
    }

    forward_values: float
    backward_values: float
    fixed_backward_values: float = 0.0
    kernels: int = 1
    unfused: float = 1.0

    @property
    def flop(self) -> float:
        """None that count."""
        return 0.0


OperatorShape: TypeAlias = Product | Grouped | Attention | MemoryBound
