"""Layouts of one job side by side: :func:`compare_layouts`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.catalogue import catalogue
from perfmodel.planning.decision import listed_values, own_machine, profile_of
from perfmodel.planning.layout_fitting import Fitting
from perfmodel.planning.layout_map import LayoutPoint, layout_map, on_front
from perfmodel.planning.layout_space import Division, all_devices, combinations_on
from perfmodel.planning.plans import shape_text
from perfmodel.predicting import coarse
from perfmodel.predicting.memory import memory_on
from perfmodel.reporting import contents
from perfmodel.reporting.contents import Figure, Page, Section
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.rows import table
from perfmodel.sweeping.chunks import Progress, counted
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.layouts import Layouts
from perfmodel.sweeping.tables import Tabular, fields

SCHEMA = "perfmodel.layouts/1"

MOST, OUTSIDE = 30, 10
"""Most layouts that fit, and that do not, in a comparison."""

FROM_BATCH = ("micro_batches", "accumulation", "batch_size", "workers")
"""Arguments of a job that follow from the devices, the global batch and a layout."""


class ComparedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout, as arguments of :func:`perfmodel.make_job`, and what formulas predict for it.

    Attributes
    ----------
    throughput_samples_per_s, iteration_s : of all replicas together.
    needed_bytes : memory that a device needs to fit with the confidence of the comparison.
    fits_probability : probability that it fits; None if the memory of a device is unknown.
    fits : whether that is at least the confidence.
    bubble_fraction, exposed_fraction : of an iteration in which a device waits for other stages,
        and in which it communicates without computing.
    pareto : whether it fits, and no other that fits is as fast with less memory.
    """

    workers: int
    arch: str
    tensor: int
    context: int
    expert: int
    pipeline: int
    virtual_stages: int
    schedule: str | None
    micro_batches: int
    micro_batch_size: int
    recompute: str
    throughput_samples_per_s: float
    iteration_s: float
    needed_bytes: float
    fits_probability: float | None
    fits: bool
    bubble_fraction: float
    exposed_fraction: float
    pareto: bool = False

    @property
    def label(self) -> str:
        """The layout as text."""
        return f"{self.workers} x {self.arch}{shape_text(fields(self))}"


class LayoutComparison(Paged, Tabular, frozen=True, kw_only=True):
    """Layouts of one job, those that fit first, each part the fastest first.

    Attributes
    ----------
    title : the job in words.
    device_bytes : memory of a device; None if it is unknown.
    confidence : probability with which a layout has to fit.
    evaluated : layouts that formulas evaluated; of these, the fastest of each division,
        architecture and recomputation that fit are listed, and some that do not.
    layouts : the listed ones.
    skipped : number of impossible combinations, by the reason.
    """

    schema: str = SCHEMA
    title: str
    device_bytes: float | None
    confidence: float
    evaluated: int
    layouts: tuple[ComparedLayout, ...]
    skipped: dict[str, int]

    def __repr__(self) -> str:
        return f"LayoutComparison({self.title}: {self.best.label}; {self.evaluated} layouts)"

    @property
    def best(self) -> ComparedLayout:
        """The fastest layout that fits, or of all if none does."""
        return self.layouts[0]

    def rows(self) -> list[Row]:
        """One row per layout, in SI units."""
        most = self.best.throughput_samples_per_s
        return [
            {**fields(layout), "of_best_fraction": layout.throughput_samples_per_s / most}
            for layout in self.layouts
        ]

    def to_dict(self) -> Row:
        """JSON-like values."""
        return fields(self)

    def figure(self) -> Figure:
        """The map of the layouts."""
        return Figure([[layout_map(_points(self.layouts), self.device_bytes)]], self.title)

    def page(self) -> Page:
        """The contents of the page."""
        best, shown = self.best, contents.shown
        rate = shown(best.throughput_samples_per_s, "samples/s")
        answer = [
            ("Fastest", rate, best.label),
            ("Memory", shown(best.needed_bytes, "bytes"), f"with {self.confidence:.0%}"),
            ("Pipeline bubble", shown(best.bubble_fraction, "fraction"), "of an iteration"),
        ]
        text = (
            "Throughput of layouts over the memory that a device needs to fit with "
            f"{self.confidence:.0%}, by formulas. The line joins those of which no other is as "
            "fast with less memory."
        )
        sections = [
            Section(
                name="layouts",
                title="Layouts",
                text=[text],
                figure=self.figure().rows[0][0],
                tables=[table("Layouts", self.rows())],
            )
        ]
        return Page(title=f"Layouts of {self.title}", answer=answer, sections=sections)


def compare_layouts(
    *,
    confidence: float = 0.9,
    most: int = MOST,
    progress: Progress | None = None,
    **arguments: Any,
) -> LayoutComparison:
    """Rank the layouts of a language model on devices of one's own, by formulas.

    Parameters
    ----------
    confidence : probability with which a layout has to fit into the memory of its devices.
    most : most layouts that are listed: the fastest that fit of each division, architecture and
        recomputation. A few that are faster and do not fit are listed behind them.
    progress : called with (done, all) after each listed layout.
    arguments : of :func:`perfmodel.make_job`, and ``micro_batch_size``. Those that layouts differ
        in may be lists: ``tensor``, ``context``, ``expert``, ``pipeline``, ``virtual_stages``,
        ``schedule``, ``micro_batch_size``, ``recompute``, ``arch``, ``global_batch_size``; what is
        not given is varied as in :func:`perfmodel.plan`. ``devices`` is one number, by default all
        of the cluster.

    Raises
    ------
    InputError : no layout is possible; an argument that follows from the layout; see
        :func:`perfmodel.make_job`.

    >>> found = compare_layouts(model="gpt2-xl", device="a100", cluster="dgx-a100", devices=8,
    ...                         pipeline=[1, 2], tensor=[1, 2], virtual_stages=1,
    ...                         micro_batch_size=1, recompute="full", arch="zero1")
    >>> found.best.tensor, found.best.pipeline
    (1, 1)
    """
    number("confidence", confidence, above=0.0, at_most=1.0)
    whole_number("most", most)
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in FROM_BATCH:
        if name in given:
            raise InputError(
                f"{name}: follows from devices, global_batch_size and the layout (give these)"
            )
    if given.pop("options", None):
        raise InputError("options: layouts are compared with the defaults of each architecture")
    profile = profile_of(given.pop("model", None), given.pop("workload", None))
    machine = own_machine(given.pop("device", None), given.pop("cluster", None), profile)
    devices = listed_values(given.pop("devices", None))
    if len(devices) > 1:
        raise InputError(f"devices: one number for layouts of one job, got {len(devices)}")
    names = [name for name in Division._fields if name not in ("devices", "common")]
    lists: dict[str, Any] = {name: listed_values(given.pop(name, None)) for name in names}
    division = Division(**lists, common=given)
    count = whole_number("devices", devices[0]) if devices else all_devices(machine)
    layouts = combinations_on(machine, profile, division, count).evaluated()
    kept = _fastest(layouts, Fitting(layouts, confidence), most)
    memory_bytes = catalogue.device(layouts.job.workload.device).memory_bytes
    listed = [_compared(layouts, k, confidence) for k in counted(kept, progress)]
    listed.sort(key=lambda layout: (not layout.fits, -layout.throughput_samples_per_s))
    for k in on_front(_points(listed)):
        listed[k] = msgspec.structs.replace(listed[k], pareto=True)
    sizes = sorted(set(layouts.global_batch_size.tolist()))
    batch = " or ".join(map(str, sizes)) if len(sizes) <= 3 else f"{sizes[0]} to {sizes[-1]}"
    return LayoutComparison(
        title=f"{profile.name} on {layouts.job.devices} x {layouts.job.workload.device}, "
        f"{batch} samples per update",
        device_bytes=memory_bytes,
        confidence=confidence,
        evaluated=len(layouts),
        layouts=tuple(listed),
        skipped=layouts.skipped,
    )


def _points(layouts: Sequence[ComparedLayout]) -> list[LayoutPoint]:
    """The layouts on a map."""
    return [
        LayoutPoint(row.needed_bytes, row.throughput_samples_per_s, row.arch, row.label, row.fits)
        for row in layouts
    ]


def _fastest(layouts: Layouts, fitting: Fitting, most: int) -> list[int]:
    """Return the numbers of the layouts that are the fastest that fit of their division,
    architecture and recomputation, and of the fastest that do not fit; all if they are few."""
    if len(layouts) <= most:
        return list(range(len(layouts)))
    names = ("tensor", "context", "expert", "pipeline", "virtual_stages", "global_batch_size")
    columns = [getattr(layouts, name).tolist() for name in names]
    kinds = [
        arch if many > 1 else "" for arch, many in zip(layouts.arch, layouts.workers, strict=True)
    ]
    keys = zip(*columns, layouts.schedule, kinds, layouts.recompute, strict=True)
    inside: dict[tuple[object, ...], int] = {}
    outside: dict[tuple[object, ...], int] = {}
    for row, key in enumerate(keys):
        if key not in inside and fitting.fits(row):
            inside[key] = row
        elif key not in inside and len(outside) < OUTSIDE:
            outside.setdefault(key, row)
        if len(inside) == most:
            break
    return [*inside.values(), *outside.values()]


def _compared(layouts: Layouts, k: int, confidence: float) -> ComparedLayout:
    """Return a layout with what formulas predict for it."""
    job = layouts.made(k)
    memory = memory_on(catalogue.device(job.workload.device), job)
    phases = coarse.phases(job)
    step_s = float(phases.iteration_s)
    shares: dict[str, float] = defaultdict(float)
    for part in phases.parts.values():
        shares[part.cause] += float(part.seconds)
    return ComparedLayout(
        **layouts.shape_of(k),
        workers=int(layouts.workers[k]),
        arch=layouts.arch[k] or job.architecture.name,
        throughput_samples_per_s=int(layouts.global_batch_size[k]) / step_s,
        iteration_s=step_s,
        needed_bytes=memory.needed_bytes(confidence),
        fits_probability=memory.fits,
        fits=memory.is_enough(confidence),
        bubble_fraction=max(shares["pipeline"], 0.0) / step_s,
        exposed_fraction=max(1.0 - (shares["pipeline"] + shares["compute"]) / step_s, 0.0),
    )
