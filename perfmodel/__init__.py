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

from perfmodel.inputs import wiring

__version__ = "1.0.0"

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.api import build_graph as build_graph, make_job as make_job, predict as predict
    from perfmodel.base.errors import (
        DeadlockError as DeadlockError,
        InputError as InputError,
        PerfmodelError as PerfmodelError,
    )
    from perfmodel.base.provenance import Source as Source
    from perfmodel.inputs.cluster import (
        Cluster as Cluster,
        Handover as Handover,
        IntraNode as IntraNode,
        Link as Link,
        NodeOverride as NodeOverride,
        Server as Server,
        read_cluster as read_cluster,
    )
    from perfmodel.inputs.device import Device as Device
    from perfmodel.inputs.failures import Failures as Failures
    from perfmodel.inputs.job import (
        Jitter as Jitter,
        Job as Job,
        Straggler as Straggler,
    )
    from perfmodel.inputs.job_files import read_job as read_job
    from perfmodel.inputs.profile import Profile as Profile, read_profile as read_profile
    from perfmodel.inputs.workload import Workload as Workload, WorkloadLayer as WorkloadLayer
    from perfmodel.planning.decision import plan as plan
    from perfmodel.planning.layout_comparison import (
        LayoutComparison as LayoutComparison,
        compare_layouts as compare_layouts,
    )
    from perfmodel.planning.plans import Plan as Plan
    from perfmodel.planning.search import PlanLimits as PlanLimits
    from perfmodel.predicting.effects import effects as effects
    from perfmodel.predicting.options import PredictOptions as PredictOptions
    from perfmodel.predicting.variants import Variants as Variants, evaluate as evaluate
    from perfmodel.results.prediction import Prediction as Prediction
    from perfmodel.results.schedule import Schedule as Schedule
    from perfmodel.studies.advice import Advice as Advice, advise as advise
    from perfmodel.studies.aims import Aim as Aim
    from perfmodel.studies.crossovers import (
        Crossover as Crossover,
        Explanation as Explanation,
        explain as explain,
    )
    from perfmodel.studies.diagnosis import Diagnosis as Diagnosis, diagnose as diagnose
    from perfmodel.studies.fitting import largest_batch as largest_batch, remedies as remedies
    from perfmodel.studies.formulas import Formula as Formula, formula as formula
    from perfmodel.studies.observables import Measured as Measured
    from perfmodel.studies.reports import Report as Report, report as report
    from perfmodel.studies.requirements import Requirement as Requirement, require as require
    from perfmodel.studies.sensitivity import (
        Sensitivity as Sensitivity,
        sensitivity as sensitivity,
    )
    from perfmodel.sweeping.comparison import Comparison as Comparison, compare as compare
    from perfmodel.sweeping.convergence import (
        Convergence as Convergence,
        TrainingSetup as TrainingSetup,
        converge as converge,
    )
    from perfmodel.sweeping.layouts import Layouts as Layouts, layouts as layouts
    from perfmodel.sweeping.sweeps import Sweep as Sweep, sweep as sweep

_NAMES = {
    "api": "build_graph make_job predict",
    "base.errors": "DeadlockError InputError PerfmodelError",
    "base.provenance": "Source",
    "inputs.cluster": "Cluster Handover IntraNode Link NodeOverride Server read_cluster",
    "inputs.device": "Device",
    "inputs.failures": "Failures",
    "inputs.job": "Jitter Job Straggler",
    "inputs.job_files": "read_job",
    "inputs.profile": "Profile read_profile",
    "inputs.workload": "Workload WorkloadLayer",
    "predicting.effects": "effects",
    "predicting.options": "PredictOptions",
    "predicting.variants": "Variants evaluate",
    "results.prediction": "Prediction",
    "results.schedule": "Schedule",
    "studies.advice": "Advice advise",
    "studies.aims": "Aim",
    "sweeping.comparison": "Comparison compare",
    "sweeping.convergence": "Convergence TrainingSetup converge",
    "studies.crossovers": "Crossover Explanation explain",
    "studies.diagnosis": "Diagnosis diagnose",
    "studies.fitting": "largest_batch remedies",
    "studies.formulas": "Formula formula",
    "studies.observables": "Measured",
    "planning.search": "PlanLimits",
    "planning.decision": "plan",
    "planning.layout_comparison": "LayoutComparison compare_layouts",
    "planning.plans": "Plan",
    "studies.reports": "Report report",
    "studies.requirements": "Requirement require",
    "studies.sensitivity": "Sensitivity sensitivity",
    "sweeping.layouts": "Layouts layouts",
    "sweeping.sweeps": "Sweep sweep",
}
"""Public names by the module that defines them."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def _make_job(**arguments: object) -> Job:
    made: Job = importlib.import_module("perfmodel.api").make_job(**arguments)
    return made


def _change_job(job: object, changes: Mapping[str, object]) -> Job:
    other: Job = importlib.import_module("perfmodel.sweeping.arguments").changed(job, changes)
    return other


def _read_job(path: str | Path) -> dict[str, Any]:
    return dict(importlib.import_module("perfmodel.inputs.job_files").read_job(path))


wiring.make_job = _make_job
wiring.read_job = _read_job
wiring.change_job = _change_job


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import perfmodel`` itself costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"perfmodel.{_HOME[name]}"), name)
    if not name.startswith("_"):
        from perfmodel.base.deprecations import RENAMED, warn  # needed for old names only

        if name in RENAMED:
            warn(name)
            return __getattr__(RENAMED[name].instead)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
