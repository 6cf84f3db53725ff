r"""Step time of synchronous parameter servers as a formula, and the misfits of runs.

All *w* workers share one batch; servers are limited by their processors, as in containers with few
cores. A step takes

.. math:: T = \left(K^k + S^k\right)^{1/k} + W \frac{w - 1}{w + 1}, \quad
   K = C \left(1 - f + f \frac{m}{w}\right), \quad
   S = (A + B w) \left(h + \frac{1 - h}{p}\right) e^{u_p}, \quad k = \frac{1}{1 - o}

- A single worker computes for *C*. The fraction *f* of it is proportional to its share of the
  batch; *m* is the batch as a multiple of that of the model's runs. The rest, such as launching and
  serialising, is constant. The processor time of workers, where it was measured, identifies *f*.
- Servers work for *A* in every step (update the parameters), and for *B* per worker (receive and
  add up its gradients, send parameters). The processor time of a single server identifies both;
  that of several servers does not, since they are busy while they wait for each other.
- This work is divided evenly among *p* servers, except for the fraction *h*, which stays on one of
  them: tensors are assigned to servers by hash, and the server with the most bytes finishes last.
  The imbalance of the hash for a given number of servers is :math:`u_p`, equal in all runs of a
  model with as many servers.
- Layers are sent while others are computed. With an overlap *o* of 0, computing and serving add up;
  near 1 the longer of them hides the other.
- All wait for the slowest. A container that has used up its processor quota pauses until the next
  period begins, for a time uniform between 0 and 2 *W*: the expected maximum of *w* such times is 2
  *W w* / (*w* + 1), their mean is included in *C*.

*C*, *f*, *A*, *B*, *h*, *o* are specific to a model, with common priors: *B* is near a common
:math:`b_0`, or the time that the network needs for the bytes if that is longer; *A* near *r B*; *h*
and *o* near common values. A few runs identify a model's own parameters, the runs of all models the
common ones; published figures or assumptions are the priors: regularised least squares of
logarithms (Gelman, Hill, "Data Analysis Using Regression and Multilevel/Hierarchical Models", 2007,
chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import number, whole_number

RUN_SPREAD = 0.05
"""Standard deviation of the logarithm of a measured step around the model. An assumption; intervals
include the additional error found by cross-validation."""

UNEVEN_SPREAD = 0.1
"""Standard deviation of the imbalance for a number of servers, :math:`u_p`. If tensors of
ResNet-50, ResNeXt-110 or a small LSTM, except those above a million elements, are assigned to
servers at random, that of the logarithm of the fullest one's bytes is 0.04 to 0.16 for 2 to 11
servers."""

PROCESSOR_SPREAD, SERVER_PROCESSOR_SPREAD = 0.1, 0.15
"""Standard deviations of the logarithm of processor time around the model, of a worker and of a
single server. Assumptions."""

COMPUTE_SPREAD = 0.5
"""Deviation of computing from the time given for it: standard deviation of the logarithm."""

BUSY, BUSY_SPREAD = 3.0, 1.0
"""Logit of the fraction of a worker's cores that is busy while it computes: 0.95, between 0.88 and
0.98. An assumption: containers with few cores use all of them."""

DIVISIBLE_SPREAD = 1.0
"""Standard deviation of the logit of *f*: nearly uniform between 0 and 1."""

UPDATE_SPREAD, WORKER_SPREAD, HOT_SPREAD, OVERLAP_SPREAD = 1.5, 0.3, 0.5, 1.5
"""Deviations of a model's *A*, *B* (logarithms), *h*, *o* (logits) from the common values:
assumptions, rounded from the values that give the best cross-validation between models. Optimisers
differ more in the cost of an update than workers in that of messages; the overlap can have any
value."""

COMMON: tuple[tuple[str, float, float], ...] = (
    ("wait_s", math.log(0.05), 0.7),
    ("hot_fraction", -2.0, 1.0),
    ("worker_s", math.log(0.05), 1.5),
    ("update_ratio", 0.0, 1.0),
    ("overlap", 0.0, 1.0),
)
"""Prior means and standard deviations: logarithms of *W*, b0 and *r*, and the logits of *h* and
*o*. Linux grants processors to containers in periods of 100 ms (its ``cpu.max``),
so that *W* is half of that. The others are wide guesses.
"""

OWN = 7
"""Parameters of a model: logarithms of *C*, *A*, *B*; logits of *f*, *h*, *o* and of the busy part.
Then come the :math:`u_p` of its numbers of servers above one."""


class SynchronousRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured run.

    Attributes
    ----------
    workers, servers : containers of each.
    step_s : time of a step, in which all workers together train on one batch.
    batch_size : samples of all workers in a step.
    worker_cpu_s : processor time of a worker in a step, over all of its cores; None if unknown.
    server_cpu_s : same of a server. Used only where there is one server.
    """

    workers: int
    servers: int
    step_s: float
    batch_size: float
    worker_cpu_s: float | None = None
    server_cpu_s: float | None = None

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        whole_number("servers", self.servers)
        number("step_s", self.step_s, above=0.0)
        number("batch_size", self.batch_size, above=0.0)
        for key in ("worker_cpu_s", "server_cpu_s"):
            if getattr(self, key) is not None:
                number(key, getattr(self, key), above=0.0)

    @property
    def size(self) -> tuple[int, int, int]:
        """Sort key of runs: connections, then workers."""
        return self.workers * self.servers, self.workers, self.servers


class SynchronousModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model and its runs; none if it was never run.

    ``compute_s`` is the time of a step of one worker without any server, at a batch size of
    ``batch_size`` samples; it may be rough.
    """

    name: str
    parameter_bytes: float
    compute_s: float
    batch_size: float
    runs: tuple[SynchronousRun, ...] = ()

    def __post_init__(self) -> None:
        for key in ("parameter_bytes", "compute_s", "batch_size"):
            number(f"{self.name}: {key}", getattr(self, key), above=0.0)


class Containers(NamedTuple):
    """Properties common to all containers."""

    worker_cores: float
    server_cores: float
    network_bytes_per_s: float


def parts_of(
    own: Floats,
    imbalance: Floats,
    common: Floats,
    workers: Floats | float,
    servers: Floats | float,
    batch: Floats | float,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Step, computing, waiting, serving; ``own`` and ``common`` have a row for each parameter."""
    compute_s, update_s, worker_s = np.exp(own[:3])
    divisible, hot, apart = _logistic(own[3]), _logistic(own[4]), _logistic(-own[5])
    computing = compute_s * (1.0 - divisible + divisible * batch / workers)
    waiting = np.exp(common[0]) * (workers - 1.0) / (workers + 1.0)
    serving = (update_s + worker_s * workers) * (hot + (1.0 - hot) / servers) * np.exp(imbalance)
    longer, shorter = np.maximum(computing, serving), np.minimum(computing, serving)
    both = longer * (1.0 + (shorter / longer) ** (1.0 / apart)) ** apart
    return both + waiting, computing, waiting, serving


class SynchronousRuns(NamedTuple):
    """Runs of models as arrays, and priors."""

    models: Sequence[SynchronousModel]
    of: NDArray[np.int64]
    uneven: Sequence[tuple[int, int]]
    imbalance: NDArray[np.int64]
    workers: Floats
    servers: Floats
    batch: Floats
    step: Floats
    processor: Floats
    server_processor: Floats
    network: Floats
    known: Floats
    whitening: Floats

    @classmethod
    def of_models(
        cls,
        models: Sequence[SynchronousModel],
        containers: Containers,
        common: Floats,
        covariance: Floats,
    ) -> SynchronousRuns:
        """The problem of some models, with priors of the common parameters."""
        runs = [(k, run) for k, one in enumerate(models) for run in one.runs]
        uneven = sorted({(k, run.servers) for k, run in runs if run.servers > 1})
        numbers = {one: number for number, one in enumerate(uneven)}
        return cls(
            models=models,
            of=np.array([k for k, _ in runs], np.int64),
            uneven=uneven,
            imbalance=np.array(
                [numbers.get((k, run.servers), len(uneven)) for k, run in runs], int
            ),
            workers=np.array([run.workers for _, run in runs], np.float64),
            servers=np.array([run.servers for _, run in runs], np.float64),
            batch=np.array([run.batch_size / models[k].batch_size for k, run in runs]),
            step=np.log([run.step_s for _, run in runs]),
            processor=np.log(
                [(run.worker_cpu_s or np.nan) / containers.worker_cores for _, run in runs]
            ),
            server_processor=np.log(
                [
                    (run.server_cpu_s or np.nan if run.servers == 1 else np.nan)
                    / containers.server_cores
                    for _, run in runs
                ]
            ),
            network=np.array([one.parameter_bytes for one in models])
            / containers.network_bytes_per_s,
            known=common,
            whitening=np.linalg.cholesky(np.linalg.inv(covariance)).T,
        )

    def start(self) -> Floats:
        """Starting point: the models' own parameters, the imbalances, the common parameters."""
        own = np.zeros((len(self.models), OWN))
        own[:, 0] = np.log([one.compute_s for one in self.models])
        own[:, 1] = own[:, 2] = math.log(0.1)
        own[:, 4], own[:, 5], own[:, 6] = self.known[1], self.known[4], BUSY
        return np.concatenate([own.ravel(), np.zeros(len(self.uneven)), self.known])

    def residuals(self, point: Floats) -> Floats:
        """Misfits of runs, then distances from the priors, in standard deviations."""
        count, end = len(self.models), OWN * len(self.models)
        own, common = point[:end].reshape(count, OWN), point[-len(self.known) :]
        imbalance = point[end : end + len(self.uneven)]
        of_runs = own[self.of].T
        step, computing, _, serving = parts_of(
            of_runs,
            np.append(imbalance, 0.0)[self.imbalance],
            common,
            self.workers,
            self.servers,
            self.batch,
        )
        busy = np.log(_logistic(of_runs[6]) * computing) - self.processor
        serving = np.log(serving) - self.server_processor
        expected = 0.5 * np.log(np.exp(2.0 * common[2]) + self.network**2)
        compute = np.log([one.compute_s for one in self.models])
        return np.concatenate(
            [
                (np.log(step) - self.step) / RUN_SPREAD,
                np.nan_to_num(busy / PROCESSOR_SPREAD),
                np.nan_to_num(serving / SERVER_PROCESSOR_SPREAD),
                (own[:, 0] - compute) / COMPUTE_SPREAD,
                (own[:, 1] - own[:, 2] - common[3]) / UPDATE_SPREAD,
                (own[:, 2] - expected) / WORKER_SPREAD,
                own[:, 3] / DIVISIBLE_SPREAD,
                (own[:, 4] - common[1]) / HOT_SPREAD,
                (own[:, 5] - common[4]) / OVERLAP_SPREAD,
                (own[:, 6] - BUSY) / BUSY_SPREAD,
                imbalance / UNEVEN_SPREAD,
                self.whitening @ (common - self.known),
            ]
        )


def _logistic(x: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-x))
    return found
