r"""Throughput of an asynchronous parameter server, as a function of a few parameters.

A worker computes, its gradients wait for the server, and the server applies them: a closed queueing
network with one station (:mod:`perfmodel.theory.queueing`). A single worker takes *T* seconds for a
step. For part of them, the server is busy:

.. math:: D = (c_0 \cdot tensors + c_1 \cdot bytes) \, e^{\delta}

seconds, independent of the worker's device. :math:`c_0` and :math:`c_1` are common to all models;
:math:`\delta` is specific to one. *N* workers and *P* servers make

.. math:: X = \left( \left( \frac{T_P}{N} \right)^p + \left( \frac{D}{P} \right)^p \right)^{-1/p},
   \quad T_P = T - \epsilon D \left( 1 - \frac{1}{P} \right)

steps per second (:func:`perfmodel.theory.queueing.blended`). The sharpness *p* of the knee
determines how close they come to the asymptotic bounds; :math:`\epsilon` is the fraction of the
server's work that even a single worker waits for. Where a server's link is slower than the server,
its time replaces *D*.

Several servers are assumed to share the work evenly. But most bytes are in few tensors: where no
run with as many servers identifies it, the fullest one has a fraction of the others' bytes as well
(:data:`UNEVEN`), a quarter of them in the estimate, from none to all in its interval.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.base.quantities import Quantity, maximum
from perfmodel.theory.queueing import Station, blended

MODEL_SPREAD = 0.1
"""Deviation of a model's demand from that of its tensors and bytes: standard deviation of the
logarithm. An assumption, not a measurement."""

SHARPNESS, SHARPNESS_FACTOR = 4.0, 1.65
"""Prior of the sharpness, and the factor within which *p* - 1 is expected: from 2.8 to 6.

Up to seven V100 workers (Li, Walls, Xu, Guo, ICAC 2019) are like 2.8. Where the knee is at three to
five workers, exponential times (mean-value analysis) are like 3, times with a coefficient of
variation of 0.2 like 6 (simulated), fixed times like infinity.
"""

EXPOSED_SPREAD = 1.5
"""Standard deviation of the logit of the exposed fraction: nearly uniform between 0 (the server's
work is hidden behind computation) and 1."""

UNEVEN = "uneven"
"""Fraction of the other servers' bytes that the fullest of several servers has as well, where no
run identifies it. An assumption: the square of a uniform variable."""

HALF_UNEVEN = 0.25
"""Its median. Tensors of a convolutional network placed at random on two servers are about as
uneven: with 13 large ones of equal size it is 0.23 on average."""

DEMAND, BYTES, SHARPER, EXPOSED = "demand_s", "bytes_fraction", "sharpness", "exposed_fraction"
"""Shared parameters: demand of the reference model, which part of it its bytes are, and the others
of the module's text."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured run: steps of all its workers per second, in its steady part.

    ``spread_fraction`` is the standard deviation of this mean as a fraction of it. What equal runs
    differ by comes on top (``run_spread`` of :func:`fit_asynchronous_server`).
    """

    workers: int
    steps_per_s: float
    servers: int = 1
    spread_fraction: float = 0.0

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        number("steps_per_s", self.steps_per_s, above=0.0)
        whole_number("servers", self.servers)
        number("spread_fraction", self.spread_fraction)


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Identical workers: one model on one kind of device.

    A step pushes and pulls ``tensors`` tensors of ``parameter_bytes`` bytes in all. Workers of the
    same ``model`` load the server alike, whatever their device.
    """

    name: str
    model: str
    tensors: int
    parameter_bytes: float

    def __post_init__(self) -> None:
        whole_number(f"{self.name}: tensors", self.tensors)
        number(f"{self.name}: parameter_bytes", self.parameter_bytes, above=0.0)


class Series(Load, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured runs of identical workers."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise InputError(f"{self.name}: runs: at least one is needed")


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Published time of one server for an update of so many tensors and bytes.

    It is right within ``factor`` two times in three: a prior whose logarithm has the standard
    deviation ln(factor).
    """

    tensors: int
    parameter_bytes: float
    demand_s: float
    factor: float
    source: Source

    def __post_init__(self) -> None:
        whole_number("tensors", self.tensors, at_least=0)
        number("parameter_bytes", self.parameter_bytes)
        if not self.tensors and not self.parameter_bytes:
            raise InputError("published: needs tensors or parameter_bytes")
        number("demand_s", self.demand_s, above=0.0)
        number("factor", self.factor, above=1.0)


PUBLISHED = (
    Published(
        tensors=1,
        parameter_bytes=0.0,
        demand_s=0.2e-3,
        factor=2.0,
        source=Source(
            "published",
            "one TensorFlow server on a cloud machine applies 46 updates/s of 104 tensors: 0.2 ms "
            "for each, if nothing else took time (Li, Walls, Xu, Guo, ICAC 2019)",
            url="https://arxiv.org/abs/1903.00045",
        ),
    ),
    Published(
        tensors=0,
        parameter_bytes=1.0,
        demand_s=1.25e-9,
        factor=2.0,
        source=Source(
            "estimated",
            "TensorFlow's gRPC moves 800 MB/s over one connection; both ways, on two cores",
            url="https://github.com/tensorflow/tensorflow/issues/6116",
        ),
    ),
)
"""Seconds per tensor and per byte of a TensorFlow server: the prior."""


class Parameters:
    """Named estimates: one value of each, or an array of draws of each.

    ``values`` are by name, as the estimates of a fit; ``reference`` are the tensors and bytes of
    the model that :data:`DEMAND` and :data:`BYTES` are of.
    """

    def __init__(self, values: Mapping[str, Quantity], reference: tuple[float, float]) -> None:
        self._values = values
        self._tensors, self._bytes = reference

    def step_s(self, load: Load) -> Quantity:
        """Seconds of a step of a single worker."""
        return np.exp(self._values[step_key(load)])

    def compute_s(self, load: Load) -> Quantity:
        """Seconds of that step without work of the server."""
        return self.step_s(load) - self.demand_s(load)

    def demand_s(self, load: Load) -> Quantity:
        """Seconds that one server is busy with a step."""
        return self.whole_s(load.tensors, load.parameter_bytes) * self.deviation(load)

    def deviation(self, load: Load) -> Quantity:
        """Demand of a model over that of its tensors and bytes."""
        return np.exp(self._values[deviation_key(load)])

    def whole_s(self, tensors: int, size_bytes: float) -> Quantity:
        """Seconds that so many tensors and bytes keep one server busy."""
        return self.update_per_tensor_s() * tensors + self.update_per_byte_s() * size_bytes

    def update_per_tensor_s(self) -> Quantity:
        """Seconds of a server per tensor and step."""
        return self._fraction(BYTES, -1.0) * np.exp(self._values[DEMAND]) / self._tensors

    def update_per_byte_s(self) -> Quantity:
        """Seconds of a server per byte and step."""
        return self._fraction(BYTES) * np.exp(self._values[DEMAND]) / self._bytes

    def sharpness(self) -> Quantity:
        """Sharpness of the knee between few and many workers."""
        return 1.0 + np.exp(self._values[SHARPER])

    def of_runs(self, series: Series, link_bytes_per_s: float | None) -> Floats:
        """Steps per second of each run of a series."""
        workers = np.array([run.workers for run in series.runs])
        servers = np.array([run.servers for run in series.runs])
        found: Floats = self.steps_per_s({series: workers}, servers, link_bytes_per_s)
        return found

    def steps_per_s(
        self,
        mix: Mapping[Load, Quantity],
        servers: Quantity,
        link_bytes_per_s: float | None,
        uneven: bool = False,
    ) -> Quantity:
        """Steps per second of so many workers of each series, which are of one model.

        ``uneven``: the fullest server may have more of the bytes than its share.
        """
        workers = sum(mix.values())
        step_s = workers / sum(count / self.step_s(one) for one, count in mix.items())
        model = next(iter(mix))
        demand_s = self.demand_s(model)
        more = self._values.get(UNEVEN, HALF_UNEVEN) * (1.0 - 1.0 / servers) if uneven else 0.0
        of_bytes_s = self.update_per_byte_s() * model.parameter_bytes * self.deviation(model)
        busiest_s = share_s = demand_s / servers + more * of_bytes_s
        if link_bytes_per_s is not None:
            of_link_s = model.parameter_bytes / link_bytes_per_s
            busiest_s = maximum(share_s, of_link_s * (1.0 / servers + more))
        # a single worker is no faster than the server
        alone_s = maximum(step_s - self._fraction(EXPOSED) * (demand_s - share_s), busiest_s)
        server = Station("server", busiest_s, "fifo")
        return blended(workers, (server,), alone_s - busiest_s, sharpness=self.sharpness())

    def _fraction(self, name: str, sign: float = 1.0) -> Quantity:
        return 1.0 / (1.0 + np.exp(-sign * self._values[name]))


def step_key(load: Load) -> str:
    """Name of the parameter *T* of a series: the logarithm of its seconds."""
    return f"step_s {load.name}"


def deviation_key(load: Load) -> str:
    r"""Name of the parameter :math:`\delta` of a model."""
    return f"deviation {load.model}"
