"""``flow_bytes_per_s`` of a cluster: the most that one connection between two nodes carries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import Cluster, InputError, Link, Source, Workload, make_job, predict
from perfmodel.inputs.workload import WorkloadLayer

WORK = Workload.of("one layer", [WorkloadLayer("a", 1.0, 2.0, (100.0,))])


def cluster(flow: float | None, **fields: Any) -> Cluster:
    return Cluster(
        name="lab", nic=Link(100.0), flow_bytes_per_s=flow, source=Source("exact", "test"), **fields
    )


def step_s(arch: str, workers: int, flow: float | None, fidelity: Any, **options: Any) -> float:
    fields = {"devices_per_node": options.pop("devices", 1)}
    job = make_job(
        workload=WORK, cluster=cluster(flow, **fields), workers=workers, arch=arch, options=options
    )
    return predict(job, fidelity=fidelity).iteration_s


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize("overlap", [True, False])
def test_two_servers_get_more_from_a_node_than_one_connection_can_carry(
    fidelity: str, overlap: bool
) -> None:
    options = {"overlap": overlap, "split_above_bytes": 0.0}
    # push and pull: 100 bytes on one connection of 10 bytes/s, or 50 on each of two
    one = step_s("bsp", 1, 10.0, fidelity, servers=1, **options)
    two = step_s("bsp", 1, 10.0, fidelity, servers=2, **options)
    assert one == pytest.approx(3.0 + 2 * 10.0)
    assert two == pytest.approx(3.0 + 2 * 5.0)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_a_full_link_limits_connections_that_could_carry_more(fidelity: str) -> None:
    # 8 workers share the server's 100 bytes/s: 12.5 each, and a connection may carry 20
    shared = step_s("bsp", 8, 20.0, fidelity)
    assert shared == pytest.approx(step_s("bsp", 8, None, fidelity))
    assert step_s("bsp", 8, 5.0, fidelity) > 1.5 * shared


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize(("arch", "bytes_sent"), [("ring", 150.0), ("p2p", 100.0)])
def test_each_connection_of_a_ring_and_of_peers(
    arch: str, bytes_sent: float, fidelity: str
) -> None:
    found = step_s(arch, 4, 10.0, fidelity, overlap=False)
    assert found == pytest.approx(3.0 + bytes_sent / 10.0, rel=1e-6)


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "double_tree", "hierarchical"])
def test_collectives_on_both_routes(algorithm: str) -> None:
    options = {"algorithm": algorithm, "devices": 2}
    found = [step_s("allreduce", 8, 10.0, route, **options) for route in ("fine", "coarse")]
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] > 1.2 * step_s("allreduce", 8, None, "fine", **options)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_a_ring_on_each_link_of_a_node_has_a_connection(fidelity: Any) -> None:
    # four nodes of two devices: all send 2 * 7/8 * 100 bytes, half of them on each of two rings
    lab = cluster(10.0, devices_per_node=2, nics_per_node=2)
    job = make_job(workload=WORK, cluster=lab, workers=8, arch="ring", options={"overlap": False})
    assert predict(job, fidelity=fidelity).iteration_s == pytest.approx(3.0 + 175.0 / 2 / 10.0)


@pytest.mark.parametrize("algorithm", ["halving_doubling", "tree", "double_tree", "hierarchical"])
def test_connection_limits_hold_for_thousands_of_workers(algorithm: str) -> None:
    """A node with one device has one connection at a time, which is equivalent to a slower link."""
    options = {"algorithm": algorithm, "overlap": False}
    found = step_s("allreduce", 4096, 10.0, "coarse", **options)
    slow = msgspec.structs.replace(cluster(None), nic=Link(10.0))
    job = make_job(workload=WORK, cluster=slow, workers=4096, arch="allreduce", options=options)
    assert found == pytest.approx(predict(job, fidelity="coarse").iteration_s)
    assert found > 3.0 * step_s("allreduce", 4096, None, "coarse", **options)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize("arch", ["ring", "bsp", "p2p"])
def test_connections_inside_a_node_are_not_capped(arch: str, fidelity: str) -> None:
    inside = {"devices": 4} if arch != "bsp" else {"servers": 1}
    flow = 10.0 if arch != "bsp" else 200.0
    free, capped = (step_s(arch, 4, f, fidelity, **inside) for f in (None, flow))
    assert capped == pytest.approx(free)


@pytest.mark.parametrize("arch", ["d_psgd", "ad_psgd", "easgd"])
def test_notes_name_what_the_formulas_leave_out(arch: str) -> None:
    job = make_job(workload=WORK, cluster=cluster(10.0), workers=4, arch=arch)
    found = predict(job, fidelity="coarse")
    assert found.error_band is not None
    assert "flow_bytes_per_s" in found.error_band.text
    free = make_job(workload=WORK, cluster=cluster(None), workers=4, arch=arch)
    assert predict(job).iteration_s > 1.2 * predict(free).iteration_s


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_gossip_is_limited_by_its_single_connection(fidelity: str) -> None:
    found = step_s("gosgd", 4, 10.0, fidelity, probability=1.0, queue=1)
    assert found == pytest.approx(10.0, rel=0.02)


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="flow_bytes_per_s"):
        cluster(0.0)
