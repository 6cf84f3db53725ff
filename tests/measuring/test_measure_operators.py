"""Measured operators on a CPU: the tables are those that the calibration reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="operators are measured with PyTorch")

from perfmodel.base import tables as files
from perfmodel.base.errors import InputError
from perfmodel.calibration.operators import SEQUENCES, SHAPE
from perfmodel.cli import cli
from perfmodel.measuring import operators


def test_shapes_are_within_limits_and_the_same_again() -> None:
    found = operators.measure("cpu", shapes=6, largest=128)
    assert len(found.products) == 6
    assert len(found.attention) == 3
    for m, n, k, kind, ms in found.products:
        assert {m, n, k} <= {64, 128}
        assert kind == "bfloat16"
        assert ms > 0.0
    for _, length, heads, kv_heads, width, ms in found.attention:
        assert length == 128
        assert heads % kv_heads == 0
        assert width in operators.HEADS
        assert ms > 0.0
    again = operators.measure("cpu", shapes=6, largest=128)
    assert [row[:3] for row in again.products] == [row[:3] for row in found.products]


def test_the_time_of_a_run_is_the_mean_of_many() -> None:
    runs = []

    def run() -> None:
        runs.append(time.sleep(0.002))

    assert 0.002 <= operators._seconds(run, "cpu") < 0.02
    assert len(runs) > operators.WARM_UP + 2


class Graphs:
    """A GPU whose clock is at 1 ms per kernel; the host needs no time, and launches graphs."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.captured: list[int] | None = None
        self.captures: list[int] = []
        self.cuda = self

    def kernel(self) -> None:
        if self.captured is None:
            self.now_ms += 1.0
        else:
            self.captured[0] += 1

    def CUDAGraph(self) -> SimpleNamespace:  # noqa: N802
        kernels = [0]
        return SimpleNamespace(kernels=kernels, replay=lambda: self.run(kernels[0]))

    def run(self, kernels: int) -> None:
        self.now_ms += float(kernels)

    @contextmanager
    def graph(self, graph: SimpleNamespace) -> Iterator[None]:
        self.captured = graph.kernels
        yield
        self.captured = None
        self.captures.append(graph.kernels[0])

    def Event(self, enable_timing: bool) -> SimpleNamespace:  # noqa: N802
        event = SimpleNamespace(at_ms=None, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at_ms", self.now_ms)
        event.elapsed_time = lambda other: other.at_ms - event.at_ms
        return event


def test_runs_on_a_gpu_are_launched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Graphs()
    monkeypatch.setattr(operators, "import_torch", lambda: device)
    assert operators._seconds(device.kernel, "cuda") == pytest.approx(1e-3)
    assert device.captures == [1, 20]  # one run, then as many as last 20 ms
    # warm-up, and each graph twice, the first time unmeasured
    assert device.now_ms == operators.WARM_UP + 2 * (1 + 20)


def test_the_command_writes_what_the_calibration_reads(tmp_path: Path) -> None:
    name = str(tmp_path / "cpu")
    given = ["measure", "operators", "--device", "cpu", "--shapes", "6", "--largest", "128"]
    done = CliRunner().invoke(cli, [*given, "--output", name], catch_exceptions=False)
    assert done.exit_code == 0
    assert "perfmodel calibrate operators" in done.output
    files.read(f"{name}-products.csv").need(*SHAPE, "dtype", "ms")
    files.read(f"{name}-attention.csv").need(*SEQUENCES, "ms")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"device": "cuda"}, "CUDA"),
        ({"device": "gpu"}, "device: expected"),
        ({"device": "cpu", "shapes": 0}, "shapes"),
        ({"device": "cpu", "largest": 64}, "largest"),
        ({"device": "cpu", "seconds": 1e-9}, "too few"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, object], why: str) -> None:
    torch = pytest.importorskip("torch")
    if given == {"device": "cuda"} and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=why):
        operators.measure(**given)  # type: ignore[arg-type]
