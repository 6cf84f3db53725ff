"""Options of an architecture, each described once, next to its field."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, Self, TypeAlias

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.ranges import Ranged
from perfmodel.base.units import dimension_of
from perfmodel.inputs.cluster import Cluster

MIXED = "models are mixed while earlier versions are in use, which no source describes"
"""Why architectures that mix models have no pipelines without a flush."""


class Option(msgspec.Struct, frozen=True):
    """Description of a field of :class:`Options`: ``Annotated[int, Option("...")] = 1``.

    Attributes
    ----------
    help : what it means, in one sentence.
    no_effect : whether it has no effect, given all options; None if it always has one.
    formulas : whether the coarse model supports values other than the default.
    needs : the field of the workload that must be above 0 for it to have an effect; "" if none.
    by_cluster : words that stand for a value of the job's cluster, each with its field.
    """

    help: str
    no_effect: Callable[[object], bool] | None = None
    formulas: bool = True
    needs: str = ""
    by_cluster: Mapping[str, str] = {}


Value: TypeAlias = float | int | str | bool | None
"""Value of an option, as in files."""


class OptionDescription(msgspec.Struct, frozen=True):
    """An option of an architecture: name, type, default, SI unit ("" if none), and description."""

    name: str
    type: Any
    default: Value
    unit: str
    about: Option


class Optioned(Protocol):
    """Anything with options, such as a job."""

    @property
    def options(self) -> Options:
        """The options of its architecture."""


class Options(Ranged, frozen=True):
    """Base of the options of all architectures, with the properties common to all.

    Each field has a default, and an :class:`Option` in its annotation.
    """

    @classmethod
    def of(cls, job: Optioned) -> Self:
        """Return a job's options, checked to be of this type.

        Raises
        ------
        TypeError : they belong to another architecture.
        """
        if not isinstance(job.options, cls):
            raise TypeError(f"expected {cls.__module__} options, got {type(job.options)}")
        return job.options

    @property
    def asynchronous(self) -> bool:
        """Whether workers iterate without a barrier."""
        return False

    @property
    def server_count(self) -> int:
        """Number of servers; 0 where the architecture has none."""
        return 0

    @property
    def spare_workers(self) -> int:
        """Number of workers that an update does not wait for (backup workers)."""
        return 0

    @property
    def group_size(self) -> int:
        """Workers per group: a job has one group, or several of this size. 1 if there are no
        groups."""
        return 1

    def allows(self, workers: Any) -> Any:
        """Return whether ``workers``, a number or an array, are enough for an update and form
        whole groups."""
        size = self.group_size
        return (workers > self.spare_workers) & ((workers <= size) | (workers % size == 0))

    def check_workers(self, workers: int) -> None:
        """Raise InputError unless a number of workers is allowed."""
        if self.allows(workers):
            return
        spare, size = self.spare_workers, self.group_size
        if spare >= workers:
            raise InputError(
                f"backup_workers: must be fewer than the {workers} workers, got {spare} "
                f"(at most {workers - 1})"
            )
        near = workers // size * size
        raise InputError(
            f"workers: {workers} do not form whole groups of {size} (allowed: up to {size}, or a "
            f"multiple of it such as {near} or {near + size})"
        )

    @property
    def exchanged_share(self) -> float:
        """Mean share of a model that a worker sends per step."""
        return 1.0

    @property
    def in_pipelines(self) -> dict[str, tuple[Value, str]]:
        """Options that must have one value if workers are pipelines: by name, it and the reason."""
        return {}

    @property
    def needs_flush(self) -> str | None:
        """Why workers cannot be pipelines that keep several versions of weights; None if they
        can."""
        return None

    @property
    def shares_update(self) -> bool:
        """Whether each of the workers updates a part of the model only."""
        return False

    @property
    def one_collective(self) -> bool:
        """Whether collectives of all workers reduce every gradient in every update, so that devices
        that divide sequences can be members of them."""
        return False

    def among(self, devices: int) -> Self:
        """Return the options if each worker stands for so many devices that are workers of their
        own (:attr:`one_collective`)."""
        return self

    @property
    def holds_backward(self) -> bool:
        """Whether a backward pass returns only once its gradients have been exchanged."""
        return False

    def reductions(self, passes: int) -> int:
        """Return how often the gradients of an update of ``passes`` passes are exchanged."""
        return 1

    @property
    def sends_in_each_pass(self) -> bool:
        """Whether workers communicate in every pass of an update, not only in its last."""
        return self.reductions(2) > 1

    @property
    def bounded_lead(self) -> float | None:
        """Iterations that a worker may be ahead of the slowest (SSP); None if unbounded."""
        return None

    def defaults_on(self, cluster: Cluster, devices: int) -> dict[str, tuple[Value, str]]:
        """Return defaults that depend on the cluster and on how many of its devices a job has: by
        name, the value and the reason."""
        return {}

    @property
    def unused(self) -> frozenset[str]:
        """Names of the options that have no effect, given the others."""
        return frozenset(
            option.name
            for option in described(type(self))
            if option.about.no_effect is not None and option.about.no_effect(self)
        )

    @property
    def beyond_formulas(self) -> str | None:
        """The first option with a value that the coarse model lacks, as ``name=value``."""
        for option in described(type(self)):
            if not option.about.formulas:
                value = getattr(self, option.name)
                if value != option.default:
                    return f"{option.name}={value}"
        return None


@functools.cache
def described(kind: type[Options]) -> tuple[OptionDescription, ...]:
    """Describe the options of an architecture: its own first, then the inherited ones.

    Raises
    ------
    TypeError : a field has no default or no :class:`Option`.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    descriptions = {}
    for base in kind.__mro__:
        for name in inspect.get_annotations(base):
            if name in fields and name not in descriptions:
                descriptions[name] = _described(kind, fields[name], hints[name])
    return tuple(descriptions.values())


def _described(
    kind: type[Options], field: msgspec.structs.FieldInfo, hint: object
) -> OptionDescription:
    about = None
    if typing.get_origin(hint) is Annotated:
        hint, *more = typing.get_args(hint)
        about = next((one for one in more if isinstance(one, Option)), None)
    if about is None or field.required:
        raise TypeError(f"{kind.__module__}.{field.name}: needs a default and an Option")
    return OptionDescription(field.name, hint, field.default, dimension_of(field.name) or "", about)
