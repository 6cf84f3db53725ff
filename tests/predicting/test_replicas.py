"""Workers that are replicas of several devices, against times worked out by hand."""

import itertools

import msgspec
import numpy as np
import pytest

import perfmodel as pm
from perfmodel import pipelines
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.inputs.passes import accumulated
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.sites import Site, SiteLink
from perfmodel.predicting import replicas
from perfmodel.replicas.seats import of_groups, positions_of, seats_of
from perfmodel.training import stages
from perfmodel.training.spans import paths_of, spans

F_S, B_S = 1.0, 2.0

MB = 1e6
"""Bytes of all sizes are in this unit, and links have as many per second."""
SOURCE = pm.Source("assumed", "made for a test")
ARCHITECTURES = ("ring", "fsdp", "ps", "asp", "local_sgd", "diloco", "gosgd", "ad_psgd", "easgd",
                 "p2p", "d_psgd")  # fmt: skip


def work(layers, micro_batches, **fields):
    """A workload of layers (forward_s, backward_s, gradient MB, output MB) per pass."""
    made = [
        pm.WorkloadLayer(f"layer{k}", f, b, (size * MB,), out * MB)
        for k, (f, b, size, out) in enumerate(layers)
    ]
    return accumulated(pm.Workload.of("made", made, **fields), micro_batches)


def equal(stages, micro_batches, sent=1e-9, gradient=1e-9):
    """A workload in which each of some stages takes F_S and B_S."""
    return work([(F_S, B_S, gradient, sent)] * stages, micro_batches)


def cluster(**fields):
    """Nodes of one device with links of 1 MB/s, unless given."""
    given = {"name": "made", "nic": pm.Link(MB, 0.0), "source": SOURCE, "losses": "none"}
    return pm.Cluster(**given | fields)


def job(workload, pipeline, workers=1, arch="ring", **arguments):
    given = {"cluster": cluster(), "transfers": "ahead", "workers": workers, "arch": arch}
    return pm.make_job(workload=workload, pipeline=pipeline, **given | arguments)


def step_s(made, fidelity="fine"):
    return pm.predict(made, fidelity=fidelity).iteration_s


# -- schedules ---------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("stages", "passes"), [*itertools.product((2, 3, 4), (1, 2, 5, 8))])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_flushed_pipelines_take_as_long_as_in_papers(stages, passes, schedule):
    made = job(equal(stages, passes), stages, schedule=schedule)
    expected = (passes + stages - 1) * (F_S + B_S)
    assert step_s(made) == pytest.approx(expected, rel=1e-6)
    assert step_s(made, "coarse") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("stages", "passes"), [(2, 4), (4, 4), (4, 8)])
def test_interleaving_divides_the_bubble(stages, passes):
    made = job(equal(2 * stages, passes), stages, schedule="interleaved_1f1b", virtual_stages=2)
    expected = (passes + (stages - 1) / 2) * 2 * (F_S + B_S)
    assert step_s(made) == pytest.approx(expected, rel=1e-6)


def test_the_bubble_is_a_cause_of_idleness():
    prediction = pm.predict(job(equal(4, 8), 4))
    bubble = 3 / (8 + 3)  # (p - 1) / (m + p - 1)
    assert prediction.idle_fraction.by_cause["pipeline"] == pytest.approx(bubble, rel=1e-6)
    assert prediction.idle_fraction.mean == pytest.approx(bubble, rel=1e-6)


def test_unequal_stages_by_hand():
    # stage 0: F 1, B 2; stage 1: F 3, B 4; two micro-batches, 1F1B.
    # stage 0: F0 0-1, F1 1-2, B0 8-10, B1 15-17; stage 1: F0 1-4, B0 4-8, F1 8-11, B1 11-15
    made = job(work([(1.0, 2.0, 1e-9, 1e-9), (3.0, 4.0, 1e-9, 1e-9)], 2), 2)
    assert step_s(made) == pytest.approx(17.0, rel=1e-6)


def test_layers_are_balanced_by_their_times():
    # 1 + 1 + 1 against 3 instead of 1 + 1 against 1 + 3
    layers = [(s, 2 * s, 1e-9, 1e-9) for s in (1.0, 1.0, 1.0, 3.0)]
    slowest = 3.0 * 3
    made = job(work(layers, 4), 2, balance=True)
    assert step_s(made) == pytest.approx((4 + 1) * slowest, rel=1e-6)
    assert step_s(job(work(layers, 4), 2)) > 1.15 * step_s(made)


def test_balanced_stages_all_have_parameters():
    """The last layer takes longest, but has parameters of another stage."""
    layers = [pm.WorkloadLayer(f"layer{k}", 1.0, 2.0, (MB,), MB) for k in range(4)]
    head = pm.WorkloadLayer("head", 3.0, 6.0, (), MB)
    work_of = accumulated(pm.Workload.of("made", [*layers, head]), 4)
    made = job(work_of, 2, balance=True)
    assert [stage.job.stage.chunk_layers for stage in replicas.stage_jobs(made)] == [(3,), (2,)]
    assert step_s(made) > 0.0
    with pytest.raises(pm.InputError, match="stage 1 has no parameters"):
        step_s(job(work_of, 2, stage_layers="4+1"))


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1), ("zb_v", 2),
     ("looped_bfs", 2)],
)  # fmt: skip
@pytest.mark.parametrize("send", [0.0, 0.4])
def test_spans_equal_the_longest_path_of_the_schedule(schedule, chunks, send):
    """Two programs: the graph's own longest path, and that of the schedules."""
    stages, passes = 4, 8
    rng = np.random.default_rng(3)
    forward, inputs, weights = rng.uniform(0.5, 2.0, (3, stages * chunks))
    replica = Replica(pipeline=stages, virtual_stages=chunks, schedule=schedule, transfers="ahead")
    paths = paths_of(replica, passes)
    table = np.stack([forward, inputs + weights, inputs, weights])
    seconds = table[paths.schedule.kind, paths.schedule.stage]
    at = spans(paths, seconds, np.full(len(paths.handing.source), send))
    away = np.diff(paths.schedule.holders[0]) != 0  # neighbours on one rank send nothing
    drawn = pipelines.timeline(
        paths.schedule,
        forward,
        inputs + weights,
        inputs,
        weights,
        send_s=np.where(away, send, 0.0),
    )
    assert at.end.max() == pytest.approx(float(drawn.makespan_s), rel=1e-12)
    assert at.begin == pytest.approx(np.asarray(drawn.start_s), rel=1e-12)


# -- transfers ---------------------------------------------------------------------------------


def sends(transfers):
    """Two equal stages with F 1, B 2, three micro-batches, and transfers of 1 s."""
    return step_s(job(equal(2, 3, sent=1.0), 2, transfers=transfers))


def test_transfers_that_are_posted_ahead_by_hand():
    # 0: F0 0-1, F1 1-2, B0 6-8, F2 8-9, B1 9-11, B2 14-16
    # 1: F0 2-3, B0 3-5, F1 5-6, B1 6-8, F2 10-11, B2 11-13; gradients arrive 1 s later
    assert sends("ahead") == pytest.approx(16.0, rel=1e-6)


def test_transfers_that_are_waited_for_by_hand():
    # a stage asks for an input once it needs it, and waits for what it sends:
    # 0: F0 0-1, sends to 2, F1 2-3; 1: F0 2-3, B0 3-5, sends 5-6 while F1 arrives 5-6
    # 0: B0 6-8, sends no gradient, F2 8-9; 1: F1 6-7, B1 7-9, sends 9-10 while F2 arrives 9-10
    # 0: B1 10-12; 1: F2 10-11, B2 11-13, sends to 14; 0: B2 14-16
    assert sends("blocking") == pytest.approx(16.0, rel=1e-6)


def test_gloo_asks_for_data_behind_what_it_sends():
    # as above, but the request for F1 waits until the gradient B0 has left, at 6: F1 arrives at 7
    # 1: F1 7-8, B1 8-10; F2 is asked for at 11, arrives at 12; F2 12-13, B2 13-15; 0: B2 16-18
    assert sends("gloo") == pytest.approx(18.0, rel=1e-6)


def test_devices_that_divide_layers_send_a_copy_each_unless_along_the_sequence():
    inside = pm.IntraNode(1e15, 0.0)
    node = cluster(devices_per_node=2, intra_node=inside, nic=pm.Link(MB, 0.0))
    layers = [
        pm.WorkloadLayer(f"layer{k}", F_S, B_S, (1.0,), MB, forward_summed_bytes=1.0)
        for k in range(2)
    ]
    workload = accumulated(pm.Workload.of("made", layers), 1)

    def exposed(**more):
        made = job(workload, 2, tensor=2, cluster=node, **more)
        return step_s(made) - 2 * (F_S + B_S)

    assert exposed() == pytest.approx(4.0, rel=1e-6)  # forward and backward, 2 MB at 1 MB/s
    assert exposed(sequence_parallel=True) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "gathered"), [("mixed", 1.0), ("fp8", 0.5), ("mxfp8", (1 + 1 / 32) / 2)]
)
def test_inputs_of_products_in_8_bits_are_gathered_in_8_bits(precision, gathered):
    """Two devices that divide a layer along the sequence each send half of what is summed, over a
    bus of 1 MB/s that both share, and half of what is gathered."""
    node = cluster(devices_per_node=2, intra_node=pm.IntraNode(MB, 0.0))
    layers = [pm.WorkloadLayer("it", F_S, B_S, (1.0,), 1.0, forward_summed_bytes=MB)]
    workload = accumulated(pm.Workload.of("made", layers), 1)
    workload = msgspec.structs.replace(workload, precision=precision)
    for along, sent in ((True, 1.0 + gathered), (False, 2.0)):
        made = job(workload, 1, tensor=2, sequence_parallel=along, cluster=node)
        assert step_s(made) - (F_S + B_S) == pytest.approx(sent, rel=1e-4)


# -- exchange among replicas -------------------------------------------------------------------


def test_every_stage_reduces_its_own_gradients():
    # an all-reduce among two moves each byte once: 6 MB take 6 s after the last backward pass of
    # the stage, 2 s take the other stage's 2 MB; stage 0 ends last, at (2 + 1) * 3 = 9
    layers = [(F_S, B_S, 6.0, 1e-9), (F_S, B_S, 2.0, 1e-9)]
    late = {"bucketing": "one", "overlap": False}
    assert step_s(job(work(layers, 2), 2, 2, options=late)) == pytest.approx(15.0, rel=1e-6)
    # with the large gradient in stage 1, which ends at 7, its all-reduce ends at 13
    other = [layers[1], layers[0]]
    made = step_s(job(work([(F_S, B_S, 2.0, 1e-9), (F_S, B_S, 6.0, 1e-9)], 2), 2, 2, options=late))
    assert other[0][2] == 2.0
    # its next step begins 1 s after that of stage 0: stage 1 works from 1 to 13, 12 s a step
    assert made == pytest.approx(12.0, rel=1e-6)


def test_backward_under_ddp_returns_once_its_gradients_are_reduced():
    # stage 1 ends its last backward pass at 7 and reduces 2 MB until 9; only then does stage 0
    # get the gradient: its last backward pass takes from 9 to 11, and its own 2 MB until 13
    layers = [(F_S, B_S, 2.0, 1e-9), (F_S, B_S, 2.0, 1e-9)]
    held = step_s(job(work(layers, 2), 2, 2, transfers="torch"))
    assert held == pytest.approx(13.0, rel=1e-6)
    assert step_s(job(work(layers, 2), 2, 2)) == pytest.approx(11.0, rel=1e-6)


def test_stages_on_one_node_share_its_link():
    layers = [(F_S, B_S, 4.0, 1e-9)] * 2
    late = {"bucketing": "one", "overlap": False}
    inside = pm.IntraNode(1e15, 0.0)
    # devices in the order tp-pp-dp: both stages of a replica on its node, 2 nodes
    node = cluster(devices_per_node=2, intra_node=inside)
    made = job(work(layers, 1), 2, 2, cluster=node, rank_order="tp-pp-dp", options=late)
    # stage 1 ends at 4 and sends 2 of its MB alone; from 6 on both share: stage 0 needs 4 MB
    # at half the rate while stage 1 needs 2: until 10, then 2 more
    assert step_s(made) == pytest.approx(12.0, rel=1e-6)
    apart = job(work(layers, 1), 2, 2, options=late)
    assert step_s(apart) == pytest.approx(10.0, rel=1e-6)


@pytest.mark.parametrize(("size", "expected"), [(2.0, 8.0), (4.0, 11.0)])
def test_servers_beside_the_first_replica_by_hand(size, expected):
    # F 0-1 and 1-2, B 2-4 and 4-6. Replica 1 pushes stage 1 from 4 on, and pulls it as long; stage
    # 0 until 7 and 8. With 2 MB stage 1 has its parameters at 8, before F needs them at 9. With
    # 4 MB at 12: then a step is that of stage 1, 3 s and 8 s
    layers = [(F_S, B_S, 1.0, 1e-9), (F_S, B_S, size, 1e-9)]
    beside = cluster(server=pm.Server(placement="colocated"))
    made = job(work(layers, 1), 2, 2, "ps", cluster=beside)
    assert step_s(made) == pytest.approx(expected, rel=1e-6)


def test_stages_at_two_sites_share_the_link_between_them():
    # stages 0 at one site, 1 at the other: both replicas' activations take 2 s, as do gradients
    places = (Site("east", 2), Site("west", 2))
    links = tuple(SiteLink(MB, between=pair) for pair in (("east", "west"), ("west", "east")))
    apart = cluster(nic=pm.Link(1e12, 0.0), sites=places, site_links=links)
    made = job(equal(2, 1, sent=1.0), 2, 2, cluster=apart)
    assert step_s(made) == pytest.approx(2 * (F_S + B_S) + 4.0, rel=1e-4)
    alone = job(equal(2, 1, sent=1.0), 2, 1, cluster=msgspec.structs.replace(
        apart, sites=(Site("east", 1), Site("west", 1))))  # fmt: skip
    assert step_s(alone) == pytest.approx(2 * (F_S + B_S) + 2.0, rel=1e-4)


def test_exchanges_of_two_stages_share_the_link_between_sites():
    # a replica at each site. Stage 1 sends 10 MB each way from 4 on, and stage 0 from 6 on: then 8
    # MB of stage 1 are left, and both share until 22, when 2 MB of stage 0 are left
    places = (Site("east", 2), Site("west", 2))
    apart = cluster(nic=pm.Link(1e12, 0.0), sites=places, site_links=(SiteLink(MB),))
    late = {"bucketing": "one", "overlap": False}
    made = job(work([(F_S, B_S, 10.0, 1e-9)] * 2, 1), 2, 2, cluster=apart, rank_order="tp-pp-dp",
               options=late)  # fmt: skip
    assert step_s(made) == pytest.approx(24.0, rel=1e-4)
    band = pm.predict(made, fidelity="coarse").error_band
    assert band.text == "it leaves out links that stages share, so its error is unknown"


@pytest.mark.parametrize(("home", "expected"), [(None, 22.0), ("east", 22.0), ("west", 24.0)])
def test_stages_reach_servers_at_another_site(home, expected):
    # stage 0 is at one site and stage 1 at the other; the one without the server pushes 10 MB in 10
    # s, and pulls as long. F 0-1, 1-2, B 2-3, 3-4: only stage 0 waits for B of both
    places, links = (Site("east", 1), Site("west", 1)), (SiteLink(MB),)
    apart = cluster(nic=pm.Link(1e12, 0.0), sites=places, site_links=links,
                    server=pm.Server(site=home))  # fmt: skip
    made = job(work([(1.0, 1.0, 10.0, 1e-9)] * 2, 1), 2, 1, "ps", cluster=apart)
    assert step_s(made) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("divided", [{"tensor": 8}, {"pipeline": 8}, {"context": 8}])
def test_replicas_at_sites_one_of_which_has_the_servers(divided):
    made = pm.make_job(model="gpt2-medium", device="h100", cluster="three-sites-1g", arch="diloco",
                       workers=3, **divided)  # fmt: skip
    assert pm.predict(made, fidelity="coarse").throughput_samples_per_s > 0.0


def test_stages_beside_each_other_push_and_pull_over_one_link():
    # a node with both stages, and two servers with half of each stage. Stage 1 pushes 10 MB from 4
    # on, stage 0 from 6 on: both share until 22, then stage 0 pushes 2 MB. Stage 1 pulls 2 MB until
    # 24, then both share until 40, and stage 0 has its parameters at 42
    node = cluster(devices_per_node=2, intra_node=pm.IntraNode(1e15, 0.0))
    whole = {"servers": 2, "split_above_bytes": 1.0}
    layers = [(F_S, B_S, 10.0, 1e-9)] * 2
    found = pm.predict(job(work(layers, 1), 2, 1, "ps", cluster=node, options=whole))
    assert found.iteration_s == pytest.approx(42.0, rel=1e-6)
    assert list(found.utilisation.servers) == [f"update threads of server {k}" for k in (0, 1)]
    servers = ["node 1 (server 0)", "node 2 (server 1)"]
    used = {name for name in found.utilisation.links if "inside" not in name}
    assert used == {
        f"link {way} {node}" for way in ("out of", "into") for node in ["node 0", *servers]
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_works_between_replicas(arch):
    options = {"reshard_after_forward": False} if arch == "fsdp" else {}
    made = job(equal(2, 4, gradient=0.1), 2, 4, arch, options=options)
    fine, coarse = pm.predict(made), pm.predict(made, fidelity="coarse")
    busy = 4 * (F_S + B_S)
    assert fine.iteration_s >= 5 * (F_S + B_S) * (1 - 1e-9)
    assert fine.compute_s == pytest.approx(busy, rel=0.02)
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=0.03)
    assert len(fine.idle_fraction.per_worker) == 4
    assert len(fine.idle_fraction.by_stage) == 2
    if arch == "asp":
        assert fine.staleness.mean == pytest.approx(3.0, abs=0.05)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["ring", "local_sgd", "p2p", "diloco"])
def test_one_replica_represents_all(arch):
    made = job(equal(2, 4, gradient=0.1), 2, 3, arch)
    folded, whole = replicas.build(made, fold=True), replicas.build(made)
    assert folded.n_groups == 2
    assert whole.n_groups == 6
    jittered = msgspec.structs.replace(made, jitter=pm.Jitter(1e-12))
    assert step_s(made) == pytest.approx(step_s(jittered), rel=1e-9)


def test_a_replica_that_represents_all_leaves_others_their_part_of_a_link():
    # both first stages are on one node with one link: each activation takes 2 s, as does each
    # gradient: F 0-1, sent until 3, F 3-4, B 4-6, sent until 8, B 8-10
    two = cluster(devices_per_node=2, intra_node=pm.IntraNode(1e15, 0.0))
    made = job(equal(2, 1, sent=1.0), 2, 2, cluster=two)
    assert replicas.build(made, fold=True).n_groups == 2
    assert step_s(made) == pytest.approx(10.0, rel=1e-6)


def test_replicas_that_share_links_in_different_ways_are_not_folded():
    two = cluster(devices_per_node=2, intra_node=pm.IntraNode(1e15, 0.0))
    # three replicas: the first two share a node, the third has one with a stage of the first
    assert replicas.build(job(equal(2, 1), 2, 3, cluster=two), fold=True).n_groups == 6
    core = cluster(core_oversubscription=2.0)
    assert replicas.build(job(equal(2, 1), 2, 3, cluster=core), fold=True).n_groups == 6


def test_groups_of_workers_are_groups_of_replicas():
    # three devices, but one replica: no group of two would be whole
    options = {"shard_group": 2, "reshard_after_forward": False}
    made = job(equal(3, 2), 3, 1, "fsdp", options=options)
    assert step_s(made) == pytest.approx(4 * (F_S + B_S), rel=1e-6)


def test_one_stage_is_the_job_without_replicas():
    plain = pm.make_job(workload=equal(3, 1, gradient=0.5), workers=4, cluster=cluster(), arch="ps")
    replica = msgspec.structs.replace(plain, replica=Replica())
    assert step_s(replica) == pytest.approx(step_s(plain), rel=1e-12)
    assert step_s(replica, "coarse") == pytest.approx(step_s(plain, "coarse"), rel=1e-12)


def test_a_slow_node_slows_its_stage():
    slow = cluster(overrides=(pm.NodeOverride(1, None, 0.5),))
    # stage 1 takes 2 + 4: F0 1-3, B0 3-7, F1 7-9, B1 9-13; stage 0 ends at 15
    assert step_s(job(equal(2, 2), 2, cluster=slow)) == pytest.approx(15.0, rel=1e-6)


# -- tensor parallelism ------------------------------------------------------------------------


def test_sums_of_devices_that_divide_layers_by_hand():
    layers = [
        pm.WorkloadLayer(
            "layer",
            F_S,
            B_S,
            (1.0,),
            1.0,
            forward_summed_bytes=4 * MB,
            backward_summed_bytes=8 * MB,
        )
    ]
    workload = pm.Workload.of("made", layers)
    inside = pm.IntraNode(2 * MB, 0.0, kind="per_device")
    node = cluster(devices_per_node=2, intra_node=inside)
    made = pm.make_job(workload=workload, tensor=2, cluster=node, arch="ring")
    # a ring of two sends each byte once, at 2 MB/s: 2 s in forward, 4 s in backward
    assert step_s(made) == pytest.approx(F_S + B_S + 2.0 + 4.0, rel=1e-6)
    assert step_s(made, "coarse") == pytest.approx(F_S + B_S + 2.0 + 4.0, rel=1e-6)
    assert pm.predict(made).idle_fraction.by_cause["network"] == pytest.approx(6.0 / 9.0, rel=1e-6)


def test_sums_between_nodes_share_their_links_with_gradients():
    layers = [pm.WorkloadLayer("layer", F_S, B_S, (6 * MB,), 1.0, forward_summed_bytes=4 * MB)]
    workload = pm.Workload.of("made", layers)
    made = pm.make_job(workload=workload, tensor=2, workers=2, cluster=cluster(), arch="ring",
                       options={"bucketing": "one", "overlap": False})  # fmt: skip
    # 4 s of sums after forward; gradients of 3 MB on each of the devices take 3 s
    assert step_s(made) == pytest.approx(F_S + 4.0 + B_S + 3.0, rel=1e-6)


def test_sums_between_nodes_slow_gradients_that_are_reduced_meanwhile():
    # two devices on two nodes: together 2 MB/s. F 0-2; B of layer 1 2-4, of layer 0 4-6. Layer 1 is
    # reduced from 4 on, 6 MB at 2 MB/s; 4 MB are left to the sum from 6 on, which moves 8 MB: both
    # take half of the link until 8, when the gradient is done, and 6 MB take 3 s more
    layers = [
        pm.WorkloadLayer("layer0", F_S, B_S, (1.0,), backward_summed_bytes=4 * MB),
        pm.WorkloadLayer("layer1", F_S, B_S, (6 * MB,)),
    ]
    workload = pm.Workload.of("made", layers)
    made = pm.make_job(workload=workload, tensor=2, workers=2, cluster=cluster(), arch="ring",
                       options={"bucketing": "layer"})  # fmt: skip
    assert step_s(made) == pytest.approx(11.0, rel=1e-5)


def test_gradients_are_complete_after_the_sums_of_their_layer():
    """Two stages of two devices in two replicas, on eight nodes with 1 MB/s.

    F 0-1 and 1-2, B of stage 1 2-4, and its sum of 4 MB until 8. Then B of stage 0 takes until 10,
    its sum until 14, and its gradients of 3 MB on each device until 17, while those of stage 1 are
    reduced from 8 to 11. If they were reduced from the end of B on, they would share the link with
    the sum, which would end at 11, and the step at 20."""
    layers = [pm.WorkloadLayer("layer", F_S, B_S, (6 * MB,), 1.0, backward_summed_bytes=4 * MB)] * 2
    made = job(pm.Workload.of("made", layers), 2, 2, tensor=2,
               options={"bucketing": "one", "overlap": False})  # fmt: skip
    assert step_s(made) == pytest.approx(17.0, rel=1e-5)


def test_canary_gradients_that_do_not_wait_for_sums_are_noticed(monkeypatch):
    by_layer = stages._Stage._by_layer

    def early(stage, action, kind, chunk, number):
        made, _ = by_layer(stage, action, kind, chunk, number)
        return made, made

    monkeypatch.setattr(stages._Stage, "_by_layer", early)
    with pytest.raises(AssertionError):
        test_gradients_are_complete_after_the_sums_of_their_layer()


def test_a_language_model_is_divided():
    arguments = {"model": "llama-8b", "device": "h100", "batch_size": 1, "arch": "ring"}
    one = pm.make_job(**arguments)
    eight = pm.make_job(**arguments, tensor=8)
    alone = pm.predict(one).compute_s
    divided = pm.predict(eight)
    assert alone / 8 < divided.compute_s < alone / 4
    assert divided.idle_fraction.by_cause["network"] > 0.05
    along = pm.predict(eight.with_(sequence_parallel=True))
    assert along.compute_s < divided.compute_s


# -- devices -----------------------------------------------------------------------------------


def test_seats_in_both_orders():
    two = cluster(devices_per_node=4, nics_per_node=4)
    outer = seats_of(two, positions_of(4, Replica(pipeline=2)))
    assert [one.position.tolist() for one in outer] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [one.node.tolist() for one in outer] == [[0], [1]]
    inner = seats_of(two, positions_of(4, Replica(pipeline=2, order="tp-pp-dp")))
    assert [one.position.tolist() for one in inner] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [one.nics.tolist() for one in inner] == [[[0, 2], [0, 2]], [[1, 3], [1, 3]]]
    assert [one.cluster.devices_per_node for one in inner] == [2, 2]


def test_groups_of_devices_use_their_links_as_one():
    eight = cluster(devices_per_node=8, nics_per_node=4, nodes=6)
    half = of_groups(eight, 4)
    assert (half.devices_per_node, half.nics_per_node, half.nodes) == (2, 2, 6)
    assert half.nic.bandwidth_bytes_per_s == 2 * MB
    double = of_groups(eight, 16)
    assert (double.devices_per_node, double.nics_per_node, double.nodes) == (1, 1, 3)
    assert double.nic.bandwidth_bytes_per_s == 8 * MB


def test_a_part_of_a_node_besides_whole_nodes_is_no_group():
    with pytest.raises(pm.InputError, match="possible: 1, 2, 4, 8, or a multiple of 8"):
        of_groups(cluster(devices_per_node=8), 12)


def test_devices_cannot_divide_heads_unevenly():
    with pytest.raises(pm.InputError, match="3 devices cannot share 32 heads evenly"):
        pm.make_job(model="llama-8b", device="h100", batch_size=1, arch="ring", tensor=3)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"pipeline": 9}, "9 chunks of layers"),
        ({"pipeline": 2, "stage_layers": "3+4"}, "stage_layers: 7 in all, but there are 8 layers"),
        ({"pipeline": 2, "stage_layers": "3"}, "1 numbers, but there are 2"),
        ({"pipeline": 2, "stage_layers": "3+x"}, "cannot read '3\\+x'"),
        ({"pipeline": 2, "schedule": "1f2b"}, "unknown pipeline schedule '1f2b'"),
        ({"pipeline": 2, "virtual_stages": 2, "schedule": "1f1b"}, "chunks"),
        ({"virtual_stages": 2}, "need tensor, context or pipeline above 1"),
        ({"tensor": 2}, "do not say what devices sum"),
        ({"pipeline": 2, "devices": 3, "workers": None}, "possible: 2 or 4"),
        ({"pipeline": 2, "devices": 4}, "workers and devices"),
        ({"pipeline": 2, "workers": 3, "nodes": 5}, "of 2 devices each do not fit"),
        ({"sequence_parallel": True, "pipeline": 2}, "needs tensor parallelism"),
        ({"pipeline": 0}, "pipeline"),
        ({"pipeline": 2.5}, "pipeline"),
    ],
)
def test_impossible_replicas(arguments, why):
    fields = {k: arguments[k] for k in ("devices_per_node", "nodes") if k in arguments}
    rest = {k: v for k, v in arguments.items() if k not in fields}
    given = {"cluster": cluster(**fields), "workers": 2, "arch": "ring"} | rest
    if given["workers"] is None:
        del given["workers"]

    def predicted():
        pm.predict(pm.make_job(workload=equal(8, 4), **given))

    with pytest.raises(pm.InputError, match=why):
        predicted()


# -- what frameworks do ------------------------------------------------------------------------


def test_sums_behind_the_gradients_of_weights_by_hand():
    layers = [
        pm.WorkloadLayer(
            "layer",
            F_S,
            B_S,
            (1.0,),
            1.0,
            weight_gradient_s=1.5,
            forward_summed_bytes=4 * MB,
            backward_summed_bytes=8 * MB,
        )
    ]
    inside = pm.IntraNode(2 * MB, 0.0, kind="per_device")
    made = pm.make_job(
        workload=pm.Workload.of("made", layers),
        tensor=2,
        cluster=cluster(devices_per_node=2, intra_node=inside),
        arch="ring",
        overlap_sums=True,
    )
    # 2 s in forward; of 4 s in backward 1.5 s are behind the gradients of weights
    assert step_s(made) == pytest.approx(F_S + B_S + 2.0 + 2.5, rel=1e-6)
    assert step_s(made, "coarse") == pytest.approx(F_S + B_S + 2.0 + 2.5, rel=1e-6)


def test_a_framework_says_how_stages_send():
    arguments = {"model": "llama-8b", "device": "h100", "pipeline": 2, "tensor": 2}
    megatron = pm.make_job(**arguments, framework="megatron").replica
    assert (megatron.transfers, megatron.overlap_sums) == ("blocking", True)
    several = pm.make_job(**arguments, framework="megatron", virtual_stages=2).replica
    assert several.transfers == "ahead"
    along = pm.make_job(**arguments, framework="megatron", sequence_parallel=True).replica
    assert not along.overlap_sums
    assert pm.make_job(**arguments).replica.transfers == "torch"


def test_a_reduction_that_backward_waits_for_by_hand():
    # stage 3 without prefetch, two units of 2 MB among two: gathers take 1 s, reductions 1 s.
    # gather, F 1; gather, F 1; backward: (kept) B 2, reduce; gather again, B 2, reduce
    layers = work([(F_S, B_S, 2.0, 1e-9)] * 2, 1)
    options = {"unit_bytes": 0, "prefetch": 1}
    made = pm.make_job(workload=layers, workers=2, cluster=cluster(), arch="fsdp", options=options)
    waiting = made.with_(options={**options, "blocking_reduce": True})
    # the reduction of the last unit is behind the backward pass of the first, unless waited for
    assert step_s(waiting) == pytest.approx(step_s(made) + 1.0, rel=1e-6)


@pytest.mark.parametrize("framework", ["megatron", "OneFlow", "libai"])
def test_frameworks_that_send_gradients_in_place_hand_them_over_in_no_time(framework):
    arguments = {"model": "llama-8b", "device": "h100", "workers": 4, "arch": "ring"}
    assert pm.make_job(**arguments, framework=framework).cluster.handover == pm.Handover()
    given = pm.Handover(1e-3)
    own = cluster(handover=given)
    assert pm.make_job(**arguments, cluster=own, framework=framework).cluster.handover == given


def test_launches_take_as_long_on_each_of_the_devices_that_divide_layers():
    arguments = {"model": "gpt2-xl", "device": "h100", "batch_size": 1, "arch": "ring"}
    one = pm.make_job(**arguments).workload
    five = pm.make_job(**arguments, tensor=5).workload
    without = pm.make_job(**arguments, tensor=5, launches="graphs").workload
    passes = one.forward_s + one.backward_s
    assert five.forward_s + five.backward_s > 0.7 * passes
    assert without.forward_s + without.backward_s < 0.6 * passes


def tied(workers=1, nic=None, **arguments):
    """Two stages whose table of 4 MB the head shares."""
    layers = [
        pm.WorkloadLayer("embedding", F_S, B_S, (4 * MB,), 1e-3),
        pm.WorkloadLayer("head", F_S, B_S, (), 1e-3),
    ]
    of = accumulated(pm.Workload.of("made", layers), arguments.pop("passes", 1))
    links = cluster(nic=nic or pm.Link(MB, 0.0))
    return job(of, arguments.pop("pipeline", 2), workers, cluster=links, **arguments)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_gradients_of_tied_tables_are_summed_by_hand(fidelity):
    # F 0-1 and 1-2, B 2-4 and 4-6; then each sends 4 MB to the other, in two steps
    assert step_s(tied(), fidelity) == pytest.approx(6.0 + 4.0, rel=1e-6)
    late = pm.Link(MB, 0.25)  # twice more between the stages
    assert step_s(tied(nic=late), fidelity) == pytest.approx(10.0 + 4 * 0.25, rel=1e-6)
    # F 0-1, 1-2 and 1-2, 2-4: three micro-batches take 4 x 3 s
    assert step_s(tied(passes=3), fidelity) == pytest.approx(12.0 + 4.0, rel=1e-6)
    # then two replicas sum each stage's 4 MB, half of it in each of two steps
    assert step_s(tied(2), fidelity) == pytest.approx(6.0 + 4.0 + 4.0, rel=1e-6)
    # under DDP the last stage's replicas sum first, then the first stage's
    torch = tied(2, transfers="torch")
    assert step_s(torch, fidelity) == pytest.approx(6.0 + 4.0 + 4.0 + 4.0, rel=1e-6)


def test_a_stage_with_both_ends_has_one_table():
    names = ("embedding", "layer1", "layer2", "head")
    sizes = ((MB,), (MB,), (MB,), ())
    layers = [pm.WorkloadLayer(name, F_S, B_S, size, 1.0)
              for name, size in zip(names, sizes, strict=True)]  # fmt: skip
    of = accumulated(pm.Workload.of("made", layers), 4)
    made = job(of, 2, schedule="zb_v", virtual_stages=2)
    assert [one.job.stage.tied for one in replicas.stage_jobs(made)] == [None, None]


def test_the_last_stage_has_a_copy_of_a_tied_table():
    work_of = pm.make_job(model="gpt2-small", device="v100", batch_size=8).workload
    made = pm.make_job(model="gpt2-small", device="v100", batch_size=8, micro_batches=8, pipeline=2,
                       arch="ring")  # fmt: skip
    first, last = (one.job.workload for one in replicas.stage_jobs(made))
    table = 4.0 * 50257 * 768
    assert first.gradient_bytes + last.gradient_bytes == work_of.gradient_bytes + table


def test_sums_are_launched_and_take_place_while_devices_wait_for_launches():
    arguments = {"model": "gpt2-small", "device": "h100", "batch_size": 1, "arch": "ring"}
    arguments |= {"launches": "1ms"}
    one = pm.make_job(**arguments).workload
    made = pm.make_job(**arguments, tensor=2)
    two = made.workload
    launched = 12 * 4 + 2  # sums: four of each block, the embedding's, the head's
    longer_s = two.forward_s + two.backward_s - one.forward_s - one.backward_s
    assert longer_s == pytest.approx(launched * 1e-3, rel=1e-6)
    assert two.slow_host == 1.0  # the host was measured
    usual = pm.make_job(**arguments | {"launches": "eager", "sequence_length": 16}, tensor=2)
    assert usual.workload.slow_host == pytest.approx(3.0)  # sums as well
    (stage,) = replicas.stage_jobs(made)
    assert {sums.seconds for sums in stage.job.stage.forward_sums} == {0.0}
    # a device that does not wait for its host has them after it has computed
    free = pm.make_job(**arguments | {"launches": "graphs"}, tensor=2)
    (stage,) = replicas.stage_jobs(free)
    assert {layer.launching for layer in free.workload.layers} == {0.0}
    assert max(sums.seconds for sums in stage.job.stage.forward_sums) > 0.0


def test_sums_are_left_over_by_hand():
    # two layers wait 0.25 s in forward each; their sums take 1 s each: 3/4 of them are left
    layers = [pm.WorkloadLayer(f"layer{k}", F_S, B_S, (1.0,), 1.0, forward_summed_bytes=2 * MB,
                               launching=0.25) for k in range(2)]  # fmt: skip
    inside = pm.IntraNode(2 * MB, 0.0, kind="per_device")
    node = cluster(devices_per_node=2, intra_node=inside)
    made = pm.make_job(workload=pm.Workload.of("made", layers), tensor=2, cluster=node, arch="ring")
    assert step_s(made) == pytest.approx(2 * (F_S + B_S) + 2 * 0.75, rel=1e-6)


@pytest.mark.parametrize("launches", ["slowly", "80", "-1us"])
def test_launches_are_words_or_times(launches):
    with pytest.raises(pm.InputError, match="launches"):
        pm.make_job(model="gpt2-small", device="h100", launches=launches)


def test_measured_collectives_among_devices_that_divide_layers():
    measured = Collective(
        operation="all_reduce", pieces=(Piece(0.5, 0.25 / MB),), ranks=(2, 2), bytes=(1.0, 1e9)
    )
    layers = [pm.WorkloadLayer("layer", F_S, B_S, (1.0,), 1.0, forward_summed_bytes=4 * MB)]
    inside = pm.IntraNode(2 * MB, 0.0, kind="per_device")
    node = cluster(devices_per_node=2, intra_node=inside, inside_collectives=(measured,))
    made = pm.make_job(workload=pm.Workload.of("made", layers), tensor=2, cluster=node, arch="ring")
    assert step_s(made) == pytest.approx(F_S + B_S + 0.5 + 1.0, rel=1e-6)


@pytest.mark.parametrize("passes", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False, "no_sync": False}])
def test_each_pass_of_sharded_replicas_without_a_pipeline_gathers(passes, options):
    """Slow links, so that gathers set the pace: four passes take more than three times as long as
    one, where formulas of one long pass would say little more than one."""
    layers = [
        pm.WorkloadLayer(str(k), F_S / 10, B_S / 10, (MB,), 1.0, forward_summed_bytes=1.0,
                         backward_summed_bytes=1.0)
        for k in range(4)
    ]  # fmt: skip
    one = pm.Workload.of("made", layers)
    given = {"tensor": 2, "cluster": cluster(devices_per_node=2), "arch": "fsdp"}
    made = job(accumulated(one, passes), None, 4, options=options, **given)
    took_s, alone_s = step_s(made), step_s(job(one, None, 4, options=options, **given))
    assert step_s(made, "coarse") == pytest.approx(took_s, rel=0.01)
    assert took_s >= (0.7 * passes + 0.3) * alone_s
