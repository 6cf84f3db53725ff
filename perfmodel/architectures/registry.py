"""Find architectures by name.

A file ``architectures/NAME.py``, or a folder, with an :class:`Architecture` called ``ARCHITECTURE``
is all it takes: the command line, the listings and the conformance tests find it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Collection, Mapping

import msgspec

from perfmodel import architectures
from perfmodel.architectures.base import Architecture, load
from perfmodel.base.errors import InputError, nearest, spelling, unknown_name
from perfmodel.base.files import ready
from perfmodel.base.provenance import Assumption
from perfmodel.base.units import is_number, parse
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import OptionDescription, Options, described

FSDP = "choose --arch fsdp with --option stage=1, 2 or 3 (for short: zero1, zero2, zero3)"
MODEL_PARALLEL = (
    "splits a model over devices, which is not modelled; the architectures are data parallel: each "
    "worker trains a whole model (perfmodel list architectures)"
)

ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("zero", "sdp", "sharded"), FSDP),
    "deepspeed": f"{FSDP}, or allreduce without ZeRO (stage 0)",
    "zero0": "without sharding, choose --arch allreduce",
    **dict.fromkeys(
        ("dp", "data_parallel"),
        "choose --arch ddp (DistributedDataParallel); DataParallel of PyTorch, a single process "
        "that copies the model in each step, is not modelled",
    ),
    **dict.fromkeys(
        ("pytorch", "torch", "torchrun"),
        "choose --arch ddp (DistributedDataParallel) or fsdp (FullyShardedDataParallel)",
    ),
    **dict.fromkeys(
        ("tensorflow", "tf"),
        "choose --arch allreduce (MultiWorkerMirroredStrategy, MirroredStrategy), or asp with "
        "--servers (ParameterServerStrategy)",
    ),
    "mirrored_strategy": "choose --arch allreduce",
    "multi_worker_mirrored_strategy": "choose --arch allreduce",
    "parameter_server_strategy": "choose --arch asp with --servers, their number",
    "byteps": "choose --arch ps with --servers, their number (usually one for each node of "
    "workers), and --option local_aggregation=true, transmission=priority and "
    "partition_bytes=4096000; where servers run is server.placement of the cluster file (colocated "
    "or dedicated)",
    **dict.fromkeys(("sync", "synchronous"), "choose --arch allreduce, or bsp with --servers"),
    **dict.fromkeys(("async", "asynchronous"), "choose --arch asp with --servers, their number"),
    **dict.fromkeys(
        ("nccl", "gloo", "mpi", "collective", "collectives"),
        "a library of collectives serves several architectures: choose --arch ddp, horovod or fsdp",
    ),
    **dict.fromkeys(
        ("fedavg", "federated"), "choose --arch local_sgd with --option period, its local steps"
    ),
    **dict.fromkeys(
        ("megatron", "tensor_parallel", "tp", "pipeline", "pipeline_parallel", "pp", "gpipe"),
        MODEL_PARALLEL,
    ),
}
"""What to choose for names that could mean several architectures, or need options, or mean none."""

SHARED = frozenset({"base", "mean_field", "memory", "reference", "registry"})
"""Modules of this folder that are not architectures."""


TYPES: Mapping[object, str] = {bool: "true or false", int: "a whole number", float: "a number"}
"""What an option takes, by its type."""


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all architectures, sorted."""
    found: set[str] = set()
    for place in architectures.__path__:
        for name in os.listdir(place):
            if name.endswith(".py") and name[0] != "_":
                found.add(name.removesuffix(".py"))
            elif os.path.isfile(f"{place}/{name}/__init__.py"):
                found.add(name)
    return tuple(sorted(found - SHARED))


def all_architectures() -> list[Architecture]:
    """Return every architecture, ordered by name."""
    return [load(name) for name in names()]


def find(name: str) -> tuple[Architecture, Mapping[str, object]]:
    """Return the architecture called ``name``, and the options the name stands for if an alias.

    Raises
    ------
    InputError : no architecture has that name.
    """
    if name in names():
        return load(name), {}
    known = {spelling(name): name for name in names()}
    spelt = spelling(name)
    if spelt in known:
        return load(known[spelt]), {}
    presets = {alias: (a, a.aliases[alias]) for a in all_architectures() for alias in a.aliases}
    for alias, preset in presets.items():
        if spelling(alias) == spelt:
            return preset
    for other, advice in ADVICE.items():
        if spelling(other) == spelt:
            raise InputError(f"unknown architecture {name!r}: {advice}")
    raise unknown_name("architecture", name, [*known.values(), *presets])


def knows(name: str) -> bool:
    """Return whether :func:`find` has something to say about a name: what it is, or what to
    choose."""
    aliases = (alias for a in all_architectures() for alias in a.aliases)
    return spelling(name) in map(spelling, (*names(), *aliases, *ADVICE))


def by_cluster(
    architecture: Architecture, settings: Mapping[str, object], cluster: Cluster
) -> list[Assumption]:
    """Return an assumption for each option whose value is a word for a value of the cluster."""
    return [
        Assumption(option.name, getattr(cluster, field), option.unit, f"cluster {cluster.name}")
        for option in described(architecture.options)
        if (field := option.about.by_cluster.get(str(settings.get(option.name)))) is not None
    ]


def read_options(
    architecture: Architecture, settings: Mapping[str, object], cluster: Cluster | None = None
) -> Options:
    """Make an architecture's options from names and values; parse text by the field's type.

    Words that stand for a value of the ``cluster`` (:class:`perfmodel.inputs.options.Option`) need
    one.

    Raises
    ------
    InputError : the architecture does not have an option, or does not allow its value.
    """
    fields = {option.name: option for option in described(architecture.options)}
    values = {}
    for name, value in settings.items():
        if name not in fields:
            hint = nearest(name, fields)
            suggestion = f"; did you mean {hint!r}?" if hint else ""
            raise InputError(
                f"option {name!r} does not apply to {architecture.name}{suggestion} "
                f"(it has: {', '.join(fields)})"
            )
        if cluster is not None and str(value) in fields[name].about.by_cluster:
            value = getattr(cluster, fields[name].about.by_cluster[str(value)])
        unit = fields[name].unit
        if value == "inf" and fields[name].type is float:
            value = math.inf
        elif isinstance(value, str) and unit and not is_number(value):
            value = parse(value, unit, name)
        values[name] = value
    try:
        return msgspec.convert(values, ready(architecture.options), strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        if name not in fields:  # raised by the options' own check, whose message names the option
            raise InputError(text) from None
        raise InputError(
            f"option {name} of {architecture.name}: expected {_expected(fields[name])}, "
            f"got {values[name]!r}{_suggested(fields[name], values[name])}"
        ) from None


def with_defaults(
    options: Options, given: Collection[str], cluster: Cluster, devices: int
) -> Options:
    """Return options with the defaults that they have on so many devices of a cluster, apart from
    those of the ``given`` names."""
    defaults = options.defaults_on(cluster, devices)
    changed = {name: value for name, (value, _) in defaults.items() if name not in given}
    return msgspec.structs.replace(options, **changed) if changed else options


def options_for(job: Job, devices: int) -> Options:
    """Return the options that a job has with another number of devices: defaults may depend on it;
    options that were given stay."""
    now, then = (job.options.defaults_on(job.cluster, count) for count in (job.devices, devices))
    if now == then:
        return job.options
    left_open = {assumption.name for assumption in job.assumptions}
    changed = {
        option.name: then[option.name][0] if option.name in then else option.default
        for option in described(type(job.options))
        if option.name in left_open and option.name in {**now, **then}
    }
    return msgspec.structs.replace(job.options, **changed)


def values_of(option: OptionDescription) -> tuple[str, ...] | None:
    """Return the words that an option allows; None if it takes any value of its type."""
    info = msgspec.inspect.type_info(option.type)
    if not isinstance(info, msgspec.inspect.LiteralType):
        return None
    return tuple(map(str, info.values))


def _expected(option: OptionDescription) -> str:
    words = values_of(option)
    text = TYPES[option.type] if words is None else f"one of {', '.join(words)}"
    return " or ".join([text, *option.about.by_cluster])


def _suggested(option: OptionDescription, value: object) -> str:
    hint = nearest(str(value), values_of(option) or ())
    return f"; did you mean {hint!r}?" if hint else ""
