"""The workload of a job: as given, or made from a profile."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.same import Same
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.documents import OF_DOCUMENTS, documents_of
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.job_replica import replica_of
from perfmodel.inputs.profile import Layer, Profile, read_profile
from perfmodel.inputs.recomputation import read_recomputation
from perfmodel.inputs.software import EAGER, OF_SOFTWARE, UNSAID, Software
from perfmodel.inputs.storage import DEFAULT, OF_STORAGE, Storage, read_storage
from perfmodel.inputs.workload import Workload
from perfmodel.theory.packing import Documents
from perfmodel.times.one_device import OneDevice, at_speed, read_one_device

if TYPE_CHECKING:
    from pathlib import Path

OF_WORKLOAD = (
    *("model", "workload", "device", "precision", "batch_size"),
    *("sequence_length", *OF_DOCUMENTS),
    *("activation_checkpointing", "accumulation", "recompute"),
    *("stack", "launches", "framework"),
    *("optimizer", "precision_policy", "lora", "offload_optimizer"),
    *("one_device_samples_per_s", "one_device_step_s", "one_device_batch_size"),
)
"""Arguments of :func:`perfmodel.make_job` that define the workload."""

OF_ONE_DEVICE = tuple(name for name in OF_WORKLOAD if name.startswith("one_device_"))
"""Those of them that give the measured speed of one device."""


class Passes(NamedTuple):
    """How a step passes through the model, as in ``make_job``; None where not given."""

    batch_size: int | None
    sequence_length: int | None
    activation_checkpointing: bool | None
    accumulation: int | None
    recompute: str | None


def workload_of(arguments: Mapping[str, Any]) -> Workload:
    """Return the workload that :func:`perfmodel.make_job` would make from these ``arguments``.

    Raises
    ------
    InputError : as :func:`perfmodel.make_job`.
    """
    given = {name: arguments.get(name) for name in OF_WORKLOAD}
    passes = Passes(**{name: given.pop(name) for name in Passes._fields})
    storage = read_storage({name: given.pop(name) for name in OF_STORAGE})
    software = Software(*(given.pop(name) for name in OF_SOFTWARE))
    measured = read_one_device(*(given.pop(name) for name in OF_ONE_DEVICE))
    documents, notes = documents_of({name: given.pop(name) for name in OF_DOCUMENTS})
    known = {"passes": passes, "storage": storage, "measured": measured, "software": software}
    made, decoder, profiled = _once(given | known | {"documents": documents})
    if notes:
        made = msgspec.structs.replace(made, assumptions=(*made.assumptions, *notes))
    replica, _ = replica_of(arguments)
    if replica is None:
        return made
    from perfmodel.times.named_layers import divided_by_name, divisible
    from perfmodel.times.packed import check_split
    from perfmodel.times.tensor_parallel import divided

    check_split(replica, made)
    launches = arguments.get("launches") or EAGER
    if decoder is None and divisible(made, replica, profiled):
        return divided_by_name(made, replica, profiled, catalogue.devices(), launches)
    return divided(
        made,
        replica,
        decoder=decoder,
        devices=catalogue.devices(),
        launches=launches,
    )


def anchored(arguments: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """Return ``arguments`` of :func:`perfmodel.make_job`, in which a given speed of one device is
    that at its batch size whatever the job's: ``batch_size`` unless they say so already."""
    given = [name for name in OF_ONE_DEVICE if arguments.get(name) is not None]
    if given and "one_device_batch_size" not in given:
        return {**arguments, "one_device_batch_size": batch_size}
    return dict(arguments)


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Within it, jobs that only differ in how devices divide a workload resolve that once."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


Made = tuple[Workload, Decoder | None, tuple[Layer, ...]]
"""A workload, and the dimensions and the layers of its model."""

_shared: ContextVar[dict[tuple[Hashable, ...], Made] | None] = ContextVar("shared", default=None)


def _once(arguments: Mapping[str, Any]) -> Made:
    """Return what :func:`_workload` makes of these arguments, within :func:`sharing` once."""
    made = _shared.get()
    if made is None:
        return _workload(**arguments)
    large = Profile, Workload, Documents
    key = tuple(Same(one) if isinstance(one, large) else one for one in arguments.values())
    if key not in made:
        made[key] = _workload(**arguments)
    return made[key]


def _workload(
    model: str | None,
    workload: Workload | Profile | str | Path | None,
    device: str | None,
    precision: str | None,
    passes: Passes,
    storage: Storage,
    measured: OneDevice | None,
    software: Software,
    documents: Documents | None,
) -> Made:
    """Return the workload: as given, or made from the profile; and the dimensions, and the layers,
    of its model. It has so many parameters because jobs vary them independently."""
    if model is None and workload is None:
        known = len(catalogue.model_names())
        raise InputError(
            "model or workload: give one of them, such as resnet50 "
            f"({known} models: perfmodel list models)"
        )
    if model is not None and workload is not None:
        raise InputError("model and workload: give only one of them")
    if isinstance(workload, Workload):
        for name, value in {"device": device, **passes._asdict()}.items():
            if value is not None and value != getattr(workload, name):
                raise InputError(f"{name}: the workload is already resolved for another {name}")
        if storage not in (DEFAULT, workload.storage):
            raise InputError("optimizer, precision_policy, lora: the workload is already resolved")
        if documents is not None:
            raise InputError(f"{', '.join(OF_DOCUMENTS)}: the workload is already resolved")
        if software != UNSAID:
            raise InputError("stack, launches, framework: the workload is already resolved")
        if measured is None:
            return workload, None, ()
        if measured.batch_size not in (None, workload.batch_size):
            raise InputError("one_device_batch_size: the workload is already resolved for another")
        return at_speed(workload, workload, measured), None, ()
    if isinstance(workload, Profile):
        profile = workload
    elif workload is not None:
        profile = read_profile(workload)
    else:
        profile = catalogue.model(str(model))
    made = catalogue.workload(
        profile,
        device_name=device,
        precision=precision,
        batch_size=passes.batch_size,
        sequence_length=passes.sequence_length,
        recompute=read_recomputation(passes.recompute, passes.activation_checkpointing),
        storage=storage,
        accumulation=passes.accumulation,
        one_device=measured,
        software=software,
        documents=documents,
    )
    return made, profile.decoder, profile.layers
