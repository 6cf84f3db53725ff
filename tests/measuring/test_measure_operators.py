"""Measured operators on a CPU: the tables are those that the calibration reads."""

from __future__ import annotations

import time
from pathlib import Path

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
