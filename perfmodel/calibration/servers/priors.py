"""What is fitted to runs with parameter servers, and what is expected of it."""

from __future__ import annotations

import math
from typing import NamedTuple

from perfmodel.base.provenance import Source
from perfmodel.calibration.parameters import Parameter
from perfmodel.inputs.batch_scaling import LAUNCH_S

COMPUTE = Parameter("compute_factor", 1.0, 0.0, apart=0.5)
"""Compute time of a workload over that of its job, which may be rough: a wide guess."""

PUBLISHED = (
    Source(
        "published",
        "one TensorFlow server on a cloud machine applies 46 updates/s of 104 tensors: 0.2 ms "
        "each, if nothing else took time (Li, Walls, Xu, Guo, ICAC 2019)",
        url="https://arxiv.org/abs/1903.00045",
    ),
    Source(
        "estimated",
        "TensorFlow's gRPC moves 800 MB/s over one connection; both ways, on two cores",
        url="https://github.com/tensorflow/tensorflow/issues/6116",
    ),
)
"""Sources of the prior costs of asynchronous servers, known within a factor of 2."""


class ServerKind(NamedTuple):
    """How servers of one kind are fitted.

    Attributes
    ----------
    parameters : with their priors.
    run_spread : expected standard deviation of the logarithm of a step time around the formulas.
    rescaled : whether the expected spreads are multiplied by what the misfits show. With few runs
        of each workload, rescaled ones would outweigh the priors, which tie the workloads together.
    rounds : of correction by simulation.
    folds : folds of the cross-validation, each of runs of the same workload and number of servers;
        0 to hold out runs of the same workload and number of workers.
    """

    parameters: tuple[Parameter, ...]
    run_spread: float
    rescaled: bool
    rounds: int
    folds: int

    @property
    def apart(self) -> bool:
        """Whether workloads differ in the costs of their servers."""
        return any(p.spread > 0.0 and p.apart > 0.0 for p in self.parameters)


ASYNCHRONOUS = ServerKind(
    (
        COMPUTE,
        Parameter("update_per_tensor_s", 0.2e-3, math.log(2.0), "s"),
        Parameter("update_per_byte_s", 1.25e-9, math.log(2.0), "s/byte"),
    ),
    run_spread=0.03,
    rescaled=True,
    rounds=4,
    folds=0,
)
"""The spread of equal runs is the median of ten groups of 5 to 10 runs each: asynchronous training
with 2 to 7 workers on a public cloud (Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient
Servers", ICAC 2019). The costs are :data:`PUBLISHED`."""

SYNCHRONOUS = ServerKind(
    (
        COMPUTE,
        Parameter("divisible", 0.62, 0.0, scale="logit", apart=1.0),
        Parameter("worker_s", 0.1, 1.5, "s", apart=0.3),
        Parameter("optimizer_ratio", 1.5, 1.0, apart=1.5),
        Parameter("uneven", 0.17, 1.0, scale="logit", apart=0.4),
        Parameter("launch_s", LAUNCH_S, 1.0, "s"),
    ),
    run_spread=0.05,
    rescaled=False,
    rounds=0,
    folds=6,
)
"""Priors of common values are wide guesses. How far workloads are apart are assumptions, rounded
from the values with the best cross-validation between DNNs: optimizers differ more in update cost
than workers differ in message cost."""


def kind_of(sync: str) -> ServerKind:
    """How servers with an option ``sync`` are fitted."""
    return SYNCHRONOUS if sync == "bsp" else ASYNCHRONOUS
