"""Synchronous servers in containers: the fitted formula, and predictions of measured runs.

The measurements of others are not part of the repository; what needs them is skipped where they are
not at hand.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.accuracy import dl2, fitted
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.calibration.servers.synchronous_fit import SynchronousFit, fit_synchronous_server
from perfmodel.calibration.servers.synchronous_model import SynchronousModel, SynchronousRun

FOLDER = Path(
    os.environ.get(
        "PERFMODEL_DL2", Path(__file__).resolve().parents[3] / "shared" / "data" / "dl2_ps_sync"
    )
)
SPEEDS, PROFILES = "config_speed.csv", "models.csv"
CORES = 2.0


@pytest.fixture(scope="module")
def folder() -> Path:
    if not (FOLDER / SPEEDS).is_file():
        pytest.skip("the measured runs are not at hand (set PERFMODEL_DL2 to their folder)")
    return FOLDER


# -- made-up runs whose truth is known -------------------------------------------------------------


class Truth(msgspec.Struct, frozen=True):
    """A model of which everything is known."""

    name: str
    size_bytes: float
    compute_s: float
    divisible: float
    update_s: float
    worker_s: float
    hot: float
    overlap: float = 0.5
    wait_s: float = 0.05
    batch_size: float = 64.0

    def computing_s(self, workers: int, batch: float = 1.0) -> float:
        return self.compute_s * (1 - self.divisible + self.divisible * batch / workers)

    def serving_s(self, workers: int, servers: int) -> float:
        share = self.hot + (1 - self.hot) / servers
        return (self.update_s + self.worker_s * workers) * share

    def step_s(self, workers: int, servers: int, batch: float = 1.0) -> float:
        computing_s, serving_s = self.computing_s(workers, batch), self.serving_s(workers, servers)
        power = 1 / (1 - self.overlap)
        waiting_s = self.wait_s * (workers - 1) / (workers + 1)
        return math.pow(computing_s**power + serving_s**power, 1 / power) + waiting_s

    def run(self, workers: int, servers: int, factor: float = 1.0) -> SynchronousRun:
        return SynchronousRun(
            workers=workers,
            servers=servers,
            step_s=factor * self.step_s(workers, servers),
            batch_size=self.batch_size,
            worker_cpu_s=0.95 * CORES * self.computing_s(workers),
            server_cpu_s=CORES * self.serving_s(workers, 1) if servers == 1 else None,
        )

    def model(self, runs: Iterable[tuple[int, int]], factors: Iterable[float]) -> SynchronousModel:
        return SynchronousModel(
            name=self.name,
            parameter_bytes=self.size_bytes,
            compute_s=self.compute_s,
            batch_size=self.batch_size,
            runs=tuple(self.run(*run, f) for run, f in zip(runs, factors, strict=False)),
        )


TRUTHS = (
    Truth("convolutional", 100e6, 0.5, 0.3, 0.7, 0.30, 0.05, 0.6),
    Truth("inception", 40e6, 0.6, 0.5, 0.35, 0.16, 0.15, 0.7),
    Truth("language", 20e6, 0.2, 0.3, 0.4, 0.12, 0.15, 0.3),
    Truth("text", 24e6, 0.7, 0.5, 0.1, 0.1, 0.10, 0.4),
)
EDGES = (
    *((1, 1), (3, 1), (5, 1), (7, 1), (1, 3), (1, 5)),
    *((2, 2), (2, 3), (4, 2), (3, 3)),
)
INSIDE = tuple(itertools.product((3, 5, 7), (3, 5, 7, 11)))


@functools.cache
def exactly(truths: tuple[Truth, ...] = TRUTHS) -> SynchronousFit:
    return fit_synchronous_server([t.model(EDGES, itertools.repeat(1.0)) for t in truths])


def misses(fit: SynchronousFit, truths: Iterable[Truth] = TRUTHS) -> list[float]:
    return [
        fit.predict(t.name, w, p).step_s / t.step_s(w, p) - 1 for t in truths for w, p in INSIDE
    ]


def test_larger_runs_follow_from_smaller_ones() -> None:
    sizes = np.abs(misses(exactly()))
    assert np.median(sizes) < 0.03
    assert sizes.max() < 0.15


def test_what_goes_on_at_the_same_time_is_seen() -> None:
    # canary: the same runs, but one thing after the other
    after = tuple(msgspec.structs.replace(t, overlap=0.0) for t in TRUTHS)
    during = tuple(msgspec.structs.replace(t, overlap=0.9) for t in TRUTHS)
    fits = exactly(after), exactly(during)
    for t in TRUTHS:
        little, much = (fit.predict(t.name, 3, 3) for fit in fits)
        assert little.hidden_s < 0.2 * much.hidden_s
    assert np.median(np.abs(misses(fits[0], during))) > 0.1
    assert np.median(np.abs(misses(fits[1], during))) < 0.05


def test_a_number_of_servers_has_its_own_luck() -> None:
    """Three servers are 20 % slower than the hash of tensors usually has them."""

    def off(unlucky: int) -> float:
        """How far ten workers with three servers are off, when others show the luck of some."""
        models = []
        for t in TRUTHS:
            seen = (*EDGES, (5, 3), (7, 3), (5, 2), (7, 2))
            factors = [1.2 if servers == unlucky else 1.0 for _, servers in seen]
            models.append(t.model(seen, factors))
        fit = fit_synchronous_server(models)
        return float(
            np.mean([math.log(fit.predict(t.name, 10, 3).step_s / t.step_s(10, 3)) for t in TRUTHS])
        )

    assert off(3) > 0.08
    assert abs(off(2)) < 0.05


def test_a_hot_server_is_seen() -> None:
    # canary: the same runs, but nothing stays on one server
    evenly = tuple(msgspec.structs.replace(t, hot=0.0) for t in TRUTHS)
    hot = tuple(msgspec.structs.replace(t, hot=0.3) for t in TRUTHS)
    fits = exactly(evenly), exactly(hot)
    for t in hot:
        plain, burdened = (fit.predict(t.name, 7, 11).server_s for fit in fits)
        assert burdened > 1.5 * plain
    assert np.median(np.abs(misses(fits[0], hot))) > 0.1
    assert np.median(np.abs(misses(fits[1], hot))) < 0.05


def test_the_parts_are_those_of_the_truth() -> None:
    fit = exactly()
    for t in TRUTHS:
        step = fit.predict(t.name, 7, 7)
        parts = step.compute_s + step.wait_s + step.server_s - step.hidden_s
        assert step.step_s == pytest.approx(parts)
        assert step.compute_s == pytest.approx(t.computing_s(7), rel=0.05)


def test_processor_time_of_workers_tells_what_shrinks_with_the_share_of_the_batch() -> None:
    def off(known: bool) -> float:
        fit = exactly() if known else fit_synchronous_server(without_processor_time())
        wrong = [math.log(fit.predict(t.name, 7, 7).compute_s / t.computing_s(7)) for t in TRUTHS]
        return float(np.abs(wrong).mean())

    assert off(known=True) < 0.5 * off(known=False)


def test_processor_time_of_a_server_tells_what_it_does() -> None:
    def off(known: bool) -> float:
        """How far the server's work is off, from one run of each model."""
        others = exactly(TRUTHS[1:])
        new = TRUTHS[0].model([(1, 1)], [1.0])
        if not known:
            runs = tuple(msgspec.structs.replace(run, server_cpu_s=None) for run in new.runs)
            new = msgspec.structs.replace(new, runs=runs)
        found = others.for_model(new).predict(new.name, 1, 1).server_s
        return abs(math.log(found / TRUTHS[0].serving_s(1, 1)))

    assert off(known=True) < 0.05
    assert off(known=True) < 0.5 * off(known=False)


def without_processor_time() -> list[SynchronousModel]:
    """The models, of whose runs nobody measured that of the workers."""
    models = [t.model(EDGES, itertools.repeat(1.0)) for t in TRUTHS]
    return [
        msgspec.structs.replace(
            one, runs=tuple(msgspec.structs.replace(r, worker_cpu_s=None) for r in one.runs)
        )
        for one in models
    ]


def test_another_batch_size_changes_the_part_that_shrinks() -> None:
    fit = exactly()
    for t in TRUTHS:
        double = fit.predict(t.name, 3, 3, batch_size=2 * t.batch_size)
        assert double.step_s == pytest.approx(t.step_s(3, 3, batch=2.0), rel=0.1)
        assert double.step_s > 1.02 * fit.predict(t.name, 3, 3).step_s
        assert fit.predict(t.name, 3, 3, t.batch_size) == fit.predict(t.name, 3, 3)


def test_intervals_hold_nine_of_ten_runs() -> None:
    inside = []
    for seed in range(4):
        generator = np.random.Generator(np.random.Philox(seed))
        models = [t.model(EDGES, np.exp(0.05 * generator.standard_normal(10))) for t in TRUTHS]
        fit = fit_synchronous_server(models)
        for t, (w, p) in itertools.product(TRUTHS, INSIDE):
            step = fit.predict(t.name, w, p)
            low, high = step.uncertainty.interval(step.step_s)
            measured = t.step_s(w, p) * math.exp(0.05 * generator.standard_normal())
            inside.append(low < measured < high)
    assert 0.85 <= np.mean(inside) <= 0.99


def test_what_is_less_known_has_a_wider_interval() -> None:
    fit = exactly()
    near, far = (fit.predict("language", w, p).uncertainty for w, p in ((2, 2), (14, 20)))
    assert near.extrapolation == 0.0
    # 14 of 7 workers: one doubling; 20 of 5 servers: two
    assert far.extrapolation == pytest.approx(3 * 0.03)
    assert far.total > near.total
    others = exactly(TRUTHS[1:])
    new = TRUTHS[0].model([(1, 1)], [1.0])
    once = others.for_model(new).predict(new.name, 5, 5)
    never = others.for_model(msgspec.structs.replace(new, runs=())).predict(new.name, 5, 5)
    known = fit.predict(new.name, 5, 5)
    assert known.uncertainty.total < once.uncertainty.total < never.uncertainty.total


def test_a_new_model_takes_what_is_common() -> None:
    others = exactly(TRUTHS[1:])
    t = TRUTHS[0]
    found = others.for_model(t.model([(1, 1)], [1.0]))
    assert found.predict(t.name, 1, 1).step_s == pytest.approx(t.step_s(1, 1), rel=0.05)
    for w, p in INSIDE:
        step = found.predict(t.name, w, p)
        low, high = step.uncertainty.interval(step.step_s)
        assert low < t.step_s(w, p) < high
    assert found.predict(t.name, 5, 5).note == (
        "convolutional was only run with one worker and one server"
    )
    again = found.without_models().for_model(t.model([(1, 1)], [1.0]))
    assert again.predict(t.name, 5, 5) == found.predict(t.name, 5, 5)


def test_one_run_that_went_wrong_is_not_followed() -> None:
    def off(factors: list[float]) -> float:
        first, *rest = TRUTHS
        models = [t.model(EDGES, itertools.repeat(1.0)) for t in rest]
        fit = fit_synchronous_server([first.model(EDGES, factors), *models])
        return float(np.median(np.abs(misses(fit, [first]))))

    for wrong in (5, 9):
        assert off([2.0 if k == wrong else 1.0 for k in range(len(EDGES))]) < 0.2
    assert off([2.0] * len(EDGES)) > 0.6


def test_notes_say_what_was_not_run() -> None:
    fit = exactly()
    assert fit.predict("text", 7, 5).note == ""
    assert fit.predict("text", 8, 6).note == (
        "8 workers, calibrated on up to 7; 6 servers, calibrated on up to 5"
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: fit_synchronous_server([]), "models: at least one is needed"),
        (lambda: exactly((*TRUTHS, TRUTHS[0])), "models: 'convolutional' is given twice"),
        (
            lambda: fit_synchronous_server([TRUTHS[0].model([], [])]),
            "convolutional: runs: at least one is needed",
        ),
        (
            lambda: exactly().predict("txt", 1, 1),
            "unknown model 'txt'; did you mean 'text'? (known: convolutional, inception, language, "
            "text)",
        ),
        (lambda: exactly().predict("text", 0, 1), "workers: must be at least 1, got 0"),
        (lambda: exactly().predict("text", 1, 0), "servers: must be at least 1, got 0"),
        (lambda: exactly().predict("text", 1, 1, 0.0), "batch_size: must be more than 0, got 0"),
        (lambda: SynchronousRun(1, 1, -1.0, 32), "step_s: must be more than 0, got -1"),
        (
            lambda: SynchronousModel(name="x", parameter_bytes=0.0, compute_s=1.0, batch_size=1.0),
            "x: parameter_bytes: must be more than 0, got 0",
        ),
    ],
)
def test_mistakes_are_named(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError) as error:
        wrong()
    assert str(error.value) == says


# -- a made-up folder ------------------------------------------------------------------------------

GRID = tuple(itertools.product((1, 2, 4, 6), (1, 2, 3, 5, 8)))


def rows_of(truth: Truth, name: str = "") -> list[dict[str, str]]:
    return [
        {
            "model": name or truth.name,
            "sync_mode": "dist_sync",
            "total_batch_size": f"{truth.batch_size:g}",
            "num_ps": str(servers),
            "num_worker": str(workers),
            "speed_sum_samples_per_s": repr(truth.batch_size / truth.step_s(workers, servers)),
            "speed_min_worker": "1",
            "worker_cpu_mean": repr(
                0.95 * CORES * truth.computing_s(workers) / truth.step_s(workers, servers)
            ),
            "ps_cpu_mean": repr(CORES * truth.serving_s(workers, 1) / truth.step_s(workers, 1))
            if servers == 1
            else "2.0",
        }
        for workers, servers in GRID
    ]


def profile_of(truth: Truth, name: str = "") -> dict[str, str]:
    return {
        "model": name or truth.name,
        "local_comp_time_s": repr(truth.compute_s),
        "model_size_MB": repr(truth.size_bytes / 1e6),
    }


def write(path: Path, found: Iterable[dict[str, str]]) -> None:
    listed = list(found)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_folder(path: Path, found: Iterable[dict[str, str]]) -> None:
    write(path / SPEEDS, found)
    write(path / PROFILES, [profile_of(t) for t in TRUTHS])


@pytest.fixture(scope="module")
def made_up_entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dl2.Entry]:
    """Fits to made-up runs of known models."""
    path = tmp_path_factory.mktemp("made_up")
    write_folder(path, [row for t in TRUTHS for row in rows_of(t)])
    return dl2.entries_of(path)


@pytest.fixture
def made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_up_entries: dict[str, dl2.Entry]
) -> Path:
    """A folder of the made-up runs, and their fits in place of those that are kept."""
    (tmp_path / "fitted").mkdir()
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    fitted.write("dl2", made_up_entries)
    write_folder(tmp_path, [row for t in TRUTHS for row in rows_of(t)])
    return tmp_path


def test_made_up_runs_are_predicted_and_none_that_was_fitted_to(made_up: Path) -> None:
    groups = summarise(dl2.cases(made_up))
    quarter = len(GRID) // 4
    assert set(groups) == {
        *(f"dl2/{split}" for split in ("few", "dnn")),
        *(f"dl2/{split}/{t.name}" for split in ("few", "dnn") for t in TRUTHS),
    }
    assert groups["dl2/few"]["n"] == len(TRUTHS) * (len(GRID) - quarter)
    assert groups["dl2/dnn"]["n"] == len(TRUTHS) * (len(GRID) - 1)
    assert groups["dl2/few"]["median"] < 0.06
    few = fitted.read("dl2", dl2.Entry)["few"]
    assert few.rows == len(TRUTHS) * quarter
    assert few.fit.models[0].runs == tuple(
        (w, p, 64.0) for w, p in ((1, 1), (1, 2), (2, 1), (1, 3), (2, 2))
    )


def test_five_terms_are_found_where_they_are_the_truth() -> None:
    def run(w: int, p: int) -> SynchronousRun:
        step_s = 0.01 * 64 / w + 0.2 + 0.3 * w / p + 0.02 * w + 0.01 * p
        return SynchronousRun(w, p, step_s, 64.0)

    some = [run(w, p) for w, p in GRID]
    for relative in (False, True):
        assert dl2.five_terms(some, relative=relative) == pytest.approx(
            (0.01, 0.2, 0.3, 0.02, 0.01), rel=1e-6
        )


def test_other_dnns_orders_and_columns(
    made_up: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = Truth("recurrent", 60e6, 0.3, 0.4, 0.4, 0.2, 0.05)
    before = {case.name: case.predicted for case in dl2.cases(made_up) if "/few/" in case.group}
    (other := tmp_path / "other").mkdir()
    more = rows_of(TRUTHS[0]) + rows_of(new) + rows_of(new, "unheard-of")
    more += [rows_of(new, "waiting")[0] | {"sync_mode": "dist_async"}]
    more += [rows_of(TRUTHS[1])[3] | {"speed_min_worker": "0"}]
    more += [rows_of(TRUTHS[0])[0] | {"num_ps": "16", "num_worker": "12"}]
    more[0] |= {"worker_cpu_mean": "", "ps_cpu_mean": ""}
    write(other / SPEEDS, [dict(reversed((row | {"extra": "1"}).items())) for row in more])
    write(other / PROFILES, [profile_of(TRUTHS[0]), profile_of(new)])
    found = dl2.cases(other)
    said = capsys.readouterr().err
    assert "unheard-of: not in models.csv, left out of the split dnn" in said
    assert "not synchronous, left out: waiting dist_async" in said
    assert "runs in which a worker stopped, left out: 1" in said
    assert {case.group for case in found} == {
        "dl2/few/convolutional",
        "dl2/all/convolutional",
        "dl2/dnn/convolutional",
        "dl2/dnn/recurrent",
    }
    for case in found:
        if "/few/" in case.group and case.name in before:
            assert case.predicted == before[case.name]
    beyond = [case for case in found if case.group == "dl2/all/convolutional"]
    assert [case.name for case in beyond] == ["convolutional 12 workers 16 servers"]
    recurrent = [case for case in found if case.group == "dl2/dnn/recurrent"]
    assert len(recurrent) == len(GRID) - 1
    assert summarise(recurrent)["dl2/dnn/recurrent"]["coverage90"] > 0.8
    assert np.median(np.abs([c.error for c in recurrent])) < 0.25


def test_a_dnn_without_its_smallest_run(made_up: Path, tmp_path: Path) -> None:
    new = Truth("recurrent", 60e6, 0.3, 0.4, 0.4, 0.2, 0.05)
    write(made_up / SPEEDS, rows_of(new)[1:])
    write(made_up / PROFILES, [profile_of(new)])
    found = dl2.cases(made_up)
    assert len(found) == len(GRID) - 1
    assert all("ideal scaling" not in case.others for case in found)
    assert np.median(np.abs([case.error for case in found])) < 0.5
    # without its size and computing time nothing is left
    (made_up / PROFILES).unlink()
    with pytest.raises(InputError, match="no run that can be predicted"):
        dl2.cases(made_up)
    with pytest.raises(InputError, match="at least two DNNs"):
        dl2.fit(made_up)


def alike(one: SynchronousFit, other: SynchronousFit, rel: float) -> bool:
    """Whether two fits predict the same."""
    if one.common != pytest.approx(other.common, abs=rel):
        return False
    for name, w, p in itertools.product([m.name for m in one.models], (1, 7), (1, 11)):
        first, second = (fit.predict(name, w, p) for fit in (one, other))
        if first.step_s != pytest.approx(second.step_s, rel=rel):
            return False
        if first.uncertainty.total != pytest.approx(second.uncertainty.total, rel=rel):
            return False
    return True


@pytest.mark.parametrize("within", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_predicted_is_never_fitted_to(
    tmp_path: Path, made_up_entries: dict[str, dl2.Entry], within: bool
) -> None:
    """Runs get twice as fast; only if they are among those calibrated on do the fits change."""
    name = TRUTHS[0].name
    few = set(made_up_entries["few"].fit.models[0].runs)
    changed = []
    for row in (row for t in TRUTHS for row in rows_of(t)):
        here = int(row["num_worker"]), int(row["num_ps"]), float(row["total_batch_size"])
        if row["model"] == name and (here in few) == within:
            row["speed_sum_samples_per_s"] = str(2.0 * float(row["speed_sum_samples_per_s"]))
        changed.append(row)
    write_folder(tmp_path, changed)
    after = dl2.entries_of(tmp_path)
    assert alike(after["few"].fit, made_up_entries["few"].fit, rel=1e-4) != within
    own, other = f"dnn/{name}", f"dnn/{TRUTHS[1].name}"
    assert alike(after[own].fit, made_up_entries[own].fit, rel=1e-4)
    assert not alike(after[other].fit, made_up_entries[other].fit, rel=1e-4)
    terms, again = made_up_entries["few"].five_terms, after["few"].five_terms
    assert (terms[name] == pytest.approx(again[name])) != within


# -- the measured runs -----------------------------------------------------------------------------


def test_step_times_are_met(folder: Path) -> None:
    groups = summarise(dl2.cases(folder))
    few = groups["dl2/few"]
    assert few["n"] >= 100
    assert few["median"] < 0.08
    assert few["p90"] < 0.20
    five = few["others"][dl2.FIVE_TERMS]
    for figure in ("median", "p90"):
        assert few[figure] <= 2 / 3 * five[figure]
    assert few["median"] < 0.2 * few["others"]["ideal scaling"]["median"]
    for split in ("few", "dnn"):
        assert 0.85 <= groups[f"dl2/{split}"]["coverage90"] <= 0.96
    assert groups["dl2/dnn"]["median"] < 0.12
    assert groups["dl2/dnn"]["p90"] < 0.35


@pytest.mark.slow
def test_the_fits_are_those_of_the_runs(folder: Path) -> None:
    entries = dl2.entries_of(folder)
    kept = fitted.read("dl2", dl2.Entry)
    assert entries.keys() == kept.keys()
    for name, entry in kept.items():
        assert entries[name].rows == entry.rows
        assert alike(entries[name].fit, entry.fit, rel=1e-2)
        for dnn, terms in entry.five_terms.items():
            assert entries[name].five_terms[dnn] == pytest.approx(terms, rel=1e-6)
