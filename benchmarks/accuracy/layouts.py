"""Rows of tables of language models on several devices, and the runs that predict them.

Every row is predicted *as estimated*, from nothing measured, and *anchored*: another measured row
of the same model and machine, the reference, sets the speed of a device. If there are several rows
of its layout, their median does. They are not predicted.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from benchmarks.accuracy import expert_rows, rows
from benchmarks.accuracy.cases import Case, Run, predicted
from perfmodel import Job, Source, make_job, predict
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.expert_parallel import OF_EXPERTS
from perfmodel.inputs.profile import Profile
from perfmodel.predicting.replicas import stage_jobs
from perfmodel.times.operator_times import kernels_of

PRECISIONS = {"bf16": "mixed", "fp16": "mixed", "": "mixed", "fp8": "fp8", "float8": "fp8",
              "mxfp8": "mxfp8", "nvfp4": "nvfp4"}  # fmt: skip
"""First words of precisions in the tables, and precisions here; "" is not stated."""

ROUNDS, CLOSE = 8, 1e-3
"""Most rounds in which the speed of a device is found, and the relative error that is left."""

SUMMED_AT_END: dict[str, Any] = {
    "arch": "ring",
    "options": {"bucketing": "one", "overlap": False},
}
"""Gradients are summed in one buffer after all passes, as by default in Megatron-LM of 2022."""

OF_MEGATRON: dict[str, Any] = {"flash": False, "fused_softmax": True, "dropout": True}
"""Fields of decoders by default in Megatron-LM of 2022, and in what was built on it or after it:
``masked_softmax_fusion``, and a dropout of 0.1."""

Arguments = Mapping[str, Any]
"""Arguments of :func:`perfmodel.make_job`."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table in the columns that tables of layouts share; None where not stated.

    ``vp`` are chunks of layers per stage; ``micro_batch`` and ``global_batch`` are in sequences.
    """

    id: str
    model: str
    devices: int
    devices_per_node: int | None = None
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    gated: int = 0
    experts: int | None = None
    top_k: int | None = None
    expert_ffn: int | None = None
    shared_ffn: int | None = None
    dense_layers: int | None = None
    etp: int | None = None
    seq_len: int | None = None
    device: str = ""
    precision: str = ""
    framework: str = ""
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None
    micro_batch: int | None = None
    microbatches: int | None = None
    recompute: str = "none"
    seq_parallel: int = 0
    zero: int = 0
    overlap: str = ""
    iteration_s: float | None = None
    repeat: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("devices", "tp", "pp", "dp", "cp", "micro_batch", "microbatches"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        if self.iteration_s is not None:
            number("iteration_s", self.iteration_s, above=0.0)

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        needed = ("iteration_s", "hidden", "layers", "heads", "seq_len", "tp", "pp", "dp",
                  "micro_batch", "microbatches")  # fmt: skip
        missing = [name for name in needed if getattr(self, name) is None]
        if self.repeat:
            return "printed before"
        if (self.ep or 1) > 1 and not self.experts:
            return "experts not stated"
        if missing:
            return f"{', '.join(missing)} not stated"
        if self.replica * (self.dp or 1) != self.devices:
            return "layout of other devices"
        return ""

    @property
    def computed_in(self) -> str | None:
        """The precision of the job; None if there is none like it, so that times are only known
        from a measured row."""
        return PRECISIONS.get(self.precision.lower().partition(" ")[0])

    @property
    def figure(self) -> bool:
        """Whether the catalogue knows the row, so that it cannot be predicted from nothing."""
        return False

    @property
    def replica(self) -> int:
        """Devices that hold one copy of the model."""
        return (self.tp or 1) * (self.cp or 1) * (self.pp or 1)

    @property
    def step_s(self) -> float:
        """Measured seconds of an update."""
        return self.iteration_s or 0.0

    @property
    def kind(self) -> str:
        """Return along which dimensions the devices divide the work."""
        parts = {"tensor": self.tp, "context": self.cp, "pipeline": self.pp, "data": self.dp}
        several = [name for name, count in parts.items() if (count or 1) > 1]
        if "context" in several or self.experts:
            return "experts" if self.experts else "context"
        return "3D" if len(several) == 3 else " x ".join(several) or "single"


def decoder_of(row: Row, **given: Any) -> Decoder:
    """Return the dimensions of a row's model: gated without biases, or as GPT-2, as the row says.

    ``given`` are further fields of the decoder, and take precedence.
    """
    gated = bool(row.gated)
    fields: dict[str, Any] = {
        "hidden": row.hidden, "blocks": row.layers, "heads": row.heads, "kv_heads": row.kv_heads,
        "feed_forward": row.ffn, "gated": gated, "vocabulary": row.vocab, "tied": not gated,
        "sequence_length": row.seq_len, "biases": not gated, "fused_loss": True,
        "positions": None if gated else "sequence_length",
    }  # fmt: skip
    return Decoder(**fields | expert_rows.decoder_fields(row) | given)


def profile_of(row: Row, citation: str, **given: Any) -> Profile:
    """Return the profile of a row's model, by its dimensions (:func:`decoder_of`); it is trained
    with Adam."""
    return Profile(
        name=row.model,
        decoder=decoder_of(row, **given),
        source=Source("published", citation),
        optimizer_state_bytes_per_parameter_byte=2.0,
    )


def block_bytes(decoder: Decoder) -> float:
    """Return the bytes of the parameters of a block, which FSDP gathers together."""
    layers = layers_of(decoder, decoder.sequence_length, "mixed")
    first = [layer for layer in layers if layer.name.startswith("blocks.0.")]
    return sum(tensor.bytes for layer in first for tensor in layer.tensors)


def layout_of(row: Row) -> dict[str, Any]:
    """Return the arguments of the job that say how a row divides its work."""
    passes = row.microbatches or 1
    found: dict[str, Any] = {
        "precision": row.computed_in or "mixed", "workers": row.dp, "recompute": row.recompute,
        "batch_size": (row.micro_batch or 1) * passes, "accumulation": passes,
    }  # fmt: skip
    if row.replica > 1:
        found |= {"tensor": row.tp, "pipeline": row.pp}
    if (row.cp or 1) > 1:
        found["context"] = row.cp
    found |= expert_rows.layout_fields(row)
    if (row.tp or 1) > 1 and row.seq_parallel:
        found["sequence_parallel"] = True
    if (row.vp or 1) > 1 and (row.pp or 1) > 1:
        found["virtual_stages"] = row.vp
    return found


def of_megatron(row: Row) -> dict[str, Any]:
    """Return :data:`OF_MEGATRON` for a row: the fused softmax needs a multiple of four sequences
    times heads on each device (``FusedScaleMaskSoftmax.is_kernel_available``)."""
    scores = (row.micro_batch or 1) * (row.heads or 1) // (row.tp or 1)
    return OF_MEGATRON | {"fused_softmax": scores % 4 == 0}


def without_overlap(row: Row) -> dict[str, Any]:
    """Return the arguments of Megatron-LM of 2022 where it is not known that sums run beside the
    gradients of weights, which takes ``CUDA_DEVICE_MAX_CONNECTIONS=1`` in the environment."""
    return {"framework": "megatron"} | ({"overlap_sums": False} if (row.tp or 1) > 1 else {})


HOST_BOUND = 1.5
"""Measured over estimated time of a device from which its host sets the pace: nine in ten estimates
are within a factor of 1.15."""


class Anchor(msgspec.Struct, frozen=True):
    """The speed of a device: its measured over its estimated time, in passes of ``micro_batch``.

    ``launches`` are those of the host, if it was measured.
    """

    factor: float
    micro_batch: int
    launches: str | None = None

    @classmethod
    def of(
        cls, row: Row, arguments: Arguments, measured_s: float, launches: str | None = None
    ) -> Anchor:
        """Return the speed with which a row takes ``measured_s``."""
        factor = 1.0
        for _ in range(ROUNDS):
            anchor = cls(factor, row.micro_batch or 1, launches)
            off = measured_s / predict(anchor.job(arguments), fidelity="fine").iteration_s
            if abs(off - 1.0) < CLOSE:
                break
            factor *= off
        return anchor

    def job(self, arguments: Arguments) -> Job:
        """Return a job on devices of this speed: a device takes ``factor`` times the estimate for
        as many passes as the job has, each of the reference's size."""
        if self.launches is not None:
            arguments = {**arguments, "launches": self.launches}
        there = dict(arguments, batch_size=self.micro_batch * arguments["accumulation"])
        alone = make_job(**{k: v for k, v in there.items() if k not in OF_LAYOUT}, workers=1)
        return make_job(
            **arguments,
            one_device_step_s=self.factor * alone.workload.compute_s,
            one_device_batch_size=there["batch_size"],
        )

    def host(self, arguments: Arguments) -> float | None:
        """Return the seconds of the host per kernel, if it sets the pace of the row of these
        arguments: the device alone takes far less than was measured."""
        there = {k: v for k, v in arguments.items() if k not in OF_LAYOUT}
        there |= {"batch_size": self.micro_batch * there["accumulation"], "workers": 1}
        found = make_job(**there | {"launches": "graphs"}).workload
        passes_s = found.compute_s - found.optimizer_s
        eager = make_job(**there).workload
        taken_s = self.factor * eager.compute_s - found.optimizer_s
        if taken_s < HOST_BOUND * passes_s:
            return None
        decoder = arguments["workload"].decoder
        layers = layers_of(decoder, decoder.sequence_length, there["precision"])
        return float(taken_s / there["accumulation"] / kernels_of(layers))


OF_LAYOUT = ("workers", "tensor", "context", "context_exchange", "pipeline", "sequence_parallel",
             "overlap_sums", "arch", "virtual_stages", "schedule", "stage_layers", "balance",
             "transfers", "options", *OF_EXPERTS)  # fmt: skip
"""Arguments of a job that a single device does not have."""


R = TypeVar("R", bound=Row)

Unlike = Callable[[R, R], float]
"""How far a row is from one that it may be the reference of."""

Known = Mapping[R, Arguments]
"""Rows that can be predicted, with the arguments of their jobs."""


def cases_of(
    source: str,
    table: Iterable[R],
    arguments: Callable[[R], Arguments],
    alike: Callable[[R], object],
    *,
    unlike: Unlike[R] = lambda row, other: 0.0,
    setting: Callable[[R], str] = lambda row: f"{row.model} on {row.devices}",
    more: Iterable[Run] = (),
) -> list[Case]:
    """Return the rows of a table, predicted in both ways (:func:`estimated`, :func:`anchored`), and
    ``more`` runs; report the rows without one.

    Parameters
    ----------
    source : the start of the names of the groups.
    arguments : those of a row's job.

    Raises
    ------
    InputError : no row can be predicted.
    """
    known = known_of(table, arguments)
    runs = estimated(source, known, setting)
    runs += anchored(f"{source}/anchored", known, alike, unlike=unlike, setting=setting)
    if not runs:
        raise InputError(f"{source}: no row that can be predicted")
    return predicted([*runs, *more])


def known_of(table: Iterable[R], arguments: Callable[[R], Arguments]) -> Known[R]:
    """Return the rows of a table that can be predicted; report the others."""
    found = {}
    for row in _kept(table):
        if made(row, functools.partial(_job, row, arguments)) is not None:
            found[row] = arguments(row)
    return found


def estimated(source: str, known: Known[R], setting: Callable[[R], str]) -> list[Run]:
    """Return the runs of rows that are predicted from nothing measured."""
    return [
        run_of(source, "estimated", row, make_job(**given), setting)
        for row, given in known.items()
        if row.computed_in is not None and not row.figure
    ]


def anchored(
    pool: str,
    known: Known[R],
    alike: Callable[[R], object],
    *,
    unlike: Unlike[R] = lambda row, other: 0.0,
    apart: Callable[[R], object] | None = None,
    setting: Callable[[R], str] = lambda row: f"{row.model} on {row.devices}",
) -> list[Run]:
    """Return the runs of rows that are predicted from another measured row, in groups of a pool.

    Parameters
    ----------
    pool : its name, such as *libai/anchored*.
    alike : a row and its reference have the same value, as those of one model and machine.
    unlike : how far a row is from one that it is the reference of, before the number of its devices
        counts.
    apart : a row and its reference have different values, such as devices. Of several rows of a
        reference's layout the median counts, of those with its value.
    setting : rows with the same value are ranked.
    """
    groups: dict[object, list[R]] = {}
    for row in known:
        groups.setdefault(alike(row), []).append(row)
    pairs = [_pairs(like, unlike, apart) for like in groups.values()]
    anchors = _anchors(pairs, known, apart)
    return [
        run_of(*pool.split("/"), row, anchors[first].job(known[row]), setting)
        for of in pairs
        for row, first in of.items()
        if known[first] != known[row]  # says how well runs repeat, not how good a prediction is
    ]


def _pairs(like: Sequence[R], unlike: Unlike[R], apart: Callable[[R], object] | None) -> dict[R, R]:
    """Return rows with their references, if they have any."""
    found = {}
    for row in like:
        others = [one for one in like if apart is None or apart(one) != apart(row)]
        if others:
            found[row] = reference(row, others, unlike)
    return found


class _Alike(msgspec.Struct):
    """The rows of one model and machine that set a speed, and what they measured."""

    first: Mapping[Any, float]

    @classmethod
    def of(
        cls, pairs: Mapping[R, R], known: Known[R], apart: Callable[[R], object] | None
    ) -> _Alike:
        """Return the references, unless each row is its own."""
        if all(row == first for row, first in pairs.items()):
            return cls({})
        return cls(
            {
                first: statistics.median(
                    one.step_s
                    for one in pairs
                    if known[one] == known[first] and (apart is None or apart(one) == apart(first))
                )
                for first in pairs.values()
            }
        )

    def host(self, known: Mapping[Any, Arguments]) -> float | None:
        """Return the seconds of the host per kernel, if it sets the pace of the reference with the
        smallest micro-batch, whose devices do not divide layers."""
        if not self.first:
            return None
        least = min(self.first, key=lambda row: row.micro_batch or 1)
        if (least.tp or 1) > 1:
            return None
        return Anchor.of(least, known[least], self.first[least]).host(known[least])


def _anchors(
    pairs: Iterable[Mapping[R, R]], known: Known[R], apart: Callable[[R], object] | None
) -> dict[R, Anchor]:
    """Return the speeds that references set, by these rows.

    Hosts of a table launch equally fast: where references do not tell how fast, those of other
    models do.
    """
    every = [_Alike.of(of, known, apart) for of in pairs]
    hosts = [one.host(known) for one in every]
    told = [each_s for each_s in hosts if each_s is not None]
    found: dict[R, Anchor] = {}
    for one, own_s in zip(every, hosts, strict=True):
        each_s = own_s if own_s is not None or not told else statistics.median(told)
        launches = None if each_s is None else f"{each_s * 1e6:.4g}us"
        for row, step_s in one.first.items():
            found[row] = Anchor.of(row, known[row], step_s, launches)
    return found


def made(row: Row, make: Callable[[], Job]) -> Job | None:
    """Return the job of a row; None, after a report, if there is none."""
    try:
        job = make()
        if job.replica is not None:
            stage_jobs(job)  # checks that its layers can be divided among its devices
        return job
    except InputError as error:
        rows.say_left_out(str(error), [row.id])
        return None


def _job(row: R, arguments: Callable[[R], Arguments]) -> Job:
    return make_job(**arguments(row))


def reference(row: R, like: Sequence[R], unlike: Callable[[R, R], float]) -> R:
    """Return the row that sets the speed: the nearest, of those that with the fewest devices, then
    stages, then devices that divide layers, then the nearest micro-batch, and the most of them."""

    def order(other: R) -> tuple[float, ...]:
        ratio = abs(math.log((other.micro_batch or 1) / (row.micro_batch or 1)))
        layout = (other.devices, other.pp or 1, other.tp or 1)
        return (unlike(row, other), *layout, ratio, -(other.microbatches or 1))

    return min(like, key=order)


def _kept(table: Iterable[R]) -> list[R]:
    """Return the rows that can be predicted, and report the others."""
    listed = list(table)
    for why in dict.fromkeys(row.why_not for row in listed if row.why_not):
        rows.say_left_out(why, [row.id for row in listed if row.why_not == why])
    return [row for row in listed if not row.why_not]


def run_of(source: str, way: str, row: R, job: Job, setting: Callable[[R], str]) -> Run:
    """Return the run of a row that is predicted in a ``way``."""
    pool = f"{source}/{way}"
    return Run(f"{pool}-{row.kind}", row.id, job, step_s=row.step_s, pools=(pool,),
               setting=f"{way}: {setting(row)}")  # fmt: skip
