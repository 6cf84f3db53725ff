"""Predict how fast distributed deep-learning training runs, before you pay for the cluster.

>>> import perfmodel
>>> job = perfmodel.make_job(model="resnet18", arch="ps", workers=8)
>>> prediction = perfmodel.predict(job)
>>> prediction.workers, prediction.staleness.mean
(8, 0.0)
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base import wiring

__version__ = "0.1.0"

if TYPE_CHECKING:
    from perfmodel.api import build_graph, make_job, predict
    from perfmodel.base.errors import DeadlockError, InputError, PerfmodelError
    from perfmodel.base.provenance import Source
    from perfmodel.inputs.cluster import (
        Cluster,
        Handover,
        IntraNode,
        Link,
        NodeOverride,
        Server,
        read_cluster,
    )
    from perfmodel.inputs.device import Device
    from perfmodel.inputs.job import Jitter, Job, Straggler, read_job
    from perfmodel.inputs.profile import Profile, read_profile
    from perfmodel.inputs.workload import Workload, WorkloadLayer
    from perfmodel.predicting.variants import Variants, evaluate
    from perfmodel.results.prediction import Prediction
    from perfmodel.results.schedule import Schedule
    from perfmodel.studies.advice import Advice, advise
    from perfmodel.studies.aims import Aim
    from perfmodel.studies.comparison import Comparison, compare
    from perfmodel.studies.convergence import Convergence, TrainingSetup, converge
    from perfmodel.studies.crossovers import Crossover, Explanation, explain
    from perfmodel.studies.formulas import Formula, formula
    from perfmodel.studies.plan_search import PlanLimits
    from perfmodel.studies.planning import plan
    from perfmodel.studies.plans import Plan
    from perfmodel.studies.reports import Report, report
    from perfmodel.studies.requirements import Requirement, require
    from perfmodel.studies.sensitivity import Sensitivity, effects, sensitivity
    from perfmodel.studies.sweeps import Sweep, sweep

_HOME = {
    "Advice": "studies.advice",
    "Aim": "studies.aims",
    "Cluster": "inputs.cluster",
    "Comparison": "studies.comparison",
    "Convergence": "studies.convergence",
    "Crossover": "studies.crossovers",
    "DeadlockError": "base.errors",
    "Device": "inputs.device",
    "Explanation": "studies.crossovers",
    "Formula": "studies.formulas",
    "Handover": "inputs.cluster",
    "InputError": "base.errors",
    "Jitter": "inputs.job",
    "Job": "inputs.job",
    "IntraNode": "inputs.cluster",
    "Link": "inputs.cluster",
    "NodeOverride": "inputs.cluster",
    "PerfmodelError": "base.errors",
    "Plan": "studies.plans",
    "PlanLimits": "studies.plan_search",
    "Prediction": "results.prediction",
    "Profile": "inputs.profile",
    "Report": "studies.reports",
    "Requirement": "studies.requirements",
    "Schedule": "results.schedule",
    "Sensitivity": "studies.sensitivity",
    "Server": "inputs.cluster",
    "Source": "base.provenance",
    "Straggler": "inputs.job",
    "Sweep": "studies.sweeps",
    "TrainingSetup": "studies.convergence",
    "Variants": "predicting.variants",
    "Workload": "inputs.workload",
    "WorkloadLayer": "inputs.workload",
    "advise": "studies.advice",
    "build_graph": "api",
    "compare": "studies.comparison",
    "converge": "studies.convergence",
    "effects": "studies.sensitivity",
    "evaluate": "predicting.variants",
    "explain": "studies.crossovers",
    "formula": "studies.formulas",
    "make_job": "api",
    "plan": "studies.planning",
    "predict": "api",
    "read_cluster": "inputs.cluster",
    "read_job": "inputs.job",
    "read_profile": "inputs.profile",
    "report": "studies.reports",
    "require": "studies.requirements",
    "sensitivity": "studies.sensitivity",
    "sweep": "studies.sweeps",
}

__all__ = [
    "Advice",
    "Aim",
    "Cluster",
    "Comparison",
    "Convergence",
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
    "Plan",
    "PlanLimits",
    "Prediction",
    "Profile",
    "Report",
    "Requirement",
    "Schedule",
    "Sensitivity",
    "Server",
    "Source",
    "Straggler",
    "Sweep",
    "TrainingSetup",
    "Variants",
    "Workload",
    "WorkloadLayer",
    "advise",
    "build_graph",
    "compare",
    "converge",
    "effects",
    "evaluate",
    "explain",
    "formula",
    "make_job",
    "plan",
    "predict",
    "read_cluster",
    "read_job",
    "read_profile",
    "report",
    "require",
    "sensitivity",
    "sweep",
]


def _make_job(**arguments: Any) -> Any:
    return importlib.import_module("perfmodel.api").make_job(**arguments)


def _change_job(job: Any, changes: Mapping[str, Any]) -> Any:
    return importlib.import_module("perfmodel.studies.changes").changed(job, changes)


wiring.make_job = _make_job
wiring.change_job = _change_job


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import perfmodel`` itself costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"perfmodel.{_HOME[name]}"), name)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
