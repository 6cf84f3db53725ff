r"""Fits piecewise linear costs to measured collectives, by size and number of ranks.

A collective of n bytes among p ranks is assumed to take

.. math:: g_\alpha(p)\, \alpha + g_\beta(p)\, n \beta

Each range of sizes has its own alpha, beta and growth with p, because libraries switch algorithms
with the size (Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521). Dynamic programming
finds the boundaries of the ranges (Bellman, Roth, J. Am. Stat. Assoc. 64, 1969, doi
10.1080/01621459.1969.10501038), and the Bayesian information criterion their number (Schwarz, Ann.
Stat. 6, 1978, doi 10.1214/aos/1176344136). Both use relative errors with an exponential tail, so
that outliers have little influence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import get_args

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.calibration.network.robust import estimates, least_absolute
from perfmodel.calibration.statistics import Estimate, Residuals, median_interval, rounded
from perfmodel.inputs.cluster import Collective, Piece, Uneven
from perfmodel.inputs.measured_collectives import measured_collective_s
from perfmodel.theory.collective_times import (
    Growth,
    Operation,
    per_byte_growth,
    startup_growth,
)

GROWTHS: tuple[Growth, ...] = get_args(Growth)

MOST_PIECES = 5
"""Maximum number of pieces: libraries have two or three algorithms for an operation, and protocols
for small messages."""

MOST_BEGINNINGS = 24
"""Maximum number of candidate boundaries, spread evenly over the measured sizes: two per octave
from 1 KiB to 4 MiB."""

FEWEST_SIZES = 3
"""Minimum number of sizes in a piece: one more than a line needs."""

SHORTEST = 2.0
"""Minimum ratio of a piece's last size to its first: a jump between two sizes is not a piece."""

PRECISION = 0.01
"""Mean relative error that counts as 0: repeated runs differ by more."""

PARAMETERS = 4
"""Parameters of a piece: its boundary, two times, and the growth of each."""

UNIDENTIFIED_GROWTH: tuple[Growth, Growth] = ("log", "ring")
"""Growth of both times if all points have the same number of ranks and so do not determine it. As
in libraries: trees for small messages, and a ring's bytes for large ones."""


class Point(msgspec.Struct, frozen=True):
    """A measurement: ``at_once`` equal collectives, run concurrently, took ``seconds``."""

    ranks: int
    bytes: float
    seconds: float
    at_once: int = 1

    def __post_init__(self) -> None:
        whole_number("ranks", self.ranks, at_least=2)
        number("bytes", self.bytes)
        number("seconds", self.seconds, above=0.0)
        whole_number("at_once", self.at_once)


class CollectiveFit(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted collective, and its errors at the points of the fit.

    Attributes
    ----------
    collective : for the ``collectives`` of a cluster.
    startup_s, per_byte_s : of each piece, between two ranks, with intervals.
    points : number of points in the fit.
    contention : time that each further concurrent collective adds, as a fraction of the time of one
        alone; 1 if they share the links evenly. None if not measured.
    """

    collective: Collective
    startup_s: tuple[Estimate, ...]
    per_byte_s: tuple[Estimate, ...]
    residuals: Residuals
    points: int
    contention: Estimate | None = None

    def predict(
        self, ranks: int, size_bytes: float, *, at_once: int = 1, extrapolate: bool = False
    ) -> float:
        """Seconds of a collective, or of ``at_once`` equal ones run concurrently.

        Raises
        ------
        InputError : outside the measured sizes or ranks, unless ``extrapolate``.
        """
        measured = self.collective
        whole_number("ranks", ranks, at_least=2)
        number("bytes", size_bytes)
        whole_number("at_once", at_once)
        for name, value, (least, most) in (
            ("ranks", ranks, measured.ranks),
            ("bytes", size_bytes, measured.bytes),
        ):
            if not extrapolate and not least <= value <= most:
                raise InputError(
                    f"{name}: {value:g} is outside the measured range {least:g} to {most:g}; "
                    "set extrapolate to predict it anyway"
                )
        share = 1.0 if self.contention is None else self.contention.value
        alone = float(measured_collective_s(measured, ranks, size_bytes))
        return alone * (1.0 + (at_once - 1) * share)


def bus_bandwidth(fit: CollectiveFit) -> float:
    """Bytes/s through the slowest link of the largest group, at large sizes; 0 if unknown.

    As nccl-tests defines it (doc/PERFORMANCE.md): the bytes that any algorithm must send through a
    rank's link, over the time that they take.
    """
    collective = fit.collective
    ranks, last = collective.ranks[1], collective.pieces[-1]
    sent = {"all_reduce": 2.0 * (ranks - 1) / ranks, "broadcast": 1.0}
    per_byte_s = last.per_byte_s * float(per_byte_growth(last.per_byte_growth, ranks))
    share = sent.get(collective.operation, (ranks - 1) / ranks)
    return share / per_byte_s if per_byte_s > 0.0 else 0.0


class _Segment(msgspec.Struct, frozen=True):
    """A fitted piece, and the sum of its relative errors."""

    piece: Piece
    error: float


def fit_collective(operation: Operation, points: Sequence[Point]) -> CollectiveFit:
    """Fit pieces to measured times; repeated measurements of a point count as their median.

    For each part of a piece the growth with the ranks that fits best is chosen; see
    UNIDENTIFIED_GROWTH if all points have the same number of ranks. Rank counts whose times deviate
    from the pieces are recorded as *uneven*.

    Raises
    ------
    InputError : no point measures a single collective.

    >>> points = [Point(p, n, 1e-4 * (p - 1) + 2e-9 * n * (p - 1) / p)
    ...           for p in (2, 4) for n in (1e3, 1e4, 1e5, 1e6)]
    >>> fit = fit_collective("all_reduce", points)
    >>> len(fit.collective.pieces), round(fit.predict(8, 1e6, extrapolate=True), 6)
    (1, 0.00245)
    """
    ranks, sizes, seconds = alone(points)
    pieces = _pieces(ranks, sizes, seconds)
    begins = np.array([piece.above_bytes for piece in pieces])
    which = np.searchsorted(begins, sizes, side="right") - 1
    costs = [
        estimates(_design(ranks[here], sizes[here], piece), seconds[here])
        for here, piece in ((which == k, piece) for k, piece in enumerate(pieces))
    ]
    collective = Collective(
        operation=operation,
        pieces=tuple(pieces),
        ranks=(int(ranks.min()), int(ranks.max())),
        bytes=(float(sizes.min()), float(sizes.max())),
    )
    collective = msgspec.structs.replace(
        collective, uneven=tuple(_uneven(collective, ranks, sizes, seconds))
    )
    left = Residuals.of(measured_collective_s(collective, ranks, sizes) / seconds - 1.0)
    crowded = [
        (point.seconds / float(measured_collective_s(collective, point.ranks, point.bytes)) - 1.0)
        / (point.at_once - 1)
        for point in points
        if point.at_once > 1
    ]
    return CollectiveFit(
        collective=msgspec.structs.replace(collective, error_fraction=left.p90),
        startup_s=tuple(startup for startup, _ in costs),
        per_byte_s=tuple(per_byte for _, per_byte in costs),
        residuals=left,
        points=len(seconds),
        contention=median_interval(crowded)[0] if crowded else None,
    )


def alone(points: Sequence[Point]) -> tuple[Floats, Floats, Floats]:
    """Return ranks, sizes and median seconds of single collectives, all (points,), by size."""
    times: dict[tuple[float, int], list[float]] = {}
    for point in points:
        if point.at_once == 1:
            times.setdefault((point.bytes, point.ranks), []).append(point.seconds)
    if not times:
        raise InputError("collectives: needs at least one point with at_once = 1")
    keys = sorted(times)
    return (
        np.array([ranks for _, ranks in keys], float),
        np.array([size for size, _ in keys], float),
        np.array([float(np.median(times[key])) for key in keys]),
    )


def _uneven(
    collective: Collective, ranks: Floats, sizes: Floats, seconds: Floats
) -> Iterator[Uneven]:
    """Rank counts whose times deviate from the pieces in the same direction at three in four
    sizes."""
    times = seconds / np.asarray(measured_collective_s(collective, ranks, sizes))
    for count in np.unique(ranks).tolist():
        low, middle, high = np.quantile(times[ranks == count], [0.25, 0.5, 0.75])
        several = int((ranks == count).sum()) >= FEWEST_SIZES
        if several and not low / (1.0 + PRECISION) <= 1.0 <= high * (1.0 + PRECISION):
            yield Uneven(int(count), rounded(float(middle)))


def _design(ranks: Floats, sizes: Floats, piece: Piece) -> Floats:
    """Coefficients of a piece's alpha and beta at each point, (points, 2).

    With a single size they cannot be separated; the time is then taken as proportional to the
    bytes.
    """
    startups = startup_growth(piece.startup_growth, ranks)
    if (sizes == sizes[0]).all() and sizes[0] > 0.0:
        startups = 0.0 * ranks
    return np.stack([startups, per_byte_growth(piece.per_byte_growth, ranks) * sizes], axis=1)


def _pieces(ranks: Floats, sizes: Floats, seconds: Floats) -> list[Piece]:
    """The best pieces; the information criterion chooses their number."""
    distinct = np.unique(sizes)
    index = np.linspace(0, len(distinct), min(MOST_BEGINNINGS, len(distinct)) + 1)
    index = np.unique(np.rint(index)).astype(np.int64)
    edges = [*distinct[index[:-1]].tolist(), math.inf]
    count = len(edges) - 1
    single = _segment(ranks, sizes, seconds, 0.0)
    best = [{count: (single.error, [single.piece])}]
    segments: dict[tuple[int, int], _Segment] = {}
    for low, high in itertools.combinations(range(count + 1), 2):
        inside = distinct[(distinct >= edges[low]) & (distinct < edges[high])]
        if len(inside) >= FEWEST_SIZES and inside[-1] >= SHORTEST * inside[0]:
            here = (sizes >= edges[low]) & (sizes < edges[high])
            begin = edges[low] if low else 0.0
            segments[low, high] = _segment(ranks[here], sizes[here], seconds[here], begin)
    # best[k][j]: k + 1 pieces for all sizes before edge j
    best[0] |= {j: (s.error, [s.piece]) for (i, j), s in segments.items() if i == 0 and j < count}
    for _ in range(1, MOST_PIECES):
        longer: dict[int, tuple[float, list[Piece]]] = {}
        for (i, j), segment in segments.items():
            if i in best[-1]:
                error, before = best[-1][i]
                if j not in longer or error + segment.error < longer[j][0]:
                    longer[j] = error + segment.error, [*before, segment.piece]
        best.append(longer)
    n = len(seconds)

    def score(error: float, pieces: Sequence[Piece]) -> float:
        return 2 * n * math.log(max(error / n, PRECISION)) + PARAMETERS * len(pieces) * math.log(n)

    return min((row[count] for row in best if count in row), key=lambda fit: score(*fit))[1]


def _segment(ranks: Floats, sizes: Floats, seconds: Floats, begin: float) -> _Segment:
    """The best single piece for some points, over all kinds of growth."""
    several = len(np.unique(ranks)) > 1
    kinds = list(itertools.product(GROWTHS, repeat=2)) if several else [UNIDENTIFIED_GROWTH]
    design = np.stack([_design(ranks, sizes, Piece(0.0, 0.0, 0.0, *kind)) for kind in kinds])
    factors = least_absolute(design, seconds)
    errors = np.abs((design @ factors[..., None])[..., 0] / seconds - 1.0).sum(axis=-1)
    best = int(errors.argmin())
    alpha, beta = map(rounded, factors[best])
    return _Segment(Piece(alpha, beta, begin, *kinds[best]), float(errors[best]))
