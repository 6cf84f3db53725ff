"""Resuming sweeps: contents of the folder, jobs predicted again, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from perfmodel import InputError, Prediction, Straggler, api, make_job, predict, sweep
from perfmodel.architectures import registry
from perfmodel.base import tables
from perfmodel.base.errors import PerfmodelWarning
from perfmodel.predicting.installation import fingerprint
from perfmodel.sweeping import chunks, shards
from tests.jobs import cluster, workload
from tests.sweeping.test_executors import differences

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
ASKED: dict[str, Any] = {"workload": WORK, "cluster": cluster(nodes=3), "workers": [1, 2, 9]}
ASKED |= {"arch": ["ring", "ps"], "options": {"split_above_bytes": [1.0, float("inf")]}}
JOBS = 6
"""Number of possible jobs among nine combinations; three need too many nodes."""


@pytest.fixture(params=["csv", "parquet"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file type of the shards."""
    if request.param == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra 'parquet'")
    else:
        monkeypatch.setattr(tables, "has_parquet", lambda: False)
    return str(request.param)


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Architecture and workers of the predicted jobs; the last one is impossible."""
    done: list[tuple[str, int]] = []
    real = api.predict

    def counted(job: Any, *how: Any) -> Prediction:
        done.append((job.architecture.name, job.workers))
        if job.workers == 2 and job.options.server_count and job.options.split_above_bytes > 1e9:
            raise InputError('cannot be: "so", it says')
        return real(job, *how)

    monkeypatch.setattr(api, "predict", counted)
    return done


def there(folder: Path) -> list[Path]:
    """The shards in a folder, in job order."""
    return sorted(folder.glob("0*"))


# -- resuming ---------------------------------------------------------------------------------


def test_a_folder_does_not_change_a_sweep(
    tmp_path: Path, predicted: list[tuple[str, int]], kind: str
) -> None:
    alone = sweep(**ASKED)
    assert (len(alone.predictions), len(alone.skipped)) == (JOBS - 1, 4)
    predicted.clear()
    for _ in range(2):
        assert differences(alone, sweep(**ASKED, resume=tmp_path)) == []
        assert len(predicted) == JOBS  # the second sweep predicts nothing
    assert [path.suffix for path in there(tmp_path)] == [f".{kind}"] * JOBS
    assert [path.name[:6] for path in there(tmp_path)] == [f"{k:06d}" for k in range(JOBS)]


def test_only_missing_jobs_are_predicted(
    tmp_path: Path, predicted: list[tuple[str, int]], kind: str
) -> None:
    alone = sweep(**ASKED, resume=tmp_path)
    assert there(tmp_path)[0].suffix == f".{kind}"
    order = predicted[:]
    for k in (1, 4):
        there(tmp_path)[k].unlink()
    predicted.clear()
    assert differences(alone, sweep(**ASKED, resume=tmp_path)) == []
    assert predicted == [order[1], order[3]]


@pytest.mark.parametrize("what", [KeyboardInterrupt, ZeroDivisionError])
def test_results_before_an_interruption_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: type[BaseException]
) -> None:
    alone, real, done = sweep(**ASKED), api.predict, []

    def ends(job: Any, *how: Any) -> Prediction:
        if len(done) == 4:
            raise what
        done.append(job)
        return real(job, *how)

    monkeypatch.setattr(api, "predict", ends)
    with pytest.raises(what):
        sweep(**ASKED, resume=tmp_path)
    assert len(there(tmp_path)) == 4
    done.clear()
    assert differences(alone, sweep(**ASKED, resume=tmp_path)) == []
    assert len(done) == JOBS - 4


def test_canary_a_changed_shard_changes_the_sweep(tmp_path: Path, kind: str) -> None:
    alone = sweep(**ASKED, resume=tmp_path)
    first, second, *_ = there(tmp_path)
    first.rename(tmp_path / "x")
    (tmp_path / first.name).write_bytes(second.read_bytes())
    changed = sweep(**ASKED, resume=tmp_path)
    assert changed.rows()[0] != alone.rows()[0]
    assert changed.rows()[0]["iteration_s"] == alone.rows()[1]["iteration_s"]
    assert changed.rows()[2:] == alone.rows()[2:]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_shard_is_predicted_again(
    tmp_path: Path, predicted: list[tuple[str, int]], kind: str, part: float
) -> None:
    alone = sweep(**ASKED, resume=tmp_path)
    assert there(tmp_path)[0].suffix == f".{kind}"
    cut = there(tmp_path)[2]
    data = cut.read_bytes()
    cut.write_bytes(data[: int(len(data) * part)])
    predicted.clear()
    with pytest.warns(PerfmodelWarning, match=f"{cut.name} is damaged .*predicted again"):
        again = sweep(**ASKED, resume=tmp_path)
    assert differences(alone, again) == []
    assert len(predicted) == 1
    assert cut.read_bytes() == data


DAMAGED = {
    "not UTF-8": b"index,point,reason,prediction\n0,{},,\xff\xfe\n",
    "nested": b"index,point,reason,prediction\n0,{},," + b"[" * 100_000 + b"\n",
    "not an object": b"index,point,reason,prediction\n0,{},,7\n",
    "no text": b"index,point,reason,prediction\n0,{},,\n",
    "another row": b"index,point,reason,prediction\n0,{},no,\n1,{},no,\n",
    "other columns": b"a,b\n1,2\n",
    "null bytes": bytes(1000),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_shard_is_named_and_predicted_again(
    tmp_path: Path, predicted: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(tables, "has_parquet", lambda: False)
    alone = sweep(**ASKED, resume=tmp_path)
    first = there(tmp_path)[0]
    before = first.read_bytes()
    first.write_bytes(DAMAGED[what])
    predicted.clear()
    with pytest.warns(PerfmodelWarning, match=f"{first.name} is damaged") as measured:
        again = sweep(**ASKED, resume=tmp_path)
    assert len(measured) == 1
    assert differences(alone, again) == []
    assert len(predicted) == 1
    assert first.read_bytes() == before


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b'{"schema": "\xff"}', b'{"how": ' + b"[" * 100_000, b"[]", b"", b"{}"]
)
def test_a_damaged_description_of_a_sweep_is_refused(tmp_path: Path, data: bytes) -> None:
    sweep(**ASKED, resume=tmp_path)
    (tmp_path / "sweep.json").write_bytes(data)
    with pytest.raises(InputError, match=r"^--resume: .*sweep\.json: "):
        sweep(**ASKED, resume=tmp_path)


def test_progress_begins_with_the_saved_jobs(tmp_path: Path) -> None:
    sweep(**ASKED, resume=tmp_path)
    for path in there(tmp_path)[:2]:
        path.unlink()
    measured: list[tuple[int, int]] = []
    sweep(**ASKED, resume=tmp_path, progress=lambda *done: measured.append(done))
    assert measured == [(4, 6), (5, 6), (6, 6)]


def test_a_noise_scale_may_change(tmp_path: Path, predicted: list[tuple[str, int]]) -> None:
    sweep(**ASKED, resume=tmp_path)
    predicted.clear()
    result = sweep(**ASKED, resume=tmp_path, noise_scale_samples=24.0)
    assert "goodput_samples_per_s" in result.rows()[0]
    assert predicted == []


def test_sweeps_of_islands_can_resume(tmp_path: Path, predicted: list[tuple[str, int]]) -> None:
    asked = {"workload": WORK, "cluster": cluster(), "arch": ["ring", "ps"], "workers": 2}
    asked |= {"island_devices": ["2", "4+2"], "seed": 3}
    alone = sweep(**asked)
    for _ in range(2):
        assert differences(alone, sweep(**asked, resume=tmp_path)) == []
    assert len(predicted) == 8
    with pytest.raises(InputError, match="island_devices is"):
        sweep(**asked | {"island_devices": ["2", "4+4"]}, resume=tmp_path)


def test_shards_are_readable_tables(tmp_path: Path, kind: str) -> None:
    result = sweep(**ASKED, resume=tmp_path)
    read: Callable[[Path], pd.DataFrame] = pd.read_csv if kind == "csv" else pd.read_parquet
    frame = pd.concat([read(path) for path in there(tmp_path)])
    assert list(frame.columns) == ["index", "point", "reason", "prediction"]
    assert frame["index"].tolist() == list(range(JOBS))
    points = [json.loads(text) for text in frame["point"]]
    assert points[0] == {"arch": "ring", "split_above_bytes": None, "workers": 1}
    assert points[-1] == {"arch": "ps", "split_above_bytes": "inf", "workers": 2}
    rates = [json.loads(text)["throughput_samples_per_s"] for text in frame["prediction"]]
    assert rates == [p.throughput_samples_per_s for p in result.predictions]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fidelity", ["coarse", "fine"])
@pytest.mark.parametrize("arch", registry.names())
def test_a_saved_prediction_round_trips(arch: str, fidelity: api.Fidelity) -> None:
    slow = (Straggler(1, 2.0),)
    job = make_job(workload=WORK, cluster=cluster(), arch=arch, workers=4, stragglers=slow)
    result = msgspec.structs.replace(predict(job, fidelity=fidelity), predicted_job=None)
    again = shards._answer("", json.dumps(result.to_dict()))
    assert again == result


# -- what is refused ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a sweep, which is not changed."""
    sweep(**ASKED, resume=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    yield tmp_path
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workers": [1, 2, 3]}, "workers is [1, 2, 9] in that sweep, [1, 2, 3] in this one"),
        ({"workers": 1}, "that sweep varies options, workers, this one options"),
        ({"fidelity": "fine"}, "fidelity is auto in that sweep, fine in this one"),
        ({"rel_ci": 0.1}, "rel_ci is 0.01 in that sweep, 0.1 in this one"),
        ({"max_ops": float("inf")}, "max_ops is 50000000 in that sweep, inf in this one"),
        ({"seed": 1}, "its jobs, or the contents of their files, differ"),
        ({"cluster": cluster(9.0, nodes=3)}, "its jobs, or the contents of their files, differ"),
    ],
)
def test_a_folder_of_another_sweep_is_refused(
    folder: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as error:
        sweep(**ASKED | changed, resume=folder)
    said = said.replace("options", "arch, split_above_bytes")
    start = f"--resume: {folder} holds another sweep: "
    assert str(error.value) == f"{start}{said}"


def test_a_folder_of_another_version_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "fingerprint", lambda: "perfmodel 9.9")
    text = f"{folder} holds another sweep, made by {fingerprint()}; this is perfmodel 9.9"
    with pytest.raises(InputError, match=re.escape(text)):
        sweep(**ASKED, resume=folder)


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"is not empty and does not hold a sweep$"):
        sweep(**ASKED, resume=tmp_path)
    with pytest.raises(InputError, match=r"thesis\.tex: File exists$"):
        sweep(**ASKED, resume=tmp_path / "thesis.tex")
    (tmp_path / "thesis.tex").rename(tmp_path / shards.ABOUT)
    with pytest.raises(InputError, match=r"sweep\.json: JSON is malformed"):
        sweep(**ASKED, resume=tmp_path)


def test_a_folder_of_parquet_needs_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra 'parquet'")
    sweep(**ASKED, resume=tmp_path)
    monkeypatch.setattr(tables, "has_parquet", lambda: False)
    with pytest.raises(InputError, match=r"^Parquet needs pyarrow"):
        sweep(**ASKED, resume=tmp_path)


# -- chunks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fidelity", ["coarse", "auto", "fine"])
@pytest.mark.parametrize("count", [1, 63, 64, 127, 128, 1000, 5000, 100_000])
def test_chunks_cover_all_jobs_once_and_are_short(count: int, fidelity: str) -> None:
    parts = list(chunks.slices(count, fidelity))
    assert [k for part in parts for k in range(part.start, part.stop)] == list(range(count))
    sizes = {part.stop - part.start for part in parts}
    assert max(sizes) <= (256 if fidelity == "coarse" else 16)
    if fidelity != "coarse":
        assert len(parts) >= min(count, 64)


# -- Parquet -----------------------------------------------------------------------------------


def test_a_parquet_table_equals_the_csv_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra 'parquet'")
    result = sweep(**ASKED | {"jitter": [0.1, "gamma:0.1"]})
    data = result.to_parquet(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == data
    back = pd.read_parquet(tmp_path / "t.parquet")
    frame = result.to_frame().astype({"jitter": str})
    pd.testing.assert_frame_equal(back, frame, check_dtype=False)
