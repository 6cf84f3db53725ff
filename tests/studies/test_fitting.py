"""What makes a job fit into the memory of its devices."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import (
    InputError,
    Job,
    advise,
    compare,
    largest_batch,
    make_job,
    remedies,
    require,
    sweep,
)
from perfmodel.base.units import show
from perfmodel.cli import cli
from perfmodel.predicting.memory import memory_of
from perfmodel.results.memory import SURE
from perfmodel.studies import fitting
from tests.jobs import cluster, workload

VGG = make_job(model="vgg16", device="v100", workers=4, arch="ring")

LARGE: dict[str, Any] = {"model": "llama-13b", "device": "h100", "workers": 64, "arch": "ring"}


def chance(job: Job) -> float:
    result = memory_of(job).fits
    assert result is not None
    return result


@pytest.mark.parametrize(
    "job",
    [
        {"model": "gpt2-xl", "device": "a100", "arch": "ring", "workers": 8, "batch_size": 4},
        {"model": "llama-8b", "device": "h100", "arch": "fsdp", "workers": 8, "batch_size": 2},
        {"model": "vgg16", "device": "v100", "arch": "ps", "workers": 8, "batch_size": 512},
        {**LARGE, "batch_size": 4},
    ],
)
def test_every_remedy_makes_the_job_fit(job: dict[str, Any]) -> None:
    made = make_job(**job)
    changes = remedies(made)
    assert chance(made) < SURE
    assert changes
    assert all(chance(change.job_of(made)) >= SURE for change in changes)


def test_remedies_of_a_job_by_hand() -> None:
    """VGG-16 with 512 samples needs 33 GB of 17.2; with 256 samples in a pass 17.6, 128 10."""
    made = make_job(model="vgg16", device="v100", arch="ps", workers=8, batch_size=512)
    assert [change.flags for change in remedies(made)] == ["--accumulation 4", "--batch-size 128"]
    assert remedies(made.with_(batch_size=128)) == ()
    flags = [change.flags for change in remedies(made)]
    assert fitting.in_words(flags) == "to fit: --accumulation 4, or --batch-size 128"


def test_several_changes_together_where_none_is_enough() -> None:
    """13 billion parameters need 208 GB in any case, so sharding is needed, and activations of four
    sequences 130 GB, so recomputation is, too. More passes are not."""
    job = make_job(**LARGE, batch_size=4)
    (together,) = remedies(job)
    assert together.flags == "--recompute full --arch fsdp --option stage=3"
    assert memory_of(together.job_of(job)).is_enough()


def test_nothing_helps_a_model_without_parts() -> None:
    """20 GB of parameters on one k80, whatever the batch."""
    work = msgspec.structs.replace(workload([1.0], [1.0], [20e9]), device="k80")
    made = make_job(workload=work, cluster=cluster(), workers=1, arch="ring")
    assert remedies(made) == ()
    assert fitting.in_words(()).startswith("nothing that was tried makes it fit: batch, ")


def test_islands_share_the_model_among_their_devices() -> None:
    given = {"device": "a100", "arch": "local_sgd", "workers": 2, "island_devices": 8}
    (sharded,) = remedies(make_job(model="gpt2-xl", **given))
    assert sharded.flags == "--island-arch fsdp"
    smaller = [
        each.flags for each in remedies(make_job(model="gpt2-large", batch_size=16, **given))
    ]
    assert "--batch-size 8" in smaller  # of each device


def test_the_next_larger_batch_does_not_fit() -> None:
    job = largest_batch(make_job(model="vgg16", device="v100", arch="ring", workers=4))
    size = job.workload.batch_size
    assert chance(job) >= SURE > chance(job.with_(batch_size=size + 1))
    aim = require("batch-size", "fits", job)
    assert aim.values.value == size


@pytest.mark.slow
def test_more_workers_share_the_model_until_it_fits() -> None:
    job = make_job(model="llama-8b", device="h100", arch="fsdp", batch_size=1, workers=4)
    least = require("workers", "fits", job).values.low
    assert least is not None
    assert chance(job.with_(workers=int(least))) > SURE >= chance(job.with_(workers=int(least) - 1))


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (LARGE, "fit: even one sample per pass does not fit: a worker reserves about"),
        ({"model": "resnet18", "device": "cpu-epyc-2core", "workers": 2, "arch": "ring"},
         "fit: the memory of cpu-epyc-2core is unknown"),
    ],
)  # fmt: skip
def test_no_batch_fits(job: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        largest_batch(make_job(**job))


def test_an_unknown_memory_is_no_aim() -> None:
    with pytest.raises(InputError, match="fits: the memory of cpu-epyc-2core is unknown"):
        require("workers", "fits", model="resnet18", device="cpu-epyc-2core", arch="ring")


def output(words: str) -> str:
    result = CliRunner().invoke(cli, ["predict", *words.split(), "--fidelity", "coarse"])
    return result.output if result.exit_code == 0 else str(result.exception)


def test_the_command_says_first_what_makes_a_job_fit() -> None:
    job = "--model llama-13b --device h100 --workers 64 --arch ring --batch-size 4"
    lines = output(job).splitlines()
    assert lines[1] == (
        "does not fit: a worker reserves about 359 GB, 4.18 times the 85.9 GB of h100"
    )
    assert lines[2] == "to fit: --recompute full --arch fsdp --option stage=3"
    assert not any("note: does not fit" in line for line in lines)


def test_json_has_what_makes_a_job_fit() -> None:
    job = "--model vgg16 --device v100 --workers 4 --arch ring --json --fidelity coarse"
    assert "remedies" not in json.loads(output(f"{job} --batch-size 64"))
    result = json.loads(output(f"{job} --batch-size 512"))
    assert result["memory"]["fits"] < SURE
    assert result["remedies"] == [change.flags for change in remedies(VGG.with_(batch_size=512))]


def test_the_command_takes_the_largest_batch() -> None:
    job = "--model vgg16 --device v100 --workers 4 --arch ring --fit"
    assert "batch 152 per worker" in output(job)
    assert "--fit: chooses the batch size" in output(f"{job} --batch-size 3")


LLAMA: dict[str, Any] = {"model": "llama-8b", "device": "h100", "workers": 8}


def test_a_job_that_does_not_fit_is_never_the_best() -> None:
    """At 2 samples neither fits; at 1 only fsdp does, although 2 are faster."""
    swept = sweep(**LLAMA, arch=["ring", "fsdp"], batch_size=[1, 2], fidelity="coarse")
    fitting_rows = [row["memory_fits"] >= SURE for row in swept.rows()]
    assert fitting_rows == [False, True, False, False]
    assert swept.fastest is not None
    assert (swept.fastest.architecture.name, swept.fastest.workload.batch_size) == ("fsdp", 1)
    rates = [row["throughput_samples_per_s"] for row in swept.rows()]
    assert rates.index(max(rates)) == 3
    compared = compare(
        [make_job(**LLAMA, arch="fsdp", batch_size=size) for size in (1, 2)],
        ["one", "two"],
        fidelity="coarse",
    )
    assert compared.best == 0
    assert compared.text[0].startswith("two does not fit: a worker reserves about")
    assert [round(row["memory_fits"]) for row in compared.rows()] == [1, 0]


def test_jobs_that_fit_have_no_column_for_it() -> None:
    rows = sweep(
        model="vgg16", device="v100", workers=[2, 4], arch="ring", fidelity="coarse"
    ).rows()
    assert "memory_fits" not in rows[0]


def test_advice_says_first_that_a_job_does_not_fit() -> None:
    """And what makes it fit; all that it recommends fits."""
    job = make_job(**LARGE, batch_size=4)
    result = advise(job, fidelity="coarse")
    assert result.remedies == ("--recompute full --arch fsdp --option stage=3",)
    assert result.to_dict()["remedies"] == result.remedies
    assert all(one.prediction.memory.is_enough() for one in (*result.recommended, *result.unsure))
    flags = "advise --model llama-13b --device h100 --workers 64 --arch ring --batch-size 4"
    lines = CliRunner().invoke(cli, [*flags.split(), "--fidelity", "coarse"]).output.splitlines()
    assert lines[1].startswith("does not fit: a worker reserves about 359 GB")
    assert lines[2] == "to fit: --recompute full --arch fsdp --option stage=3"
    fits = advise(VGG, fidelity="coarse")
    assert fits.remedies is None


@pytest.mark.slow
def test_what_never_fits_names_what_takes_most() -> None:
    """Activations of four sequences do not become less with more workers."""
    result = require("workers", "fits", **LARGE | {"arch": "fsdp", "batch_size": 4})
    assert result.values.holds == "never"
    worker = result.prediction.memory.worker
    largest = max(worker.at_peak.values())
    assert largest == worker.at_peak["activations"]
    assert result.text.endswith(f"activations take {show(largest, 'bytes')}")
