"""Staleness and idleness of measured runs, predicted from the fits that are part of the repository.

The measurements themselves are not; what needs them is skipped where they are not at hand. The
same adapters predict made-up runs, of which the truth is known.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from benchmarks.accuracy import adsp, bytedance, fitted, staleness_delay
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from tests.measured import measured


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder instead of that of the repository's fits."""
    folder = tmp_path / "fitted"
    monkeypatch.setattr(fitted, "FOLDER", folder)
    return folder


def mean_error(cases: Iterable[Case]) -> float:
    return float(np.mean([abs(case.error) for case in cases]))


def assert_same(first: object, second: object) -> None:
    """Equal up to what rounding on another machine may change."""
    assert type(first) is type(second)
    if isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list) and isinstance(second, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif isinstance(first, float):
        assert first == pytest.approx(second, rel=0.01, abs=1e-4)
    else:
        assert first == second


# -- the measured runs -----------------------------------------------------------------------------


def test_staleness_of_second_halves() -> None:
    groups = summarise(staleness_delay.cases(measured("staleness_delay_data")))
    assert groups["staleness_delay/mean-BCD:staleness"]["worst"] < 0.005
    assert groups["staleness_delay/p90-BCD:staleness"]["worst"] <= 1.0
    assert groups["staleness_delay/p99-BCD:staleness"]["median"] <= 1.0
    assert groups["staleness_delay/p99-PIAG:staleness"]["worst"] <= 1.0
    assert groups["staleness_delay/mean-PIAG:staleness"]["median"] < 0.05
    assert groups["staleness_delay/p99:staleness"]["coverage90"] >= 0.85


def test_idleness_of_production_jobs() -> None:
    cases = bytedance.cases(measured("bytedance_stragglers"))
    groups = summarise(cases)
    for split in ("replay", "half"):
        assert mean_error(c for c in cases if c.group.startswith(f"bytedance/{split}")) < 0.05
        assert groups[f"bytedance/{split}:idle"]["p90"] < 0.05
    assert 0.85 <= groups["bytedance/half:idle"]["coverage90"] <= 0.95


def test_waiting_of_unequal_workers() -> None:
    cases = adsp.cases(measured("adsp_waiting"))
    for split in ("waiting", "log"):
        assert mean_error(c for c in cases if c.group.startswith(f"adsp/{split}")) < 0.05


@pytest.mark.parametrize("adapter", [staleness_delay, bytedance, adsp])
def test_the_fits_are_those_of_the_runs(adapter: object, fits: Path) -> None:
    kept = Path(fitted.__file__).parent / "fitted"
    name = adapter.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    adapter.fit(measured(adapter.ABOUT.folder))  # type: ignore[attr-defined]
    again = json.loads((fits / f"{name}.json").read_bytes())
    assert_same(again, json.loads((kept / f"{name}.json").read_bytes()))


# -- made-up logs of staleness ---------------------------------------------------------------------


def updates(workers: int, cv: float, count: int, seed: int) -> list[tuple[float, int]]:
    """Times at which workers that never wait report, and who does."""
    generator = np.random.default_rng(seed)
    each = 3 * count // workers
    times = generator.gamma(1 / cv**2, cv**2, (workers, each)).cumsum(axis=1)
    times += generator.random((workers, 1))
    reports = sorted((float(t), k) for k, row in enumerate(times) for t in row)
    return reports[: len(reports) // 2][-count:]


def shared_memory(workers: int, cv: float, count: int, seed: int = 1) -> list[list[int]]:
    """Updates by others between two of the same worker."""
    last = dict.fromkeys(range(workers), -1)
    rows = []
    for place, (_, worker) in enumerate(updates(workers, cv, count, seed)):
        rows.append([place - last[worker] - 1])
        last[worker] = place
    return rows


def master(workers: int, cv: float, count: int, at_once: int, seed: int = 1) -> list[list[int]]:
    """Ages of gradients, where every iteration takes the next ``at_once`` reports."""
    ages = [0] * workers
    rows = []
    reports = updates(workers, cv, count * at_once, seed)
    since = [0] * workers
    for k in range(count):
        ages = [age + 1 for age in ages]
        for _, worker in reports[k * at_once : (k + 1) * at_once]:
            ages[worker] = k - since[worker]
            since[worker] = k + 1
        rows.append(list(ages))
    return rows


def write_log(folder: Path, name: str, rows: Sequence[Sequence[int]]) -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(("workers", "cv"), [(8, 0.2), (4, 0.5), (4, 0.1)])
def test_a_spread_is_found_and_predicts_the_tail(tmp_path: Path, workers: int, cv: float) -> None:
    folder = write_log(tmp_path / "logs", "BCD_a_made", shared_memory(workers, cv, 6000))
    staleness_delay.fit(folder)
    kept = fitted.read("staleness_delay", staleness_delay.StalenessFit)["BCD/made"]
    assert float(np.median(kept.spreads)) == pytest.approx(cv, rel=0.1)
    by_group = {case.group: case for case in staleness_delay.cases(folder)}
    mean = by_group["staleness_delay/mean/BCD_a_made:staleness"]
    assert mean.predicted == workers - 1
    assert abs(mean.error) < 0.005
    for name in ("p90", "p99"):
        case = by_group[f"staleness_delay/{name}/BCD_a_made:staleness"]
        assert abs(case.error) <= 1.0
        assert case.interval is not None
        assert case.interval[0] <= case.measured <= case.interval[1]


@pytest.mark.usefixtures("fits")
def test_canary_another_spread_is_an_error(tmp_path: Path) -> None:
    calm, wild = shared_memory(8, 0.1, 4000), shared_memory(8, 0.6, 4000)
    folder = write_log(tmp_path / "logs", "BCD_a_made", calm[:2000] + wild[2000:])
    staleness_delay.fit(folder)
    groups = summarise(staleness_delay.cases(folder))
    assert groups["staleness_delay/p99:staleness"]["worst"] > 5.0
    assert groups["staleness_delay/p99:staleness"]["coverage90"] == 0.0


def test_second_halves_are_never_fitted_to(tmp_path: Path, fits: Path) -> None:
    rows = shared_memory(8, 0.2, 2000)
    found = []
    for changed in (rows, rows[:1000] + [[3 * row[0]] for row in rows[1000:]], rows[1000:] * 2):
        staleness_delay.fit(write_log(tmp_path / "logs", "BCD_a_made", changed))
        found.append((fits / "staleness_delay.json").read_bytes())
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.usefixtures("fits")
def test_a_master_takes_several_gradients(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "logs", "PIAG_a_made", master(8, 0.2, 2000, 2))
    staleness_delay.fit(folder)
    by_group = {case.group: case for case in staleness_delay.cases(folder)}
    mean = by_group["staleness_delay/mean/PIAG_a_made:staleness"]
    assert mean.predicted == pytest.approx(8 / 2 - 1, rel=0.01)
    assert abs(mean.error) < 0.01
    for name in ("p90", "p99"):
        assert abs(by_group[f"staleness_delay/{name}/PIAG_a_made:staleness"].error) <= 1.0


@pytest.mark.usefixtures("fits")
def test_logs_never_seen_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another problem and another number of workers; what cannot be predicted is named."""
    staleness_delay.fit(write_log(tmp_path / "seen", "BCD_a_made", shared_memory(8, 0.2, 4000)))
    other = write_log(tmp_path / "other", "BCD_b_new", shared_memory(4, 0.2, 4000, seed=2))
    write_log(other, "BCD_b_short", shared_memory(8, 0.2, 100))
    write_log(other, "PIAG_b_new", master(8, 0.2, 1000, 2))
    write_log(other, "BCD_b_alone", [[0]] * 100)
    found = staleness_delay.cases(other)
    assert {case.name for case in found} == {"BCD_b_new"}
    assert found[0].predicted == 3
    assert all(abs(case.error) <= 1.0 for case in found)
    assert capsys.readouterr().err.splitlines() == [
        "one worker, nothing is ever stale, left out: BCD_b_alone",
        "too short, left out: BCD_b_short",
        "no fit to PIAG logs, left out: PIAG_b_new",
    ]


@pytest.mark.usefixtures("fits")
def test_mistakes_in_logs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"staleness_delay\.json: cannot read: .*; --fit makes it"):
        staleness_delay.cases(tmp_path)
    with pytest.raises(InputError, match="no log that is long enough"):
        staleness_delay.fit(tmp_path)
    (tmp_path / "BCD_a_b.csv.gz").write_bytes(gzip.compress(b"delay\n7\n"))
    with pytest.raises(InputError, match=r"BCD_a_b\.csv\.gz: cannot read"):
        staleness_delay.fit(tmp_path)
    (tmp_path / "BCD_a_b.csv.gz").write_bytes(b"7\n7\n")
    with pytest.raises(InputError, match=r"BCD_a_b\.csv\.gz: cannot read"):
        staleness_delay.fit(tmp_path)


# -- made-up traces --------------------------------------------------------------------------------

Trace = list[dict[str, object]]
COLUMNS = ["start_ts", "step", "stage", "dp_rank", "optype", "duration", "mb_id", "mc", "rank"]


def pipeline(
    step: int, worker: int, forward_s: float, backward_s: float, microbatches: int
) -> Trace:
    """Two stages. The last takes forward and backward of each microbatch in turn; the first takes
    all forwards, then all backwards. So the last ends after (m + 1) forwards and m backwards, the
    first a backward later."""
    rows: Trace = []

    def add(stage: int, kind: str, microbatch: int, start_s: float, seconds: float) -> float:
        values = (start_s, step, stage, worker, kind, seconds, microbatch, 0, 2 * worker + stage)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        return start_s + seconds

    begin_s = 100.0 * step
    done_s = [
        add(0, "forward-compute", m, begin_s + m * forward_s, forward_s)
        for m in range(microbatches)
    ]
    now_s, back_s = begin_s, done_s[-1]
    for m in range(microbatches):
        now_s = add(1, "forward-compute", m, max(now_s, done_s[m]), forward_s)
        now_s = add(1, "backward-compute", m, now_s, backward_s)
        back_s = add(0, "backward-compute", m, max(back_s, now_s), backward_s)
    return rows


def group(step: int, forwards_s: Sequence[float], rest_s: float = 0.0) -> Trace:
    """A step of as many pipelines; all of them end ``rest_s`` after the slowest."""
    rows = [
        row
        for worker, forward_s in enumerate(forwards_s)
        for row in pipeline(step, worker, forward_s, 2 * forward_s, 4)
    ]
    end_s = max(float(str(row["start_ts"])) + float(str(row["duration"])) for row in rows)
    ranks = {(row["rank"], row["stage"], row["dp_rank"]) for row in rows}
    for rank, stage, worker in sorted(ranks, key=str):
        values = (end_s, step, stage, worker, "optimizer", rest_s, -1, 0, rank)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def write_trace(folder: Path, name: str, rows: Trace, columns: Sequence[str] = COLUMNS) -> Path:
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / f"trace-{name}.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def varied(steps: int, workers: int, cv: float, seed: int = 1) -> Trace:
    generator = np.random.default_rng(seed)
    times = generator.gamma(1 / cv**2, cv**2, (steps, workers)) * 0.1
    return [row for k, each in enumerate(times) for row in group(k, [float(x) for x in each], 0.2)]


@pytest.mark.usefixtures("fits")
def test_a_slow_worker_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pipelines of four microbatches; a forward takes 1 s and 1.5 s, a backward twice that."""
    fitted.write("bytedance", {})
    folder = write_trace(tmp_path / "traces", "slow", group(0, [1.0, 1.5]) + group(1, [1.0, 1.5]))
    found = {case.name: case for case in bytedance.cases(folder)}
    assert capsys.readouterr().err == "no fit, replay only: slow\n"
    ends_s = {0: 5 + 5 * 2, 1: 5 + 4 * 2}  # of the stages of the fast one
    for stage, end_s in ends_s.items():
        expected = 0.5 * end_s / (1.5 * ends_s[0])
        fast, slow = found[f"stage {stage}, worker 0"], found[f"stage {stage}, worker 1"]
        assert fast.measured == pytest.approx(expected)
        assert fast.predicted == pytest.approx(expected)
        assert slow.measured == slow.predicted == 0.0


@pytest.mark.usefixtures("fits")
def test_the_replay_has_no_communication(tmp_path: Path) -> None:
    """Canary: a second of it before the first backward, for all, is idleness nobody has."""
    fitted.write("bytedance", {})
    rows = group(0, [1.0, 1.5])
    for row in rows:
        if row["optype"] == "optimizer":
            row["duration"] = 7.5
    found = {c.name: c for c in bytedance.cases(write_trace(tmp_path / "traces", "slow", rows))}
    fast = found["stage 0, worker 0"]
    assert fast.predicted == pytest.approx(7.5 / 22.5)
    assert fast.measured == pytest.approx(7.5 / 30.0)


@pytest.mark.usefixtures("fits")
def test_later_steps_are_predicted_from_earlier_ones(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "traces", "even", varied(60, 8, 0.15))
    bytedance.fit(folder)
    kept = fitted.read("bytedance", bytedance.TraceFit)["even"]
    assert kept.steps == list(range(30))
    assert kept.stages[0].jitter == pytest.approx(0.15, rel=0.15)
    assert kept.stages[0].rest_s == pytest.approx(0.2)
    groups = summarise(bytedance.cases(folder))
    assert groups["bytedance/half/even:idle"]["n"] == 16
    assert groups["bytedance/half/even:idle"]["p90"] < 0.05
    assert groups["bytedance/half/even:idle"]["coverage90"] >= 0.75
    assert groups["bytedance/half/even:idle"]["others"]["no idleness"]["median"] > 0.1


def test_canary_another_half_is_an_error(tmp_path: Path, fits: Path) -> None:
    rows = varied(40, 8, 0.05)
    folder = write_trace(tmp_path / "traces", "odd", rows)
    bytedance.fit(folder)
    first = (fits / "bytedance.json").read_bytes()
    for row in rows:
        if int(str(row["step"])) >= 20 and row["dp_rank"] == 3 and row["mb_id"] != -1:
            row["duration"] = 2 * float(str(row["duration"]))
            row["start_ts"] = 100.0 * int(str(row["step"])) + 2 * (
                float(str(row["start_ts"])) % 100
            )
    bytedance.fit(write_trace(folder, "odd", rows))
    assert (fits / "bytedance.json").read_bytes() == first
    groups = summarise(bytedance.cases(folder))
    assert groups["bytedance/half/odd:idle"]["median"] > 0.2
    assert groups["bytedance/half/odd:idle"]["coverage90"] < 0.5


@pytest.mark.usefixtures("fits")
def test_other_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns that are not needed may be missing; several devices for one part of the model;
    operations without those that they need; and those that wait for each other."""
    fitted.write("bytedance", {})
    rows = group(0, [1.0, 1.5]) + group(1, [1.0, 1.5])
    few = [column for column in COLUMNS if column not in ("mc", "rank")]
    twice = rows + [row | {"rank": int(str(row["rank"])) + 8} for row in rows]
    cut = [row for row in rows if not (row["stage"] == 0 and row["mb_id"] == 2)]
    backward_first = [
        row | {"step": 2, "start_ts": 0.0 if row["optype"] == "backward-compute" else 1.0}
        for row in group(1, [1.0, 1.5])
    ]
    stuck = rows + backward_first
    results = []
    for given, columns in ((rows, COLUMNS), (rows, few), (twice, COLUMNS), (stuck, COLUMNS)):
        found = bytedance.cases(write_trace(tmp_path / "traces", "one", given, columns))
        results.append([(case.name, case.predicted, case.measured) for case in found])
    assert results[1] == results[0]
    assert results[2] == results[0]
    assert results[3] == results[0]
    assert "operations wait for each other, left out: 1 steps" in capsys.readouterr().err
    assert len(bytedance.cases(write_trace(tmp_path / "traces", "one", cut))) == 4


def test_several_parts_of_the_model_on_a_stage() -> None:
    """One microbatch through four parts on two stages, a second each, and back."""
    order = [(0, 0), (1, 0), (0, 1), (1, 1)]  # stage, part
    forward = [(*place, "forward-compute") for place in order]
    backward = [(*place, "backward-compute") for place in reversed(order)]
    rows = [
        {"stage": stage, "mc": part, "optype": kind, "mb_id": 0, "duration": 1.0}
        for stage, part, kind in forward + backward
    ]
    assert bytedance.replay(pd.DataFrame(rows)) == {0: 8.0, 1: 7.0}


@pytest.mark.usefixtures("fits")
def test_mistakes_in_traces_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trace \(trace-\*\.csv\.gz\)"):
        bytedance.fit(tmp_path)
    write_trace(tmp_path, "bad", group(0, [1.0, 1.5]), ["step", "stage", "dp_rank"])
    with pytest.raises(InputError, match=r"trace-bad\.csv\.gz: no column optype"):
        bytedance.fit(tmp_path)


# -- made-up schemes -------------------------------------------------------------------------------


def scheme(name: str, wall_s: float, steps: int, compute_s: Sequence[float]) -> dict[str, object]:
    each = {f"compute_w{k}_s": steps * x for k, x in enumerate(compute_s)}
    return {"note": "", "scheme": name, "wall_s": wall_s, "total_steps": steps * len(each), **each}


def write_schemes(folder: Path, rows: Sequence[dict[str, object]]) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "waiting_time.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


MESSAGE_S, STEP_S = 2.0, [1.0, 1.0, 1.0, 1.0]
BSP = scheme("BSP", 100 * (1.0 + 8 * MESSAGE_S), 100, STEP_S)
"""Four equal workers: all push at once, then all pull at once, over one link of the server."""


@pytest.mark.usefixtures("fits")
def test_the_time_of_a_message_is_found(tmp_path: Path) -> None:
    period = scheme("Fixed ADACOMM tau=10", 10 * (10.0 + 8 * MESSAGE_S), 100, STEP_S)
    folder = write_schemes(tmp_path / "runs", [BSP, period])
    adsp.fit(folder)
    found = fitted.read("adsp", adsp.AdspFit)["BSP"]
    assert found.transfer_s == pytest.approx(MESSAGE_S, rel=1e-3)
    cases = adsp.cases(folder)
    assert {case.group for case in cases} == {"adsp/waiting/Fixed ADACOMM tau=10:idle"}
    assert len(cases) == 4
    for case in cases:
        assert case.predicted == pytest.approx(16 / 26, abs=1e-3)
        assert abs(case.error) < 1e-3
        assert case.others == {"no communication": 0.0}


@pytest.mark.usefixtures("fits")
def test_other_schemes_and_other_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adsp.fit(write_schemes(tmp_path / "seen", [BSP]))
    uneven = [1.0, 1.0, 2.0, 4.0]
    rows = [
        scheme("ADSP", 640.0, 100, [6.0] * 4),
        scheme("SSP s=5", 1000.0, 100, uneven),
        scheme("ADACOMM", 1000.0, 100, uneven),
        scheme("ring", 1000.0, 100, uneven),
    ]
    found = {(c.group, c.name): c for c in adsp.cases(write_schemes(tmp_path / "other", rows))}
    assert len(found) == 12
    assert capsys.readouterr().err == "not known how it works, left out: ring\n"
    alone = found["adsp/waiting/ADSP:idle", "worker 0"].predicted
    assert alone == pytest.approx(2 * MESSAGE_S / (60.0 + 2 * MESSAGE_S), abs=0.02)
    for name in ("SSP s=5", "ADACOMM"):
        waiting = [found[f"adsp/waiting/{name}:idle", f"worker {k}"].predicted for k in range(4)]
        assert waiting[0] == pytest.approx(waiting[1], abs=1e-4)  # alike but for their start
        assert waiting[1] > waiting[2] > waiting[3]
        assert waiting[0] - waiting[3] > 0.1


@pytest.mark.usefixtures("fits")
def test_canary_a_wrong_wall_time_is_an_error(tmp_path: Path) -> None:
    slow = scheme("Fixed ADACOMM tau=10", 2 * 10 * (10.0 + 8 * MESSAGE_S), 100, STEP_S)
    folder = write_schemes(tmp_path / "runs", [BSP, slow])
    adsp.fit(folder)
    assert mean_error(adsp.cases(folder)) > 0.15


def write_workers(folder: Path, name: str, waiting: Sequence[float]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        file.write("worker,series,time_s,value\n")
        for time_s in (900.0, 100.0):
            for worker, part in enumerate(waiting):
                file.write(f"{worker},ps_cmp_time_usp,{time_s},{time_s * (1 - part)}\n")
                file.write(f"{worker},ps_hete_usp,{time_s},1.0\n")


@pytest.mark.usefixtures("fits")
def test_half_of_the_workers_of_a_log_tell_how_long_the_others_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a table of schemes, and with a log that nothing was fitted to."""
    folder = write_schemes(tmp_path / "runs", [BSP])
    write_workers(folder, "adsp_4_workers", [0.2, 0.3, 0.25, 0.45])
    adsp.fit(folder)
    write_workers(folder, "adsp_3_workers", [0.2, 0.3, 0.25])
    (folder / "waiting_time.csv").unlink()
    found = adsp.cases(folder)
    assert capsys.readouterr().err == "no fit, left out: adsp_3_workers\n"
    assert [(c.name, c.predicted) for c in found] == [("worker 2", 0.25), ("worker 3", 0.25)]
    assert [c.error for c in found] == [pytest.approx(0.0), pytest.approx(-0.2)]


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([scheme("SSP s=3", 10.0, 1, STEP_S)], "no scheme BSP"),
        ([scheme("BSP", 10.0, 100, STEP_S)], "wall_s 10 is less than it computes"),
        ([scheme("BSP", -1.0, 100, STEP_S)], "line 2: all numbers must be more than 0"),
        ([{"scheme": "BSP", "wall_s": 1.0, "total_steps": 1}], "line 2: no compute_w0_s"),
        ([{"scheme": "BSP", "wall_s": "soon", "total_steps": 1}], "Expected `float`"),
    ],
)
def test_mistakes_in_tables_are_named(
    tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(InputError) as error:
        adsp.fit(write_schemes(tmp_path / "runs", rows))
    assert message in str(error.value)


# -- the command -----------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, fits: Path) -> None:
    period = scheme("Fixed ADACOMM tau=10", 10 * (10.0 + 8 * MESSAGE_S), 100, STEP_S)
    folder = write_schemes(tmp_path / "runs", [BSP, period])
    done = CliRunner().invoke(main, ["adsp", str(folder), "--fit", "--json"])
    assert done.exit_code == 0, done.output
    groups = json.loads(done.stdout)["groups"]
    assert groups.keys() == {"adsp/waiting:idle", "adsp/waiting/Fixed ADACOMM tau=10:idle"}
    assert groups["adsp/waiting:idle"]["worst"] < 1e-3
    assert [path.name for path in fits.iterdir()] == ["adsp.json"]


@pytest.mark.parametrize("adapter", [staleness_delay, bytedance, adsp])
def test_what_is_said_of_a_source_is_complete(adapter: object) -> None:
    about = adapter.ABOUT  # type: ignore[attr-defined]
    kept = json.loads(
        (Path(fitted.__file__).parent / "fitted" / f"{_name(adapter)}.json").read_text()
    )
    assert all(entry["rows"] > 0 for entry in kept.values())
    assert all(split.calibrated and split.predicted for split in about.splits.values())
    assert "Not covered" in about.remarks


def _name(adapter: object) -> str:
    return str(adapter.__name__).rpartition(".")[2]  # type: ignore[attr-defined]
