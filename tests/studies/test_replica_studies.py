"""Studies of jobs whose workers are replicas of several devices."""

import json
import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import InputError
from perfmodel.cli import cli
from perfmodel.studies import crossovers, divisions, formulas
from perfmodel.studies.rules import RULES, Situation
from tests.predicting.test_replicas import equal, job

GPT: dict[str, Any] = {"model": "gpt2-small", "device": "a100", "arch": "ring", "workers": 2,
                       "pipeline": 2, "batch_size": 8}  # fmt: skip
WORDS = shlex.split(
    "--model gpt2-small --device a100 --arch ring --workers 2 --pipeline 2 --batch-size 8"
)


def test_a_bubble_by_hand_is_a_phase():
    """Eight passes of 3 s in four stages: the device computes for 24 s of 33."""
    made = job(equal(4, 8), 4)
    explained = crossovers.explain(made)
    assert explained.rules == "compute"
    assert explained.phases_s["pipeline bubble"] == pytest.approx(9.0, rel=1e-6)
    assert explained.phases_s["compute"] == pytest.approx(24.0, rel=1e-6)


@pytest.mark.slow
def test_micro_batches_at_which_computing_takes_longer_than_the_bubble():
    """The bubble does not depend on their number, so that more of them compute for longer."""
    made = pm.make_job(**{**GPT, "pipeline": 3, "micro_batches": 4})
    (crossover,) = [c for c in crossovers.explain(made).crossovers if c.variable == "micro_batches"]
    assert (crossover.below, crossover.above) == ("pipeline bubble", "compute")
    rules = {
        count: crossovers.explain(made.with_(micro_batches=count)).rules for count in (1, 2, 4, 8)
    }
    assert crossover.value == min(count for count, phase in rules.items() if phase == "compute")
    assert crossover.value > 1


@pytest.mark.slow
def test_jobs_of_replicas_are_compared_over_workers():
    ring, ps = (pm.make_job(**{**GPT, "arch": arch}) for arch in ("ring", "ps"))
    result = crossovers.between(ring, ps, "bandwidth_bytes_per_s", ("ring", "ps"))
    for crossover in result:
        assert {crossover.below, crossover.above} == {"ring", "ps"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("variable", "aim", "launches", "holds", "value"),
    [
        ("micro-batches", "idle<0.3", "eager", "from", 4),
        pytest.param("stages", "idle<0.1", "eager", "up to", 1, marks=pytest.mark.slow),
        pytest.param(
            *("pipeline", "throughput>400", "eager", "from", None), marks=pytest.mark.slow
        ),
        # the host launches the sums of divided layers, too: with graphs they are worth it
        ("tensor", "throughput>440", "eager", "up to", 1),
        ("tensor", "throughput>1200", "graphs", "from", 2),
    ],
)
def test_numbers_of_replicas_are_found(variable, aim, launches, holds, value):
    made = pm.make_job(**GPT, micro_batches=4, launches=launches)
    result = pm.require(variable, aim, made)
    assert result.values.holds == holds
    name = {"stages": "pipeline"}.get(variable, variable.replace("-", "_"))
    at = result.values.value
    if value is not None:
        assert at == value
    wanted = pm.Aim.parse(aim)
    met = pm.predict(made.with_(**{name: int(at), "batch_size": 8}), fidelity="coarse")
    quantity = met.idle_fraction.mean if "idle" in aim else met.throughput_samples_per_s
    assert wanted.met(quantity)


def test_what_cannot_be_varied_says_so():
    made = job(equal(4, 8), 4)
    with pytest.raises(InputError, match="micro_batches: the job is possible only with 8"):
        pm.require("micro-batches", "idle<0.1", made)
    with pytest.raises(InputError, match="evaluate: workers are replicas"):
        pm.evaluate(made, workers=[1, 2])
    with pytest.raises(InputError, match="in symbols"):
        formulas.formula(made)


@pytest.mark.slow
def test_advice_divides_the_model_otherwise_and_its_flags_do_so():
    advice = pm.advise(pm.make_job(**{**GPT, "pipeline": 4}))
    changes = {r.rule: r for r in (*advice.recommended, *advice.unsure)}
    assert {"micro-batches", "schedule of the pipeline", "division of the model"} <= changes.keys()
    for rule in ("micro-batches", "schedule of the pipeline", "division of the model"):
        change = changes[rule]
        assert change.prediction.memory.is_enough()
        fidelity = change.prediction.fidelity
        words = [*WORDS, "--pipeline", "4", *shlex.split(change.flags), "--fidelity", fidelity]
        words.append("--json")
        result = CliRunner().invoke(cli, ["predict", *words])
        assert result.exit_code == 0, result.output
        rate = json.loads(result.output)["throughput_samples_per_s"]
        assert rate == pytest.approx(change.prediction.throughput_samples_per_s)


def test_divisions_have_the_same_devices_and_samples():
    made = pm.make_job(**{**GPT, "pipeline": 4})
    now = Situation(made, pm.predict(made))
    rule = next(r for r in RULES if r.name == "division of the model")
    several = [change.job_of(made) for change in rule.changes(now)]
    assert several
    for other in several:
        assert (other.devices, other.global_batch_size) == (8, 16)
        assert other.workload.batch_size == other.workload.accumulation
        assert other.replica is None or other.replica.pipeline != 4


def test_no_division_that_does_not_fit_is_proposed():
    made = pm.make_job(model="gpt2-xl", device="v100", arch="ring", workers=1, pipeline=8,
                       batch_size=16)  # fmt: skip
    now = Situation(made, pm.predict(made))
    rule = next(r for r in RULES if r.name == "division of the model")
    several = [change.job_of(made) for change in rule.changes(now)]
    assert several
    assert all(other.replica is not None for other in several)  # a V100 cannot hold a whole copy


LLAMA: dict[str, Any] = {"model": "llama-13b", "device": "a100-80", "cluster": "dgx-a100",
                         "arch": "zero1", "devices": 32}  # fmt: skip


@pytest.mark.slow
def test_advice_for_a_layout_says_what_changes():
    made = pm.make_job(**LLAMA, tensor=8, pipeline=2, batch_size=64, micro_batches=16,
                       recompute="full")  # fmt: skip
    advice = pm.advise(made, fidelity="coarse")
    changes = {r.rule: r for r in (*advice.recommended, *advice.unsure)}
    division, less = changes["division of the model"], changes["recomputation"]
    first, *_ = division.change.partition(",")
    assert first.startswith("tensor 8 to ")
    for change in (division, less):
        assert change.prediction.memory.is_enough()
        assert change.prediction.global_batch_size == made.global_batch_size
        now = advice.prediction.throughput_samples_per_s
        ratio = change.prediction.throughput_samples_per_s / now
        assert change.gain.ratio == pytest.approx(ratio)
        assert ratio > 1.1
    assert less.change.startswith("recompute none instead of full")


@pytest.mark.parametrize(
    ("sizes", "recompute", "says", "flags"),
    [
        ((4, 1, 4), "full", "tensor 8 to 4 and 2 more stages, 2 workers of 16 devices", ""),
        ((8, 1, 1), "full", "no pipeline, 4 workers of 8 devices", ""),
        ((8, 2, 1), "full", "context 1 to 2 and no pipeline, 2 workers of 16 devices",
         "--context 2"),
        ((4, 1, 2), "none", "tensor 8 to 4 and no recomputation, 4 workers of 8 devices",
         "--recompute none"),
    ],
)  # fmt: skip
def test_changes_of_a_layout_in_words(sizes, recompute, says, flags):
    made = pm.make_job(**LLAMA, tensor=8, pipeline=2, batch_size=16, micro_batches=16,
                       recompute="full")  # fmt: skip
    change = divisions._split(made, sizes, recompute)
    assert change is not None
    assert change.name == says
    assert flags in change.flags
    then = change.job_of(made)
    assert (then.replica.tensor, then.replica.context, then.replica.pipeline) == sizes
    assert (then.devices, then.global_batch_size) == (32, 32)
    assert then.workload.recompute == recompute


def test_long_sequences_may_be_divided_further():
    job = pm.make_job(model="llama-8b", device="h100", arch="zero3", devices=16, tensor=4,
                      context=2, batch_size=1, sequence_length=32_768)  # fmt: skip
    assert divisions._contexts(job) == [1, 2, 4]
    assert divisions._contexts(job.with_(context=None, sequence_length=4096)) == [1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("explain", "pipeline bubble"),
        pytest.param("explain --against fsdp", "pipeline bubble", marks=pytest.mark.slow),
        ("compare --arch ring,fsdp", "fsdp"),
        ("sweep --tensor 1,2 --micro-batches 4,8", "micro batches"),
        ("advise", "gpt2-small on 2 x 2 x a100"),
        ("require micro-batches --to idle<0.5", "micro batches"),
        pytest.param(
            "predict --tensor 2 --fidelity both", "computation on stage", marks=pytest.mark.slow
        ),
        ("predict --tensor 2 --verbose", "- by stage"),
        ("predict --iterations 3", "stages by 1f1b"),
    ],
)
def test_every_command_answers(words, says):
    verb, *others = shlex.split(words)
    result = CliRunner().invoke(cli, [verb, *WORDS, *others])
    assert result.exit_code == 0, result.exception
    assert says in result.output


@pytest.mark.parametrize("words", ["plan --pipeline 2", "predict --pipeline 2 --island-devices 2"])
def test_other_commands_refuse_in_one_line(words):
    verb, *others = shlex.split(words)
    result = CliRunner().invoke(
        cli, [verb, "--model", "gpt2-small", *others], standalone_mode=False
    )
    assert result.exit_code != 0
    assert isinstance(result.exception, (InputError, click.UsageError))
    assert "\n" not in str(result.exception)
