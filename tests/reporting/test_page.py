"""Pages: their tables equal the results, and they load nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfmodel import InputError, compare, make_job, plan, predict, report, sweep
from perfmodel.architectures import registry
from perfmodel.reporting import page
from perfmodel.reporting.contents import Page, Section
from perfmodel.reporting.panels import stacks
from perfmodel.studies.reports import Report
from perfmodel.validation import shipped_cases, validate
from tests.reporting.pages import loads, tables

pytest.importorskip("bokeh", reason="needs the extra 'report'")
pytestmark = pytest.mark.draws

OF_ASSUMPTIONS = (
    *("assumption", "value", "alternative", "throughput_samples_per_s", "ratio", "source"),
)

JOB: dict[str, Any] = {"model": "resnet18", "arch": "asp", "workers": 3}


@pytest.fixture(scope="module")
def made() -> Report:
    return report(**JOB)


@pytest.fixture(scope="module")
def text(made: Report) -> str:
    return made.to_html()


def mismatches(text: str, values: dict[str, Any]) -> list[str]:
    """Tables of a report's page that differ from its JSON."""
    result = tables(text)
    p, i = values["prediction"], values["prediction"]["interval"]
    staleness = p["staleness"] or {"mean": None, "histogram": {}}
    expected: dict[str, list[list[Any]]] = {
        "Prediction and 90 % interval": [
            [
                "throughput (samples/s)",
                p["throughput_samples_per_s"],
                *i["throughput_samples_per_s"],
            ],
            ["iteration", p["iteration_s"], *i["iteration_s"]],
            ["idle fraction", p["idle_fraction"]["mean"], *i["idle_fraction"]],
            ["staleness (updates)", staleness["mean"], *(i["staleness"] or [])],
            ["memory per worker", p["memory"]["worker_bytes"], None, None],
        ],
        "Idle time by cause": [
            [cause.replace("_", " "), share]
            for cause, share in p["idle_fraction"]["by_cause"].items()
        ],
        "Idle time by worker": [*map(list, enumerate(p["idle_fraction"]["per_worker"]))],
        "Staleness histogram": [
            [int(value), share]
            for value, share in sorted(
                staleness["histogram"].items(), key=lambda item: int(item[0])
            )
        ],
        "Scaling": [list(row.values()) for row in values["scaling"]],
        "Effect of each assumption": [
            [row[key] for key in OF_ASSUMPTIONS]
            for row in values["sensitivity"]
            if not row["unvaried"]
        ],
        "Changes": [
            [row[key] for key in ("change", "flags", "gain", "low", "high", "recommended", "price")]
            for row in values["advice"]
        ],
    }
    wanted = {
        name: [["" if cell is None else str(cell) for cell in row] for row in rows]
        for name, rows in expected.items()
        if rows
    }
    return [name for name, rows in wanted.items() if result.get(name) != rows]


@pytest.mark.slow
def test_the_tables_equal_the_json(text: str, made: Report) -> None:
    assert mismatches(text, made.to_dict()) == []


def test_canary_a_wrong_number_is_noticed(text: str, made: Report) -> None:
    exact = str(made.prediction.throughput_samples_per_s)
    wrong = text.replace(exact, f"{exact}1")
    assert "Prediction and 90 % interval" in mismatches(wrong, made.to_dict())


def test_a_page_loads_nothing(text: str) -> None:
    assert loads(text) == []


def test_canary_a_page_that_loads_something_is_noticed(text: str) -> None:
    for more in ('<img src="http://x/a.png">', '<link href="a.css">', "<style>@import 'a'</style>"):
        assert len(loads(text.replace("<footer>", f"{more}<footer>"))) == 1


def test_names_cannot_inject_markup() -> None:
    """Neither in text nor in the values of figures."""

    def made(name: str) -> str:
        bars = stacks([name, name], [{name: 1.0}] * 2, name)
        part = Section(name="a", title=name, text=[name], figure=bars, code=[(name, name)])
        return page.html(Page(title=name, answer=[(name, name, name)], sections=[part]))

    evil = "</script><script>alert(1)</script>"
    result, plain = made(evil), made("plain")
    assert result.count("<script") == plain.count("<script")
    assert result.count("</script") == plain.count("</script")
    assert "&lt;script&gt;alert(1)" in result


@pytest.mark.slow
def test_a_coarse_prediction_says_why_it_has_no_timeline() -> None:
    text = predict(make_job(**JOB), fidelity="coarse").report()
    assert "a coarse prediction has no timeline" in text


@pytest.mark.slow
def test_a_job_and_its_prediction_have_the_same_report(made: Report, text: str) -> None:
    job = make_job(**JOB)
    for source in (job, predict(job)):
        result = report(source)
        assert tables(result.to_html()) == tables(text)
        assert result.to_dict() == made.to_dict()


@pytest.mark.slow
def test_the_page_of_a_prediction_needs_no_further_predictions() -> None:
    job = msgspec.structs.replace(make_job(**JOB), workers=2)
    result = tables(predict(job).report())
    assert "Scaling" not in result
    assert "Assumptions" in result


def test_a_report_of_a_job_that_is_not_known_is_refused() -> None:
    job = make_job(**JOB)
    changed = msgspec.structs.replace(job, workers=2)
    for source in (changed, predict(changed)):
        with pytest.raises(InputError, match="report: not a job as make_job made it"):
            report(source)
    with pytest.raises(InputError, match="a prediction read from JSON has no job"):
        report(msgspec.structs.replace(predict(job), predicted_job=None))
    with pytest.raises(InputError, match="got workers too"):
        report(job, workers=4)


@pytest.mark.slow
def test_every_result_has_a_page(tmp_path: Path) -> None:
    lines = sweep(model="resnet18", arch=["ring", "ps"], workers=[1, 2, 4])
    words = sweep(model="resnet18", arch=["ring", "ps"], workers=2)
    jobs = [make_job(**{**JOB, "arch": arch}) for arch in ("ring", "ps")]
    both = compare(jobs, fidelity="coarse")
    path = tmp_path / "sweep.html"
    shown = tables(lines.report(path))
    assert path.stat().st_size > 1e6
    rates = [str(row["throughput_samples_per_s"]) for row in lines.rows()]
    assert [row[2] for row in shown["Jobs"]] == rates
    assert len(tables(words.report())["Jobs"]) == 2
    assert len(tables(both.report())["Jobs"]) == 2
    chosen = plan(model="resnet50", dataset_size=10_000, workers=[4, 8], fidelity="coarse")
    rows = tables(chosen.report())["Candidates"]
    assert len(rows) == len(chosen.rows())
    checked = validate(shipped_cases()[:5], fidelity="coarse")
    cases = tables(checked.report())["Cases"]
    assert len(cases) == sum(len(outcome.scores) for outcome in checked.outcomes)


JOBS: dict[str, dict[str, Any]] = {
    **{name: {"arch": name} for name in registry.names()},
    "one": {"workers": 1},
    "islands": {"workers": 2, "island_devices": "4+2", "arch": "asp", "island_steps": 3},
    "start": {"iterations": 10},
    "auto": {"fidelity": "auto", "jitter": "measured"},
    "language": {"model": "gpt2-medium", "device": "a100", "arch": "fsdp"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_every_kind_of_job_has_a_report(name: str) -> None:
    result = report(**{"model": "resnet18", "workers": 4} | JOBS[name])
    wrong = mismatches(result.to_html(), result.to_dict())
    assert wrong == []
