"""The profiler's arithmetic on marks and on pairs of steps, without PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Source
from perfmodel.inputs import profile_files
from perfmodel.inputs.profile import Layer, Profile, Tensor, Timing, read_profile
from perfmodel.profiler.averages import Average
from perfmodel.profiler.overhead import Overhead, overhead
from perfmodel.profiler.steps import MarkKind, StepTimes, parts

near = pytest.approx

ONE_STEP = (
    (MarkKind.STEP, 0),
    (MarkKind.LOAD, 0),
    (MarkKind.COPY, 0),
    (MarkKind.END, 0),
    (MarkKind.END, 0),
    (MarkKind.OPEN, 8),
    (MarkKind.LAYER, 0),
    (MarkKind.LAYER, 1),
    (MarkKind.LAYER, 0),
    (MarkKind.CLOSE, 0),
    (MarkKind.GRADIENT, 5),
    (MarkKind.READY, 1),
    (MarkKind.GRADIENT, 5),
    (MarkKind.READY, 0),
    (MarkKind.READY, 1),
    (MarkKind.UPDATE, 0),
    (MarkKind.UPDATED, 0),
    (MarkKind.STEP, 0),
)


def walked(marks: Sequence[tuple[MarkKind, int]], seconds: Sequence[float]) -> StepTimes:
    """Parts of a step whose marks are ``seconds`` apart."""
    times = list(itertools.accumulate(seconds, initial=0.0))
    return parts([(kind, number, None) for kind, number in marks], times, 2)


def test_each_interval_has_its_part() -> None:
    # powers of two: each sum reveals its intervals
    step = walked(ONE_STEP, [2.0**i for i in range(len(ONE_STEP) - 1)])
    assert step.loading_s == 2.0**1 + 2.0**3
    assert step.copy_s == 2.0**2
    assert step.forward_s == [2.0**5 + 2.0**6 + 2.0**8, 2.0**7]
    # the first layer is ready after three intervals; the second, whose other gradient comes
    # later, after the fourth
    assert step.backward_s == [2.0**10 + 2.0**11 + 2.0**12, 2.0**13]
    assert step.optimizer_s == 2.0**15
    assert step.other_s == {
        ("start", "forward"): 2.0**0 + 2.0**4,
        ("forward", "backward"): 2.0**9,
        ("backward", "optimizer"): 2.0**14,
        ("optimizer", "end"): 2.0**16,
    }
    assert (step.samples, step.backwards) == ((8,), 1)
    assert step.total_s == 2.0 ** (len(ONE_STEP) - 1) - 1.0
    assert step.device_s == step.total_s - step.loading_s


KINDS = st.sampled_from([k for k in MarkKind if k not in (MarkKind.STEP, MarkKind.PAUSE)])
MARKS = st.lists(st.tuples(KINDS, st.integers(0, 1), st.integers(0, 1000)), min_size=0, max_size=40)


@given(MARKS, st.integers(0, 1000))
def test_parts_always_add_up(found: list[tuple[MarkKind, int, int]], last: int) -> None:
    marks = [(MarkKind.STEP, 0), *((kind, number) for kind, number, _ in found), (MarkKind.STEP, 0)]
    seconds = [*(float(s) for _, _, s in found), float(last)]
    step = walked(marks, seconds)
    assert step.total_s == sum(seconds)
    every = (*step.forward_s, *step.backward_s, *step.other_s.values())
    assert min(*every, step.loading_s, step.copy_s, step.optimizer_s, 0.0) == 0.0


def test_a_pause_belongs_to_no_part() -> None:
    marks = [
        (MarkKind.STEP, 0),
        (MarkKind.PAUSE, 0),
        (MarkKind.END, 0),
        (MarkKind.OPEN, 1),
        (MarkKind.STEP, 0),
    ]
    assert walked(marks, [1.0, 100.0, 2.0, 4.0]).total_s == 7.0


def test_accumulated_passes() -> None:
    one = [(MarkKind.OPEN, 4), (MarkKind.LAYER, 1), (MarkKind.CLOSE, 0)]
    two = [(MarkKind.GRADIENT, 7), (MarkKind.READY, 1), (MarkKind.READY, 0)]
    three = [(MarkKind.GRADIENT, 8), (MarkKind.READY, 1), (MarkKind.READY, 0)]
    marks = [(MarkKind.STEP, 0), *one, *two, *one, *three, (MarkKind.STEP, 0)]
    step = walked(marks, [1.0] * (len(marks) - 1))
    # in each pass, the wait before the first layer counts towards it
    assert step.forward_s == [0.0, 4.0]
    assert step.backward_s == [2.0, 2.0]
    assert (step.samples, step.backwards) == ((4, 4), 2)
    # nothing is marked, so time before forward passes is loading
    assert step.loading_s == 2.0
    assert step.other_s == {("forward", "backward"): 2.0, ("backward", "end"): 1.0}


# --- overhead ----------------------------------------------------------------------------------


def test_overhead_is_the_median_of_pairs() -> None:
    found = overhead([1.1, 2.4, 3.0], [1.0, 2.0, 3.0])
    assert found == (near(0.1), near(0.0), near(0.2), 3)
    assert "+10.0% (range +0.0% to +20.0%, 3 pairs of steps)" in str(found)


@pytest.mark.parametrize(
    # David, Nagaraja, "Order Statistics", 2003, section 7.1: P(heads <= rank) <= 2.5 %
    ("pairs", "rank"),
    [(5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (20, 5), (40, 13)],
)
def test_the_interval_is_that_of_order_statistics(pairs: int, rank: int) -> None:
    found = overhead([1.0 + i for i in range(pairs)], [1.0] * pairs)
    assert (found.low, found.high) == (rank, pairs - 1 - rank)
    assert ("interval" in str(found)) == (pairs >= 6)


def test_certain_overhead_is_taken_off_passes_and_other_work() -> None:
    average = Average(
        (2.0, 3.0), (4.0, 5.0), (0.2, 0.3), (0.4, 0.5), 6.0, 1.0, 2.0, {"loss": 2.0}, 25.0, 0.1, 3
    )
    certain = Overhead(0.25, 0.1, 0.3, 6)
    # hooks add 25 - 25 / 1.25 = 5 s to the 16 s of passes and other work
    kept = 11.0 / 16.0
    found = average.without(certain)
    assert found.forward_s == near((2.0 * kept, 3.0 * kept))
    assert found.backward_s == near((4.0 * kept, 5.0 * kept))
    assert found.forward_std_s == near((0.2 * kept, 0.3 * kept))
    assert found.other_s == {"loss": near(2.0 * kept)}
    assert found.step_s == near(20.0)
    assert (found.optimizer_s, found.loading_s, found.copy_s) == (6.0, 1.0, 2.0)
    assert "+25.0% (95% interval +10.0% to +30.0%, 6 pairs of steps, taken off)" in str(certain)


@pytest.mark.parametrize(
    "uncertain", [None, Overhead(0.25, -0.01, 0.3, 6), Overhead(0.25, 0.1, 0.3, 5)]
)
def test_uncertain_overhead_is_not_taken_off(uncertain: Overhead | None) -> None:
    average = Average((2.0,), (4.0,), (0.2,), (0.4,), 6.0, 1.0, 2.0, {}, 15.0, 0.1, 3)
    assert average.without(uncertain) == average
    assert "taken off" not in str(uncertain)


def test_overhead_needs_a_pair_of_steps() -> None:
    with pytest.raises(InputError, match="at least one pair"):
        overhead([], [])


# --- files -------------------------------------------------------------------------------------


def timing(batch_size: int, device: str = "a", kind: str = "measured", **more: object) -> Timing:
    source = Source(kind, "somebody")  # type: ignore[arg-type]
    given = {"forward_s": (0.1, 0.2), "backward_s": (0.3, 1.0 / 3.0)} | more
    return Timing(device=device, batch_size=batch_size, source=source, **given)  # type: ignore[arg-type]


def workload(*timings: Timing, size: float = 8.0) -> Profile:
    layers = (
        Layer("one", "linear", (Tensor("one.weight", 4.0),), 12.0, 8.0),
        Layer("two", "linear", (Tensor("two.weight", size),), 12.0, 8.0),
    )
    return Profile(name="w", source=Source("exact", "here"), layers=layers, timings=timings)


def test_written_profiles_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    profile_files.save(path, workload(timing(8, copy_s=0.5, accumulation=2)))
    found = read_profile(path)
    (read,) = found.timings
    assert found.layers == workload(timing(8)).layers
    assert read.forward_s == (0.1, 0.2)
    assert read.backward_s == (0.3, 0.333333)  # six digits
    assert (read.copy_s, read.accumulation) == (0.5, 2)
    text = path.read_text(encoding="utf-8")
    assert '  {"name": "one", "kind": "linear", "tensors": [{"name": "one.weight", "by' in text
    assert "overhead_fraction" not in text


def test_timings_are_added_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    published = timing(8, "b", "published", forward_s=1.0, backward_s=2.0)
    profile_files.save(path, workload(published, timing(16), timing(8)))
    new = workload(timing(8, other_s=1.0), timing(4))
    profile_files.save(path, new, append=True)
    found = read_profile(path).timings
    assert [(t.device, t.batch_size, t.other_s) for t in found] == [
        ("a", 4, 0.0),
        ("a", 8, 1.0),
        ("a", 16, 0.0),
        ("b", 8, 0.0),
    ]
    profile_files.save(path, new)
    assert len(read_profile(path).timings) == 2


def test_timings_of_another_model_are_not_added(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    profile_files.save(path, workload(timing(8)))
    before = path.read_bytes()
    with pytest.raises(InputError, match="layer 'two' differs from this model") as error:
        profile_files.save(path, workload(timing(8), size=12.0), append=True)
    assert str(error.value).startswith(f"{path}: ")
    assert path.read_bytes() == before
