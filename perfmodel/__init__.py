"""Predict how fast distributed deep-learning training runs, before anyone pays for the cluster.

>>> import perfmodel
>>> job = perfmodel.make_job(model="resnet18", arch="ps", workers=8)
>>> prediction = perfmodel.predict(job)
>>> prediction.workers, prediction.staleness.mean
(8, 0.0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from perfmodel.api import build_graph, make_job, predict
    from perfmodel.cluster import (
        Cluster,
        Handover,
        IntraNode,
        Link,
        NodeOverride,
        Server,
        read_cluster,
    )
    from perfmodel.coarse import Variants, evaluate
    from perfmodel.comparison import Comparison, compare
    from perfmodel.crossovers import Crossover, Explanation, explain
    from perfmodel.device import Device
    from perfmodel.errors import DeadlockError, InputError, PerfmodelError
    from perfmodel.formulas import Formula, formula
    from perfmodel.job import Jitter, Job, Straggler, read_job
    from perfmodel.prediction import Prediction
    from perfmodel.profile import Profile, read_profile
    from perfmodel.provenance import Source
    from perfmodel.sweeps import Sweep, sweep
    from perfmodel.workload import Workload, WorkloadLayer

_HOME = {
    "Cluster": "cluster",
    "Comparison": "comparison",
    "Crossover": "crossovers",
    "DeadlockError": "errors",
    "Device": "device",
    "Explanation": "crossovers",
    "Formula": "formulas",
    "Handover": "cluster",
    "InputError": "errors",
    "Jitter": "job",
    "Job": "job",
    "IntraNode": "cluster",
    "Link": "cluster",
    "NodeOverride": "cluster",
    "PerfmodelError": "errors",
    "Prediction": "prediction",
    "Profile": "profile",
    "Server": "cluster",
    "Source": "provenance",
    "Straggler": "job",
    "Sweep": "sweeps",
    "Variants": "coarse",
    "Workload": "workload",
    "WorkloadLayer": "workload",
    "build_graph": "api",
    "compare": "comparison",
    "evaluate": "coarse",
    "explain": "crossovers",
    "formula": "formulas",
    "make_job": "api",
    "predict": "api",
    "read_cluster": "cluster",
    "read_job": "job",
    "read_profile": "profile",
    "sweep": "sweeps",
}

__all__ = [
    "Cluster",
    "Comparison",
    "Crossover",
    "DeadlockError",
    "Device",
    "Explanation",
    "Formula",
    "Handover",
    "InputError",
    "IntraNode",
    "Jitter",
    "Job",
    "Link",
    "NodeOverride",
    "PerfmodelError",
    "Prediction",
    "Profile",
    "Server",
    "Source",
    "Straggler",
    "Sweep",
    "Variants",
    "Workload",
    "WorkloadLayer",
    "build_graph",
    "compare",
    "evaluate",
    "explain",
    "formula",
    "make_job",
    "predict",
    "read_cluster",
    "read_job",
    "read_profile",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``import perfmodel`` itself costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"perfmodel.{_HOME[name]}"), name)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
