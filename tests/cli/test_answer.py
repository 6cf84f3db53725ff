"""What commands print: the answer first, then the assumptions that matter."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import make_job, predict
from perfmodel.architectures import registry
from perfmodel.base.errors import TooLargeError
from perfmodel.cli import cli
from perfmodel.predicting.effects import effects
from perfmodel.results.effects import MATTERS, Effect
from perfmodel.studies.robustness import robustness
from tests.settings import thinned

PS: dict[str, Any] = {
    "model": "resnet50",
    "device": "v100",
    "cluster": "ethernet-10g",
    "workers": 8,
}
COMMAND = "--model resnet50 --device v100 --cluster ethernet-10g --workers 8"
HEAD = "assumed"


def printed(command: str) -> tuple[list[str], list[str]]:
    """The lines of the answer, and those of the assumptions behind it."""
    done = CliRunner().invoke(cli, command.split(), catch_exceptions=False)
    assert done.exit_code == 0
    answer, _, assumed = done.stdout.partition(f"\n\n{HEAD}")
    return answer.rstrip("\n").splitlines(), assumed.splitlines()[1:]


def named(lines: list[str]) -> list[str]:
    """The first column of the assumptions; the last line counts the others."""
    return [re.split(r"  +", line)[0] for line in lines if "--verbose" not in line]


def rate(given: dict[str, Any]) -> float:
    return predict(make_job(**given), fidelity="coarse").throughput_samples_per_s


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", registry.names())
@pytest.mark.parametrize("more", ["", " --fidelity coarse"])
def test_the_answer_has_eight_lines_at_most(arch: str, more: str) -> None:
    answer, _ = printed(f"predict --model resnet18 --workers 4 --arch {arch} --rel-ci 20%{more}")
    assert [line for line in answer if line.startswith("throughput")]
    assert len([line for line in answer if not line.startswith("note:")]) <= 8


def test_assumptions_that_matter_are_shown_and_the_others_counted() -> None:
    worth = effects(make_job(**PS))
    matter = [each.assumption.name for each in worth if each.swing > math.log(1.02)]
    assert {"bandwidth", "servers", "batch_size"} <= {*matter}
    _, lines = printed(f"predict {COMMAND}")
    assert named(lines) == [*matter, "precision"]
    count, _, others = lines[-1].partition(" ")
    unknown = sum(each.left_out for each in worth)
    unvaried = sum(not each.alternatives and not each.left_out for each in worth) - 1
    assert int(count) == len(worth) - len(matter) - 1 - unknown - unvaried
    assert f"formulas cannot judge {unknown} more; {unvaried} are not varied" in others
    assert unvaried > 5  # such as costs of updates that are usual losses
    assert unknown == 1  # transmission=quantum


def test_one_thing_is_in_the_singular() -> None:
    """One other worker, and a model sent in each step; and two of each."""
    for workers, staleness in ((2, "1 update "), (3, "2 updates ")):
        answer, _ = printed(f"predict --model resnet18 --arch asp --workers {workers}")
        line = next(line for line in answer if line.startswith("staleness"))
        assert f" {staleness}" in line
    answer, _ = printed("predict --model resnet18 --iterations 1 -q")
    assert any(line.endswith("mean of each worker's first iteration") for line in answer)
    for chance, words in (("1", "an exchange every step"), ("0.5", "an exchange every 2 steps")):
        options = f"--arch gosgd --option probability={chance} --workers 2"
        answer, _ = printed(f"predict --model resnet18 {options}")
        assert any(line.endswith(words) for line in answer)


@pytest.mark.parametrize(
    ("islands", "text"), [("2+2", "batch 64 per island (128 in all)"), ("2+1", "batch 96 in all")]
)
def test_the_batch_of_unequal_islands_is_not_that_of_the_first(islands: str, text: str) -> None:
    more = f"--arch local_sgd --workers 2 --island-devices {islands} -q"
    answer, _ = printed(f"predict --model resnet18 {more}")
    assert f", {text}, " in answer[0]


def test_canary_a_fast_network_does_not_matter() -> None:
    _, lines = printed("predict --model resnet18 --workers 2 --arch ring --cluster ethernet-100g")
    assert "bandwidth" not in named(lines)


def test_the_change_is_that_of_a_prediction_with_the_other_value() -> None:
    _, lines = printed(f"predict {COMMAND}")
    servers = next(line for line in lines if line.startswith("servers"))
    one, two = (rate({**PS, "options": {"servers": count}}) for count in (1, 2))
    assert f"{two / one - 1.0:+.1%} with 2;" in servers


def test_what_is_given_is_not_assumed() -> None:
    _, lines = printed(f"predict {COMMAND} --bandwidth 10Gbps --servers 1")
    assert {"bandwidth", "servers"}.isdisjoint(named(lines))


def test_verbose_prints_all_figures_and_all_assumptions() -> None:
    answer, lines = printed(f"predict {COMMAND} -v")
    assert {"mean", "busiest"} <= {line.split()[0] for line in answer}
    assert named(lines) == [effect.assumption.name for effect in effects(make_job(**PS))]
    assert not any("--verbose" in line for line in lines)


@pytest.mark.slow
def test_explain_prints_all_assumptions() -> None:
    _, lines = printed(f"explain {COMMAND}")
    assert named(lines) == [effect.assumption.name for effect in effects(make_job(**PS))]


@pytest.mark.parametrize(
    "command", thinned(["predict", "sweep", "explain", "compare --arch ring,ps"], 4)
)
def test_quiet_prints_the_answer_only(command: str) -> None:
    answer, lines = printed(f"{command} {COMMAND} --quiet")
    assert answer
    assert lines == []
    assert printed(f"{command} {COMMAND}")[1] != []


def test_a_sweep_prints_what_its_fastest_job_assumes() -> None:
    _, lines = printed(f"sweep {COMMAND} --arch ring,ps --servers 1,4 --bandwidth 1Gbps,10Gbps")
    fastest = {**PS, "arch": "ring", "bandwidth_bytes_per_s": 1.25e9}
    worth = [each for each in effects(make_job(**fastest)) if each.matters]
    assert named(lines) == [each.assumption.name for each in worth]


@pytest.mark.slow
def test_a_long_sweep_prints_its_fastest_jobs() -> None:
    answer, _ = printed("sweep --model resnet18 --arch ring --workers 1..60")
    workers = [int(line.split()[0]) for line in answer[2:-1]]
    assert workers == [*range(11, 61)]
    assert answer[-1].startswith("the 50 fastest of 60 jobs")
    every, _ = printed("sweep --model resnet18 --arch ring --workers 1..60 -v")
    assert len(every) == 62


def test_a_comparison_prints_what_shifts_its_jobs() -> None:
    jobs = [{**PS, "arch": arch} for arch in ("ring", "ps")]
    result = robustness([make_job(**each) for each in jobs])
    _, lines = printed(f"compare {COMMAND} --arch ring,ps")
    assert named(lines) == [each.assumption.name for each in result if each.matters]
    overlap = next(each for each in result if each.assumption.name == "bandwidth")
    half, _ = overlap.shifts
    rates = [rate({**each, "bandwidth_bytes_per_s": 0.625e9}) for each in jobs]
    now = [rate(each) for each in jobs]
    assert half.ratios == pytest.approx([a / b for a, b in zip(rates, now, strict=True)])
    shown = next(line for line in lines if line.startswith("bandwidth"))
    assert f"{half.ratios[1] - 1.0:+.1%} (ps)" in shown


def test_a_comparison_says_which_assumption_decides_it() -> None:
    """Servers beside each worker win on these links; on half the bandwidth the ring does."""
    command = (
        "compare --model resnet50 --device v100 --cluster ethernet-10g --workers 4 --arch ring,asp "
        "--servers 4"
    )
    _, lines = printed(f"{command} --fidelity coarse")
    bandwidth = next(line for line in lines if line.startswith("bandwidth"))
    assert re.search(r"with 5 Gbps [^;]*, and ring is the fastest;", bandwidth)
    assert not re.search(r"with 20 Gbps [^;]*fastest", bandwidth)


def test_an_effect_at_the_limit_does_not_matter() -> None:
    job = make_job(**PS)
    effect = next(each for each in effects(job) if each.assumption.name == "bandwidth")
    assert effect.matters
    small = msgspec.structs.replace(effect.alternatives[0], ratio=1.0 + 0.99 * MATTERS)
    assert not Effect(effect.assumption, (small,)).matters


def test_a_plan_prints_what_its_first_candidate_assumes() -> None:
    command = (
        "plan --model resnet50 --dataset-size 100000 --fidelity coarse --top 2 --arch ring,ps "
        "--instance p3.2xlarge,p3.8xlarge --workers 1,4,8 --batch-size 64,128"
    )
    answer, lines = printed(command)
    assert "compute time" in named(lines)
    assert not [line for line in answer if line.startswith("None is both")]
    everything, _ = printed(f"{command} -v")
    assert [line for line in everything if line.startswith("None is both")]


# -- jobs that are too large to simulate ---------------------------------------------------------

TOO_LARGE = (
    "predict --model alexnet --arch ps --sync asp --workers 9999 --servers 80 --max-ops 100_000"
)


@pytest.mark.slow
def test_a_job_that_is_too_large_to_simulate_is_answered_by_formulas() -> None:
    """With the error of formulas, and the reason."""
    answer, _ = printed(TOO_LARGE)
    band = next(line for line in answer if line.startswith("by formulas"))
    assert "ps asp with many workers" in band
    assert "% interval " in answer[1]
    note = next(line for line in answer if line.startswith("note: coarse, as simulating ps with"))
    assert "above the limit of --max-ops 100000" in note


@pytest.mark.parametrize("more", ["--fidelity fine", "--iterations 5", "--trace /tmp/trace.json"])
def test_a_simulation_that_is_asked_for_is_not_replaced(more: str) -> None:
    with pytest.raises(TooLargeError, match="above the limit of --max-ops"):
        printed(f"{TOO_LARGE} {more}")


def test_formulas_of_unknown_error_replace_no_simulation() -> None:
    with pytest.raises(TooLargeError):
        printed(f"{TOO_LARGE} --option transmission=priority")
