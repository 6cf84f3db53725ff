"""Job files: the arguments of a job, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Jitter, Start, Straggler
from perfmodel.inputs.job_arguments import per_worker

if TYPE_CHECKING:
    from perfmodel.launchers.launch import Launch

SCHEMA = "perfmodel.job/1"


class JobKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a job, by name, as files give them; those left out take their defaults.

    ``model`` is a model of the catalogue, ``workload`` a workload file; ``cluster`` and
    ``schedule`` are names or files. File paths are relative to the file that gives them.
    ``jitter`` is a number or text such as "lognormal:0.1", ``one_device_samples_per_s`` a number or
    text such as "12000 tokens/s",
    ``options`` are those of the architecture, and ``island_...`` are as in
    :func:`perfmodel.make_job`.
    """

    model: str | None = None
    workload: str | None = None
    device: str | None = None
    precision: str | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    document_length: float | None = None
    document_spread: float | None = None
    document_lengths: str | tuple[float, ...] | None = None
    activation_checkpointing: bool | None = None
    accumulation: int | None = None
    recompute: str | None = None
    stack: str | None = None
    launches: str | None = None
    framework: str | None = None
    optimizer: str | None = None
    precision_policy: str | None = None
    lora: str | None = None
    offload_optimizer: bool | None = None
    one_device_samples_per_s: float | str | None = None
    one_device_step_s: float | None = None
    one_device_batch_size: int | None = None
    cluster: str | None = None
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None
    devices_per_node: int | None = None
    workers: int | None = None
    arch: str | None = None
    options: dict[str, Any] = {}
    island_devices: int | str | None = None
    island_steps: int | str | None = None
    island_arch: str | None = None
    island_options: dict[str, Any] = {}
    devices: int | None = None
    tensor: int | None = None
    context: int | None = None
    context_exchange: str | None = None
    context_inside: int | None = None
    context_split: str | None = None
    pipeline: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    stage_layers: str | None = None
    balance: bool | None = None
    sequence_parallel: bool | None = None
    overlap_sums: bool | None = None
    transfers: str | None = None
    rank_order: str | None = None
    expert: int | None = None
    expert_tensor: int | None = None
    expert_skew: float | None = None
    expert_capacity: float | None = None
    expert_exchange: str | None = None
    expert_nodes: int | None = None
    expert_overlap: float | None = None
    jitter: str | float | None = None
    stragglers: tuple[Straggler, ...] = ()
    start: Start | None = None
    seed: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Arguments of :func:`perfmodel.make_job`; keys left out are absent.

        Raises
        ------
        InputError : ``jitter`` cannot be read.
        """
        values = {
            name: getattr(self, name)
            for name in JobKeys.__struct_fields__
            if getattr(self, name) not in (None, (), {})
        }
        if self.jitter is not None:
            values["jitter"] = Jitter.parse(str(self.jitter))
        return values


class JobFile(JobKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of a job file (schema ``perfmodel.job/1``)."""

    schema: Literal["perfmodel.job/1"] = "perfmodel.job/1"


def read_job(path: str | Path, *more: str | Path) -> dict[str, Any]:
    """Read a job file as arguments for :func:`perfmodel.make_job`; fields left out are absent.

    Files of launchers (:data:`perfmodel.launchers.readers.READERS`), such as hostfiles and
    configurations of DeepSpeed, are read as well. Of several files, the later replace arguments of
    the earlier; a job file replaces those of launchers.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`; or ``jitter`` cannot be read; a file of a
        launcher cannot be read, or tells only the number of nodes.
    """
    values = read_jobs((path, *more))
    known = values.get("workers") is not None or values.get("devices") is not None
    return per_worker(values) if known else values


def read_jobs(paths: Sequence[str | Path], workers: int | None = None) -> dict[str, Any]:
    """Like :func:`read_job`, with ``global_batch_size`` as given.

    Parameters
    ----------
    workers : their number, if it is given elsewhere; 0 if it is not one number.
    """
    launches: list[Launch] = []
    values: dict[str, Any] = {}
    for path in paths:
        launch = _launch_of(path)
        if launch is None:
            own = _of_file(Path(path))
            options = {**values.get("options", {}), **own.get("options", {})}
            values |= own | ({"options": options} if options else {})
        else:
            launches.append(launch)
    if not launches:
        return values
    from perfmodel.launchers.launch import arguments_of, joined

    names = ", ".join(map(str, paths))
    given = values.get("devices", values.get("workers")) if workers is None else workers
    said = arguments_of(joined(launches), names, given)
    options = {**said.get("options", {}), **values.get("options", {})}
    return {**said, **values, **({"options": options} if options else {})}


def _launch_of(path: str | Path) -> Launch | None:
    """What a file of a launcher says; None of a job file."""
    data = files.read_bytes(path)
    if SCHEMA.encode() in data:
        return None
    from perfmodel.base import formats  # both are needed for other files only
    from perfmodel.launchers.readers import launch_of

    launch = launch_of(data, str(path))
    own = data.lstrip()[:1] == b"{" or str(path).lower().endswith((".toml", ".json"))
    if launch is None and not own and formats.recognise(data, str(path)) is None:
        raise InputError(
            f"{path}: expected a job file (schema = {SCHEMA!r}), or one of a launcher: a hostfile, "
            "a node list of Slurm, a command line of torchrun, a configuration of DeepSpeed, "
            "Accelerate, Lightning, nanotron or torchtitan, arguments of Megatron-LM, an MLPerf log"
        )
    return launch


def _of_file(path: Path) -> dict[str, Any]:
    """Arguments of a job file."""
    given = files.read(path, JobFile, SCHEMA)
    try:
        values = given.arguments()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for name in ("workload", "cluster"):
        if name in values and files.looks_like_path(values[name]):
            values[name] = path.parent / values[name]
    if isinstance(values.get("document_lengths"), str):
        values["document_lengths"] = path.parent / values["document_lengths"]
    if "schedule" in values and files.looks_like_path(values["schedule"]):
        values["schedule"] = str(path.parent / values["schedule"])
    return values
