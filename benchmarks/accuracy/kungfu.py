"""Four systems on 16 V100 over TCP, predicted for larger batches and for other DNNs.

KungFu (Mai et al., OSDI 2020), results beside its source code: two nodes of eight V100, TensorFlow
1.13, models of Keras at 224 x 224 pixels. The folder holds ``throughput.csv``: images per second of
all GPUs by ``model``, ``system``, ``batch_per_gpu``, ``num_gpus`` and ``num_nodes``. There is no
row of a single GPU; what others published of one V100 says how long an image takes.

A step of b images takes a time l to launch it, c = b v k to compute, with k the published seconds
per image and v a factor for the software, and m = r n to move the n bytes of the model's gradients
or parameters. What overlaps is joined by a p-norm (:func:`perfmodel.theory.overlap.blend`), with
forward a third of c:

- all-reduce: gradients move during backward, l + c/3 + (2c/3 | m);
- asynchronous servers: parameters come during forward, gradients go during backward, half of m
  each, l + (c/3 | m/2) + (2c/3 | m/2), and m is that of the server with the most bytes;
- pair averaging: a model of another worker comes during the whole step, l + (c | m).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import WIDTH, Uncertainty
from perfmodel.theory import collective_times
from perfmodel.theory.overlap import blend

Floats = NDArray[np.float64]
Kind = Literal["allreduce", "server", "pairs"]

FEW_BATCH = 32
"""Largest batch per GPU that *few* is fitted to: two of the five."""

GPUS, NODES = 16, 2
"""Of the runs that are fitted to."""

READING = 20.0
"""Images per second that the bars were read to."""

RUN_SPREAD = 0.01
"""Of equal runs: an assumption."""

RESIDUAL = 0.04
"""Expected misses of the fit, as parts of a step: an assumption that weighs rows against priors."""

PRIORS: Mapping[str, tuple[float, float]] = {
    "launch_s": (0.025, 0.5),
    "sharpness": (2.0, 0.5),
    "speed": (1.0, 0.08),
}
"""Expected, and standard deviation of the logarithm. Launching: what the published times of one
V100 are at no image at all. Speed: published times of ResNet-50 on one V100 differ by so much."""

BYTES_SPREAD = 0.15
"""For each doubling of the bytes beyond those fitted to, of the part of a step that moves them. An
assumption: two DNNs of nearly the same size do not tell bytes from tensors."""

BATCH_SPREAD = 0.02
"""For each doubling of the batch beyond those fitted to: an assumption."""


class Dnn(NamedTuple):
    """Parameters of a model in bytes, its largest tensor, and seconds per image on one V100."""

    size_bytes: float
    largest_bytes: float
    image_s: float


RESNET_50_S = 2.55e-3
"""Between batches of 32 and 128, float32 (MXNet's published speeds on V100: 298.51, 363.69/s)."""

DNNS = {
    "resnet50": Dnn(102.2e6, 9.4e6, RESNET_50_S),
    # between batches of 64 and 128 of 299 x 299 pixels (MXNet: 247.43, 253.68/s), and by the
    # operations at 224 x 224, 2.84 of 5.71 billion products
    "inceptionv3": Dnn(95.3e6, 8.2e6, 3.84e-3 * 2.84 / 5.71),
    # 249.19/s where ResNet-50 has 432.16/s (Lambda, one V100, float32, batch 192)
    "vgg16": Dnn(553.4e6, 411.0e6, RESNET_50_S * 432.16 / 249.19),
}

ABOUT = About(
    title="KungFu: all-reduce, pair averaging and asynchronous servers on 16 V100",
    citation="Mai et al., KungFu: making training in distributed machine learning adaptive, OSDI "
    "2020; bars of the figures in github.com/lsds/KungFu, benchmarks/system",
    folder="kungfu_figures",
    splits={
        "few": Split(
            f"batches of up to {FEW_BATCH} per GPU of each system and DNN; one V100 as published",
            "larger batches",
        ),
        "dnn": Split(
            "all batches of the other DNN; one V100 as published",
            "each DNN as a whole",
        ),
        "all": Split("all rows at hand", "other DNNs and systems"),
    },
    remarks="""\
There is no row of one GPU and only 16 GPUs, so a small number of devices cannot tell of a large
one. Instead small batches, which mostly wait for the network, tell of larger ones, and one DNN of
another. Seven parameters in all: seconds to launch a step, the sharpness of overlap, a factor for
the speed of the software, and for each system seconds per byte. How long an image takes is not
fitted to: it is what others published of one V100. Inception-v3 is taken at 224 x 224 pixels, as
benchmarks with Keras' models have it; at 299 x 299 the measured speeds would be twice what a V100
reaches.

Worst is Horovod where computation begins to hide the exchange (Inception-v3, 256 images): there it
hides all of it, the fit leaves some. Servers are taken to be one per node, with tensors placed by
bytes; how many there were is not said, and only VGG-16, whose first dense layer has 411 of its
553 MB, would tell. Two DNNs of nearly the same size do not tell time per byte from time per tensor:
for others all of it is taken to be per byte, and intervals widen. Having seen larger batches, 224
pixels were settled on and the overlap of the asynchronous server was written down in two halves;
the sharpness has a wide prior and is fitted. Intervals of *few* are too wide: all rows are inside.
""",
)


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of ``throughput.csv``."""

    system: str

    @property
    def dnn(self) -> str:
        """The model in plain letters, as :data:`DNNS` has it."""
        return dnns.plain(self.model)

    @property
    def kind(self) -> Kind:
        """How the system exchanges what was learnt."""
        name = self.system.lower()
        if "server" in name:
            return "server"
        return "pairs" if "p2p" in name or "pair" in name else "allreduce"


class Fit(msgspec.Struct, frozen=True):
    """What was fitted to ``rows`` rows of DNNs ``dnns``, of up to ``most_batch`` images per GPU.

    Attributes
    ----------
    launch_s, sharpness, speed : l, p and v of this module.
    per_byte_s : r of each system.
    kinds : what each system is.
    spread : standard deviation of the logarithm of a step, learnt by leaving out.
    """

    rows: int
    dnns: tuple[str, ...]
    most_batch: int
    launch_s: float
    sharpness: float
    speed: float
    per_byte_s: dict[str, float]
    kinds: dict[str, Kind]
    spread: float

    def parts(self, row: Row) -> tuple[float, float]:
        """Seconds to compute and to move bytes, in one step."""
        dnn = DNNS[row.dnn]
        return row.batch_per_gpu * self.speed * dnn.image_s, self.per_byte(row) * _moved(row)

    def per_byte(self, row: Row) -> float:
        """Of the system, or the geometric mean of those of its kind, or of all."""
        if row.system in self.per_byte_s:
            return self.per_byte_s[row.system]
        alike = [x for name, x in self.per_byte_s.items() if self.kinds[name] == row.kind]
        return float(np.exp(np.mean(np.log(alike or list(self.per_byte_s.values())))))

    def predict(self, row: Row) -> float:
        """Seconds of a step."""
        compute_s, moving_s = self.parts(row)
        forward_s, backward_s, p = compute_s / 3, 2 * compute_s / 3, self.sharpness
        match row.kind:
            case "allreduce":
                step_s = forward_s + blend(backward_s, moving_s, p)
            case "server":
                step_s = blend(forward_s, moving_s / 2, p) + blend(backward_s, moving_s / 2, p)
            case "pairs":
                step_s = blend(compute_s, moving_s, p)
        return float(self.launch_s + step_s)

    def uncertainty(self, row: Row) -> Uncertainty:
        """Of :meth:`predict`: the speed counts where computing is more of a step than it was."""
        step_s = self.predict(row)
        moving = self.parts(row)[1] / step_s
        most = msgspec.structs.replace(row, batch_per_gpu=min(row.batch_per_gpu, self.most_batch))
        unseen = self.parts(row)[0] / step_s - self.parts(most)[0] / self.predict(most)
        known = max(DNNS[name].size_bytes for name in self.dnns)
        larger = max(math.log2(DNNS[row.dnn].size_bytes / known), 0.0)
        batches = max(math.log2(row.batch_per_gpu / self.most_batch), 0.0)
        return Uncertainty(
            measurement=math.hypot(RUN_SPREAD, READING / row.images_per_s / WIDTH),
            calibration=PRIORS["speed"][1] * max(unseen, 0.0),
            model=self.spread,
            extrapolation=math.hypot(BYTES_SPREAD * larger * moving, BATCH_SPREAD * batches),
        )


def cases(folder: Path) -> list[Case]:
    """Every row that a split was not fitted to; step times in seconds."""
    fits = fitted.read("kungfu", Fit)
    table = rows.read(folder / "throughput.csv", Row)
    unknown = (row.model for row in table if row.dnn not in DNNS)
    rows.say_left_out("no published speed on one V100", unknown)
    found = []
    for row in table:
        if row.dnn not in DNNS:
            continue
        for split in ABOUT.splits:
            fit = fits.get(f"{split} without {row.dnn}") or fits["all" if split == "dnn" else split]
            if not _fitted_to(fit, row):
                found.append(_case(split, row, fit))
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return found


def _fitted_to(fit: Fit, row: Row) -> bool:
    return (
        row.dnn in fit.dnns
        and row.system in fit.per_byte_s
        and row.batch_per_gpu <= fit.most_batch
        and (row.num_gpus, row.num_nodes) == (GPUS, NODES)
    )


def _case(split: str, row: Row, fit: Fit) -> Case:
    predicted = fit.predict(row)
    compute_s, moving_s = fit.parts(row)
    ideal_s = PRIORS["launch_s"][0] + row.batch_per_gpu * DNNS[row.dnn].image_s
    return Case(
        f"kungfu/{split}/{row.dnn}",
        f"{row.model} {row.system} batch {row.batch_per_gpu} {row.num_gpus} GPUs",
        predicted,
        row.step_s,
        interval=fit.uncertainty(row).interval(predicted),
        pools=(f"kungfu/{split}",),
        others={
            "ideal scaling": ideal_s,
            "plain alpha-beta": fit.launch_s + compute_s + moving_s,
        },
        setting=f"{row.dnn} batch {row.batch_per_gpu}",
        samples=row.samples,
    )


def _moved(row: Row) -> float:
    """Bytes that a GPU moves, as many as the model has where a run is like those fitted to."""
    dnn = DNNS[row.dnn]
    if row.kind == "server":
        hottest = max(dnn.largest_bytes, dnn.size_bytes / row.num_nodes)
        return hottest * row.num_gpus / GPUS * NODES
    if row.kind == "allreduce":
        ring = collective_times.ring_allreduce_bytes(row.num_gpus, dnn.size_bytes)
        return float(ring / collective_times.ring_allreduce_bytes(GPUS, 1.0))
    return dnn.size_bytes


# -- fitting ---------------------------------------------------------------------------------------


def fit(folder: Path) -> None:
    """Fit to the rows of a folder and write the fits that :func:`cases` predicts with."""
    table = [row for row in rows.read(folder / "throughput.csv", Row) if row.dnn in DNNS]
    table = [row for row in table if (row.num_gpus, row.num_nodes) == (GPUS, NODES)]
    few = [row for row in table if row.batch_per_gpu <= FEW_BATCH]
    if not few:
        raise InputError(f"{folder}: no row of {GPUS} GPUs and up to {FEW_BATCH} images per GPU")
    fits = {"few": calibrated(few)}
    names = sorted({row.dnn for row in table})
    for left_out in names if len(names) > 1 else ():
        others = [row for row in table if row.dnn != left_out]
        fits[f"dnn without {left_out}"] = calibrated(others)
    fits["all"] = calibrated(table)
    fitted.write("kungfu", fits)


def calibrated(table: Sequence[Row]) -> Fit:
    """A fit, and how far such fits are off where a DNN or the largest batch is left out."""
    most = max(row.batch_per_gpu for row in table)
    folds = [[row for row in table if row.batch_per_gpu == most]]
    folds += [[row for row in table if row.dnn == name] for name in sorted({r.dnn for r in table})]
    misses: list[float] = []
    for left_out in folds:
        rest = [row for row in table if row not in left_out]
        if rest:
            fold = _fitted(rest)
            misses += [math.log(row.step_s / fold.predict(row)) for row in left_out]
    spread = tables.robust_spread(misses) if misses else RESIDUAL
    found = _fitted(table)
    rates = {name: fitted.rounded(rate) for name, rate in found.per_byte_s.items()}
    shared = {name: fitted.rounded(getattr(found, name)) for name in PRIORS}
    return msgspec.structs.replace(found, per_byte_s=rates, spread=fitted.rounded(spread), **shared)


def _fitted(table: Sequence[Row]) -> Fit:
    """Least squares of logarithms with priors; outliers count linearly."""
    from scipy.optimize import least_squares

    systems = sorted({row.system for row in table})
    about = {
        "rows": len(table),
        "dnns": tuple(sorted({row.dnn for row in table})),
        "most_batch": max(row.batch_per_gpu for row in table),
        "kinds": {row.system: row.kind for row in table},
        "spread": 0.0,
    }
    means = np.log([mean for mean, _ in PRIORS.values()])
    spreads = np.array([spread for _, spread in PRIORS.values()])

    def made(logs: Floats) -> Fit:
        values = np.exp(logs).tolist()
        shared = dict(zip(PRIORS, values, strict=False))
        rates = dict(zip(systems, values[len(PRIORS) :], strict=True))
        return msgspec.convert({**about, **shared, "per_byte_s": rates}, Fit)

    def misses(logs: Floats) -> Floats:
        guess = made(logs)
        off = [math.log(guess.predict(row) / row.step_s) / RESIDUAL for row in table]
        return np.concatenate([off, (logs[: len(PRIORS)] - means) / spreads])

    # a first guess: small batches only move bytes
    first = [
        math.log(min(row.step_s / _moved(row) for row in table if row.system == name))
        for name in systems
    ]
    found = least_squares(misses, np.concatenate([means, first]), loss="soft_l1")
    return made(found.x)
