"""A changed job is the job that its arguments make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfmodel import InputError, Job, Straggler, advise, make_job, require, sensitivity, sweep
from perfmodel.catalogue import catalogue
from perfmodel.inputs.job_arguments import in_si
from perfmodel.studies.changes import of_cluster, of_options

JOB: dict[str, Any] = {
    "model": "resnet50", "device": "v100", "workers": 8, "arch": "ps", "options": {"servers": 2},
}  # fmt: skip
SPEED: dict[str, Any] = {**JOB, "one_device_samples_per_s": 300.0}


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"workers": 16}, {"workers": 16}),
        ({"bandwidth": "25Gbps", "latency": "5us"},
         {"bandwidth_bytes_per_s": 3.125e9, "latency_s": 5e-6}),
        ({"options": {"overlap": False}}, {"options": {"servers": 2, "overlap": False}}),
        ({"arch": "ring"}, {"arch": "ring", "options": {}}),
        ({"arch": "asp"}, {"arch": "asp"}),
        ({"batch_size": 64}, {"batch_size": 64}),
        ({"global_batch_size": 256}, {"batch_size": 32}),
        ({"model": "vgg16", "stragglers": [Straggler(1, 2.0)]},
         {"model": "vgg16", "stragglers": (Straggler(1, 2.0),)}),
        ({"device": None}, {"device": None}),
        ({"island_devices": 2}, {"island_devices": 2}),
    ],
)  # fmt: skip
def test_a_changed_job_is_made_of_the_changed_arguments(
    changes: dict[str, Any], others: dict[str, Any]
) -> None:
    job, expected = make_job(**JOB).with_(**changes), make_job(**{**JOB, **others})
    assert job == expected
    assert make_job(**(job.given or {})) == expected


def test_canary_another_argument_makes_another_job() -> None:
    assert make_job(**JOB).with_(workers=4) != make_job(**JOB)


def test_a_measured_speed_stays_that_at_its_batch_size() -> None:
    batch = make_job(**SPEED).workload.batch_size
    assert make_job(**SPEED).with_(batch_size=8) == make_job(
        **SPEED, batch_size=8, one_device_batch_size=batch
    )
    other = {**JOB, "one_device_step_s": 0.5}
    assert make_job(**SPEED).with_(one_device_step_s=0.5) == make_job(**other)


def test_a_workload_takes_the_place_of_all_that_defined_the_old_one() -> None:
    job = make_job(**SPEED, precision="float32")
    faster = job.workload.scaled("compute_s", 0.5)
    other = job.with_(workload=faster)
    assert other.workload == faster
    assert other.given is not None
    assert {"model", "device", "precision"}.isdisjoint(other.given)


def test_a_job_file_makes_a_job(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('schema = "perfmodel.job/1"\nmodel = "resnet50"\nworkers = 4\n')
    assert Job.from_file(path) == make_job(model="resnet50", workers=4)


def test_a_job_without_arguments_cannot_be_changed() -> None:
    job = msgspec.structs.replace(make_job(**JOB), given=None)
    with pytest.raises(InputError, match="no arguments"):
        job.with_(workers=2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"bandwidth": "25GB"}, "bandwidth: unit 'GB' does not fit"),
        ({"latency": "5"}, "latency: a unit is missing"),
        ({"bandwidth": "25Gbps", "bandwidth_bytes_per_s": 1e9}, "give one of them"),
    ],
)
def test_texts_that_are_no_quantity_are_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        make_job(**JOB, **arguments)


def test_numbers_are_in_si_units() -> None:
    assert in_si({"bandwidth": 1e9, "latency": None}) == {
        "bandwidth_bytes_per_s": 1e9, "latency_s": None,
    }  # fmt: skip


def test_changes_have_flags_where_the_command_line_has_them() -> None:
    job = make_job(**JOB, bandwidth="1Gbps")
    more = of_options("more servers", servers=4)
    assert more.flags == "--option servers=4"
    assert more.job_of(job) == job.with_(options={"servers": 4})
    wider = of_cluster("eight devices per node", devices_per_node=8)
    assert wider.flags == ""
    cluster = wider.job_of(job).cluster
    assert cluster.devices_per_node == 8
    assert cluster.nic == job.cluster.nic
    assert cluster.nic != catalogue.cluster(cluster.name).nic


@pytest.mark.slow
def test_studies_take_a_job_and_changes_of_it() -> None:
    other: dict[str, Any] = {"model": "resnet50", "device": "v100", "arch": "ring", "workers": 8}
    job = make_job(**{**other, "workers": 4})
    assert sensitivity(job, workers=8).to_json() == sensitivity(**other).to_json()
    mine, theirs = advise(job, workers=8, fidelity="coarse"), advise(**other, fidelity="coarse")
    assert mine.rows() == theirs.rows()
    aim = ("bandwidth", "scaling>0.9")
    assert require(*aim, job, workers=8).to_dict() == require(*aim, **other).to_dict()
    lists: dict[str, Any] = {"bandwidth": ["10Gbps", "25Gbps"], "workers": [4, 8]}
    swept, expected = sweep(job, **lists), sweep(**{**other, **lists})
    assert swept.points == expected.points
    assert [p.iteration_s for p in swept.predictions] == [
        p.iteration_s for p in expected.predictions
    ]
