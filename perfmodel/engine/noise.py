"""Random numbers that only depend on (seed, stream, iteration), never on the order of events.

The event loop draws a 32-bit word for a stream and an iteration (draws.draw). The word's first 16
bits select a factor from a table of equally likely values (inverse transform sampling), so that
plain and compiled code agree to the last bit.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from perfmodel.base.arrays import NONE, Floats
from perfmodel.base.quantities import NO_SPREAD
from perfmodel.graph.op_graph import KINDS, OpGraph

TABLE = 1 << 16
"""Number of values in a table."""
_KEY, _OFFSETS = 0, 1


def key(seed: int) -> int:
    """Return a 32-bit hash of a seed."""
    return int(np.random.SeedSequence([seed, _KEY]).generate_state(1, np.uint32)[0])


def offsets(seed: int, count: int) -> Floats:
    """Return random start offsets in [0, 1) for ``count`` groups, evenly spread.

    Each of ``count`` equal intervals has one offset, in random order (Latin hypercube sampling:
    McKay, Beckman, Conover, Technometrics 21(2), 1979, doi 10.2307/1268522).
    """
    sequence = np.random.SeedSequence([seed, _OFFSETS])
    generator = np.random.Generator(np.random.Philox(sequence))
    return (generator.permutation(count) + generator.random(count)) / max(count, 1)


def resampled(values: Floats) -> Floats:
    """Return TABLE equally likely factors of mean 1, ascending, of a distribution of which there
    are some equally likely ``values``."""
    middles = (np.arange(len(values)) + 0.5) / len(values)
    factors = np.interp((np.arange(TABLE) + 0.5) / TABLE, middles, values)
    return np.asarray(factors / factors.mean())


@functools.cache
def table(cv: float, kind: int) -> Floats:
    """Return TABLE equally likely factors of mean 1 and coefficient of variation ``cv``, ascending.

    Lognormal: exp(s z - s^2/2) with s^2 = ln(1 + cv^2). Gamma: shape 1/cv^2, scale cv^2. All are 1
    if ``cv`` is below :data:`perfmodel.base.quantities.NO_SPREAD`. The last digit matters: messages
    that arrive at nearly the same moment change their order with it.
    """
    if cv < NO_SPREAD:
        return np.ones(TABLE)
    from scipy import special

    parts = (np.arange(TABLE) + 0.5) / TABLE
    if KINDS[kind] == "gamma":
        values = special.gammaincinv(1.0 / cv**2, parts) * cv**2
    else:
        sigma = math.sqrt(math.log1p(cv**2))
        logs = sigma * special.ndtri(parts) - 0.5 * sigma**2
        values = np.array([*map(math.exp, logs.tolist())])  # NumPy's differ between processors
    values /= values.mean()
    values.setflags(write=False)
    return values  # type: ignore[no-any-return]


def factors(graph: OpGraph, cv: float, kind: int) -> Floats:
    """Return TABLE equally likely factors of a distribution of a graph's streams, ascending."""
    return table(cv, kind) if kind < len(KINDS) else resampled(graph.tables[kind - len(KINDS)])


def factors_of(graph: OpGraph) -> Floats:
    """Return TABLE equally likely factors on the computation of an iteration of a worker, that of
    the last group: those of its stream or, if it has several that are independent, lognormal ones
    with the variance of their sum."""
    varying = (graph.op_group == graph.n_groups - 1) & (graph.op_stream != NONE)
    streams, which = np.unique(graph.op_stream[varying], return_inverse=True)
    if len(streams) == 1:
        stream = int(streams[0])
        return factors(graph, float(graph.stream_cv[stream]), int(graph.stream_kind[stream]))
    seconds = np.bincount(which.ravel(), graph.op_seconds[varying])
    spread_s = np.sqrt(((seconds * graph.stream_cv[streams]) ** 2).sum())
    return table(float(spread_s / max(seconds.sum(), 1e-300)), KINDS.index("lognormal"))
