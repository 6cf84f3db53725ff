"""``python -m benchmarks.accuracy.page DATA``: write docs/accuracy.md and the table of README.md.

DATA holds a folder for each source. Every source is predicted anew from its fits, which are part of
the repository; its folder is the one named in its adapter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.progress import track

from benchmarks.accuracy import fitted, scaling
from benchmarks.accuracy.__main__ import figure
from benchmarks.accuracy.cases import About, Case
from benchmarks.accuracy.sources import SOURCES, adapter, named
from benchmarks.accuracy.summaries import (
    choice_summary,
    choices,
    coverage,
    ranking_summary,
    rankings,
    summarise,
)
from benchmarks.accuracy.targets import COVERED, LIMITS, TARGETS, Limit, Target
from benchmarks.field import table as reported
from perfmodel.base import files
from perfmodel.base.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"

WORST = 3
"""Worst cases of each split that are named."""

TEMPLATE = Path(__file__).with_name("page.md")

README = PAGE.parents[1] / "README.md"
BEGIN, END = "<!-- accuracy: written by benchmarks.accuracy.page -->", "<!-- end of accuracy -->"
"""What the README's table stands between."""

SUMMARY = (
    ("runs that strangers reported", "the poster's speed of one device", "field/none"),
    ("this project's small cluster, all", "other models, for the intervals", "testbed/all"),
    ("- ring", "the same", "testbed/ring"),
    ("- parameter server, synchronous", "the same", "testbed/ps_bsp"),
    ("- parameter server, asynchronous", "the same", "testbed/ps_async"),
    ("HKBU: seven schedules, three networks", "up to 8 GPUs", "hkbu/few"),
    ("CM-DARE: asynchronous servers in a cloud", "up to 3 workers", "cmdare/n3"),
    ("DL2: synchronous servers", "a quarter, the smallest", "dl2/few"),
    ("Pollux: placements on T4 nodes", "one node, and other models", "pollux/a"),
    ("- a model never run with others", "one device, and two other models", "pollux/b"),
    ("Sia: placements on RTX nodes", "one node, and other models", "sia/a-rtx"),
    ("DLPerf: V100, several frameworks", "one node, and other frameworks", "dlperf/few"),
    ("Horovod: 16 GPUs, rings and servers", "one GPU, and other models", "horovod/few"),
    ("KungFu: pairs, rings, servers", "small batches", "kungfu/few"),
    ("TensorFlow on P100 and K80", "two GPUs", "tensorflow/few"),
    ("MXNet on up to 16 K80", "two GPUs", "mxnet/few"),
    ("Lambda: eight networks on 1 to 8 GPUs", "one GPU, published", "lambda_pytorch/none"),
    ("NVIDIA's examples: DGX-1 to DGX A100", "one GPU, published", "nvidia/none"),
    ("MLPerf v0.7: clusters of V100 and A100", "one GPU, published", "mlperf/none"),
    ("llm-foundry: FSDP on A100 and H100", "other models", "llm_foundry/models"),
    ("InternEvo: ZeRO-1 on 16 to 512 A100", "one node", "internevo/nodes"),
    ("DiLoCo, local SGD, DDP on slow links", "nothing", "diloco_measured/shaped"),
)
"""Rows of the README's table: what was measured, what was calibrated on, the group."""


class Found(NamedTuple):
    """A source with its cases and their summaries."""

    name: str
    about: About
    cases: Sequence[Case]
    groups: Mapping[str, Mapping[str, Any]]


class Rows(msgspec.Struct):
    """Of an entry of a fit, the rows it was calibrated on."""

    rows: int = 0


def found_in(name: str, data: Path) -> Found:
    """Predict a source, given its name or that of its folder."""
    of = adapter(name)
    cases = of.cases(data / of.ABOUT.folder)
    return Found(named(name), of.ABOUT, cases, summarise(cases))


def page(sources: Iterable[Found], computing: Mapping[str, Sequence[scaling.Case]]) -> str:
    """The page; ``computing`` has the errors of estimated computing times by group."""
    listed = list(sources)
    return TEMPLATE.read_text(encoding="utf-8").format(
        goals=_goals(listed),
        limits=_limits(listed),
        ranking=_ranking(listed),
        choices=_choices(listed),
        coverage=_coverage(listed),
        reported=reported.table(),
        sources="".join(_source(found) for found in listed),
        computing=_computing(computing),
    )


LAST = "## Estimated compute times"
"""What follows the sources on the page."""


def with_sections(text: str, sources: Iterable[Found]) -> str:
    """The page with the sections of these sources renewed, or added where they belong.

    Raises
    ------
    InputError : the page lacks the section that follows those of sources.
    """
    for found in sources:
        if f"\n{LAST}\n" not in text:
            raise InputError(f"{PAGE}: needs {LAST!r}")
        heading, section = f"## {found.about.title}\n", _source(found)
        if heading in text:
            before, _, rest = text.partition(heading)
            rest = rest[rest.index("\n## ") + 1 :]
        else:
            later = SOURCES[SOURCES.index(found.name) + 1 :] if found.name in SOURCES else ()
            titles = [f"## {adapter(name).ABOUT.title}\n" for name in later]
            follows = next((title for title in titles if title in text), f"{LAST}\n")
            before, _, rest = text.partition(follows)
            rest = follows + rest
        text = before + section + rest
    return text


def summary(sources: Iterable[Found]) -> str:
    """The README's table."""
    groups = {name: group for found in sources for name, group in found.groups.items()}
    rows = []
    for label, calibrated, name in SUMMARY:
        if name in groups:
            group = groups[name]
            figures = (*(f"{group[key]:.1%}" for key in ("median", "p90")), f"{group['bias']:+.1%}")
            ideal = group.get("others", {}).get("ideal scaling")
            naive = f"{ideal['median']:.1%}" if ideal else ""
            rows.append([label, calibrated, str(group["n"]), *figures, _inside(group), naive])
    heads = ("measured runs", "calibrated on", "predicted", "median", "90 % are below", "bias",
             "in 90 %")  # fmt: skip
    return _rows((*heads, "ideal scaling: median"), rows)


def with_summary(text: str, table: str) -> str:
    """The README with its table replaced.

    Raises
    ------
    InputError : it lacks the marks of where that is.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(f"{README}: needs {BEGIN} and {END}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _goals(sources: Sequence[Found]) -> str:
    groups = {name: group for found in sources for name, group in found.groups.items()}
    return _rows(
        (
            *("split", "runs", "median / p90", "goal", "reached", "bias", "in 90 %"),
            "baselines: median / p90",
        ),
        (_target(t, groups[t.group]) for t in TARGETS if t.group in groups),
    )


def _limits(sources: Sequence[Found]) -> str:
    rows = []
    for limit in LIMITS:
        cases = [c for found in sources for c in found.cases if limit.group in (c.group, *c.pools)]
        if cases:
            rows.append(_limit(limit, [abs(case.error) for case in cases]))
    return _rows(("idleness and staleness", "figures", "error", "goal", "reached"), rows)


def _limit(limit: Limit, sizes: Sequence[float]) -> list[str]:
    size = max(sizes) if limit.statistic == "worst" else sum(sizes) / len(sizes)
    reached = "yes" if size <= limit.most else "no"
    count = str(len(sizes))
    return [limit.group, count, f"{limit.statistic} {size:.3f}", f"{limit.most:g}", reached]


def _target(target: Target, group: Mapping[str, Any]) -> list[str]:
    reached = group["median"] <= target.median and group["p90"] <= target.p90
    others = "; ".join(f"{other} {_two(e)}" for other, e in group.get("others", {}).items())
    return [
        *(target.group, str(group["n"]), _two(group), f"{target.median:.0%} / {target.p90:.0%}"),
        *("yes" if reached else "no", f"{group['bias']:+.1%}", _inside(group), others),
    ]


def _two(errors: Mapping[str, Any]) -> str:
    return f"{errors['median']:.1%} / {errors['p90']:.1%}"


def _inside(group: Mapping[str, Any]) -> str:
    return f"{group['coverage90']:.0%}" if "coverage90" in group else ""


def _coverage(sources: Sequence[Found]) -> str:
    rows = []
    for found in sources:
        of = coverage(found.cases)
        if of is not None:
            reached = "yes" if COVERED[0] <= of.inside <= COVERED[1] else "no"
            groups = f"{of.right} of {of.groups}" if of.groups else ""
            best = f"{of.attainable:.0f}" if of.groups else ""
            whole = [str(of.runs), f"{of.inside:.0%}", reached, f"{of.chance:.0%}"]
            rows.append([found.name, *whole, groups, best])
    heads = ("source", "runs", "in 90 %", "reached", "chance", "large groups", "attainable")
    return _rows(heads, rows)


def _ranking(sources: Sequence[Found]) -> str:
    rows = []
    for found in sources:
        for split, cases in _by_split(found.cases).items():
            ranking = ranking_summary(rankings(cases))
            if ranking:
                figures = (
                    f"{ranking[f'{which}_kendall_tau']:.2f}" for which in ("median", "worst")
                )
                best = f"{ranking['best_within_3_percent']:.0%}"
                rows.append([split, str(ranking["settings"]), *figures, best])
    return _rows(("split", "settings", "Kendall's tau: median", "worst", "best"), rows)


OF_LAYOUTS = ("libai", "simumax_b200", "bigscience_tr11")
"""Sources with several layouts of the same model, devices and global batch."""


def _choices(sources: Sequence[Found]) -> str:
    """Return the table of choices among layouts."""
    rows = []
    for found in sources:
        for way in ("anchored", "estimated") if found.name in OF_LAYOUTS else ():
            split = f"{found.name}/{way}"
            chosen = choice_summary(choices(c for c in found.cases if c.group.startswith(split)))
            if chosen:
                names = ("best_within_5_percent", "median_lost", "worst_lost")
                parts = (f"{chosen[name]:.1%}" for name in names)
                tau = f"{chosen['median_kendall_tau']:.2f}"
                rows.append([split, str(chosen["settings"]), *parts, tau])
    heads = ("split", "settings", "within 5 %", "lost: median", "worst", "Kendall's tau: median")
    return _rows(heads, rows)


def _by_split(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Step times by source and split."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        if ":" not in case.group:
            found.setdefault(case.group.rpartition("/")[0], []).append(case)
    return found


def _source(found: Found) -> str:
    about, fits = found.about, _fitted_rows(found.name)
    splits = []
    for name, split in about.splits.items():
        folds = (f"{name}/", f"{name} without ")
        counts = [n for key, n in fits.items() if key == name or key.startswith(folds)]
        known = f" ({_span(counts)} rows)" if counts else ""
        splits.append([name, split.calibrated + known, split.predicted])
    commands = "\n".join(f"    {line}" for line in about.commands.strip().splitlines())
    return (
        f"## {about.title}\n\n{about.citation}.\n\n"
        f"    python -m benchmarks.accuracy {found.name} DATA/{about.folder}\n\n"
        f"To make such predictions yourself:\n\n{commands}\n\n"
        f"{_rows(('split', 'calibrated on', 'predicted'), splits)}\n\n"
        f"{_errors(found.groups)}\n\n{_worst(found.cases)}{about.remarks.strip()}\n\n"
    )


def _fitted_rows(source: str) -> dict[str, int]:
    """Rows that each fit of a source was calibrated on."""
    try:
        return {name: entry.rows for name, entry in fitted.read(source, Rows).items() if entry.rows}
    except InputError:
        return {}


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _errors(groups: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(n for group in groups.values() for n in group.get("others", {})))
    heads = ["group", "runs", "median", "p90", "worst", "bias", "in 90 %"]
    heads += [f"{name}: median / p90" for name in names]
    rows = []
    for name, group in groups.items():
        cells = [name, str(group["n"])]
        cells += [figure(name, group[key]) for key in ("median", "p90", "worst", "bias")]
        cells.append(_inside(group))
        for other in names:
            errors = group.get("others", {}).get(other)
            both = (figure(name, errors[key]) for key in ("median", "p90")) if errors else ("",)
            cells.append(" / ".join(both))
        rows.append(cells)
    return _rows(heads, rows)


def _worst(cases: Sequence[Case]) -> str:
    """The worst step times of each split, as a list."""
    lines = [
        f"- {split}: {case.name}: {case.predicted:.3g} {case.unit} predicted, "
        f"{case.measured:.3g} {case.unit} measured ({case.error:+.0%})\n"
        for split, some in _by_split(cases).items()
        for case in sorted(some, key=lambda c: -abs(c.error))[:WORST]
    ]
    return f"Worst predictions:\n\n{''.join(lines)}\n" if lines else ""


def _computing(errors: Mapping[str, Sequence[scaling.Case]]) -> str:
    rows = []
    for group, cases in sorted(errors.items()):
        figures = (f"{scaling.quantile(cases, q):.2f}" for q in (0.5, 0.9, 1.0))
        rows.append([group, str(len({c.series for c in cases})), str(len(cases)), *figures])
    return _rows(("estimated", "series", "n", "median", "9 of 10", "worst"), rows)


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--source", "only", multiple=True, help="Renew only the section of this source.")
def main(data: Path, only: tuple[str, ...]) -> None:
    """Predict every source in DATA and write docs/accuracy.md and the table of README.md."""
    console = Console(stderr=True)
    for name in only:
        found = found_in(name, data)  # takes long: others may change the page meanwhile
        text = with_sections(PAGE.read_text(encoding="utf-8"), [found])
        files.write(PAGE, text.encode())
        click.echo(f"wrote {name} to {PAGE}", err=True)
    if only:
        return
    sources = [found_in(name, data) for name in track(SOURCES, "sources", console=console)]
    computing = scaling.grouped(scaling.read(data))
    readme = with_summary(README.read_text(encoding="utf-8"), summary(sources))
    for path, text in ((PAGE, page(sources, computing)), (README, readme)):
        files.write(path, text.encode())
        click.echo(f"wrote {path}", err=True)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
