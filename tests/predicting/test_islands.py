"""Workers that are groups of devices: by hand, and against the architectures they combine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.cli import cli
from perfmodel.inputs.job_files import read_job
from perfmodel.predicting import coarse, fine, islands
from tests.jobs import third_of_variants, whole_groups, workload
from tests.settings import thinned

ONE = {"bucketing": "one"}


def nodes(devices: int, **more: Any) -> pm.Cluster:
    """Links of 1 byte/s between nodes, and ports of 4 bytes/s inside."""
    return pm.Cluster(
        **{
            "name": "nodes",
            "nic": pm.Link(1.0),
            "devices_per_node": devices,
            "intra_node": pm.IntraNode(4.0, kind="per_device"),
            "source": pm.Source("exact", "by hand"),
        }
        | more
    )


def job(devices: int | str | None, where: pm.Cluster, **more: Any) -> pm.Job:
    given = {"workers": 2, "arch": "local_sgd", "options": {"period": 2}} | more
    work = workload([1.0], [2.0], [8.0], batch_size=5)
    return pm.make_job(workload=work, cluster=where, island_devices=devices, **given)


# -- by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_two_islands_of_two(fidelity: pm.api.Fidelity) -> None:
    """Inside, 8 bytes at 4 bytes/s follow 3 s of computing: 5 s. Two such steps, and 8 s in which
    8 bytes leave each node: 18 s for two iterations of 4 x 5 samples."""
    found = pm.predict(job(2, nodes(2), island_options=ONE), fidelity=fidelity)
    assert found.iteration_s == pytest.approx(9.0)
    assert found.throughput_samples_per_s == pytest.approx(20.0 / 9.0)
    assert found.compute_s == pytest.approx(3.0)
    assert found.idle_fraction.mean == pytest.approx(6.0 / 9.0)
    assert found.idle_fraction.by_cause == {"network": pytest.approx(6.0 / 9.0)}
    busy = {"worker 0": pytest.approx(3.0 / 9.0), "worker 1": pytest.approx(3.0 / 9.0)}
    assert found.utilisation.workers == busy
    assert (found.batch_size, found.global_batch_size) == (10, 20)
    assert found.island_devices == (2, 2)
    assert found.title == "chain on 2 islands of 2 x unnamed, local_sgd"


def test_one_process_exchanges_for_an_island() -> None:
    """Four devices on two nodes: rings of 12 bytes over each NIC take 12 s inside. One NIC carries
    the 8 bytes of an exchange in 8 s, once in two steps."""
    found = job(4, nodes(2), island_options={"algorithm": "ring", **ONE})
    assert found.islands[0].step_s == pytest.approx(3.0 + 12.0)
    assert found.cluster.nic.goodput_bytes_per_s == pytest.approx(1.0)
    assert pm.predict(found).iteration_s == pytest.approx(15.0 + 8.0 / 2.0)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize(("links", "seconds"), [(1, 8.0), (2, 4.0), (4, 2.0)])
def test_a_process_may_use_several_links(
    links: int, seconds: float, fidelity: pm.api.Fidelity
) -> None:
    """Islands of four devices on nodes with four NICs of 1 byte/s: 8 bytes over some of them."""
    where = nodes(4, nics_per_node=4, nics_per_process=links)
    found = job(4, where, options={"period": 1}, island_options=ONE)
    step_s = found.islands[0].step_s
    assert pm.predict(found, fidelity=fidelity).iteration_s == pytest.approx(step_s + seconds)


def test_a_server_of_islands_is_one_process() -> None:
    """Two islands pull and push 8 bytes each: 16 s each way on the server's one NIC of four, and a
    quarter of that on all four."""
    for links, seconds in ((1, 32.0), (4, 8.0)):
        where = nodes(4, nics_per_node=4, nics_per_process=links)
        found = job(4, where, arch="bsp", options={}, island_options=ONE)
        step_s = found.islands[0].step_s
        assert pm.predict(found).iteration_s == pytest.approx(step_s + seconds)
        assert pm.predict(found, fidelity="coarse").iteration_s == pytest.approx(step_s + seconds)


def test_a_core_keeps_its_capacity() -> None:
    """Two nodes with four links of 1 byte/s each and a core of 8 / 4 bytes/s: two islands send 8
    bytes each at 1 byte/s, which the core carries. With a core of 1 byte/s they take twice as
    long."""
    for over, seconds in ((4.0, 8.0), (8.0, 16.0)):
        where = nodes(4, nics_per_node=4, core_oversubscription=over)
        found = job(4, where, options={"period": 1}, island_options=ONE)
        step_s = found.islands[0].step_s
        assert pm.predict(found).iteration_s == pytest.approx(step_s + seconds)


def test_islands_share_a_node() -> None:
    """Two islands of two devices on a node of four: the exchange goes over their ports."""
    found = job(2, nodes(4), island_options=ONE)
    assert found.cluster.nodes_for(2) == 1
    assert pm.predict(found).iteration_s == pytest.approx(5.0 + 8.0 / 8.0 / 2.0)


def test_unequal_islands() -> None:
    """Of two devices and of one: the second waits 2 s in each step; 15 samples in 9 s."""
    found = job("2+1", nodes(2), island_options=ONE)
    assert [island.step_s for island in found.islands] == pytest.approx([5.0, 3.0])
    predicted = pm.predict(found)
    assert predicted.iteration_s == pytest.approx(9.0)
    assert predicted.throughput_samples_per_s == pytest.approx(15.0 / 9.0)
    assert predicted.idle_fraction.per_worker == pytest.approx((6.0 / 9.0, 6.0 / 9.0))


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_a_straggler_does_not_change_the_samples_of_a_step(fidelity: pm.api.Fidelity) -> None:
    """Steps of 5 s, and of 3 s that take 6 s; 4 s to exchange 8 bytes, shared by two steps."""
    found = job("2+1", nodes(2), island_options=ONE, stragglers=[pm.Straggler(1, 2.0)])
    predicted = pm.predict(found, fidelity=fidelity)
    assert predicted.iteration_s == pytest.approx(6.0 + 4.0)
    assert predicted.throughput_samples_per_s == pytest.approx(15.0 / 10.0)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_waits_are_means_over_devices(fidelity: pm.api.Fidelity) -> None:
    """Islands of one, one and two devices with steps of 3, 3 and 5 s; a ring of 32/3 bytes.

    Of 47/3 s, the two devices alone wait 2 s for the third island, those of the third 2 s for the
    network inside, and all 32/3 s for the network between islands.
    """
    found = job("1+1+2", nodes(2), workers=3, options={"period": 1, "algorithm": "ring"},
                island_options=ONE)  # fmt: skip
    idle = pm.predict(found, fidelity=fidelity).idle_fraction
    whole_s = 5.0 + 32.0 / 3.0
    assert idle.mean == pytest.approx(1.0 - 3.0 / whole_s)
    assert idle.by_cause == {
        "straggler": pytest.approx(1.0 / whole_s),
        "network": pytest.approx((1.0 + 32.0 / 3.0) / whole_s),
    }


def drawn_islands(number: int) -> pm.Job | None:
    """A random job with islands; None if its parts contradict each other."""
    draw = np.random.default_rng([4, number])

    def one_of(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    count = int(draw.integers(2, 5))
    sizes = "+".join(str(one_of(1, 1, 2, 3, 6)) for _ in range(count))
    arch, options = one_of(
        ("diloco", {"period": 4}), ("diloco", {"period": 2, "exchange": "server"}), ("asp", {}),
        ("bsp", {}), ("ssp", {"staleness_bound": 2}), ("local_sgd", {"period": 3}), ("easgd", {}),
        ("allreduce", {}), ("gosgd", {}), ("d_psgd", {}), ("bsp", {"backup_workers": 1}),
    )  # fmt: skip
    where = nodes(2, nic=pm.Link(one_of(0.3, 3.0, 30.0)), nics_per_node=one_of(1, 2))
    work = workload([1.0, 0.5], [2.0, 1.0], [8.0, 3.0], optimizer_s=one_of(0.0, 0.5))
    late = [pm.Straggler(0, 1.7)] if draw.random() < 0.3 else []
    try:
        return pm.make_job(
            workload=work, cluster=where, workers=count, arch=arch, options=options,
            island_devices=sizes, island_steps=one_of(1, 4, "equal:5"), stragglers=late,
            jitter=one_of(None, None, 0.2), seed=number,
        )  # fmt: skip
    except pm.InputError:
        return None


@pytest.mark.parametrize("part", thinned(range(3), 3))
def test_idle_fractions_of_islands_add_up(part: int) -> None:
    """By worker and by cause, for both routes."""
    numbers = range(part, 24, 3)
    jobs = [one for one in map(drawn_islands, numbers) if one is not None and one.islands]
    assert len(jobs) > 6
    for one in jobs:
        for found in (coarse.predict(one), fine.predict(one, rel_ci=0.1)):
            waits = [sum(causes.values()) for causes in found.causes_by_worker]
            assert waits == pytest.approx(list(found.idle_fraction.per_worker), abs=1e-6)
            idle = islands.of_devices(one, found).idle_fraction
            assert sum(idle.by_cause.values()) == pytest.approx(idle.mean, abs=1e-6)
            parts = (idle.mean, *idle.per_worker, *idle.by_cause.values())
            assert all(-1e-9 <= part <= 1.0 + 1e-9 for part in parts)
            devices = [island.devices for island in one.islands]
            assert np.average(idle.per_worker, weights=devices) == pytest.approx(idle.mean)


def test_asynchronous_islands_add_up_by_rate() -> None:
    """Asynchronous islands and a server with fast links: 10 samples in 5 s plus 5 in 3 s."""
    fast = nodes(2, nic=pm.Link(1e9))
    found = job("2+1", fast, arch="ps", options={"sync": "asp"}, island_options=ONE)
    assert pm.predict(found).throughput_samples_per_s == pytest.approx(10 / 5 + 5 / 3, rel=1e-3)


def test_a_slow_node_makes_a_slow_island() -> None:
    slow = nodes(2, overrides=(pm.NodeOverride(1, speed=0.5),))
    found = job(2, slow, island_options=ONE)
    assert [island.step_s for island in found.islands] == pytest.approx([5.0, 8.0])
    assert pm.predict(found).iteration_s == pytest.approx(8.0 + 4.0)


def test_the_slowest_device_of_an_island_sets_its_jitter() -> None:
    """The spread of an island's step is smaller than that of a device, as extremes vary less."""
    fast = nodes(8, intra_node=None)
    alone, many = (job(n, fast, jitter=0.1, island_options=ONE) for n in (1, 8))
    assert alone.jitter == pm.Jitter(0.1)
    assert many.jitter is not None
    assert 0.04 < many.jitter.cv < 0.08
    assert many.islands[0].step_s > 3.0 * 1.1


# -- equivalences ----------------------------------------------------------------------------------


@third_of_variants()
def test_islands_of_one_device_are_the_flat_job(arch: str, options: dict[str, Any]) -> None:
    count = whole_groups(3, options)
    one, flat = (
        pm.make_job(model="alexnet", workers=count, arch=arch, options=options, **more)
        for more in ({"island_devices": 1}, {})
    )
    assert one == flat


@pytest.mark.parametrize("arch", ["local_sgd", "ps", "easgd", "allreduce", "gosgd"])
def test_composed_islands_of_one_device_are_the_flat_job(arch: str) -> None:
    flat = pm.make_job(model="alexnet", workers=3, arch=arch)
    composed = islands.joined(flat, (1, 1, 1), "allreduce", {})
    assert composed.islands
    expected, found = (pm.predict(each, fidelity="coarse") for each in (flat, composed))
    assert found.iteration_s == pytest.approx(expected.iteration_s, rel=1e-9)
    assert found.idle_fraction.mean == pytest.approx(expected.idle_fraction.mean, abs=1e-9)


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("allreduce", {}),
        ("fsdp", {"stage": 2}),
        ("fsdp", {"shard_group": 4}),
        ("p2p", {}),
        ("bsp", {}),
    ],
)
def test_a_step_inside_equals_the_architecture_by_itself(
    arch: str, options: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"model": "gpt2-small", "device": "a100", "cluster": "dgx-a100"}
    found = pm.make_job(
        **given, workers=2, arch="gosgd", island_devices=4, island_arch=arch, island_options=options
    )
    alone = pm.predict(pm.make_job(**given, workers=4, arch=arch, options=options))
    island = found.islands[0]
    assert island.step_s == pytest.approx(alone.iteration_s, rel=1e-12)
    assert 1.0 - island.computing == pytest.approx(alone.idle_fraction.mean, abs=1e-12)
    assert pm.predict(found, fidelity="coarse").memory.worker_bytes >= alone.memory.worker_bytes


# -- several steps from one exchange to the next ---------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("period", [2, 7])
def test_steps_before_an_all_reduce_are_local_sgd(devices: int, period: int) -> None:
    """An exchange of an island's accumulated update after H steps, expressed in two ways."""
    where = nodes(2)
    ring = {"algorithm": "ring"}
    local = job(devices, where, options={"period": period, **ring}, island_options=ONE)
    steps = job(devices, where, arch="allreduce", options=ring | ONE, island_steps=period,
                island_options=ONE)  # fmt: skip
    expected, found = pm.predict(local), pm.predict(steps)
    assert found.iteration_s == pytest.approx(period * expected.iteration_s, rel=1e-12)
    assert found.throughput_samples_per_s == pytest.approx(
        expected.throughput_samples_per_s, rel=1e-12
    )
    assert found.idle_fraction.mean == pytest.approx(expected.idle_fraction.mean, rel=1e-9)
    assert found.model_age == expected.model_age


def test_asynchronous_outer_steps() -> None:
    """Islands with steps of 5 s and 3 s, four steps each, push and pull 8 bytes over links of
    1 byte/s: 20 + 16 s and 12 + 16 s if the server's link is fast."""
    where = nodes(2, overrides=(pm.NodeOverride(2, pm.Link(1e6)),))
    found = job("2+1", where, arch="ps", options={"sync": "asp"}, island_steps=4,
                island_options=ONE)  # fmt: skip
    p = pm.predict(found)
    assert p.throughput_samples_per_s == pytest.approx(40 / 36 + 20 / 28, rel=1e-3)
    assert p.updates_per_s == pytest.approx(1 / 36 + 1 / 28, rel=0.01)
    assert p.staleness is not None
    assert p.staleness.per_worker == pytest.approx((36 / 28, 28 / 36), rel=0.05)
    assert p.model_age is not None
    assert (p.model_age.exchange_every, p.model_age.mean) == (4.0, 1.5)


@pytest.mark.slow
def test_a_quorum_and_a_bound_of_outer_steps() -> None:
    """Two of three make an update; a bound of 0 is a barrier."""
    where = nodes(2)
    given: dict[str, Any] = {"workers": 3, "arch": "ps", "island_steps": 4, "island_options": ONE}
    each = pm.predict(job("2+1+1", where, options={"sync": "asp"}, **given))
    two = pm.predict(job("2+1+1", where, options={"sync": "asp", "softsync": 2}, **given))
    assert two.updates_per_s == pytest.approx(each.updates_per_s / 2.0, rel=0.02)
    barrier, bound = (
        pm.predict(job("2+1+1", where, options=options, **given))
        for options in ({"sync": "bsp"}, {"sync": "ssp", "staleness_bound": 0})
    )
    assert bound.updates_per_s == pytest.approx(3 * barrier.updates_per_s, rel=0.15)


def test_islands_with_equal_outer_steps_do_not_wait() -> None:
    """Ten steps of 3 s, and six of 5 s: neither waits."""
    where = nodes(2, nic=pm.Link(1e9))
    given: dict[str, Any] = {"arch": "allreduce", "options": ONE, "island_options": ONE}
    even = job("2+1", where, island_steps="equal:10", **given)
    assert [island.steps for island in even.islands] == [6, 10]
    found = pm.predict(even)
    assert found.idle_fraction.by_cause.get("straggler", 0.0) == pytest.approx(0.0, abs=1e-6)
    assert found.throughput_samples_per_s == pytest.approx((60 + 50) / 30, rel=1e-6)
    uneven = pm.predict(job("2+1", where, island_steps=10, **given))
    assert uneven.throughput_samples_per_s == pytest.approx((100 + 50) / 50, rel=1e-6)


def test_slower_islands_do_as_many_steps_as_fit() -> None:
    """Islands of 4, 8 and 2 devices, two on a node: rings of 12 and 14 bytes at 1 byte/s between
    nodes, and of 8 bytes at 4 bytes/s inside one, after 3 s. Into 20 steps of 5 s fit six of 15 s
    and five of 17 s."""
    ring = {"algorithm": "ring", **ONE}
    given: dict[str, Any] = {"workers": 3, "arch": "allreduce", "options": ring}
    found = job("4+8+2", nodes(2), island_steps="equal:20", island_options=ring, **given)
    assert [island.step_s for island in found.islands] == pytest.approx([15.0, 17.0, 5.0])
    assert [island.steps for island in found.islands] == [6, 5, 20]
    few = job("4+8+2", nodes(2), island_steps="equal:2", island_options=ring, **given)
    assert [island.steps for island in few.islands] == [1, 1, 2]
    for each in (found, few):
        exact, near = (pm.predict(each, fidelity=route) for route in ("fine", "coarse"))
        assert exact.iteration_s == pytest.approx(near.iteration_s, rel=1e-9)


def test_a_straggler_does_fewer_steps() -> None:
    found = job(2, nodes(2), arch="allreduce", options=ONE, island_options=ONE,
                island_steps="equal:10", stragglers=[pm.Straggler(1, 2.0)])  # fmt: skip
    assert [island.steps for island in found.islands] == [10, 5]
    assert pm.predict(found).idle_fraction.by_cause.get("straggler", 0.0) < 1e-9


def test_a_schedule_of_several_steps_is_refused() -> None:
    found = pm.predict(job(1, nodes(2), arch="ps", options={}, island_steps=4))
    with pytest.raises(pm.InputError, match="several steps between exchanges"):
        found.schedule(10)


def test_canary_a_step_that_is_too_long_is_noticed() -> None:
    found = job(2, nodes(2), island_options=ONE)
    slower = msgspec.structs.replace(found, workload=found.workload.scaled("compute_s", 1.01))
    assert pm.predict(slower).iteration_s != pytest.approx(9.0)


def test_the_optimizer_on_servers_does_not_run_inside() -> None:
    work = workload([1.0], [2.0], [8.0], optimizer_s=1.0)
    for arch, expected in (("ps", 5.0), ("local_sgd", 6.0)):
        made = pm.make_job(
            workload=work, cluster=nodes(2), workers=2, arch=arch, island_devices=2,
            island_options=ONE,
        )  # fmt: skip
        assert made.islands[0].step_s == pytest.approx(expected)


# -- files, command line, Python -------------------------------------------------------------------


def test_files_flags_and_python_agree(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "model": "resnet18",
        "workers": 2,
        "arch": "local_sgd",
        "island_devices": "2+1",
        "island_steps": "equal:5",
        "island_arch": "fsdp",
        "island_options": {"stage": 2},
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"schema": "perfmodel.job/1", **given}))
    expected = pm.predict(pm.make_job(**given)).throughput_samples_per_s
    flags = [
        *("predict", "--model", "resnet18", "--workers", "2", "--arch", "local_sgd", "--json"),
        *(
            "--island-steps",
            "equal:5",
            "--island-devices",
            "2+1",
            "--island-arch",
            "fsdp",
            "--island-option",
            "stage=2",
        ),
    ]
    for words in (["predict", "--job", str(path), "--json"], flags):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["throughput_samples_per_s"] == expected
    assert pm.make_job(**read_job(path)) == pm.make_job(**given)


def test_sweeps_vary_islands() -> None:
    found = pm.sweep(
        model="resnet18", workers=2, arch="local_sgd", island_devices=[1, 2, 4], fidelity="coarse"
    )
    assert [p.global_batch_size for p in found.predictions] == [
        2 * n * found.predictions[0].batch_size for n in (1, 2, 4)
    ]


@pytest.mark.slow
def test_requirements_and_advice_keep_islands() -> None:
    """A prediction confirms that the aim is met, and changes keep the islands."""
    given: dict[str, Any] = {
        "model": "resnet18",
        "device": "v100",
        "cluster": "ethernet-1g",
        "workers": 4,
        "arch": "local_sgd",
        "island_devices": 2,
    }
    found = pm.require("period", "scaling>0.9", **given)
    assert found.values.low is not None
    for period, met in ((found.values.low, True), (found.values.low - 1, False)):
        made = pm.make_job(**given, options={"period": int(period)})
        alone = 2 * made.batch_sizes[0] / 2 / made.islands[0].step_s
        p = pm.predict(made, fidelity="coarse")
        assert (p.throughput_samples_per_s > 0.9 * 4 * alone) is met
    advice = pm.advise(**given, options={"period": 1})
    assert advice.recommended or advice.unsure
    for each in (*advice.recommended, *advice.unsure):
        assert each.prediction.island_devices == (2,) * each.prediction.workers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"island_devices": 0}, "island_devices: must be"),
        (
            {"island_devices": 100_000, "workers": 3},
            "island_devices: at most 200000 devices in all islands together, got 300000",
        ),
        ({"island_devices": "2x"}, "cannot read '2x'"),
        ({"island_devices": "2+2+2"}, "2+2+2 is 3 islands, but workers is 2"),
        ({"island_arch": "fsdp"}, "need island_devices"),
        ({"island_steps": 0}, "island_steps: must be"),
        ({"island_steps": "same:4"}, "cannot read 'same:4'"),
        ({"island_steps": "equal:-4"}, "cannot read 'equal:-4'"),
        ({"island_devices": 2, "island_arch": "fdsp"}, "did you mean 'fsdp'?"),
        ({"island_devices": 2, "island_arch": "asp"}, "each keep their own model"),
        ({"island_devices": 2, "island_arch": "d_psgd"}, "each keep their own model"),
        ({"island_devices": 2, "island_options": {"stage": 2}}, "does not apply to allreduce"),
        ({"island_devices": 8, "cluster": nodes(2, nodes=4)}, "need 8 nodes"),
        ({"island_devices": 2, "cluster": nodes(2, devices_on_nodes=(1,))}, "devices_on_nodes"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(pm.InputError) as error:
        pm.make_job(**{"model": "alexnet", "workers": 2, "arch": "local_sgd"} | given)
    assert said in str(error.value)


def test_variants_that_change_a_step_inside_are_refused() -> None:
    found = job(2, nodes(2), island_options=ONE)
    assert pm.evaluate(found, workers=[2, 4]).iteration_s == pytest.approx([9.0, 5.0 + 12.0 / 2.0])
    with pytest.raises(pm.InputError, match="make a job per value"):
        pm.evaluate(found, batch_size=[1, 2])
