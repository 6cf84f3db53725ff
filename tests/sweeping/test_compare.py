"""Comparisons: every second of a difference is accounted for, in numbers and in text."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import (
    Comparison,
    InputError,
    Jitter,
    Job,
    Prediction,
    Straggler,
    compare,
    make_job,
    predict,
)
from perfmodel.cli import cli, main
from perfmodel.graph.op_graph import CAUSES
from perfmodel.phases.variation import UNEQUAL
from perfmodel.reporting.colours import CAUSE_COLOURS
from perfmodel.sweeping.comparison import WORDS, both_to_dict, differences, parts_s
from perfmodel.sweeping.labels import distinct
from tests.jobs import ETHERNET, cluster, job, third_of_variants, workload
from tests.results.readable import bars

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)


def ring(bandwidth_bytes_per_s: float = 1.0, workers: int = 2, **fields: Any) -> Job:
    """Computes 4 s, then sends 2(n-1)/n of 3 bytes."""
    work = fields.pop("work", WORK)
    where = cluster(bandwidth_bytes_per_s)
    return job(work, where, workers, "ring", {"overlap": False}, **fields)


def run(command: str) -> tuple[str, str]:
    """Standard output and standard error of a command that succeeds."""
    done = CliRunner().invoke(cli, command.split(), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, done.stderr


# -- parts -------------------------------------------------------------------------------------


def unaccounted(p: Prediction) -> list[str]:
    """Difference between a prediction's iteration and the sum of its parts."""
    wrong = []
    if sum(parts_s(p).values()) != pytest.approx(p.iteration_s, rel=1e-9):
        wrong.append("iteration")
    per_sample = sum(parts_s(p, per_sample=True).values())
    if per_sample != pytest.approx(1.0 / p.throughput_samples_per_s, rel=1e-9):
        wrong.append("throughput")
    return wrong


@pytest.mark.sampled(4)
@third_of_variants()
def test_parts_add_up(arch: str, options: dict[str, Any]) -> None:
    work = workload([0.5, 1.0], [1.0, 1.0], [20.0, 10.0], batch_size=3, data_loading_s=0.1)
    where = cluster(15.0, 0.01, update_per_tensor_s=0.05)
    made = job(work, where, 4, arch, options, stragglers=[Straggler(1, 1.5)], seed=1)
    assert unaccounted(predict(made, rel_ci=0.5)) == []
    assert unaccounted(predict(made, fidelity="coarse")) == []


@pytest.mark.parametrize("cause", ["network", "straggler", "compute"])
def test_canary_a_missing_part_is_noticed(cause: str) -> None:
    p = predict(ring(stragglers=[Straggler(1, 1.5)]))
    assert unaccounted(p) == []
    if cause == "compute":
        broken = msgspec.structs.replace(p, compute_s=0.9 * p.compute_s)
    else:
        others = {c: part for c, part in p.idle_fraction.by_cause.items() if c != cause}
        assert len(others) < len(p.idle_fraction.by_cause)
        idle = msgspec.structs.replace(p.idle_fraction, by_cause=others)
        broken = msgspec.structs.replace(p, idle_fraction=idle)
    assert unaccounted(broken) == ["iteration", "throughput"]


def test_each_cause_has_words_and_a_colour() -> None:
    assert list(WORDS) == list(CAUSE_COLOURS)
    assert set(WORDS) == {"compute", *CAUSES, UNEQUAL}


# -- sentences ---------------------------------------------------------------------------------


def test_a_faster_network_by_hand() -> None:
    """4 s computing and 3 bytes: 3 s at 1 byte/s, 1 s at 3 bytes/s; 7 s instead of 5 s."""
    result = compare([ring(1.0), ring(3.0)], ["slow", "fast"])
    assert result.text == [
        "fast is 40% faster than slow: an iteration takes 5 s instead of 7 s; the whole difference "
        "is waiting for the network (busiest: link out of node 0, 43% in use)"
    ]


def test_a_straggler_by_hand() -> None:
    """At half speed, one of 2 workers computes 8 s: the other waits 4 s; they compute 6 s on
    average.

    At 1 byte/s instead of 3 the network takes 3 s instead of 1 s: 9 s and 7 s.
    """
    lame = ring(3.0, stragglers=[Straggler(0, 2.0)])
    result = compare([lame, ring(1.0)], ["lame", "slow"])
    assert result.text == [
        "slow is 28.6% faster than lame: an iteration takes 7 s instead of 9 s; the 2 s "
        "difference is 2 s more computing, 2 s more waiting for another worker and 2 s less "
        "waiting for the network"
    ]


def test_large_ratios_are_given_as_factors() -> None:
    """4 s + 3 s at 1 byte/s, 4 s + 12 s at a quarter of it."""
    text = compare([ring(0.25), ring(1.0)], ["a", "b"]).text[0]
    assert text.startswith("b is 2.29 times as fast as a: an iteration takes 7 s instead of 16 s; ")


def test_other_numbers_of_workers_are_compared_per_sample_by_hand() -> None:
    """8 samples in 7 s, 16 in 8.5 s: 0.875 s and 0.53125 s each."""
    result = compare([ring(), ring(workers=4)], ["two", "four"])
    assert result.per_sample
    assert result.text == [
        "four is 1.65 times as fast as two: all workers together need 531.2 ms instead of 875 ms "
        "per sample (global batches are 16 and 8 samples; iterations take 8.5 s and 7 s); the "
        "343.8 ms difference is 250 ms more computing and 93.75 ms more waiting for the network "
        "(busiest: link out of node 0, 43% in use)"
    ]


def test_equal_jobs_are_equally_fast() -> None:
    result = compare([ring(), ring()])
    assert result.names == ("job", "job (2)")
    assert result.text == ["job and job (2) are equally fast"]
    assert result.differing == ({}, {})


def test_a_difference_within_the_confidence_intervals_counts_as_equal() -> None:
    one, other = (ring(jitter=Jitter(0.3), seed=seed) for seed in (1, 2))
    text = compare([one, other], ["a", "b"], rel_ci=0.1).text[0]
    assert "are equally fast within their uncertainty (± " in text
    slower = compare([one, ring(0.5, jitter=Jitter(0.3))], ["a", "b"], rel_ci=0.1).text[0]
    assert slower.startswith("a is ")


def test_a_difference_within_the_error_of_coarse_predictions_counts_as_equal() -> None:
    """Asynchronous workers on links of 1 and of 1.001 bytes/s."""
    jobs = [job(WORK, cluster(rate), 4, "ps", {"sync": "asp"}) for rate in (1.0, 1.001)]
    result = compare(jobs, ["a", "b"], fidelity="coarse")
    band = result.predictions[0].error_band
    assert band is not None
    assert band.p90 is not None
    assert result.text == [f"b and a are equally fast within their uncertainty (± {band.p90:.1%})"]


def test_stale_gradients_are_mentioned() -> None:
    """If no worker waits for a straggler, staleness is the number of other workers."""
    bsp, asp = (
        job(WORK, cluster(100.0), 3, "ps", {"sync": sync}, stragglers=[Straggler(0, 2.0)])
        for sync in ("bsp", "asp")
    )
    result = compare([bsp, asp], ["bsp", "asp"])
    stale = result.predictions[1].staleness
    assert stale is not None
    assert stale.mean == pytest.approx(2.0, rel=0.01)
    assert result.text[-1] == (
        f"throughput is not progress: mean gradient staleness is {stale.mean:.3g} updates with asp "
        "and 0 with bsp"
    )
    assert len(compare([bsp, ring()]).text) == 1


def test_the_order_of_jobs_does_not_matter() -> None:
    jobs = {"a": ring(1.0), "b": ring(9.0), "c": ring(3.0)}
    texts = [
        compare([jobs[name] for name in names], names).text
        for names in itertools.permutations(jobs)
    ]
    assert all(text == texts[0] for text in texts)
    assert [text.split()[0] for text in texts[0]] == ["b", "b"]
    assert "faster than c" in texts[0][0]
    assert "as fast as a" in texts[0][1]


# -- what differs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"workers": 2}, {"workers": 4}, {"workers": (2, 4)}),
        (
            {"arch": "ring"},
            {"arch": "ps"},
            {"arch": ("allreduce", "ps"), "algorithm": ("ring", None)},
        ),
        (
            {"arch": "ring"},
            {"arch": "ps", "options": {"servers": 2}},
            {"arch": ("allreduce", "ps"), "algorithm": ("ring", None), "servers": (None, 2)},
        ),
        ({"arch": "bsp"}, {"arch": "asp"}, {"sync": ("bsp", "asp")}),
        ({"start": "together"}, {"start": "staggered"}, {"start": ("together", "staggered")}),
        ({"jitter": 0.1}, {}, {"jitter": (0.1, 0.0)}),
        ({"stragglers": [Straggler(1, 2.0)]}, {}, {"stragglers": ("1:2", "none")}),
        ({"seed": 1}, {"seed": 2}, {"seed": (1, 2)}),
        (
            {"cluster": ETHERNET, "bandwidth_bytes_per_s": 1e9},
            {"cluster": ETHERNET, "latency_s": 0.0},
            {"bandwidth_bytes_per_s": (1e9, 1.25e9), "latency_s": (2.5e-5, 0.0)},
        ),
        (
            {"options": {"partition_bytes": float("inf")}},
            {"options": {"partition_bytes": 1e6}},
            {"partition_bytes": ("inf", 1e6)},
        ),
    ],
)
def test_only_differing_inputs_are_listed(
    one: dict[str, Any], other: dict[str, Any], expected: dict[str, tuple[Any, Any]]
) -> None:
    base = {"model": "resnet18", "workers": 3}
    result = compare([make_job(**{**base, **one}), make_job(**{**base, **other})], rel_ci=0.5)
    rows = result.differing
    assert {name: (rows[0][name], rows[1][name]) for name in rows[0]} == expected


def test_names_are_made_of_differing_inputs() -> None:
    one = make_job(model="resnet18", arch="ps", workers=4, cluster="infiniband-56g")
    other = make_job(model="resnet18", arch="ps", workers=4, options={"servers": 2})
    assert compare([one, other]).names == (
        "infiniband-56g, 1 server",
        "ethernet-10g, 2 servers",
    )
    both = [predict(one, fidelity=fidelity) for fidelity in ("fine", "coarse")]
    assert compare(both).names == ("fine", "coarse")
    assert distinct(["a", "", "a", "a", ""]) == ["a", "job", "a (2)", "a (3)", "job (2)"]


# -- the table ---------------------------------------------------------------------------------


def test_a_row_adds_up() -> None:
    result = compare([ring(stragglers=[Straggler(1, 1.5)]), job(WORK, cluster(), 2, "ps")])
    frame = result.to_frame()
    idle = [name for name in frame if name.startswith("idle_") and name.endswith("_s")]
    assert idle == ["idle_network_s", "idle_straggler_s"]
    total = frame["compute_s"] + frame[idle].sum(axis=1)
    assert total.tolist() == pytest.approx(frame["iteration_s"].tolist(), rel=1e-9)
    assert frame["of_best_fraction"].max() == 1.0


def test_given_predictions_are_used_unchanged() -> None:
    predictions = [predict(ring(1.0)), predict(ring(3.0))]
    result = compare(predictions)
    assert result.predictions == tuple(predictions)
    assert result == compare([ring(1.0), predictions[1]])


@pytest.mark.parametrize(
    ("count", "names", "said"),
    [
        (1, None, "compare: needs at least two jobs, got 1"),
        (17, None, "compare: 17 jobs; at most 16 (use perfmodel sweep for more)"),
        (2, ["a"], "names: expected 2 different names, got ['a']"),
        (2, ["a", "a"], "names: expected 2 different names, got ['a', 'a']"),
    ],
)
def test_invalid_comparisons_are_refused(count: int, names: list[str] | None, said: str) -> None:
    with pytest.raises(InputError) as error:
        compare([ring()] * count, names)
    assert str(error.value) == said


@pytest.mark.draws
def test_the_bars_of_a_figure_are_as_long_as_the_iterations() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    result = compare([ring(1.0, stragglers=[Straggler(1, 1.5)]), ring(3.0)], ["a", "b"])
    drawing = result.plot()
    ends = {row: end for row, _, end in bars(result)}
    assert sorted(ends.values()) == pytest.approx(sorted(p.iteration_s for p in result.predictions))
    labels = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert labels == ["compute", "network", "straggler", "90 % interval"]
    assert "time per sample" in compare([ring(), ring(workers=4)]).plot().axes[0].get_xlabel()
    assert result.to_image("svg").startswith(b"<?xml")


# -- two predictions of one job ----------------------------------------------------------------


def test_differences_by_hand() -> None:
    """5 s instead of 7 s, 1 s idle instead of 3 s."""
    slow, fast = predict(ring(1.0)), predict(ring(3.0))
    assert differences(slow, fast) == pytest.approx(
        {
            "throughput_samples_per_s": 7 / 5 - 1,
            "iteration_s": 5 / 7 - 1,
            "idle_fraction": 1 / 5 - 3 / 7,
            "staleness_mean": 0.0,
        }
    )
    assert set(differences(slow, slow).values()) == {0.0}


def test_a_difference_from_zero_is_none() -> None:
    bsp, asp = (
        predict(job(WORK, cluster(8.0), 3, "ps", {"sync": sync})) for sync in ("bsp", "asp")
    )
    assert differences(bsp, asp)["staleness_mean"] is None
    assert differences(asp, bsp)["staleness_mean"] == -1.0
    assert both_to_dict(bsp, asp)["difference_fraction"]["staleness_mean"] is None


PREDICT = "predict --model resnet50 --device v100 --arch ps --workers 8 --cluster ethernet-10g"


@pytest.mark.slow
def test_both_fidelities_and_their_difference() -> None:
    result = json.loads(run(f"{PREDICT} --sync asp --rel-ci 5% --fidelity both --json")[0])
    made = make_job(model="resnet50", device="v100", cluster="ethernet-10g", arch="asp", workers=8)
    fine, coarse = predict(made, rel_ci=0.05), predict(made, fidelity="coarse")
    assert list(result) == ["fine", "coarse", "difference_fraction"]
    assert result["fine"]["iteration_s"] == fine.iteration_s
    assert result["coarse"]["iteration_s"] == coarse.iteration_s
    assert result["difference_fraction"] == differences(fine, coarse)
    text, _ = run(f"{PREDICT} --sync asp --rel-ci 5% --fidelity both")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    change = coarse.throughput_samples_per_s / fine.throughput_samples_per_s - 1
    assert rows["samples/s"][-1] == f"{change:+.1%}"
    assert coarse.error_band is not None
    assert f"coarse: {coarse.error_band.text}" in text


def test_a_coarse_prediction_shows_its_phases_and_its_error() -> None:
    text, _ = run(f"{PREDICT} --fidelity coarse")
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "it equals the simulation for this job" in lines["by"]
    assert "phases" not in lines
    text, _ = run(f"{PREDICT} --fidelity coarse --verbose")
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "pull" in lines["phases"]
    assert lines["phases"].rstrip().endswith("of an iteration")


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sync", "chosen"), [("bsp", "coarse:"), ("asp", "fine, because")])
def test_auto_notes_its_choice_and_the_reason(sync: str, chosen: str) -> None:
    command = f"{PREDICT} --sync {sync} --rel-ci 20% --fidelity auto --tolerance 0.1%"
    notes = json.loads(run(f"{command} --json")[0])["notes"]
    assert [note[: len(chosen)] for note in notes] == [chosen]
    assert f"note: {chosen}" in run(command)[0]


# -- the command line --------------------------------------------------------------------------

COMMAND = "compare --model vgg16 --device v100 --workers 4"


def called(**fields: Any) -> Comparison:
    """The library call that the command makes: a parameter server against a ring."""
    base = {"model": "vgg16", "device": "v100", "workers": 4}
    jobs = [make_job(**base, arch="ring"), make_job(**base, arch="ps", **fields)]
    return compare(jobs, ["ring", "ps"])


def test_the_command_equals_the_library_call() -> None:
    result, message = run(f"{COMMAND} --arch ring,ps --json")
    assert json.loads(result) == called().to_dict()
    assert message == ""


def test_the_table_has_a_column_for_each_job_and_ends_in_sentences() -> None:
    text, message = run(f"{COMMAND} --arch ring,ps --servers 2")
    assert message == "note: servers does not apply to ring and is ignored there\n"
    lines = text.splitlines()
    assert lines[0] == "vgg16, v100, batch 16, 4 workers"
    assert lines[1].split() == ["ring", "ps"]
    assert " ".join(called(options={"servers": 2}).text[0].split()) in " ".join(text.split())


def test_job_files_are_compared_by_their_names(tmp_path: Path) -> None:
    for name, arch in (("old", "ps"), ("new", "ring")):
        (tmp_path / f"{name}.toml").write_text(
            f'schema = "perfmodel.job/1"\nmodel = "resnet18"\narch = "{arch}"\n'
        )
    files = f"--job {tmp_path / 'old.toml'} --job {tmp_path / 'new.toml'}"
    result = json.loads(run(f"compare {files} --workers 2 --json")[0])
    assert [row["job"] for row in result["rows"]] == ["old", "new"]
    result = json.loads(run(f"compare {files} --workers 2,3 --json")[0])
    assert [row["job"] for row in result["rows"]] == [
        "old, 2 workers",
        "old, 3 workers",
        "new, 2 workers",
        "new, 3 workers",
    ]


def test_an_impossible_job_is_left_out_and_reported(tmp_path: Path) -> None:
    result, message = run(f"{COMMAND} --arch ring,ps,p2p --global-batch-size 64,63 --json")
    assert len(json.loads(result)["rows"]) == 3
    assert message == (
        "skipped 3 jobs (the first: global batch 63, ring): "
        "global_batch_size: 63 samples cannot be split evenly among 4 workers\n"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (COMMAND, "compare: needs at least two jobs, got 1"),
        (f"{COMMAND} --arch ring,rng", "unknown architecture 'rng'; did you mean 'ring'?"),
        (
            f"{COMMAND} --global-batch-size 64,63",
            "compare: needs at least two jobs; global_batch_size: 63 samples cannot be split",
        ),
        (f"{COMMAND} --seed 1..17", "compare: 17 jobs; at most 16 (use perfmodel sweep for more)"),
        ("compare --job a.toml --job b.toml", "a.toml: cannot read: No such file"),
        (f"{COMMAND} --arch ring,ps --plot missing/a.png", "missing/a.png: cannot write: "),
        (f"{COMMAND} --arch ring,ps --tolerance 5%", "--tolerance: needs --fidelity auto"),
    ],
)
def test_wrong_command_lines_are_refused(
    command: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["perfmodel", *command.split()])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"perfmodel: error: {said}")


def test_an_invalid_job_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, workers in (("good", 2), ("bad", 0)):
        (tmp_path / f"{name}.toml").write_text(
            f'schema = "perfmodel.job/1"\nmodel = "resnet18"\nworkers = {workers}\n'
        )
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "--job", "good.toml", "--job", "bad.toml"]
    monkeypatch.setattr(sys, "argv", ["perfmodel", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == (
        "perfmodel: error: bad.toml: workers: must be at least 1, got 0\n"
    )
