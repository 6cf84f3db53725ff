"""The profiler around loops with known times, on a clock that only their modules advance."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from perfmodel.base.errors import InputError  # noqa: E402
from perfmodel.inputs.profile import read_profile, timings_on  # noqa: E402
from perfmodel.inputs.workload import resolve  # noqa: E402
from perfmodel.profiler import Profiler, marks  # noqa: E402
from tests.profiled import (  # noqa: E402
    SAMPLES,
    Time,
    Wait,
    Work,
    all_parts_s,
    hooks,
    inputs,
    sgd,
    trained,
)

near = pytest.approx


def chain(time: Time) -> Any:
    """A wait, a layer, a wait, a layer, a wait."""
    return torch.nn.Sequential(
        Wait(time, 0.5, 0.25),
        Work(time, 1.0, 2.0),
        Wait(time, 0.125, 0.0625),
        Work(time, 3.0, 4.0),
        Wait(time, 8.0, 16.0),
    )


def layer_names(profiler: Profiler) -> list[str]:
    return [layer.name for layer in profiler.profile().layers]


# --- shares ------------------------------------------------------------------------------------


def test_every_part_of_a_step_is_exact() -> None:
    time = Time()
    model = chain(time)
    loss = Wait(time, 100.0, 200.0)

    def step(profiler: Profiler) -> None:
        with profiler.loading():
            time.spend(10.0)
        with profiler.copying():
            time.spend(20.0)
        time.spend(30.0)
        output = model(inputs())
        loss(output).sum().backward()
        time.spend(40.0)

    def whole(profiler: Profiler) -> None:
        step(profiler)
        time.spend(1000.0)

    profiler = trained(model, time, whole, update_s=5.0)
    average = profiler.average()
    # time before the first layer counts towards it, time after a layer towards that layer
    assert average.forward_s == near((0.5 + 1.0 + 0.125, 3.0 + 8.0))
    # the last layer's gradients are ready after the wait behind it; the first wait's backward
    # comes after the last gradient
    assert average.backward_s == near((0.0625 + 2.0, 16.0 + 4.0))
    assert average.optimizer_s == near(5.0)
    assert average.loading_s == near(10.0)
    assert average.copy_s == near(20.0)
    assert average.other_s == near(
        {"before forward": 30.0, "loss": 300.0, "before optimizer": 0.25 + 40.0 + 1000.0}
    )
    assert set(average.forward_std_s + average.backward_std_s) == {0.0}
    assert average.step_s == near(all_parts_s(average))
    assert average.step_std_s == near(0.0)
    timing = profiler.profile().timings[0]
    assert timing.total_s + timing.data_loading_s == near(average.step_s)
    assert "other: 76% before optimizer, 22% loss, 2% before forward" in timing.source.text


def test_buffers_are_counted_even_if_not_saved() -> None:
    time = Time()
    model = chain(time)
    assert trained(model, time).profile().buffer_bytes == 0.0
    model.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
    model[0].register_buffer("cache", torch.zeros(5, dtype=torch.complex64), persistent=False)
    assert trained(model, time).profile().buffer_bytes == 3 * 8 + 5 * 8


def test_parts_add_up_to_what_the_clock_says() -> None:
    time = Time(per_mark_s=0.001)  # this also makes every hook take time
    model = chain(time)
    starts = []

    def step(_: Profiler) -> None:
        starts.append(time.now_ns)
        model(inputs()).sum().backward()

    average = trained(model, time, step, iterations=5).average()
    steps = [(b - a) * 1e-9 for a, b in itertools.pairwise(starts)][1:]
    # the marks that end a step and begin the next are a millisecond apart
    assert average.step_s == near(sum(steps) / len(steps) - 0.001)
    assert average.step_s == near(all_parts_s(average))


def test_canary_undeclared_time_is_noticed() -> None:
    time = Time()
    model = chain(time)
    model[1].forward_s = 1.5
    assert trained(model, time).average().forward_s != near((1.625, 11.0))


def test_the_spread_is_between_steps() -> None:
    time = Time()
    model = torch.nn.Sequential(Work(time, 1.0, 0.0), Work(time, 0.0, 1.0))
    seconds = iter([9.0, 9.0, 1.0, 3.0])

    def step(_: Profiler) -> None:
        model[0].forward_s = next(seconds)
        model(inputs()).sum().backward()

    average = trained(model, time, step, warmup=2).average()
    assert average.steps == 2
    assert average.forward_s == near((2.0, 0.0))
    assert average.forward_std_s == near((math.sqrt(2.0), 0.0))
    assert average.backward_std_s == near((0.0, 0.0))
    assert average.step_std_s == near(math.sqrt(2.0))


def test_unmarked_time_before_forward_is_loading() -> None:
    time = Time()
    model = chain(time)

    def step(_: Profiler) -> None:
        time.spend(7.0)
        model(inputs()).sum().backward()

    average = trained(model, time, step).average()
    assert average.loading_s == near(7.0)
    assert "before forward" not in average.other_s


def test_time_in_a_data_loader_counts_as_loading() -> None:
    time = Time()
    model = chain(time)
    optimizer = sgd(model, time)

    def batches() -> Any:
        for _ in range(5):
            time.spend(6.0)
            yield inputs()

    with Profiler(model, optimizer, warmup=1, clock=time.clock) as profiler:
        for batch in profiler.loader(batches()):
            model(batch).sum().backward()
            optimizer.step()
            profiler.step()
    assert profiler.measured == 4
    assert profiler.average().loading_s == near(6.0)


def test_a_pause_does_not_count() -> None:
    time = Time()
    model = chain(time)
    seen = []

    def step(profiler: Profiler) -> None:
        with profiler.paused():
            seen.append(hooks(model) if len(seen) else 0)  # the first step discovers layers
            model(inputs())
            time.spend(1000.0)
        model(inputs()).sum().backward()

    average = trained(model, time, step).average()
    assert set(seen) == {0}
    assert average.forward_s == near((1.625, 11.0))
    assert average.step_s < 100.0


# --- layers ------------------------------------------------------------------------------------


def test_layers_are_exact() -> None:
    time = Time()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 6 * 6, 5),
    )

    def step(_: Profiler) -> None:
        model(torch.randn(SAMPLES, 3, 6, 6)).sum().backward()

    found = trained(model, time, step).profile().layers
    assert [(layer.name, layer.kind) for layer in found] == [
        ("0", "conv2d"),
        ("2", "batchnorm2d"),
        ("5", "linear"),
    ]
    assert [[(t.name, t.bytes) for t in layer.tensors] for layer in found] == [
        [("0.weight", 8 * 3 * 9 * 4), ("0.bias", 8 * 4)],
        [("2.weight", 8 * 4), ("2.bias", 8 * 4)],
        [("5.weight", 5 * 288 * 4), ("5.bias", 5 * 4)],
    ]
    # two per multiply-add, and two per output element of batch normalisation
    assert [layer.forward_flop for layer in found] == [2 * 288 * 27, 2 * 288, 2 * 288 * 5]
    # convolution and ReLU each make a tensor; in-place work and the view of Flatten make none
    assert [layer.activation_bytes for layer in found] == [2 * 288 * 4, 288 * 4, 5 * 4]
    # the convolution keeps the images; ReLU its output, which batch normalisation keeps as well,
    # with its means and deviations; the second ReLU works in place on what the linear layer keeps
    statistics, images = 2 * 8 * 4 / SAMPLES, 3 * 6 * 6 * 4
    assert [layer.saved_bytes for layer in found] == [images + 288 * 4, statistics + 288 * 4, 0.0]
    # gradients of what a module takes and returns; images have none
    assert [layer.temporary_bytes for layer in found] == [2 * 288 * 4, 2 * 288 * 4, 293 * 4]


def test_flop_of_attention_and_embeddings() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(11, 8)
            self.project = torch.nn.Linear(8, 24, bias=False)

        def forward(self, tokens: Any) -> Any:
            q, k, v = self.project(self.words(tokens)).view(-1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    model = Attention()

    def step(_: Profiler) -> None:
        model(torch.zeros(SAMPLES, 5, dtype=torch.long)).sum().backward()

    words, project = trained(model, Time(), step).profile().layers
    assert words.forward_flop == 0
    # 5 tokens, 2 heads of 4: queries times keys, and weights times values
    assert project.forward_flop == 2 * 5 * 8 * 24 + 2 * (2 * 2 * 5 * 5 * 4)


def test_shared_parameters_are_one_tensor_that_is_ready_last() -> None:
    time = Time()

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Work(time, 1.0, 2.0)
            self.second = Work(time, 4.0, 8.0)
            self.third = Work(time, 16.0, 32.0)
            self.third.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.third(self.second(self.first(x)))

    profiler = trained(Tied(), time)
    found = profiler.profile().layers
    assert [[t.name for t in layer.tensors] for layer in found] == [
        ["first.weight"],
        ["second.weight"],
    ]
    average = profiler.average()
    assert average.forward_s == near((1.0, 4.0 + 16.0))
    assert average.backward_s == near((2.0, 32.0 + 8.0))
    assert any(note.endswith("timed with the layer before: third") for note in profiler.notes)


def test_a_module_that_runs_twice_has_both_times() -> None:
    time = Time()
    inner = Work(time, 1.0, 2.0)
    model = torch.nn.Sequential(inner, Work(time, 4.0, 8.0), inner)
    average = trained(model, time).average()
    assert average.forward_s == near((2.0, 4.0))
    # its gradient is complete when both are done
    assert average.backward_s == near((2.0, 2.0 + 8.0))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_layers_count_towards_their_neighbours(frozen: int) -> None:
    time = Time()
    model = torch.nn.Sequential(Work(time, 1.0, 2.0), Work(time, 4.0, 8.0), Work(time, 16.0, 32.0))
    model[frozen].requires_grad_(False)
    profiler = trained(model, time)
    average = profiler.average()
    assert layer_names(profiler) == [str(i) for i in range(3) if i != frozen]
    # forward counts towards the layer before, or the first; backward towards the next gradient
    expected = {
        0: ((1.0 + 4.0, 16.0), (8.0, 32.0)),
        1: ((1.0 + 4.0, 16.0), (8.0 + 2.0, 32.0)),
        2: ((1.0, 4.0 + 16.0), (2.0, 32.0 + 8.0)),
    }[frozen]
    assert (average.forward_s, average.backward_s) == (near(expected[0]), near(expected[1]))
    assert average.step_s == near(all_parts_s(average))


def test_layers_are_in_the_reverse_order_of_their_gradients() -> None:
    time = Time()

    class Late(torch.nn.Module):
        """A module with a scale that it applies after its child."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = Work(time, 1.0, 2.0)
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            return self.inner(x) * self.scale

    profiler = trained(torch.nn.Sequential(Work(time, 4.0, 8.0), Late()), time)
    assert layer_names(profiler) == ["0", "1.inner", "1"]
    assert profiler.average().backward_s == near((8.0, 2.0, 0.0))
    assert any(note.startswith("layers are in the reverse order") for note in profiler.notes)
    assert not any("reverse order" in note for note in trained(chain(time), time).notes)


def test_unused_parameters_are_left_out_and_named() -> None:
    time = Time()

    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = Work(time, 1.0, 1.0)
            self.never = Work(time, 1.0, 1.0)
            self.aside = Work(time, 2.0, 2.0)

        def forward(self, x: Any) -> Any:
            x = self.used(x)
            self.aside(x)
            return x

    profiler = trained(Part(), time)
    assert layer_names(profiler) == ["used"]
    assert profiler.average().forward_s == near((3.0,))
    note = "2 parameters got no gradient and are left out: never.weight, aside.weight"
    assert note in profiler.notes
    assert note in profiler.profile().timings[0].source.text


def test_parameters_of_enclosing_and_uncalled_modules() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(torch.zeros(1, 1, 8))
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.scales = torch.nn.ParameterList([torch.ones(8), torch.ones(8)])

        def forward(self, x: Any) -> Any:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
            for scale in self.scales:
                x = x * scale
            return self.attention(x, x, x)[0]

    model = Model()

    def step(_: Profiler) -> None:
        model(torch.randn(SAMPLES, 5, 8)).sum().backward()

    profile = trained(model, Time(), step).profile()
    assert [layer.name for layer in profile.layers] == ["model", "attention"]
    names = [tensor.name for layer in profile.layers for tensor in layer.tensors]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert profile.parameter_bytes == sum(4 * p.numel() for p in model.parameters())


# --- steps of other shapes ---------------------------------------------------------------------


@pytest.mark.parametrize("at_each_pass", [False, True])
def test_accumulation_is_detected(at_each_pass: bool) -> None:
    time = Time()
    model = chain(time)
    optimizer = sgd(model, time, 5.0)
    with Profiler(model, optimizer, warmup=1, clock=time.clock) as profiler:
        for i in range(12):
            time.spend(1.0)
            model(inputs()).sum().backward()
            if i % 3 == 2:
                optimizer.step()
            if at_each_pass or i % 3 == 2:
                profiler.step()
    timing = profiler.profile().timings[0]
    assert (timing.accumulation, timing.batch_size) == (3, 3 * SAMPLES)
    average = profiler.average()
    assert average.steps == 3
    assert average.forward_s == near((3 * 1.625, 3 * 11.0))
    assert average.backward_s == near((3 * 2.0625, 3 * 20.0))
    # the wait before the first layer runs backward after the last gradient, so between passes
    assert average.loading_s == near(3 * 1.0 + 2 * 0.25)
    assert average.step_s == near(all_parts_s(average))


def test_given_accumulation_is_used() -> None:
    time = Time()
    model = chain(time)

    def step(_: Profiler) -> None:
        for _ in range(2):  # two losses
            model(inputs()).sum().backward()

    timing = trained(model, time, step, accumulation=1).profile().timings[0]
    assert (timing.accumulation, timing.batch_size) == (1, SAMPLES)


def test_several_forward_passes_and_one_backward() -> None:
    time = Time()
    model = chain(time)

    def step(_: Profiler) -> None:
        first = model(inputs())
        time.spend(50.0)
        (first - model(inputs())).sum().backward()

    profiler = trained(model, time, step)
    average = profiler.average()
    assert average.forward_s == near((2 * 1.625, 2 * 11.0))
    assert average.other_s["elsewhere"] == near(50.0)
    assert profiler.profile().timings[0].batch_size == SAMPLES
    assert average.step_s == near(all_parts_s(average))


class Checkpointed(torch.nn.Module):
    """A model whose middle is recomputed in the backward pass."""

    def __init__(self, time: Time, reentrant: bool) -> None:
        super().__init__()
        self.first = Work(time, 1.0, 2.0)
        self.middle = torch.nn.Sequential(Work(time, 4.0, 8.0), Work(time, 16.0, 32.0))
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)


# non-reentrant recomputation stops once it has what backward needs: the last layer's product
@pytest.mark.parametrize(("reentrant", "again_s"), [(False, 4.0), (True, 4.0 + 16.0)])
def test_recomputation_counts_as_backward(reentrant: bool, again_s: float) -> None:
    time = Time()
    profiler = trained(Checkpointed(time, reentrant), time)
    average = profiler.average()
    assert layer_names(profiler) == ["first", "middle.0", "middle.1"]
    assert average.forward_s == near((1.0, 4.0, 16.0))
    assert average.backward_s == near((2.0, 8.0, 32.0 + again_s))
    made = [layer.activation_bytes for layer in profiler.profile().layers]
    assert made == [made[0]] * 3
    assert average.step_s == near(all_parts_s(average))


def test_canary_recomputation_counted_as_forward_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marks, "in_backward", lambda: lambda: False)
    time = Time()
    average = trained(Checkpointed(time, False), time).average()
    assert average.forward_s != near((1.0, 4.0, 16.0))


def test_an_output_that_the_loss_does_not_use() -> None:
    time = Time()

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Work(time, 1.0, 2.0)

        def forward(self, x: Any) -> float:
            self.kept = self.inner(x)
            return 0.0

    model = Hidden()

    def step(_: Profiler) -> None:
        model(inputs())
        model.kept.sum().backward()

    average = trained(model, time, step).average()
    assert (average.forward_s, average.step_s) == (near((1.0,)), near(3.0))


def test_parts_of_a_model_called_from_outside() -> None:
    time = Time()
    model = torch.nn.ModuleDict({"a": Work(time, 1.0, 2.0), "b": Work(time, 4.0, 8.0)})

    def step(_: Profiler) -> None:
        x = model["a"](inputs())
        time.spend(50.0)
        model["b"](x).sum().backward()

    average = trained(model, time, step).average()
    assert average.forward_s == near((1.0, 4.0))
    assert average.other_s["elsewhere"] == near(50.0)
    assert average.step_s == near(all_parts_s(average))


def test_mixed_precision() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))

    def step(_: Profiler) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(inputs()).sum()
        loss.backward()

    profile = trained(model, Time(), step).profile()
    assert profile.timings[0].precision == "mixed"
    assert profile.parameter_bytes == 4 * (15 + 5 + 5 + 1)
    half = torch.nn.Sequential(torch.nn.Linear(3, 1)).bfloat16()

    def low(_: Profiler) -> None:
        half(inputs().bfloat16()).sum().backward()

    profile = trained(half, Time(), low).profile()
    assert (profile.timings[0].precision, profile.parameter_bytes) == ("bf16", 2 * (3 + 1))


def test_batch_size_is_detected_or_given() -> None:
    time = Time()
    found = trained(chain(time), time)
    assert found.profile().timings[0].batch_size == SAMPLES
    assert "batch size taken from the model's first argument" in found.notes
    given = trained(chain(time), time, batch_size=12)
    assert given.profile().timings[0].batch_size == 12
    assert given.notes == []


def test_an_incomplete_batch_is_left_out() -> None:
    time = Time()
    model = chain(time)
    sizes = iter([4, 4, 4, 4, 1])

    def step(_: Profiler) -> None:
        size = next(sizes)
        time.spend(float(size == 1))
        model(inputs(size)).sum().backward()

    profiler = trained(model, time, step, iterations=5)
    assert profiler.average().steps == 3
    assert profiler.average().loading_s == near(0.0)
    assert "left out 1 step with an unusual number of samples or passes" in profiler.notes


def test_optimizer_state_is_counted() -> None:
    time = Time()

    def fraction(make: Any) -> float:
        model = chain(time)
        optimizer = make(model.parameters())
        with Profiler(model, optimizer, warmup=1, clock=time.clock) as profiler:
            for _ in range(3):
                model(inputs()).sum().backward()
                optimizer.step()
                profiler.step()
        return profiler.profile().optimizer_state_bytes_per_parameter_byte

    assert fraction(lambda p: torch.optim.SGD(p, lr=0.1)) == 0.0
    assert fraction(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) == 1.0
    assert fraction(lambda p: torch.optim.Adam(p)) == 2.0


# --- hooks -------------------------------------------------------------------------------------


def test_hooks_are_gone_after_the_block_and_after_enough_steps() -> None:
    time = Time()
    model = chain(time)
    seen = []

    def step(profiler: Profiler) -> None:
        seen.append(hooks(model))
        model(inputs()).sum().backward()

    profiler = trained(model, time, step, iterations=8, steps=3, warmup=1)
    assert [count > 0 for count in seen] == [True] * 4 + [False] * 4
    assert (profiler.measured, profiler.average().steps, hooks(model)) == (3, 3, 0)


@pytest.mark.parametrize("failing", [1, 2, 4])
def test_hooks_are_gone_after_an_error(failing: int) -> None:
    class Failing(torch.nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == failing:
                raise RuntimeError("planted")
            return x

    time = Time()
    model = torch.nn.Sequential(chain(time), Failing())
    optimizer = sgd(model, time)

    def run() -> None:
        with Profiler(model, optimizer, clock=time.clock) as profiler:
            for _ in range(5):
                assert hooks(model) > 0
                model(inputs()).sum().backward()
                optimizer.step()
                profiler.step()

    with pytest.raises(RuntimeError, match="planted"):
        run()
    assert hooks(model) == 0
    assert not optimizer._optimizer_step_pre_hooks
    # nothing that counts operations is left
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_profiling_does_not_change_gradients_and_weights() -> None:
    def run(block: Any) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with block(model, optimizer) as profiler:
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).square().sum().backward()
                optimizer.step()
                if profiler is not None:
                    profiler.step()
        return list(model.parameters())

    plain = run(lambda *_: contextlib.nullcontext())
    hooked = run(lambda model, optimizer: Profiler(model, optimizer, warmup=1))
    assert all(torch.equal(a, b) for a, b in zip(plain, hooked, strict=True))


def test_overhead_is_the_cost_of_the_marks() -> None:
    time = Time()
    model = torch.nn.Sequential(Work(time, 1.0, 0.0), Work(time, 1.0, 0.0))
    optimizer = sgd(model, time)

    def step() -> None:
        model(inputs()).sum().backward()
        optimizer.step()

    with Profiler(model, optimizer, warmup=1, clock=time.clock) as profiler:
        for _ in range(3):
            step()
            profiler.step()
    time.per_mark_ns = 10_000_000
    found = profiler.measure_overhead(step, pairs=6)
    # begin and end of forward, two layers, gradient of the output, two gradients, two of the
    # update; a step without hooks has one mark: its end
    assert found.fraction == near((2.0 + 10 * 0.01) / (2.0 + 0.01) - 1.0)
    assert (found.low, found.high, found.pairs) == (near(found.fraction), near(found.fraction), 6)
    assert profiler.profile().timings[0].overhead_fraction == found.fraction
    assert "measuring adds +4.5%" in profiler.profile().timings[0].source.text
    assert hooks(model) == 0


# --- files and mistakes ------------------------------------------------------------------------


def test_a_saved_profile_can_be_read_and_resolved(tmp_path: Any) -> None:
    time = Time()
    profiler = trained(chain(time), time, update_s=5.0, name="mine", device_name="here")
    path = tmp_path / "mine.json"
    profiler.save(path)
    profile = read_profile(path)
    assert profile.layers == profiler.profile().layers
    workload = resolve(profile, timings_on(profile, "here", None), batch_size=SAMPLES)
    assert workload.optimizer_s == near(5.0)
    assert workload.backward_s == near(2.0625 + 20.0)
    assert workload.quality == "measured"
    trained(chain(time), time, batch_size=8, name="mine", device_name="here").save(
        path, append=True
    )
    assert [t.batch_size for t in read_profile(path).timings] == [SAMPLES, 8]
    other = torch.nn.Sequential(Work(time, 1.0, 1.0))
    with pytest.raises(InputError, match="has 2 layers, but this model has 1"):
        trained(other, time).save(path, append=True)


def test_mistakes_are_refused() -> None:
    time = Time()
    model = chain(time)
    with pytest.raises(InputError, match=r"expected a torch\.nn\.Module, got a int"):
        Profiler(3)
    with pytest.raises(InputError, match="model: has no parameters"):
        Profiler(torch.nn.ReLU())
    with pytest.raises(InputError, match=r"expected a torch\.optim\.Optimizer, got a float"):
        Profiler(model, 0.1)
    with pytest.raises(InputError, match="warmup: must be at least 1, got 0"):
        Profiler(model, warmup=0)
    with pytest.raises(InputError, match="batch_size: must be at least 1, got 0"):
        Profiler(model, batch_size=0)
    with pytest.raises(InputError, match="1 steps were measured, at least 2 are needed"):
        trained(model, time, iterations=2).profile()
    with pytest.raises(InputError, match="0 steps were measured"):
        Profiler(model).profile()
    with pytest.raises(InputError, match="called no module"):
        trained(model, time, lambda _: None)
    with pytest.raises(InputError, match="produced no gradient"):
        trained(model, time, lambda _: model(inputs()))
    with pytest.raises(InputError, match="measure the overhead after the with block"):
        Profiler(model).measure_overhead(lambda: None)

    class Strange(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Work(time, 1.0, 1.0)

        def forward(self) -> Any:
            return self.inner.forward(torch.ones(3)).sum()

    strange = Strange()
    with pytest.raises(InputError, match="batch_size: cannot be inferred from the model's"):
        trained(strange, time, lambda _: strange().backward()).profile()
    assert hooks(model) == hooks(strange) == 0
