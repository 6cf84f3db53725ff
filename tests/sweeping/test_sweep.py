"""Sweeps: their jobs, their table, and impossible jobs."""

from __future__ import annotations

import inspect
import io
import itertools
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from perfmodel import InputError, Jitter, Straggler, Sweep, Workload, api, make_job, predict, sweep
from perfmodel.cli import cli, main
from perfmodel.inputs.job_arguments import in_si
from perfmodel.sweeping import sweeps
from perfmodel.sweeping.grids import ARGUMENTS, grid, values
from perfmodel.sweeping.labels import label
from tests.jobs import cluster, workload
from tests.results.readable import bars

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
WHERE = cluster()
SMALL: dict[str, Any] = {"workload": WORK, "cluster": WHERE, "start": "together"}
RESULTS = [
    "throughput_samples_per_s",
    "throughput_ci_fraction",
    "iteration_s",
    "idle_fraction",
    "staleness_mean",
    "bottleneck",
    "fidelity",
    "error_p90_fraction",
    "low_samples_per_s",
    "high_samples_per_s",
]


# -- lists -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", "8"),
        ("1..8", "1 2 3 4 5 6 7 8"),
        ("1,2,4..64", "1 2 4 8 16 32 64"),
        ("1,2,4..63", "1 2 4 8 16 32"),
        ("2,4..10", "2 4 6 8 10"),
        ("2,4..11", "2 4 6 8 10"),
        ("2,4,6..12", "2 4 6 8 10 12"),
        ("1,2..4", "1 2 3 4"),
        ("1,2,3..6", "1 2 3 4 5 6"),
        ("3..3", "3"),
        ("1,2,4..16,100", "1 2 4 8 16 100"),
        ("1..3,10,20..40", "1 2 3 10 20 30 40"),
        ("4,6,9..20", "4 6 9 13.5"),
        ("0,0.1..0.5", "0 0.1 0.2 0.3 0.4 0.5"),
        ("1, 2 ,3", "1 2 3"),
        ("gamma:0.1,measured", "gamma:0.1 measured"),
    ],
)
def test_a_list_continues_its_pattern(text: str, expected: str) -> None:
    assert values(text, "--workers") == expected.split()


def test_without_ranges_two_dots_are_text() -> None:
    assert values("../own.toml,b..c", "--cluster", ranges=False) == ["../own.toml", "b..c"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a value is missing in ''"),
        ("1,,2", "a value is missing in '1,,2'"),
        ("1,2,", "a value is missing in '1,2,'"),
        ("1..", "a value is missing in '1..'"),
        ("..8", "a value is missing in '..8'"),
        ("8..1", "'8..1': the range decreases from 8 to 1"),
        ("1,2,4..3", "'1,2,4..3': the range decreases from 4 to 3"),
        ("4,2..8", "'4,2..8': the numbers before '..' do not increase"),
        ("2,2..8", "'2,2..8': the numbers before '..' do not increase"),
        ("1,2,5..8", "'1,2,5..8': the numbers before '..' have no common difference or ratio"),
        ("0,1,5..8", "'0,1,5..8': the numbers before '..' have no common difference or ratio"),
        ("1,2,4...8", "'1,2,4...8': '..' can only continue plain numbers, as in 1,2,4..64"),
        ("1..2..8", "'1..2..8': '..' can only continue plain numbers, as in 1,2,4..64"),
        ("1Gbps..8Gbps", "'1Gbps..8Gbps': '..' can only continue plain numbers, as in 1,2,4..64"),
        ("1..nan", "'1..nan': '..' can only continue plain numbers, as in 1,2,4..64"),
        ("1..1e9", "'1..1e9': '..' can only continue plain numbers, as in 1,2,4..64"),
        ("1..1000000000", "'1..1000000000': 999999999 values; at most 100000"),
    ],
)
def test_invalid_lists_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        values(text, "--workers")
    assert str(error.value) == f"--workers: {said}"


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 90), st.integers(2, 4))
def test_constant_steps_match_range(first: int, step: int, more: int, shown: int) -> None:
    known = [first + step * k for k in range(shown)]
    end = known[-1] + more
    text = ",".join(map(str, known)) + f"..{end}"
    assert values(text, "") == list(map(str, range(first, end + 1, step)))


@given(st.integers(1, 9), st.integers(2, 5), st.integers(0, 5000))
def test_constant_factors_match_powers(first: int, factor: int, more: int) -> None:
    known = [first * factor**k for k in range(3)]
    end = known[-1] + more
    expected = itertools.takewhile(lambda n: n <= end, (first * factor**k for k in range(99)))
    assert values(",".join(map(str, known)) + f"..{end}", "") == list(map(str, expected))


# -- jobs --------------------------------------------------------------------------------------


def test_every_argument_of_a_job_may_vary() -> None:
    parameters = in_si(dict.fromkeys(inspect.signature(make_job).parameters)).keys()
    assert set(ARGUMENTS) == parameters - {"island_options"} | {"global_batch_size"}


def test_workers_vary_fastest_whatever_the_order_of_arguments() -> None:
    one = sweep(**SMALL, workers=[1, 2], arch=["ring", "ps"], bandwidth_bytes_per_s=[1.0, 2.0])
    other = sweep(bandwidth_bytes_per_s=[1.0, 2.0], arch=["ring", "ps"], workers=[1, 2], **SMALL)
    assert one.points == other.points
    assert [tuple(point.values()) for point in one.points] == list(
        itertools.product([1.0, 2.0], ["ring", "ps"], [1, 2])
    )
    assert one.rows() == other.rows()


def wrong_rows(found: Sweep, fixed: Mapping[str, Any]) -> list[int]:
    """Rows that differ from the prediction of the job by itself."""
    wrong = []
    options = {axis.name for axis in found.axes if axis.option}
    for i, (point, row) in enumerate(zip(found.points, found.rows(), strict=True)):
        given = {name: v for name, v in point.items() if v is not None and name not in options}
        mine = {name: point[name] for name in options if point[name] is not None}
        given["options"] = {**fixed.get("options", {}), **mine}
        alone = predict(make_job(**{**fixed, **given}))
        expected = {
            "throughput_samples_per_s": alone.throughput_samples_per_s,
            "throughput_ci_fraction": alone.throughput_ci_fraction,
            "iteration_s": alone.iteration_s,
            "idle_fraction": alone.idle_fraction.mean,
            "staleness_mean": alone.staleness.mean if alone.staleness else None,
            "bottleneck": alone.bottleneck.resource,
        }
        if expected != {name: row[name] for name in expected} or found.predictions[i] != alone:
            wrong.append(i)
    return wrong


def test_each_row_equals_the_prediction_of_its_job() -> None:
    fixed = {**SMALL, "seed": 3, "options": {"overlap": False}}
    options = {"overlap": False, "sync": ["bsp", "asp"]}
    result = sweep(
        **{**fixed, "options": options},
        fidelity="fine",
        arch=["ring", "ps"],
        workers=[1, 3],
        latency_s=[0.0, 0.5],
    )
    assert len(result.predictions) == 2 * 2 * 3
    assert wrong_rows(result, fixed) == []


def test_canary_exchanged_rows_are_noticed() -> None:
    result = sweep(**SMALL, fidelity="fine", arch="ps", workers=[1, 2, 4])
    first, second, third = result.predictions
    exchanged = Sweep(
        axes=result.axes, points=result.points, predictions=(first, third, second), skipped=()
    )
    assert wrong_rows(result, {**SMALL, "arch": "ps"}) == []
    assert wrong_rows(exchanged, {**SMALL, "arch": "ps"}) == [1, 2]


def test_models_are_read_once_and_jobs_are_the_same() -> None:
    result = grid({"model": "resnet18", "arch": ["ring", "ps"], "batch_size": [32, 64]})
    alone = [
        make_job(model="resnet18", arch=arch, batch_size=batch)
        for batch in (32, 64)
        for arch in ("ring", "ps")
    ]
    assert list(result.jobs) == alone
    assert result.jobs[0].workload is result.jobs[1].workload


def test_an_option_is_ignored_where_it_does_not_apply() -> None:
    result = sweep(**SMALL, arch=["ring", "ps"], workers=2, options={"servers": ["1", "2"]})
    assert [tuple(point.values()) for point in result.points] == [
        ("ring", None),
        ("ps", 1),
        ("ps", 2),
    ]
    assert result.notes == ("servers does not apply to ring and is ignored there",)
    assert result.to_frame()["servers"].dtype == "Int64"


def test_an_option_that_no_architecture_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"'serverz' does not apply to .* did you mean 'servers'"):
        sweep(**SMALL, arch=["ps", "easgd"], options={"serverz": [1, 2]})
    with pytest.raises(InputError, match="option 'servers' does not apply to allreduce"):
        sweep(**SMALL, arch="ring", options={"servers": [1, 2]})


def test_whole_objects_may_vary() -> None:
    slow = [Straggler(0, 2.0)]
    result = sweep(
        workload=WORK,
        cluster=[cluster(8.0), WHERE],
        workers=2,
        arch="ring",
        jitter=[Jitter(0.1, "gamma"), 0.1, Jitter(0.2, scope="op")],
        stragglers=[[], slow],
    )
    assert [axis.name for axis in result.axes] == ["cluster", "jitter", "stragglers"]
    frame = result.to_frame()
    assert list(frame["jitter"].unique()) == ["gamma:0.1", 0.1, "lognormal:0.2:op"]
    assert list(frame["stragglers"].unique()) == ["none", "0:2"]
    alone = sweep(**SMALL, arch="ring", workers=[2, 3], stragglers=slow)
    assert all(p.provenance.inputs["stragglers"] for p in alone.predictions)


def test_objects_of_the_same_name_are_numbered() -> None:
    result = sweep(workload=WORK, cluster=[cluster(8.0), WHERE], workers=[1, 2], arch="ring")
    assert result.to_frame()["cluster"].unique().tolist() == ["test", "test (2)"]
    assert efficiency_is_wrong(result) == []
    assert result.to_dict()["axes"]["cluster"] == ["test", "test (2)"]


@pytest.mark.parametrize("several", [[1, 2, 4], (1, 2, 4), np.array([1, 2, 4])])
def test_lists_tuples_and_arrays_are_all_accepted(several: Any) -> None:
    assert grid({**SMALL, "workers": several}).axes[0].values == (1, 2, 4)


def test_a_global_batch_is_divided_among_the_workers() -> None:
    result = sweep(model="resnet18", global_batch_size=96, workers=[1, 2, 3, 5])
    assert [p.batch_size for p in result.predictions] == [96, 48, 32]
    assert [(s.point, s.reason) for s in result.skipped] == [
        (
            {"workers": 5},
            "global_batch_size: 96 samples cannot be split evenly among 5 workers",
        )
    ]


# -- impossible jobs ---------------------------------------------------------------------------


def test_impossible_jobs_are_skipped_with_their_reasons() -> None:
    result = sweep(workload=WORK, cluster=cluster(nodes=3), workers=[1, 2, 4, 8], arch="ring")
    assert [point["workers"] for point in result.points] == [1, 2]
    assert [s.point["workers"] for s in result.skipped] == [4, 8]
    assert result.skipped[0].reason == (
        "workers: 4 do not fit on cluster 'test' (3 nodes x 1 devices)"
    )
    assert len(result.to_frame()) == 2


def test_jobs_that_fail_while_they_are_predicted_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = api.predict

    def sometimes(job: Any, *how: Any) -> Any:
        if job.workers == 2:
            raise InputError("two is too many")
        return real(job, *how)

    monkeypatch.setattr(api, "predict", sometimes)
    result = sweep(**SMALL, workers=[1, 2, 3])
    assert [p.workers for p in result.predictions] == [1, 3]
    assert [(s.point, s.reason) for s in result.skipped] == [({"workers": 2}, "two is too many")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"workers": [0, -1]},
            "none of 2 jobs is possible: workers: must be at least 1, got 0 (1)"
            "; workers: must be at least 1, got -1 (1)",
        ),
        ({"workers": 0}, "workers: must be at least 1, got 0"),
        ({"workers": []}, "workers: the list is empty"),
        ({"workers": [1, 2, 1]}, "workers: 1 is given twice"),
        (
            {"batch_size": 4, "global_batch_size": 8},
            "batch_size and global_batch_size: give one of them",
        ),
        (
            {"workers": range(1, 1001), "latency_s": list(np.linspace(0, 1, 101))},
            "sweep: 101 latency_s x 1000 workers make 101000 jobs; at most 100000",
        ),
        ({"arch": ["ring", "pss"]}, "unknown architecture 'pss'; did you mean 'ps'? (known: "),
        (
            {"options": {"sync": ["bsp", "aps"]}},
            "option sync of ps: expected one of asp, bsp, ssp, got 'aps'; did you mean 'asp'?",
        ),
    ],
)
def test_invalid_sweeps_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        sweep(**{**SMALL, **arguments})
    assert str(error.value).startswith(said)


def test_an_unknown_argument_raises_type_error() -> None:
    with pytest.raises(TypeError, match="worker"):
        sweep(**SMALL, worker=2)


# -- the table ---------------------------------------------------------------------------------


def efficiency_is_wrong(found: Sweep) -> list[int]:
    """Rows whose efficiency is inconsistent with the fewest workers of their series."""
    frame = found.to_frame()
    others = [a.name for a in found.axes if a.name != "workers"]
    wrong: list[int] = []
    for _, series in frame.groupby(others) if others else [((), frame)]:
        base = series.loc[series["workers"].idxmin()]
        rate = base["throughput_samples_per_s"] / base["workers"]
        expected = rate * series["workers"] * series["scaling_efficiency"]
        wrong += series.index[~np.isclose(expected, series["throughput_samples_per_s"])].tolist()
    return wrong


def test_scaling_efficiency_by_hand() -> None:
    """Computing takes 4 s; a ring of n sends 2(n-1)/n of 3 bytes at 1 byte/s after it."""
    result = sweep(**SMALL, arch="ring", workers=[2, 3, 6], options={"overlap": False})
    step_s = [4.0 + 2 * (n - 1) / n * 3.0 for n in (2, 3, 6)]
    expected = [step_s[0] / s for s in step_s]
    assert result.to_frame()["scaling_efficiency"].tolist() == pytest.approx(expected)


def test_goodput_by_hand() -> None:
    """A noise scale of 24 samples: updates of 8, 16 and 32 samples have (24 + 8) / (24 + B)."""
    result = sweep(**SMALL, arch="ring", workers=[2, 4, 8], noise_scale_samples=24.0)
    frame = result.to_frame()
    assert [p.batch_size for p in result.predictions] == [4, 4, 4]
    assert frame["statistical_efficiency"].tolist() == pytest.approx([1.0, 0.8, 32.0 / 56.0])
    product = frame["throughput_samples_per_s"] * frame["statistical_efficiency"]
    assert frame["goodput_samples_per_s"].tolist() == pytest.approx(product.tolist())
    assert "goodput_samples_per_s" not in sweep(**SMALL, arch="ring").rows()[0]


def test_asynchronous_updates_have_the_samples_of_one_worker() -> None:
    result = sweep(**SMALL, arch=["bsp", "asp"], workers=4, noise_scale_samples=16.0)
    efficiency = result.to_frame()["statistical_efficiency"]
    assert efficiency.tolist() == pytest.approx([20.0 / 32.0, 1.0])


def with_noise(scale: float | None) -> Workload:
    return msgspec.structs.replace(WORK, noise_scale_samples=scale)


def test_the_noise_scale_of_the_workload_is_the_default() -> None:
    jobs: dict[str, Any] = SMALL | {"workload": with_noise(24.0), "arch": "ring"}
    result = sweep(**jobs, workers=[2, 4])
    assert result.to_frame()["statistical_efficiency"].tolist() == pytest.approx([1.0, 0.8])
    assert result.notes == ("noise scale: 24 samples, measured with the workload",)
    given = sweep(**jobs, workers=[2, 4], noise_scale_samples=8.0)
    assert given.to_frame()["statistical_efficiency"].tolist() == pytest.approx([1.0, 16 / 24])
    assert given.notes == ()


def test_workloads_with_different_noise_scales_have_no_efficiency() -> None:
    for other in (None, 8.0):
        workloads = [with_noise(24.0), with_noise(other)]
        result = sweep(**SMALL | {"workload": workloads, "arch": "ring", "workers": 2})
        assert "goodput_samples_per_s" not in result.rows()[0]
        assert result.notes == (
            "noise scale: not the same for all workloads, so no statistical efficiency is given",
        )


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_an_invalid_noise_scale_is_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="noise_scale_samples"):
        sweep(**SMALL, noise_scale_samples=wrong)


def test_scaling_efficiency_is_within_a_series() -> None:
    result = sweep(
        **SMALL, arch=["ring", "ps"], workers=[4, 2, 1], bandwidth_bytes_per_s=[1.0, 9.0]
    )
    assert efficiency_is_wrong(result) == []
    alone = result.to_frame().query("workers == 1")["scaling_efficiency"]
    assert alone.tolist() == [1.0] * 4
    assert "scaling_efficiency" not in sweep(**SMALL, arch=["ring", "ps"]).rows()[0]


def test_canary_an_efficiency_of_another_series_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = sweep(**SMALL, arch=["ring", "ps"], workers=[1, 2, 4])
    monkeypatch.setattr(Sweep, "_scaling_efficiency", lambda _: [1.0, 0.5, 0.5, 1.0, 0.5, 0.5])
    assert efficiency_is_wrong(result)


def test_the_columns_are_varied_inputs_then_results() -> None:
    result = sweep(**SMALL, arch=["ring", "ps"], workers=[1, 2], options={"overlap": [True, False]})
    frame = result.to_frame()
    results = [*RESULTS[:5], "scaling_efficiency", *RESULTS[5:]]
    assert list(frame.columns) == ["arch", "overlap", "workers", *results]
    assert len(frame) == 8
    assert list(sweep(**SMALL).to_frame().columns) == RESULTS


def test_inputs_that_follow_from_varied_ones_are_shown() -> None:
    result = sweep(model="resnet18", global_batch_size=96, workers=[1, 2])
    assert list(result.to_frame().columns[:2]) == ["workers", "batch_size"]
    assert result.to_frame()["batch_size"].tolist() == [96, 48]
    larger = workload([1.0], [1.0], [2.0], batch_size=8)
    works = sweep(**{**SMALL, "workload": [WORK, larger]}).to_frame()
    assert list(works.columns[:2]) == ["workload", "batch_size"]
    assert works["batch_size"].tolist() == [4, 8]


def test_csv_equals_the_frame(tmp_path: Path) -> None:
    result = sweep(**SMALL, arch=["ring", "ps"], workers=[1, 2], options={"servers": [1, 2]})
    text = result.to_csv(tmp_path / "sweep.csv")
    assert (tmp_path / "sweep.csv").read_text() == text
    back = pd.read_csv(io.StringIO(text)).astype({"servers": "Int64"})
    pd.testing.assert_frame_equal(back, result.to_frame(), check_dtype=False)


def test_json_has_no_infinity() -> None:
    result = sweep(**SMALL, options={"split_above_bytes": ["1", "inf"], "servers": 2}, workers=2)

    def no_json(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    read = json.loads(result.to_json(), parse_constant=no_json)
    assert read["axes"] == {"split_above_bytes": ["1", "inf"]}
    assert [row["split_above_bytes"] for row in read["rows"]] == [1.0, "inf"]
    assert math.isinf(result.to_frame()["split_above_bytes"][1])


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ({"workers": 1, "servers": 2}, "1 worker, 2 servers"),
        ({"global_batch_size": 256, "latency_s": 5e-5}, "global batch 256, latency 50 us"),
        ({"sync": "asp", "jitter": "gamma:0.1", "seed": 3}, "asp, jitter gamma:0.1, seed 3"),
        ({"bucket_cap_bytes": math.inf, "stage": 3}, "bucket_cap_bytes=inf, stage=3"),
        ({"arch": "ring", "servers": None}, "ring"),
    ],
)
def test_points_have_names(point: dict[str, Any], expected: str) -> None:
    assert label(point) == expected


def test_progress_is_reported_after_each_job() -> None:
    measured = []
    sweep(**SMALL, workers=[1, 2, 3], progress=lambda done, of: measured.append((done, of)))
    assert measured == [(1, 3), (2, 3), (3, 3)]


def test_a_sweep_is_coarse_if_that_is_accurate_enough() -> None:
    """Without overlap a ring is exactly the sum of its phases; asynchronous workers are not."""
    asked = {**SMALL, "arch": ["ring", "asp"], "workers": [2, 4], "options": {"overlap": False}}
    result = sweep(**asked, tolerance=1e-6)
    frame = result.to_frame()
    assert frame["fidelity"].tolist() == ["coarse", "coarse", "fine", "fine"]
    assert frame["error_p90_fraction"].tolist()[:2] == [0.0, 0.0]
    assert frame["error_p90_fraction"].isna().tolist() == [False, False, True, True]
    fine = sweep(**asked, fidelity="fine").to_frame()
    assert set(fine["fidelity"]) == {"fine"}
    np.testing.assert_allclose(
        frame["throughput_samples_per_s"], fine["throughput_samples_per_s"], rtol=1e-9
    )
    coarse = sweep(**asked, fidelity="coarse").to_frame()
    assert set(coarse["fidelity"]) == {"coarse"}
    assert (coarse["error_p90_fraction"][2:] > 0.0).all()


# -- figures ----------------------------------------------------------------------------------


@pytest.mark.draws
def test_a_figure_has_a_line_for_each_series() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    result = sweep(**SMALL, arch=["ring", "ps"], workers=[1, 2, 4, 8], bandwidth_bytes_per_s=[1, 9])
    throughput, idle = result.plot().axes
    assert throughput.get_xscale() == idle.get_xscale() == "log"
    drawn = {line.get_label(): line for line in throughput.get_lines() if line.get_marker() == "o"}
    assert list(drawn) == ["8 bps, ring", "8 bps, ps", "72 bps, ring", "72 bps, ps"]
    row = result.to_frame().query("arch == 'ps' and bandwidth_bytes_per_s == 9")
    np.testing.assert_allclose(drawn["72 bps, ps"].get_ydata(), row["throughput_samples_per_s"])
    dashed = [line for line in throughput.get_lines() if line.get_linestyle() == "--"]
    ideal = dashed[0].get_ydata()
    assert ideal[3] == pytest.approx(8 * ideal[0])
    assert "ideal scaling" in {text.get_text() for text in result.plot().legends[0].get_texts()}
    assert result.to_image("png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "over", "scale"),
    [
        ({"workers": [1, 2, 3, 4]}, "workers", "linear"),
        ({"workers": 2, "bandwidth_bytes_per_s": [1.0, 10.0, 100.0]}, "bandwidth", "log"),
        (
            {"workers": 2, "options": {"servers": [1, 2]}, "arch": ["ring", "ps"]},
            "servers",
            "linear",
        ),
        ({"workers": 2, "jitter": [0.0, 0.1, 0.2]}, "jitter (fraction)", "linear"),
    ],
)
@pytest.mark.draws
def test_a_figure_uses_the_preferred_x_axis(
    arguments: dict[str, Any], over: str, scale: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    idle = sweep(**{**SMALL, **arguments}).plot().axes[1]
    assert (idle.get_xlabel(), idle.get_xscale()) == (over, scale)


@pytest.mark.draws
def test_figures_have_bars_for_names_and_few_lines_for_many_series() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    words = sweep(**SMALL, workers=2, arch=["ring", "ps", "p2p"])
    labels = words.plot().axes[0].get_yticklabels()
    assert [text.get_text() for text in labels] == ["ring", "ps", "p2p"]
    rates = [p.throughput_samples_per_s for p in words.predictions]
    assert [end for *_, end in bars(words, 0)] == rates
    latencies_s = list(np.linspace(0.0, 1.0, 30))
    many = sweep(**SMALL, workers=[1, 2], latency_s=latencies_s, fidelity="coarse")
    lines = [ax for ax in many.plot().axes[0].get_lines() if ax.get_linestyle() == "-"]
    assert len(lines) == 12
    assert many.plot().axes[0].get_title() == "12 of 30 lines"
    jitters = [f"gamma:{i / 100}" for i in range(40)]
    result = sweep(**SMALL, arch=["ring", "ps"], workers=2, jitter=jitters, fidelity="coarse")
    assert len(bars(result, 0)) == 60
    assert result.plot().axes[0].get_title() == "60 of 80 jobs"


# -- the command line --------------------------------------------------------------------------

COMMAND = "sweep --model resnet18 --fidelity fine --arch ring,ps --workers 1,2,4..4"


def run(command: str) -> tuple[str, str]:
    """Standard output and standard error of a command that succeeds."""
    done = CliRunner().invoke(cli, command.split(), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, done.stderr


def test_the_command_equals_the_library_call() -> None:
    result = sweep(model="resnet18", fidelity="fine", arch=["ring", "ps"], workers=[1, 2, 4])
    assert run(f"{COMMAND} --csv -") == (result.to_csv(), "")
    assert json.loads(run(f"{COMMAND} --json")[0]) == result.to_dict()
    table, message = run(COMMAND)
    assert message == ""
    rows, _, assumed = table.partition("\n\n")
    assert [line.split()[:2] for line in rows.splitlines()[2:]] == [
        [arch, str(workers)] for arch in ("ring", "ps") for workers in (1, 2, 4)
    ]
    assert assumed.startswith("assumed")


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (
            "--model alexnet,vgg16 --device v100,p100 --batch-size 16,32 --jitter 0,gamma:0.1",
            {
                "model": ["alexnet", "vgg16"],
                "device": ["v100", "p100"],
                "batch_size": [16, 32],
                "jitter": ["0.0", "gamma:0.1"],
            },
        ),
        (
            "--model alexnet --bandwidth 1Gbps,10Gbps --latency 1us,1ms --sync bsp,ssp "
            "--staleness-bound 0,3",
            {
                "bandwidth_bytes_per_s": [1.25e8, 1.25e9],
                "latency_s": [1e-6, 1e-3],
                "staleness_bound": [0.0, 3.0],
                "sync": ["bsp", "ssp"],
            },
        ),
    ],
    ids=["of the work", "of the cluster"],
)
def test_every_list_of_the_command_is_used(lists: str, expected: dict[str, list[Any]]) -> None:
    text, _ = run(
        f"sweep --arch ps --fidelity fine --workers 2 {lists} --seed 1 --servers 1 "
        "--option duplex=true --rel-ci 50% --csv -"
    )
    frame = pd.read_csv(io.StringIO(text))
    assert {name: frame[name].unique().tolist() for name in expected} == expected
    assert len(frame) == 2 ** len(expected)


def test_a_job_file_is_the_base_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'schema = "perfmodel.job/1"\nmodel = "resnet18"\narch = "ring"\nworkers = 3\n'
        "batch_size = 8\n"
    )
    text, _ = run(f"sweep --job {tmp_path / 'job.toml'} --global-batch-size 6,12 --csv -")
    assert pd.read_csv(io.StringIO(text))["global_batch_size"].tolist() == [6, 12]


def test_ignored_options_are_reported_on_standard_error() -> None:
    done, message = run(
        "sweep --model resnet18 --arch ring,ps --workers 2,3 --servers 1,2 "
        "--global-batch-size 64 --csv -"
    )
    assert len(done.splitlines()) == 1 + 3
    assert message.splitlines() == [
        "note: servers does not apply to ring and is ignored there",
        "skipped 3 jobs (the first: ring, 3 workers): "
        "global_batch_size: 64 samples cannot be split evenly among 3 workers",
    ]


def failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str
) -> str:
    """Error message of a command that fails before any job is predicted."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a job was predicted")

    monkeypatch.setattr(api, "predict", never)
    monkeypatch.setattr(sys, "argv", ["perfmodel", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    return err.removeprefix("perfmodel: error: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--workers 1,two", "--workers: expected a whole number, got 'two'"),
        ("--bandwidth 1Gbps,2", "--bandwidth: a unit is missing in '2'"),
        ("--option servers=1..", "--option servers: a value is missing in '1..'"),
        ("--csv - --json", "--csv - and --json: both print; give one of them"),
        ("--csv missing/sweep.csv", "missing/sweep.csv: cannot write: No such file"),
        ("--csv .", ".: cannot write: Is a directory"),
        ("--tolerance 10% --fidelity fine", "--tolerance: needs --fidelity auto"),
        ("--tolerance 0", "--tolerance: must be more than 0, got 0"),
        ("--fidelity both", "unknown --fidelity 'both'"),
        ("--arch rnig,ps", "unknown architecture 'rnig'; did you mean 'ring'?"),
        ("--model resnet18,resnte50", "unknown model 'resnte50'; did you mean 'resnet50'?"),
        ("--workers 8,8", "workers: 8 is given twice"),
        (
            "--workers 1..1000 --seed 1..1000",
            "sweep: 1000 seed x 1000 workers make 1000000 jobs; at most 100000",
        ),
        (
            "--batch-size 1,2 --global-batch-size 8",
            "--batch-size and --global-batch-size: give one of them",
        ),
        (
            "--global-batch-size 7 --workers 2,4",
            "none of 2 jobs is possible: global_batch_size: 7 samples cannot be split evenly",
        ),
    ],
)
def test_wrong_command_lines_are_refused(
    more: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failed(monkeypatch, capsys, f"sweep --model resnet18 {more}").startswith(said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.draws
def test_a_figure_of_an_unknown_format_is_refused_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    monkeypatch.chdir(tmp_path)
    for command in (f"{COMMAND} --csv a.csv", "predict --model resnet18 --trace a.json"):
        message = failed(monkeypatch, capsys, f"{command} --plot a.doc")
        assert message.startswith("plot: cannot write 'doc' files (known: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.draws
def test_files_of_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    table, picture = tmp_path / "a.csv", tmp_path / "a.svg"
    out, message = run(f"{COMMAND} --csv {table} --plot {picture}")
    assert message.splitlines() == [f"wrote {table}", f"wrote {picture}"]
    assert "samples/s" in out
    assert table.read_text() == run(f"{COMMAND} --csv -")[0]
    assert picture.read_bytes().startswith(b"<?xml")


def test_canary_a_job_predicted_before_the_check_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match="a job was predicted"):
        failed(monkeypatch, capsys, "sweep --model resnet18 --workers 1,2")


def test_the_module_and_the_function_have_different_names() -> None:
    assert sweeps.sweep is sweep
