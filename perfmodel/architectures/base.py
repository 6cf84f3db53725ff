"""The interface of an architecture to the rest of the package."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from perfmodel import architectures
from perfmodel.architectures.memory import Parts, replica
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Options
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.results.prediction import ModelAge

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder


class Traffic(NamedTuple):
    """Bytes per iteration, if each worker and each server has its own node.

    ``sent`` and ``received`` are those of one worker; ``from_server`` and ``to_server`` are those
    of one server, for one iteration of all workers.
    """

    sent: float
    received: float
    from_server: float = 0.0
    to_server: float = 0.0


def uniform_age(period: int, late: int = 0) -> ModelAge:
    """Return the age of models that are exchanged every ``period`` steps: ``late`` and the
    ``period`` - 1 numbers above it, equally often."""
    return ModelAge(float(period), (period - 1) / 2.0 + late, (9 * period + 9) // 10 - 1 + late)


def ring_traffic(workers: int, sent_bytes: float, algorithm: str = "ring") -> Traffic | None:
    """Return the bytes of a worker that takes part in an all-reduce; None if not all send the same
    number of bytes."""
    if algorithm not in ("ring", "node_tree", "hierarchical"):
        return None
    moved = 2 * (workers - 1) / workers * sent_bytes
    return Traffic(moved, moved)


class Coarse(msgspec.Struct, frozen=True, kw_only=True):
    """The coarse model of an architecture.

    Attributes
    ----------
    phases : the model itself.
    exact : tells for which jobs it equals the simulation.
    leaves_out : returns the first feature of a job that the model leaves out, or None.
    queues : tells whether workers queue, which takes a recursion over their number.

    For all other jobs its error is measured: :mod:`perfmodel.predicting.bands`.
    """

    phases: Callable[[Job, Quantities], Phases]
    exact: Callable[[Job], bool]
    leaves_out: Callable[[Job], str | None]
    queues: Callable[[Job], bool] = lambda job: False


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """An architecture, as seen by the rest of the package.

    Attributes
    ----------
    options : type of the options; each is described next to its field.
    build : builds the fine-grained op graph of a job.
    coarse : the coarse model.
    fold : builds the graph with one worker that represents all, for jobs whose workers are alike
        (:func:`perfmodel.training.workers.alike`); None, or returns None, if one worker
        cannot represent all.
    few : builds the graph with some of the workers, (workers,), which represent all if many are
        equal and asynchronous (:mod:`perfmodel.architectures.mean_field`); None if a few cannot.
        ``fewest`` is how many it takes.
    memory : memory of a worker and of the fullest server by component; by default a worker keeps a
        whole replica, and there are no servers.
    updates_on_servers : whether servers run the optimizer.
    assumptions : of the model, one sentence each.
    source : publications that describe the semantics.
    model_age : for architectures that exchange models, the local steps since the last exchange;
        None, or returns None, if each step uses the current model.
    notes : remarks on a job beyond the figures of its prediction; None for none.
    group : the group of jobs that formula errors are measured for; None for the architecture's
        name.
    variants : options under which all laws are tested: each option, and each of its allowed words,
        in at least one of them.
    traffic : the bytes that the source states; None, or returns None, if it states none.
    meaning : what the logged ops of the graph mean for training, to be written to a recorder;
        None if no schedule can be recorded.
    slices : bytes of the slices of the model that are recorded one by one; by default one.
    central : whether workers compute gradients on one model; otherwise each has its own.
    aliases : other names, each with the options it stands for.
    """

    name: str
    title: str
    options: type[Options]
    build: Callable[[Job], OpGraph]
    assumptions: tuple[str, ...]
    source: str
    aliases: Mapping[str, Mapping[str, object]] = msgspec.field(default_factory=dict)
    fold: Callable[[Job], OpGraph | None] | None = None
    few: Callable[[Job, Ids], OpGraph] | None = None
    fewest: int = 16
    memory: Callable[[Job], Parts] = replica
    updates_on_servers: bool = False
    model_age: Callable[[Job], ModelAge | None] | None = None
    notes: Callable[[Job], tuple[str, ...]] | None = None
    coarse: Coarse | None = None
    variants: tuple[Mapping[str, object], ...] = ({},)
    traffic: Callable[[Job], Traffic | None] | None = None
    group: Callable[[Job], str] | None = None
    meaning: Callable[[Job, Recorder], Meaning] | None = None
    slices: Callable[[Job], list[float]] = lambda job: [float(job.workload.gradient_bytes)]
    central: bool = False

    def recording(self, job: Job) -> tuple[Recorder, Meaning]:
        """Return a recorder of a job's schedule, and the meaning of the logged ops."""
        from perfmodel.training.recorder import Recorder

        if self.meaning is None:
            raise InputError(f"schedule: {self.name} does not define what its operations mean")
        recorder = Recorder(job.workers, self.slices(job), central=self.central)
        return recorder, self.meaning(job, recorder)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by name: the result is the architecture itself."""
        return load, (self.name,)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<architecture {self.name}>"


@functools.cache
def load(name: str) -> Architecture:
    """Load the architecture from the file or folder of that name."""
    module = importlib.import_module(f"{architectures.__name__}.{name}")
    return cast(Architecture, module.ARCHITECTURE)


def architecture_of(job: Job) -> Architecture:
    """Return the architecture of a job, with everything the package knows about it."""
    return cast(Architecture, job.architecture)
