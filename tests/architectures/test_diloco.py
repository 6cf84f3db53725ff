"""DiLoCo against timelines worked out by hand, and its limiting cases.

Links carry 1 byte/s unless noted, so two workers average 3 bytes in 3 s. A step takes
4.5 s: forward passes of 1 s each, backward passes of 1 s each, and 0.5 s for the optimizer.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Cluster, InputError, Straggler, build_graph, predict
from perfmodel.architectures.diloco.options import fragments_of
from perfmodel.predicting import coarse, fine
from perfmodel.results.prediction import Prediction
from tests.architectures.test_allreduce import same
from tests.architectures.test_local_sgd import spans_of
from tests.jobs import cluster, job, workload
from tests.oracles import equal

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
STEP_S, SECOND, FIRST = 4.5, 1.0, 2.0
PLAIN = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}


def diloco(options: dict[str, Any], workers: int = 2, where: Cluster | None = None, **more: Any
           ) -> Prediction:  # fmt: skip
    """A prediction of the small workload."""
    return predict(job(WORK, where or cluster(), workers, "diloco", options, **more))


def begun(options: dict[str, Any], label: str, iterations: int, **more: Any) -> list[Any]:
    """Start and end of each op of a kind, in time order."""
    return spans_of(label, job(WORK, cluster(), 2, "diloco", options, **more), iterations)


def test_fragments_in_turns_are_waited_for_one_by_one() -> None:
    """Two steps of 4.5 s, 2 s for the first layer's 2 bytes; two steps, 1 s for the second's."""
    options = {"period": 4, "fragments": 2}
    expected = [(9.0, 11.0), (20.0, 21.0), (30.0, 32.0), (41.0, 42.0)]
    assert begun(options, "average", 8)[:4] == expected
    equal(diloco(options).iteration_s, (4 * STEP_S + FIRST + SECOND) / 4)


def test_strided_fragments_interleave_layers() -> None:
    """Layers of 2, 1, 4 and 8 bytes: 3 and 12 in sequence, 6 and 9 strided."""
    work = workload([1.0] * 4, [1.0] * 4, [2.0, 1.0, 4.0, 8.0])
    for pattern, sizes in (("sequential", [3.0, 12.0]), ("strided", [6.0, 9.0])):
        one = job(work, cluster(), 2, "diloco", {"period": 2, "fragments": 2, "pattern": pattern})
        assert (fragments_of(one).share * 15.0).tolist() == sizes
        first, second = spans_of("average", one, 4)[:2]
        assert first == (8.0, 8.0 + sizes[0])
        assert second == (first[1] + 8.0, first[1] + 8.0 + sizes[1])


def test_a_model_with_fewer_layers_than_fragments_is_cut_into_equal_parts() -> None:
    one = job(WORK, cluster(), 2, "diloco", {"period": 3, "fragments": 3})
    assert fragments_of(one).share.tolist() == [1 / 3] * 3
    assert fragments_of(one).step.tolist() == [0, 1, 2]


def test_an_exchange_is_hidden_behind_a_step() -> None:
    """Links of 0.25 bytes/s: the first fragment takes 8 s, of which the next step hides 4.5 s; the
    second one takes 4 s, all hidden. The step after next waits from 13.5 to 17 s."""
    options = {"period": 4, "fragments": 2, "overlap_steps": 1}
    one = job(WORK, cluster(0.25), 2, "diloco", options)
    assert spans_of("average", one, 8)[:3] == [(9.0, 17.0), (21.5, 25.5), (30.5, 38.5)]
    begins = sorted({start for start, _ in spans_of("forward", one, 5)})[::2]
    assert begins == [0.0, 4.5, 9.0, 17.0, 21.5]
    equal(predict(one).iteration_s, (4 * STEP_S + 3.5) / 4)


def test_an_exchange_during_the_backward_pass_overlaps_it_and_the_optimizer() -> None:
    """Sent 2 s into the second step: 3 s of exchange, and 2.5 s until the step ends."""
    options = {"period": 2, "during_backward": True}
    assert begun(options, "average", 4)[:2] == [(6.5, 9.5), (16.0, 19.0)]
    equal(diloco(options).iteration_s, (2 * STEP_S + 0.5) / 2)


@pytest.mark.parametrize(("sent_as", "seconds"), [("fp32", 3.0), ("bf16", 1.5), ("int8", 0.75),
                                                  ("fp4", 0.375)])  # fmt: skip
def test_formats_shorten_the_exchange(sent_as: str, seconds: float) -> None:
    assert begun({"period": 2, "sent_as": sent_as}, "average", 4)[0] == (9.0, 9.0 + seconds)


def test_each_collective_of_a_fragment_has_its_latency() -> None:
    """Three for 3 bytes, each with two sends around the ring: 3 s and 3 * 2 latencies of 0.25 s."""
    options = {"period": 2, "messages": 3, "algorithm": "ring"}
    one = job(WORK, cluster(1.0, 0.25), 2, "diloco", options)
    for fidelity in ("fine", "coarse"):
        equal(predict(one, fidelity=fidelity).iteration_s, (9.0 + 4.5) / 2)  # type: ignore[arg-type]


def test_encoding_and_the_outer_step_occupy_the_device() -> None:
    """3 bytes of 0.5 s each to encode, 3 s to exchange, 2 s for the outer step."""
    options = {"period": 2, "encode_per_byte_s": 0.5, "outer_s": 2.0}
    assert begun(options, "pseudo-gradient", 2)[0] == (9.0, 10.5)
    assert begun(options, "average", 2)[0] == (10.5, 13.5)
    assert begun(options, "outer step", 2)[0] == (13.5, 15.5)
    result = diloco(options)
    equal(result.iteration_s, (9.0 + 1.5 + 3.0 + 2.0) / 2)
    equal(result.idle_fraction.mean, 3.0 / 15.5)


def test_an_exchange_through_a_server() -> None:
    """Two workers push 3 bytes each over its link in 6 s, it adds each in 1.5 s and makes the outer
    step in 2 s, and two pulls take 6 s."""
    where = cluster(update_per_byte_s=0.5)
    one = job(WORK, where, 2, "diloco", {"period": 2, "exchange": "server", "outer_s": 2.0})
    assert spans_of("push", one, 2)[:2] == [(9.0, 15.0)] * 2
    assert spans_of("update", one, 2)[:2] == [(15.0, 16.5), (16.5, 18.0)]
    assert spans_of("outer step", one, 2)[0] == (18.0, 20.0)
    assert spans_of("pull", one, 2)[:2] == [(20.0, 26.0)] * 2
    for fidelity in ("fine", "coarse"):
        equal(predict(one, fidelity=fidelity).iteration_s, 13.0)  # type: ignore[arg-type]


def test_workers_do_not_wait_between_exchanges() -> None:
    """A worker at half speed takes 9 s a step; both average from 18 s on."""
    late = {"stragglers": [Straggler(1, 2.0)]}
    assert begun({"period": 2}, "average", 2, **late)[0] == (18.0, 21.0)
    equal(diloco({"period": 2}, **late).iteration_s, 10.5)


def test_a_worker_may_be_ahead_by_the_steps_that_overlap() -> None:
    """The slow worker sends at 18 s, the exchange ends at 21 s; the fast one waits from 13.5 s."""
    late = {"stragglers": [Straggler(1, 2.0)]}
    options = {"period": 2, "overlap_steps": 1}
    ends = [end for _, end in begun(options, "optimizer", 4, **late)]
    assert ends == [4.5, 9.0, 9.0, 13.5, 18.0, 25.5, 27.0, 36.0]


# -- identities --------------------------------------------------------------------------------


STRAGGLING: dict[str, Any] = {"stragglers": [Straggler(0, 1.5)]}


def is_an_all_reduce_every_step(
    arch: str, options: dict[str, Any], workers: int, more: dict[str, Any]
) -> None:
    where = cluster(4.0, 0.25)
    ours = predict(job(WORK, where, workers, arch, options, **more))
    whole = {"bucketing": "one", "overlap": False}
    theirs = predict(job(WORK, where, workers, "allreduce", whole, **more))
    assert ours.iteration_s == theirs.iteration_s


@pytest.mark.parametrize("more", [{}, STRAGGLING])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("arch", "more_options"), [("diloco", PLAIN), ("local_sgd", {})])
def test_a_period_of_one_is_an_all_reduce_without_overlap(
    arch: str, more_options: dict[str, Any], workers: int, more: dict[str, Any]
) -> None:
    is_an_all_reduce_every_step(arch, {"period": 1, **more_options}, workers, more)


def test_canary_a_period_of_two_is_not_an_all_reduce() -> None:
    with pytest.raises(AssertionError):
        is_an_all_reduce_every_step("diloco", {"period": 2}, 2, {})


def is_local_sgd(options: dict[str, Any], more: dict[str, Any], workers: int = 3) -> None:
    where = cluster(4.0, 0.25)
    period = {"period": options["period"]}
    for fidelity in ("fine", "coarse"):
        ours, theirs = (
            predict(job(WORK, where, workers, arch, chosen, **more), fidelity=fidelity)  # type: ignore[arg-type]
            for arch, chosen in (("diloco", options), ("local_sgd", period))
        )
        assert ours.iteration_s == theirs.iteration_s
        assert ours.idle_fraction == theirs.idle_fraction


@pytest.mark.parametrize("more", [{}, STRAGGLING])
@pytest.mark.parametrize("period", [1, 2, 5])
def test_one_fragment_without_overlap_is_local_sgd(period: int, more: dict[str, Any]) -> None:
    is_local_sgd({"period": period, "fragments": 1, "overlap_steps": 0}, more)


@pytest.mark.parametrize("change", [{"fragments": 2}, {"overlap_steps": 1}, {"outer_s": 0.1}])
def test_canary_other_options_are_not_local_sgd(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        is_local_sgd({"period": 2, **change}, {})


# -- both routes -------------------------------------------------------------------------------


def both_agree(options: dict[str, Any], rate: float, workers: int = 3) -> None:
    one = job(WORK, cluster(rate, 0.25), workers, "diloco", options)
    equal(predict(one, fidelity="coarse").iteration_s, predict(one).iteration_s)


@pytest.mark.parametrize("rate", [0.1, 1.0, 40.0])
@pytest.mark.parametrize(
    "options",
    [
        {"period": 4, "fragments": 2, "overlap_steps": 1},
        {"period": 4, "fragments": 2, "overlap_steps": 2},
        {"period": 5, "fragments": 2, "during_backward": True, "overlap_steps": 1},
        {"period": 5, "overlap_steps": 4, "sent_as": "fp4"},
        {"period": 3, "fragments": 2, "exchange": "server", "outer_s": 0.5},
        {"period": 2, "encode_per_byte_s": 0.5, "outer_s": 2.0},
    ],
)
def test_formulas_are_exact_if_exchanges_do_not_queue(options: dict[str, Any], rate: float) -> None:
    both_agree(options, rate)


def test_exchanges_through_a_server_that_overlap_are_simulated() -> None:
    """Two workers push halves of 100 bytes each after every step of 1 s, and may compute one step
    before they have pulled them.

    At 100 bytes/s, pushes begin at 0 and 1 s and share the server's link: they end at 3 and 4 s.
    Pulls begin then and end at 6 and 7 s, each followed by a step of 1 s and a push: two steps in
    7 s. If exchanges took turns, a step would take their 4 s. At 400 bytes/s an exchange takes 1 s,
    as long as a step, so none overlap.
    """
    work = workload([0.5], [0.5], [200.0])
    options = {"period": 2, "fragments": 2, "overlap_steps": 1, "exchange": "server"}
    slow, fast = (job(work, cluster(rate), 2, "diloco", options) for rate in (100.0, 400.0))
    found = predict(slow, fidelity="auto")
    assert found.fidelity == "fine"
    equal(found.iteration_s, 3.5)
    band = predict(slow, fidelity="coarse").error_band
    assert band is not None
    assert band.p90 is None
    assert "exchanges through a server that overlap each other" in band.text
    assert predict(fast, fidelity="auto").fidelity == "coarse"
    equal(predict(fast).iteration_s, predict(fast, fidelity="auto").iteration_s)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["all_reduce", "server"])
def test_formulas_declared_exact_are_exact_for_all_overlaps(exchange: str) -> None:
    """For each number of steps between fragments, also unequal ones, and each overlap."""
    exact = 0
    for period in (1, 2, 3, 5, 8):
        for fragments in range(1, min(period, 3) + 1):
            for overlap in range(min(period, 4)):
                for backward in (False, True):
                    options = {
                        "period": period,
                        "fragments": fragments,
                        "overlap_steps": overlap,
                        "during_backward": backward,
                        "exchange": exchange,
                    }
                    one = job(WORK, cluster(0.4, 0.1), 3, "diloco", options)
                    if coarse.error_band(one).p90 == 0.0:
                        equal(predict(one, fidelity="coarse").iteration_s, predict(one).iteration_s)
                        exact += 1
    assert exact >= 30


def test_exchanges_that_queue_limit_the_pace() -> None:
    """Three fragments of 1 byte, one a step, at 0.1 bytes/s: 10 s each, whatever overlaps."""
    work = workload([1.0] * 3, [1.0] * 3, [1.0] * 3)
    options = {"period": 3, "fragments": 3, "overlap_steps": 2}
    for fidelity in ("fine", "coarse"):
        one = job(work, cluster(0.1), 2, "diloco", options)
        equal(predict(one, fidelity=fidelity).iteration_s, 10.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"period": 1}, {"period": 3, "fragments": 2, "outer_s": 0.25},
                                     {"period": 4, "overlap_steps": 2}])  # fmt: skip
def test_one_simulated_worker_can_represent_all(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(WORK, cluster(0.5, latency_s=0.01), 5, "diloco", options)
    assert build_graph(one, fold=True).n_groups == 1
    folded = predict(one)
    monkeypatch.setattr(fine, "alike", lambda job: False)
    assert same(folded.to_dict(), predict(one).to_dict()) == []


# -- figures -----------------------------------------------------------------------------------


def test_memory_includes_the_outer_optimizer() -> None:
    """Parameters and momentum of the outer optimizer, on the workers or on the server, and the
    fragment in flight; the parameters of the last exchange stay on the workers."""
    work = msgspec.structs.replace(WORK, activation_bytes=5.0)
    found = {
        exchange: predict(job(work, cluster(), 2, "diloco", {"exchange": exchange})).memory
        for exchange in ("all_reduce", "server")
    }
    assert found["all_reduce"].worker_bytes == 5 * 3.0 + 5.0
    assert found["server"].worker_bytes == 4 * 3.0 + 5.0
    assert found["server"].server_bytes == 3.0 * (2 + 2)


def test_the_age_of_models_grows_with_the_overlap() -> None:
    ages = [diloco({"period": 10, "overlap_steps": late}).model_age for late in (0, 3)]
    assert [(age.exchange_every, age.mean, age.p90) for age in ages if age] == [
        (10, 4.5, 8),
        (10, 7.5, 11),
    ]


def test_notes_give_the_mean_and_peak_rate() -> None:
    """3 bytes in 10 steps of 4.5 s; 3 bytes in the step that overlaps."""
    options = {"period": 10, "overlap_steps": 1, "algorithm": "ring"}
    (note,) = (note for note in diloco(options).notes if "on average" in note)
    assert note == (
        "a worker sends 0.5333 bps on average if it never waits for an exchange, and 5.333 bps "
        "during a fragment's exchange"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period"),
        ({"period": 2, "fragments": 3}, "at most period = 2, got 3"),
        ({"period": 2, "overlap_steps": 2}, "less than period = 2, got 2"),
        ({"sent_as": "fp5"}, "fp4"),
        ({"local_weight": 1.0}, "local_weight"),
        ({"outer_s": -1.0}, "outer_s"),
        ({"exchange": "servers"}, "did you mean 'server'|server"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(WORK, cluster(), 2, "diloco", options)


def test_canary_another_rate_is_noticed() -> None:
    with pytest.raises(AssertionError):
        equal(diloco({"period": 2}, where=cluster(0.99)).iteration_s, 6.0)
    assert np.isclose(diloco({"period": 2}).iteration_s, 6.0)
