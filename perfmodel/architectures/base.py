"""What the rest of the package needs to know of an architecture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.results.prediction import ModelAge


class Coarse(msgspec.Struct, frozen=True, kw_only=True):
    """The coarse model of an architecture.

    Attributes
    ----------
    phases : the model itself.
    exact : for which jobs it equals the simulation.
    leaves_out : what a job has that the model knows nothing of; None if there is nothing.

    How far it is off for the other jobs is measured: :mod:`perfmodel.predicting.bands`.
    """

    phases: Callable[[Job, Quantities], Phases]
    exact: Callable[[Job], bool]
    leaves_out: Callable[[Job], str | None]


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What the rest of the package needs to know of an architecture.

    Attributes
    ----------
    options : msgspec struct of the options, every field with a default.
    build : the fine-grained op graph of one job.
    coarse : the coarse model.
    fold : the same with one worker that stands for all of them, for jobs whose workers are alike
        (_workers.alike); None, or returns None, where one worker cannot stand for all.
    asynchronous : whether a job with these options lets workers drift apart.
    server_bytes : memory need of one server of a job (bytes); None where there is no server.
    worker_bytes : memory need of one worker (bytes); None where it has parameters, gradients,
        activations and, without a server, the optimizer's state.
    assumptions : what the model takes for granted, one sentence each.
    source : where the semantics are described.
    unused : names of the options that have no effect, given the others.
    model_age : for architectures that exchange models, how many local steps one is from the last
        exchange; None, or returns None, where each step works on a model of its own time.
    notes : what a prediction has to say of a job beyond its figures; None for nothing.
    aliases : other names, each with the options it stands for.
    """

    name: str
    title: str
    options: type[Any]
    build: Callable[[Job], OpGraph]
    asynchronous: Callable[[Any], bool]
    server_bytes: Callable[[Job], float] | None
    assumptions: tuple[str, ...]
    source: str
    option_help: Mapping[str, str]
    aliases: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    fold: Callable[[Job], OpGraph | None] | None = None
    worker_bytes: Callable[[Job], float] | None = None
    unused: Callable[[Any], Collection[str]] = lambda options: ()
    model_age: Callable[[Job], ModelAge | None] | None = None
    notes: Callable[[Job], tuple[str, ...]] | None = None
    coarse: Coarse | None = None
