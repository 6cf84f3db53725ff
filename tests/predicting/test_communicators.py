"""Memory of communicators, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import make_job
from perfmodel.catalogue import catalogue
from perfmodel.predicting.communicators import (
    Group,
    channels_of,
    communicator_bytes,
    communicators_of,
)
from perfmodel.predicting.memory import memory_of, overhead


@pytest.mark.parametrize(
    ("cluster", "channels"),
    [
        ("dgx-1", 12),  # six NVLinks
        ("dgx-a100", 24),  # twelve
        ("dgx-h100", 32),  # eighteen, but no more than 32 channels
        ("ethernet-10g", 2),
        ("infiniband-400g", 4),
    ],
)
def test_two_channels_for_each_nvlink(cluster: str, channels: int) -> None:
    found = catalogue.cluster(cluster)
    assert channels_of(found) == channels
    assert communicator_bytes(found) == channels * 3 * 10 * 2**20


@pytest.mark.parametrize(
    ("group", "channels"),
    [
        (Group(8), 24),  # a node
        (Group(16), 16),  # two nodes, each with eight links of 25 GB/s
        (Group(4, 8), 2),  # a device on each node has one of them
        (Group(8, 2), 8),  # four devices on each of two nodes
        (Group(2, 4), 24),  # devices 0 and 4
        (Group(2, 4, 4), 2),  # devices 4 and 8
    ],
)
def test_groups_on_several_nodes_have_as_many_channels_as_links(
    group: Group, channels: int
) -> None:
    assert channels_of(catalogue.cluster("dgx-a100"), group) == channels


GPT: dict[str, Any] = {
    "model": "gpt2-medium", "device": "a100-80", "cluster": "dgx-a100", "batch_size": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"workers": 1}, (0,)),
        ({"workers": 8}, (1,)),
        ({"workers": 8, "arch": "ps"}, (0,)),  # workers only talk to servers
        ({"workers": 2, "island_devices": 8, "arch": "diloco"}, (2,)),
        ({"workers": 2, "island_devices": 8, "arch": "easgd"}, (1,)),
        ({"workers": 1, "tensor": 4}, (2,)),  # all, and those that divide layers
        ({"workers": 2, "tensor": 4}, (3,)),
        ({"workers": 1, "context": 2, "tensor": 2}, (3,)),
        ({"workers": 1, "pipeline": 4, "micro_batches": 8}, (2, 3, 3, 2)),
        ({"workers": 2, "pipeline": 4, "micro_batches": 8, "virtual_stages": 2}, (4, 4, 4, 4)),
        ({"workers": 2, "pipeline": 2, "micro_batches": 8, "virtual_stages": 2}, (3, 3)),
        ({"workers": 1, "tensor": 4, "pipeline": 3, "micro_batches": 8}, (3, 4, 3)),
    ],
)
def test_a_device_is_part_of_one_for_each_group(
    given: dict[str, Any], counts: tuple[int, ...]
) -> None:
    job = make_job(**({"arch": "ring"} | GPT | given))
    memory = memory_of(job)
    servers = memory.server is not None
    groups = [communicators_of(job, stage, servers=servers) for stage in range(len(counts))]
    assert tuple(map(len, groups)) == counts
    processes = memory.stages or (memory.worker,)
    context = overhead().context_bytes
    assert [process.library_bytes for process in processes] == pytest.approx(
        [context + sum(communicator_bytes(job.cluster, one) for one in some) for some in groups]
    )


def test_groups_by_hand() -> None:
    """Twelve devices, of which four divide each of three stages: all, on two nodes; those of a
    stage; and the stages next to a device, of which the last is on the second node."""
    job = make_job(**GPT, arch="ring", workers=1, tensor=4, pipeline=3, micro_batches=8)
    groups = [communicators_of(job, stage, servers=False) for stage in range(3)]
    assert groups[1] == [Group(12), Group(4), Group(2, 4, 0), Group(2, 4, 4)]
    first, _, last = (process.library_bytes for process in memory_of(job).stages)
    each = 3 * 10 * 2**20  # of a channel
    assert first == pytest.approx(overhead().context_bytes + (16 + 24 + 24) * each)
    assert last == pytest.approx(overhead().context_bytes + (16 + 24 + 2) * each)
    other = make_job(**GPT, arch="ring", workers=2, tensor=4, pipeline=2, micro_batches=8,
                     rank_order="tp-pp-dp")  # fmt: skip
    expected = [Group(16), Group(4), Group(2, 4, 0), Group(2, 8, 0)]
    assert communicators_of(other, 0, servers=False) == expected


def test_a_process_on_a_cpu_has_none() -> None:
    job = make_job(model="resnet18", device="cpu-epyc-2core", workers=4, arch="ring")
    assert memory_of(job).worker.library_bytes == 0.0
