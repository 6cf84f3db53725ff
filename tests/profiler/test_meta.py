"""Models on the device meta, where nothing is computed: as measured, but for the times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from perfmodel import make_job, predict  # noqa: E402
from perfmodel.base.errors import InputError  # noqa: E402
from perfmodel.cli import cli  # noqa: E402
from perfmodel.inputs.operator_shapes import Attention, MemoryBound, Product  # noqa: E402
from perfmodel.inputs.profile import Profile, read_profile  # noqa: E402
from perfmodel.inputs.profile_files import dumped  # noqa: E402
from perfmodel.profiler import describe, record, unmeasured  # noqa: E402
from perfmodel.profiler.libraries import Built  # noqa: E402

nn = torch.nn


def convolutions() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 36, 10)),
    )


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class NeedsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * (2.0 if float(x.sum()) > 0.0 else 1.0)


def drop_rates() -> Any:
    """A model whose function reads values, though its forward pass does not."""
    (_, rate) = (one.item() for one in torch.linspace(0.0, 0.5, 2))
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate))


class OwnLoss(nn.Module):
    """Returns a mean, which is its loss."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return {"loss": self.inner(x).mean()}


def described(model: Any, *shape: int, **given: Any) -> Profile:
    return describe(Built(model, "own", "own model"), input_shape=shape, **given)


@pytest.mark.parametrize(
    ("make", "shape"), [(convolutions, (3, 16, 16)), (encoder, (6, 16))], ids=["images", "words"]
)
def test_a_described_model_is_as_measured_but_for_the_times(
    make: Any, shape: tuple[int, ...]
) -> None:
    built = Built(OwnLoss(make()), "own", "own model")
    given: dict[str, Any] = {"input_shape": shape, "optimizer": "adam"}
    measured = record(built, batch_sizes=(2,), steps=2, warmup=1, overhead_pairs=0, **given).profile
    profile = described(OwnLoss(make()), *shape, optimizer="adam")
    assert profile == msgspec.structs.replace(measured, timings=())


def test_the_loss_belongs_to_the_last_layer() -> None:
    # logits of 10 classes: logarithmic softmax 20 and 30, look-up of one (2, with a target that is
    # not of the batch) and 11; the gradient of the bias sums 10
    model = nn.Sequential(nn.Linear(6, 10))
    (layer,) = described(model, 6).layers
    product, moving = layer.operators
    assert product == Product(1, 10, 6)
    assert isinstance(moving, MemoryBound)
    assert moving.forward_values == pytest.approx(20 + 2, abs=1.0)
    assert moving.backward_values == pytest.approx(10 + 30 + 11, abs=1.0)


def test_values_that_only_the_function_needs_are_computed() -> None:
    # as a model by name, which is made on the device meta if it can be
    profile = describe("tests.profiler.test_meta:drop_rates", input_shape=(4,))
    assert profile.parameter_bytes == 4 * (16 + 4)
    assert profile.name == "drop_rates"


def test_values_that_only_a_library_needs_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision's RegNet rounds its widths as a tensor, and raises what PyTorch does."""

    def regnet(spec: str) -> Built:
        return Built(drop_rates(), spec, "test", input_shape=(4,))

    monkeypatch.setattr(unmeasured, "build", regnet)
    profile = describe("torchvision:regnet")
    assert profile.layers[0].kind == "linear"


def test_a_model_that_needs_values_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^model: own needs values of tensors.*without --meta$"):
        described(NeedsValues(), 4)


def test_other_mistakes_keep_their_messages() -> None:
    with pytest.raises(InputError, match="does not accept --input-shape"):
        described(convolutions(), 4)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["profile", *arguments])


def test_the_command_writes_a_workload_that_predicts_on_any_gpu(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    model = "tests.profiler.test_meta:convolutions"
    done = run("--model", model, "--input-shape", "3,16,16", "--meta", "--output", str(path))
    assert done.exit_code == 0, done.output
    assert "convolutions, not measured: 4 layers, 7 tensors" in done.output
    assert dumped(read_profile(path)) == dumped(describe(model, input_shape=(3, 16, 16)))
    assert json.loads(path.read_text())["layers"][0]["operators"][0] == {
        "operator": "product",
        "rows": 256,
        "columns": 8,
        "depth": 27,
        "reuse": 9,
        "layout": "patches",
    }
    for device in ("h100", "v100", "rtx3090"):
        job = make_job(workload=str(path), device=device, arch="ring", workers=2)
        assert predict(job).throughput_samples_per_s > 0.0


@pytest.mark.parametrize(
    "more", [["--steps", "3"], ["--device", "cuda"], ["--noise-scale"], ["--batch-size", "8"]]
)
def test_options_of_measuring_are_refused(more: list[str]) -> None:
    done = run("--model", "tests.profiler.test_meta:encoder", "--meta", *more)
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == f"{more[0]}: has no meaning with --meta"


def test_a_model_can_be_described_as_json() -> None:
    done = run("--model", "tests.profiler.test_meta:encoder", "--input-shape", "6,16", "--meta",
               "--json", "--output", "/dev/null")  # fmt: skip
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert msgspec.convert(json.loads(text), Profile).name == "encoder"


def test_attention_keeps_no_scores() -> None:
    # queries, keys, values and results of 64 words, 2 heads of 8, and a number per word and head
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(x * self.weight, x, x)

    (layer,) = described(Attend(), 2, 64, 8).layers
    assert Attention(64, 2, 2, 8, causal=False) in layer.operators
    assert layer.saved_bytes is not None
    assert layer.saved_bytes < 4 * (5 * 2 * 64 * 8 + 2 * 64) + 100 < 4 * 2 * 64 * 64
