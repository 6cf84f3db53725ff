"""Synchronous servers in containers, predicted from the fits in the repository.

The measurements are not part of it; tests that need them are skipped if they are missing.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.accuracy import dl2, fitted
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.calibration import ServersFit
from tests.measured import measured, predicted_cases
from tests.settings import thinned

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand

SPEEDS, PROFILES = "config_speed.csv", "models.csv"
GRID = tuple(itertools.product((1, 2, 4), (1, 2, 3, 5)))
TRUTHS = {
    "wide": (100.0, 0.5, 0.3, 0.12),
    "deep": (20.0, 0.3, 0.2, 0.1),
    "slow": (40.0, 0.8, 0.25, 0.15),
}
"""Megabytes, compute time, and server seconds per update and per worker."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return measured(dl2.ABOUT.folder, SPEEDS)


def step_s(name: str, workers: int, servers: int) -> float:
    _, compute_s, update_s, worker_s = TRUTHS[name]
    computing = compute_s * (0.4 + 0.6 / workers)
    serving = (update_s + worker_s * workers) * (0.15 + 0.85 / servers)
    return max(computing, computing / 3.0 + serving)


def row_of(name: str, workers: int, servers: int, factor: float = 1.0) -> dict[str, str]:
    step = step_s(name, workers, servers)
    _, compute_s, update_s, worker_s = TRUTHS[name]
    busy = compute_s * (0.4 + 0.6 / workers) / step
    serving = (update_s + worker_s * workers) / step
    return {
        "model": name,
        "sync_mode": "dist_sync",
        "total_batch_size": "64",
        "num_ps": str(servers),
        "num_worker": str(workers),
        "speed_sum_samples_per_s": repr(factor * 64.0 / step),
        "speed_min_worker": "1",
        "worker_cpu_mean": repr(0.95 * dl2.CORES * busy),
        "ps_cpu_mean": repr(dl2.CORES * serving) if servers == 1 else "2.0",
    }


def write(path: Path, found: Iterable[dict[str, str]]) -> None:
    listed = list(found)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)


def made(to: Path, changed: Iterable[tuple[str, int, int]] = (), factor: float = 2.0) -> Path:
    """A folder of synthetic runs; those in ``changed`` are faster by the given factor."""
    wrong = set(changed)
    runs = [(name, w, p) for name in TRUTHS for w, p in GRID]
    write(to / SPEEDS, [row_of(*run, factor if run in wrong else 1.0) for run in runs])
    sizes = {
        n: {"local_comp_time_s": repr(c), "model_size_MB": repr(m)}
        for n, (m, c, *_) in TRUTHS.items()
    }
    write(to / PROFILES, [{"model": name} | row for name, row in sizes.items()])
    return to


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServersFit]:
    return dl2.entries_of(made(tmp_path_factory.mktemp("made")))


def test_only_runs_that_were_not_fitted_to_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: dict[str, ServersFit]
) -> None:
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    fitted.write("dl2", entries)
    groups = summarise(dl2.cases(made(tmp_path)))
    quarter = len(GRID) // 4
    assert set(groups) == {
        *(f"dl2/{split}" for split in ("few", "dnn")),
        *(f"dl2/{split}/{name}" for split in ("few", "dnn") for name in TRUTHS),
    }
    assert groups["dl2/few"]["n"] == len(TRUTHS) * (len(GRID) - quarter)
    assert groups["dl2/dnn"]["n"] == len(TRUTHS) * (len(GRID) - 1)
    assert groups["dl2/few"]["median"] < 0.08
    assert groups["dl2/few"]["coverage90"] > 0.8
    twice = [(name, w, p) for name in TRUTHS for w, p in GRID]
    wrong = summarise(dl2.cases(made(tmp_path, twice)))
    assert wrong["dl2/few"]["median"] > 0.5  # canary


@pytest.mark.parametrize("within", thinned([False, True]))
def test_predicted_rows_are_never_fitted_to(
    tmp_path: Path, entries: dict[str, ServersFit], within: bool
) -> None:
    """Runs are made twice as fast; fits change only if these runs are among the calibration
    runs."""
    few = set(entries["few"]["wide"].seen)
    assert len(few) == len(GRID) // 4
    changed = [("wide", w, p) for w, p in GRID if ((w, p) in few) == within]
    after = dl2.entries_of(made(tmp_path, changed))
    assert (after["few"] != entries["few"]) == within
    assert after["dnn/wide"] == entries["dnn/wide"]
    assert after["dnn/deep"] != entries["dnn/deep"]


def test_further_dnns_are_predicted_from_their_smallest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: dict[str, ServersFit]
) -> None:
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    kept = {name: entry for name, entry in entries.items() if name in ("few", "all")}
    fitted.write("dl2", kept)
    made(tmp_path)
    for file in (SPEEDS, PROFILES):
        path = tmp_path / file
        path.write_text(path.read_text().replace("wide", "other"))
    groups = summarise(dl2.cases(tmp_path))
    assert groups["dl2/dnn/other"]["n"] == len(GRID) - 1
    assert "dl2/few/other" not in groups


def test_mistakes_are_named(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / PROFILES).unlink()
    with pytest.raises(InputError, match="runs of at least two DNNs"):
        dl2.entries_of(tmp_path)
    with pytest.raises(InputError, match="no predictable run"):
        dl2.cases(tmp_path)


# -- the measured runs -----------------------------------------------------------------------------


def test_step_times_are_predicted() -> None:
    groups = summarise(predicted_cases(dl2, SPEEDS))
    few = groups["dl2/few"]
    assert few["n"] >= 100
    assert few["median"] < 0.08
    assert few["p90"] < 0.20
    assert few["median"] < 0.2 * few["others"]["ideal scaling"]["median"]
    for split in ("few", "dnn"):
        assert 0.85 <= groups[f"dl2/{split}"]["coverage90"] <= 0.97
    assert groups["dl2/dnn"]["median"] < 0.12
    assert groups["dl2/dnn"]["p90"] < 0.35


def test_the_stored_fits_are_reproduced_from_the_runs(folder: Path) -> None:
    found, kept = dl2.entries_of(folder), fitted.read("dl2", ServersFit)
    assert found.keys() == kept.keys()
    for name, entry in kept.items():
        assert found[name].rows == entry.rows
        for dnn, served in entry.workloads.items():
            assert found[name].workloads[dnn].compute_s == pytest.approx(served.compute_s, rel=1e-2)
            assert found[name].workloads[dnn].uneven == pytest.approx(served.uneven, rel=5e-2)
