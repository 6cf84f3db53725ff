"""Training schedules: against hand-made ones, against the staleness that the engine counts, and
replayed row by row.

Workers take 1 s for forward and 2 s for backward and have models of 2 bytes; all links carry 1
byte/s."""

from __future__ import annotations

from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import InputError, Job, Prediction, Schedule, Straggler, predict
from perfmodel.base.errors import DeadlockError
from perfmodel.results.schedule import CENTRE, NO_MODEL, WHOLE, Event
from tests.jobs import cluster, job, jobs, third_of_variants, workload
from tests.schedules import Follower, recorded, told
from tests.settings import examples

WORK = workload([1.0], [2.0], [2.0], batch_size=4)
SLOW = (Straggler(1, 2.0),)
"""Worker 1 takes 6 s instead of 3 s."""


def test_the_progress_of_a_recording_is_told() -> None:
    calls: list[tuple[int, int]] = []
    found = predict(job(WORK, cluster(), 2, "asp"))
    assert found.schedule(1000, progress=lambda *done: calls.append(done)).gradients == 1000
    assert len(calls) >= 10
    assert calls == sorted(calls)
    assert {total for _, total in calls} == {1000}
    assert calls[-1][0] > 900


def schedule(
    workers: int, arch: str, updates: int, options: dict[str, Any] | None = None, **fields: Any
) -> Schedule:
    found = predict(job(WORK, cluster(), workers, arch, options, **fields)).schedule(updates)
    found.check()
    return found


# -- by hand -----------------------------------------------------------------------------------


def test_bsp() -> None:
    """Both pull 0 to 4, compute to 7, and push to 11: one update of the mean of both."""
    assert told(schedule(2, "ps", 4, {"sync": "bsp"}))[:10] == [
        "0 read centre@0 for 0.0",
        "0 read centre@0 for 1.0",
        "4 gradient 0.0 on centre@0",
        "4 gradient 1.0 on centre@0",
        "11 apply 0.5x 0.0 -> centre@1",
        "11 apply 0.5x 1.0 -> centre@1",
        "11 read centre@1 for 0.1",
        "11 read centre@1 for 1.1",
        "15 gradient 0.1 on centre@1",
        "15 gradient 1.1 on centre@1",
    ]


def test_asp() -> None:
    """Worker 0 computes from 4 to 7 and pushes to 9, worker 1 computes to 10 and pushes to 12."""
    assert told(schedule(2, "ps", 5, {"sync": "asp"}, stragglers=SLOW)) == [
        "4 gradient 0.0 on centre@0",
        "4 gradient 1.0 on centre@0",
        "9 apply 1x 0.0 -> centre@1",
        "9 read centre@1 for 0.1",
        "11 gradient 0.1 on centre@1",
        "12 apply 1x 1.0 -> centre@2",
        "12 read centre@2 for 1.1",
        "14 gradient 1.1 on centre@2",
        "16 apply 1x 0.1 -> centre@3",
        "16 read centre@3 for 0.2",
        "18 gradient 0.2 on centre@3",
        "23 apply 1x 1.1 -> centre@4",  # pulls and pushes of both share the link from 20 s
        "23 read centre@4 for 1.2",
        "24 apply 1x 0.2 -> centre@5",
        "24 read centre@5 for 0.3",
    ]


def test_ssp_reads_at_the_reply() -> None:
    """With a bound of 0 worker 0 gets its reply when worker 1's push has arrived as well."""
    options = {"sync": "ssp", "staleness_bound": 0}
    assert told(schedule(2, "ps", 3, options, stragglers=SLOW))[:8] == [
        "0 read centre@0 for 0.0",
        "0 read centre@0 for 1.0",
        "4 gradient 0.0 on centre@0",
        "4 gradient 1.0 on centre@0",
        "9 apply 1x 0.0 -> centre@1",
        "12 apply 1x 1.0 -> centre@2",
        "12 read centre@2 for 0.1",
        "12 read centre@2 for 1.1",
    ]


def test_softsync_gathers_gradients() -> None:
    """As asp, but two gradients make an update, half of each; no worker waits for it."""
    options = {"sync": "asp", "softsync": 2}
    assert told(schedule(2, "ps", 4, options, stragglers=SLOW))[:8] == [
        "4 gradient 0.0 on centre@0",
        "4 gradient 1.0 on centre@0",
        "9 read centre@0 for 0.1",
        "11 gradient 0.1 on centre@0",
        "12 apply 0.5x 0.0 -> centre@1",
        "12 apply 0.5x 1.0 -> centre@1",
        "12 read centre@1 for 1.1",
        "14 gradient 1.1 on centre@1",
    ]


def test_backup_workers_drop_what_is_late() -> None:
    """All pull to 6; workers 0 and 1 compute to 9 and push to 13, worker 2 computes to 15
    and pushes to 17: too late."""
    late = (Straggler(2, 3.0),)
    assert told(schedule(3, "ps", 4, {"backup_workers": 1}, stragglers=late))[3:14] == [
        "6 gradient 0.0 on centre@0",
        "6 gradient 1.0 on centre@0",
        "6 gradient 2.0 on centre@0",
        "13 apply 0.5x 0.0 -> centre@1",
        "13 apply 0.5x 1.0 -> centre@1",
        "13 read centre@1 for 0.1",
        "13 read centre@1 for 1.1",
        "17 gradient 0.1 on centre@1",
        "17 gradient 1.1 on centre@1",
        "17 drop 2.0",
        "17 read centre@1 for 2.1",
    ]


def test_all_reduce() -> None:
    """Two workers compute to 3, and sum 2 bytes in 2 s."""
    found = schedule(2, "allreduce", 4)
    assert sorted(told(found)[:8]) == sorted(
        [
            "0 gradient 0.0 on centre@0",
            "0 gradient 1.0 on centre@0",
            "5 apply 0.5x 0.0 -> centre@1",
            "5 apply 0.5x 1.0 -> centre@1",
            "5 read centre@1 for 0.1",
            "5 read centre@1 for 1.1",
            "5 gradient 0.1 on centre@1",
            "5 gradient 1.1 on centre@1",
        ]
    )


def test_local_sgd_averages_every_second_step() -> None:
    """Two steps to 6, then averaging 2 bytes to 8, of both models as they were."""
    found = told(schedule(2, "local_sgd", 5, {"period": 2}))
    assert sorted(found[2:10]) == sorted(
        [
            "3 apply 1x 0.0 -> 0@1",
            "3 apply 1x 1.0 -> 1@1",
            "3 gradient 0.1 on 0@1",
            "3 gradient 1.1 on 1@1",
            "6 apply 1x 0.1 -> 0@2",
            "6 apply 1x 1.1 -> 1@2",
            "8 mix 0.5x 1@2 -> 0@3",
            "8 mix 0.5x 0@2 -> 1@3",
        ]
    )
    assert found[10:12] == ["8 gradient 0.2 on 0@3", "8 gradient 1.2 on 1@3"]


def test_easgd_moves_worker_and_centre_by_the_same_difference() -> None:
    """Worker 0 reads the centre at 3 and has it at 5; its difference arrives at 7. Worker 1 reads
    at 6, before that, so that its difference of 10 is from an old centre."""
    options = {"period": 2, "moving_rate": 0.1}
    found = told(schedule(2, "easgd", 6, options, stragglers=SLOW))
    assert found[2:13] == [
        "3 apply 1x 0.0 -> 0@1",
        "5 mix 0.1x centre@0 -> 0@2",
        "5 gradient 0.1 on 0@2",
        "6 apply 1x 1.0 -> 1@1",
        "7 mix 0.1x 0@1 -> centre@1",
        "8 mix 0.1x centre@0 -> 1@2",
        "8 gradient 1.1 on 1@2",
        "8 apply 1x 0.1 -> 0@3",
        "8 gradient 0.2 on 0@3",
        "10 mix 0.1x 1@1 -> centre@2",
        "10 mix -0.1x centre@0 -> centre@2",
    ]


def test_gosgd_merges_by_weight() -> None:
    """Worker 0 sends at 3 half of its weight of 1/2, which worker 1 merges at 6, having sent half
    of its own: two equal weights. Worker 0 has halved its weight thrice when it merges at 9."""
    found = told(schedule(2, "gosgd", 6, {"probability": 1.0}, stragglers=SLOW))
    mixes = [line for line in found if "mix" in line]
    assert mixes == ["6 mix 0.5x 0@1 -> 1@2", "9 mix 0.8x 1@1 -> 0@4"]
    assert found.index(mixes[0]) < found.index("6 gradient 1.1 on 1@2")


def test_ad_psgd_averages_pairs() -> None:
    """The passive worker 1 gets the model of worker 0 at 2; worker 0 gets worker 1's model of that
    time at 4, and has applied a gradient at 3."""
    assert told(schedule(2, "ad_psgd", 3, stragglers=SLOW))[:11] == [
        "0 gradient 0.0 on 0@0",
        "0 gradient 1.0 on 1@0",
        "2 mix 0.5x 0@0 -> 1@1",
        "3 apply 1x 0.0 -> 0@1",
        "4 mix 0.5x 1@0 -> 0@2",
        "4 mix -0.5x 0@0 -> 0@2",
        "4 gradient 0.1 on 0@2",
        "6 mix 0.5x 0@2 -> 1@2",
        "6 apply 1x 1.0 -> 1@3",
        "6 gradient 1.1 on 1@3",
        "7 apply 1x 0.1 -> 0@3",
    ]


def test_d_psgd_averages_with_neighbours_as_they_were() -> None:
    """Two models share each link, 4 s. At 6 the slow worker mixes in the others' models from before
    4."""
    found = told(schedule(3, "d_psgd", 3, stragglers=SLOW))
    third = f"{1 / 3:.4g}x"
    assert [line for line in found if "-> 0@1" in line] == [
        f"4 mix {third} 1@0 -> 0@1",
        f"4 mix {third} 2@0 -> 0@1",
        "4 apply 1x 0.0 -> 0@1",
    ]
    assert found[-3:] == [
        f"6 mix {third} 2@0 -> 1@1",
        f"6 mix {third} 0@0 -> 1@1",
        "6 apply 1x 1.0 -> 1@1",
    ]


# -- properties --------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@third_of_variants()
@examples(4)
@given(data=st.data())
def test_staleness_is_the_engines(arch: str, options: dict[str, Any], data: st.DataObject) -> None:
    """The histogram of a schedule equals that of the probes of the same run, to the last count.

    But for synchronous jobs where a probe counts others: the pushes of nodes instead of gradients,
    dropped gradients as applied ones, layers without parameters (p2p). All of these are 0.
    """
    some = data.draw(jobs(arch, options, jitter=True))
    start = data.draw(st.sampled_from(["together", "staggered"]))
    try:
        found, seen = recorded(msgspec.structs.replace(some, start=start), 6)
    except DeadlockError:  # others have ended their iterations, so no update comes any more
        assert options.get("backup_workers")
        hypothesis.reject()
    found.check()
    if options.get("local_aggregation") or options.get("backup_workers") or arch == "p2p":
        assert set(found.staleness_histogram()) == set(seen) == {0}
    else:
        assert found.staleness_histogram() == seen
        wrong = msgspec.structs.replace(found, version=found.version + (found.event == Event.APPLY))
        if (found.event == Event.APPLY).any() and arch != "easgd":
            assert wrong.staleness_histogram() != seen  # the canary: updates that count twice


@pytest.mark.sampled(4)
@third_of_variants()
@examples(2)
@given(data=st.data())
def test_rows_are_consistent_with_earlier_rows(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """Gradients are computed on existing versions, and applied once or dropped; nothing is read or
    mixed in before it exists."""
    some = data.draw(jobs(arch, options, jitter=True))
    try:
        found, _ = recorded(some, 5)
    except DeadlockError:  # others have ended their iterations, so no update comes any more
        assert options.get("backup_workers")
        hypothesis.reject()
    followed = Follower(found)
    assert len(followed.computed) >= some.workers * 5 * (not options.get("backup_workers"))
    if spare := options.get("backup_workers", 0):  # late pushes may still be in flight
        assert len({worker for worker, _ in followed.pending}) <= spare
    else:
        assert len(followed.pending) < options.get("softsync", 1)
    assert not options.get("softsync", 1) > 1 or found.weight[found.event == Event.APPLY].max() < 1


@pytest.mark.parametrize(
    ("arch", "options", "workers"),
    [
        ("ad_psgd", {}, 4),
        ("ad_psgd", {"overlap": False}, 5),
        ("d_psgd", {}, 2),
        ("d_psgd", {}, 5),
        ("local_sgd", {"period": 2}, 3),
        ("easgd", {"period": 2}, 3),
        ("easgd", {"period": 1, "servers": 2}, 2),
    ],
)
def test_averaging_preserves_each_gradient(
    arch: str, options: dict[str, Any], workers: int
) -> None:
    """All models together contain each gradient exactly once: mixing matrices are doubly
    stochastic, elastic differences cancel."""
    found, _ = recorded(job(WORK, cluster(), workers, arch, options, jitter=0.3), 8)
    followed = Follower(found)
    for slice in range(followed.width):
        models = [followed.content(model, slice) for model in range(CENTRE, workers)]
        for gradient in followed.computed:
            assert sum(model[gradient] for model in models) == pytest.approx(1.0)
    assert max(len(model) for model in models) > 8  # canary: something was mixed


def test_weights_of_gosgd_form_a_mean() -> None:
    """Weights are between 0 and 1; with three workers, a model contains gradients of all."""
    found, _ = recorded(job(WORK, cluster(), 3, "gosgd", {"probability": 0.5}, jitter=0.3), 20)
    mixes = found.event == Event.MIX
    assert mixes.sum() > 10
    assert ((found.weight[mixes] > 0.0) & (found.weight[mixes] < 1.0)).all()
    assert {worker for worker, _ in Follower(found).content(0)} == {0, 1, 2}


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_ssp_keeps_its_bound(bound: int) -> None:
    """No worker reads for a step further ahead of the slowest worker's applied steps."""
    options = {"sync": "ssp", "staleness_bound": bound}
    found = schedule(3, "ps", 60, options, stragglers=(Straggler(1, 5.0),), jitter=0.2)
    done, leads = [0, 0, 0], []
    for event, worker, step in zip(found.event, found.worker, found.step, strict=True):
        if event == Event.APPLY:
            done[worker] += 1
        elif event == Event.READ:
            leads.append(step - min(done))
    assert max(leads) == bound


def test_bytes_of_slices_add_up_to_the_model() -> None:
    work = workload([1.0, 1.0], [1.0, 1.0], [3.0, 5.0])
    found = predict(job(work, cluster(), 2, "ps", {"sync": "asp"})).schedule(6)
    assert sorted(found.header.slices) == [3.0, 5.0]
    assert set(found.slice) >= {0, 1}
    assert Follower(found).width == 2


def test_events_on_all_slices_are_one_row() -> None:
    """Under bsp all slices have the same versions."""
    work = workload([1.0] * 5, [1.0] * 5, [3.0] * 5)
    found = predict(job(work, cluster(), 2, "ps", {})).schedule(20)
    assert set(found.slice) == {WHOLE}
    assert len(found) == 3 * 20
    assert found.staleness_histogram() == {0: 20 * 5}


# -- requests ----------------------------------------------------------------------------------


def asynchronous(seed: int = 0) -> Job:
    return job(WORK, cluster(), 3, "ps", {"sync": "asp"}, jitter=0.3, start="staggered", seed=seed)


def test_the_number_of_updates_is_as_requested() -> None:
    result = predict(asynchronous())
    assert result.schedule(50).gradients == 50
    assert result.schedule().gradients == 3000
    first = result.schedule(50)
    assert np.array_equal(first.time_s, result.schedule(80).time_s[: len(first)])


@pytest.mark.slow
def test_a_schedule_depends_on_its_seed() -> None:
    once, again, other = (predict(asynchronous(seed)).schedule(40) for seed in (1, 1, 2))
    assert np.array_equal(once.time_s, again.time_s)
    assert not np.array_equal(once.time_s[:20], other.time_s[:20])
    assert once.header.seed == 1


def test_the_header_describes_the_job() -> None:
    result = predict(asynchronous())
    header = result.schedule(5).header
    assert (header.workers, header.slices, header.batch_size) == (3, (2.0,), 4)
    assert (header.architecture, header.options["sync"]) == ("ps", "asp")
    assert header.samples_per_s == result.throughput_samples_per_s
    assert len(set(header.begins_s)) == 3


@pytest.mark.slow
def test_the_plain_loop_records_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for wish in ("0", ""):
        monkeypatch.setenv("PERFMODEL_COMPILED", wish)
        found.append(told(predict(asynchronous()).schedule(30)))
    assert found[0] == found[1]


def test_recording_does_not_change_predictions() -> None:
    result = predict(asynchronous())
    result.schedule(100)
    assert predict(asynchronous()).to_dict() == result.to_dict()


@pytest.mark.slow
def test_there_is_no_schedule_without_a_simulation() -> None:
    coarse = predict(asynchronous(), fidelity="coarse")
    with pytest.raises(InputError, match="schedule: a coarse prediction has no timeline"):
        coarse.schedule()
    read = msgspec.structs.replace(predict(asynchronous()), predicted_job=None)
    assert isinstance(read, Prediction)
    with pytest.raises(InputError, match="read from JSON"):
        read.schedule()
    with pytest.raises(InputError, match="updates: must be at least 1, got 0"):
        predict(asynchronous()).schedule(0)
    with pytest.raises(InputError, match=r"1000000 updates take .* record at most [0-9]+, or"):
        predict(asynchronous(), max_ops=1e5).schedule(10**6)


def test_an_architecture_without_event_meanings_has_no_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = asynchronous()
    silent = msgspec.structs.replace(some.architecture, meaning=None)
    result = predict(msgspec.structs.replace(some, architecture=silent))
    with pytest.raises(InputError, match="ps does not define what its operations mean"):
        result.schedule()


def test_only_the_centre_is_read() -> None:
    found = schedule(2, "ps", 10, {"sync": "asp"})
    reads = found.event == Event.READ
    assert set(found.other[reads]) == {CENTRE}
    assert set(found.other[~reads]) == {NO_MODEL}
