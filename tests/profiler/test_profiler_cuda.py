"""The clock and the precision of CUDA devices, on fakes, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.profiler import layers
from perfmodel.profiler.clocks import CpuClock, CudaClock


class Device:
    """A stream that runs its work later, as a GPU does asynchronously to the host."""

    def __init__(self) -> None:
        self.work: list[Any] = []
        self.now_ms = 0.0
        self.events = 0
        self.waits = 0

    @property
    def cuda(self) -> Any:
        """A fake ``torch.cuda``."""
        return SimpleNamespace(
            Event=lambda enable_timing: Event(self, enable_timing), synchronize=self.synchronize
        )

    def compute(self, milliseconds: float) -> None:
        self.work.append(milliseconds)

    def synchronize(self, _: Any = None) -> None:
        self.waits += 1
        self.run(len(self.work))

    def run(self, count: int) -> None:
        """Run the next ``count`` pieces of the device's work."""
        for piece in self.work[:count]:
            if isinstance(piece, Event):
                piece.at_ms = self.now_ms
            else:
                self.now_ms += piece
        del self.work[:count]


class Event:
    """A CUDA event."""

    def __init__(self, device: Device, enable_timing: bool) -> None:
        assert enable_timing
        self.device = device
        self.at_ms: float | None = None
        device.events += 1

    def record(self) -> None:
        self.at_ms = None
        self.device.work.append(self)

    def query(self) -> bool:
        return self.at_ms is not None

    def synchronize(self) -> None:
        if self.at_ms is None:
            self.device.synchronize()

    def elapsed_time(self, other: Event) -> float:
        assert self.at_ms is not None
        assert other.at_ms is not None
        return other.at_ms - self.at_ms


def test_marks_are_read_when_the_device_has_reached_them() -> None:
    device = Device()
    clock = CudaClock(device.cuda)
    marks = []
    for milliseconds in (1.0, 2.0, 4.0):
        marks.append(clock.mark())
        device.compute(milliseconds)
    assert not clock.passed(marks[0])
    device.run(1)
    assert clock.passed(marks[0])
    assert not clock.passed(marks[-1])
    assert device.waits == 0
    assert clock.seconds(marks) == pytest.approx([0.0, 0.001, 0.003])
    assert device.waits == 1


def test_events_are_reused() -> None:
    device = Device()
    clock = CudaClock(device.cuda)
    for step in range(10):
        marks = [clock.mark()]
        device.compute(float(step))
        marks.append(clock.mark())
        assert clock.seconds(marks) == pytest.approx([0.0, step * 1e-3])
    assert device.events == 2


def test_the_host_does_not_wait() -> None:
    now = iter([5, 7, 1_000_000_005])
    clock = CpuClock(lambda: next(now))
    marks = [clock.mark(), clock.mark(), clock.mark()]
    assert clock.passed(marks[-1])
    assert clock.seconds(marks) == pytest.approx([0.0, 2e-9, 1.0])


def test_profiling_on_a_device_does_not_wait_inside_steps() -> None:
    torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")
    from perfmodel.profiler import Profiler

    device = Device()

    class Work(torch.nn.Linear):
        """Queues work in both directions."""

        def forward(self, x: Any) -> Any:
            device.compute(2.0)
            output = super().forward(x)
            output.register_hook(lambda _: device.compute(4.0))
            return output

    model = torch.nn.Sequential(Work(3, 3), Work(3, 3), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: device.compute(8.0))
    clock = CudaClock(device.cuda)
    with Profiler(model, optimizer, warmup=1, clock=clock) as profiler:
        for step in range(20):
            device.compute(1.0)
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            profiler.step()
            if step % 2:  # the device falls behind, and catches up
                device.run(len(device.work))
        assert device.waits == 0
        # a step has a dozen marks; at most a few steps' marks are pending
        assert device.events < 100
    average = profiler.average()
    assert average.steps == 19
    assert average.forward_s == pytest.approx((0.002, 0.002))
    assert average.backward_s == pytest.approx((0.004, 0.004))
    assert average.optimizer_s == pytest.approx(0.008)
    assert average.loading_s == pytest.approx(0.001)
    assert average.step_s == pytest.approx(0.021)


class Convolution:
    """A module on a fake GPU."""

    def parameters(self) -> Any:
        yield SimpleNamespace(device=SimpleNamespace(type="cuda"))


class Conv1D:
    """A product, which Transformers calls so, on a fake GPU."""

    parameters = Convolution.parameters


@pytest.mark.parametrize(
    ("capability", "convolutions", "products", "rounded"),
    [
        ((8, 0), True, False, True),  # as PyTorch does by default
        ((7, 0), True, True, False),  # no tensor cores for TF32
        ((9, 0), False, True, False),
        ((9, 0), True, True, True),
        ((9, 0), False, False, False),
    ],
)
def test_most_operations_name_the_precision_of_float32(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    convolutions: bool,
    products: bool,
    rounded: bool,
) -> None:
    backends = SimpleNamespace(
        cudnn=SimpleNamespace(allow_tf32=convolutions),
        cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=products)),
    )
    cuda = SimpleNamespace(get_device_capability=lambda _: capability)
    modules = SimpleNamespace(conv=SimpleNamespace(_ConvNd=Convolution))
    fake = SimpleNamespace(backends=backends, cuda=cuda, nn=SimpleNamespace(modules=modules))
    monkeypatch.setattr(layers, "import_torch", lambda: fake)
    observed: list[Any] = [
        layers.ObservedLayer("first", Convolution(), [], flop=60.0),  # type: ignore[arg-type]
        layers.ObservedLayer("last", Conv1D(), [], flop=40.0),  # type: ignore[arg-type]
    ]
    assert layers._uses_tf32(observed) == rounded
