"""Names that people type for architectures: other spellings, presets, and advice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import Cluster, InputError, Link, Source, Workload, make_job, predict
from perfmodel.architectures import registry
from perfmodel.base.errors import spelling
from perfmodel.cli import cli
from perfmodel.inputs.workload import WorkloadLayer
from tests.project.test_docs import ROOT

NODES_OF_4 = Cluster(
    name="nodes-of-4", nic=Link(1e9), devices_per_node=4, source=Source("exact", "made for a test")
)
WORK = Workload.of("net", [WorkloadLayer(f"l{i}", 0.01, 0.02, (4e6,)) for i in range(4)])


def options_of(arch: str, **options: Any) -> Any:
    job = make_job(workload=WORK, cluster=NODES_OF_4, workers=8, arch=arch, options=options)
    return job.architecture.name, job.options


@pytest.mark.parametrize(
    ("typed", "arch", "options"),
    [
        ("ddp", "allreduce", {"algorithm": "ring", "bucketing": "ddp"}),
        ("horovod", "allreduce", {"bucketing": "horovod"}),
        ("all-reduce", "allreduce", {}),
        ("Ring-AllReduce", "allreduce", {"algorithm": "ring"}),
        ("tree_allreduce", "allreduce", {"algorithm": "tree"}),
        ("hierarchical all-reduce", "allreduce", {"algorithm": "hierarchical"}),
        ("FSDP2", "fsdp", {}),
        ("ZeRO-2", "fsdp", {"stage": 2}),
        ("full_shard", "fsdp", {"stage": 3}),
        ("SHARD_GRAD_OP", "fsdp", {"stage": 3, "reshard_after_forward": False}),
        ("hsdp", "fsdp", {"shard_group": 4}),
        ("HYBRID_SHARD", "fsdp", {"shard_group": 4}),
        ("parameter-server", "ps", {}),
        ("ps-lite", "ps", {}),
        ("mxnet", "ps", {"duplex": True, "sharding": "hash", "pull": "request"}),
        ("D-PSGD", "d_psgd", {}),
        ("localsgd", "local_sgd", {}),
    ],
)
def test_names_people_type_mean_an_architecture_with_its_options(
    typed: str, arch: str, options: Mapping[str, Any]
) -> None:
    assert options_of(typed) == options_of(arch, **options)


def test_hybrid_sharding_takes_the_devices_of_the_clusters_nodes() -> None:
    """Predicted as with the number itself, which is listed as an assumption."""
    job = make_job(workload=WORK, cluster=NODES_OF_4, workers=8, arch="hsdp")
    given = make_job(
        workload=WORK, cluster=NODES_OF_4, workers=8, arch="fsdp", options={"shard_group": 4}
    )
    whole = make_job(workload=WORK, cluster=NODES_OF_4, workers=8, arch="fsdp")
    assert predict(job).iteration_s == predict(given).iteration_s
    assert predict(job).iteration_s != predict(whole).iteration_s
    assert [a.value for a in job.assumptions if a.name == "shard_group"] == [4]
    assert "shard_group" not in {a.name for a in given.assumptions}


def test_groups_of_a_node_inside_islands() -> None:
    job = make_job(
        workload=WORK, cluster=NODES_OF_4, workers=2, arch="ring", island_devices=8,
        island_arch="hsdp",
    )  # fmt: skip
    inner: Any = job.islands[0].job.options
    assert inner.shard_group == 4


def test_node_is_a_value_that_users_can_give() -> None:
    assert options_of("fsdp", shard_group="node") == options_of("hsdp")
    with pytest.raises(InputError, match="expected a whole number or node, got 'nodes'"):
        options_of("fsdp", shard_group="nodes")
    with pytest.raises(InputError, match="'hsdp' means shard_group=node"):
        options_of("hsdp", shard_group=2)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("deepspeed", "--arch fsdp with --option stage=1, 2 or 3"),
        ("DeepSpeed", "--arch fsdp with --option stage=1, 2 or 3"),
        ("zero", "zero1, zero2, zero3"),
        ("byteps", "--arch ps with --servers"),
        ("dp", "--arch ddp"),
        ("tensorflow", "--arch allreduce"),
        ("data-parallel", "--arch ddp"),
        ("DataParallel", "--arch ddp"),
        ("async", "--arch asp"),
        ("tensor-parallel", "not modelled"),
    ],
)
def test_ambiguous_names_say_what_to_choose(typed: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        options_of(typed)
    text = str(error.value)
    assert text.startswith(f"unknown architecture {typed!r}: ")
    assert said in text


def test_advice_names_only_what_exists() -> None:
    """Architectures after --arch, and options with values, are those of the registry."""
    for advice in registry.ADVICE.values():
        named = re.findall(r"--arch (\w+)", advice)
        assert all(registry.find(name) for name in named)
        for option in re.findall(r"(\w+)=\w", advice):
            assert any(option in registry.find(name)[0].options.__struct_fields__ for name in named)


def test_byteps_as_advised_can_be_predicted() -> None:
    options = {"local_aggregation": True, "transmission": "priority", "partition_bytes": 4096000}
    assert options_of("ps", servers=2, **options)[0] == "ps"


def test_no_name_has_two_meanings() -> None:
    names = [
        *registry.names(),
        *(alias for a in registry.all_architectures() for alias in a.aliases),
        *registry.ADVICE,
    ]
    assert len({spelling(name) for name in names}) == len(names)
    assert all(registry.knows(name) for name in names)
    assert not registry.knows("rong")


def test_every_name_is_listed_shown_and_documented() -> None:
    listed = CliRunner().invoke(cli, ["list", "architectures"]).stdout
    page = (ROOT / "docs" / "reference" / "architectures.md").read_text(encoding="utf-8")
    for architecture in registry.all_architectures():
        for alias in architecture.aliases:
            assert re.search(rf"^ +{alias} ", listed, flags=re.M)
            assert f"`{alias}`" in page
    shown = CliRunner().invoke(cli, ["show", "HSDP"]).stdout
    assert "short for fsdp with shard_group=node" in shown
