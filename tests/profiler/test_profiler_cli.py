"""``perfmodel profile`` end to end on small user models, and its error messages."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfmodel.cli import main
from perfmodel.inputs.profile import read_profile
from perfmodel.inputs.usual_losses import handover_of
from perfmodel.theory.order_statistics import normal_maximum

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the profiler measures PyTorch models"
)

MODELS = """
import torch

LOADED = 0

class Answer:
    def __init__(self, loss, logits):
        self.loss, self.logits = loss, logits

class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7)
    def forward(self, input_ids, labels=None):
        logits = self.out(self.words(input_ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Answer(loss, logits)

def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 8), torch.nn.ReLU(),
                               torch.nn.Linear(8, 4))

def words():
    return Words()

def other():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 4))

def frozen():
    return net().requires_grad_(False)

def three():
    return 3

def failing():
    raise ValueError("planted")

def texts(samples):
    ids = torch.zeros(samples, 5, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}

def images(samples):
    return torch.zeros(samples, 3, 4, 4), torch.zeros(samples, dtype=torch.long)

def numbers(samples):
    return torch.zeros(samples, 3, 4, 4), torch.zeros(samples, 4)

def drawn(samples):
    return torch.randn(samples, 3, 4, 4), torch.randint(4, (samples,))

def wrong(samples):
    return torch.zeros(samples, 7), None

def nothing(samples):
    return None

def halved(output, targets):
    return output.sum() / 2

def not_a_number(output, targets):
    return output
"""

QUICK = "--steps 2 --warmup 1 --threads 1 --no-overhead"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(MODELS, encoding="utf-8")
    return tmp_path


def profiled(folder: Path, arguments: str, *, before: str = "pass") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``perfmodel profile`` in a folder."""
    code = f"import sys; {before}; from perfmodel.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "profile", *arguments.split()],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def predicted(folder: Path, *arguments: str) -> dict[str, object]:
    """Output of ``perfmodel predict`` for a workload file."""
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "predict", *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@needs_torch
def test_a_users_model_is_profiled_and_predicted(folder: Path) -> None:
    code, out, error = profiled(
        folder,
        "--model nets:net --input-shape 3,4,4 --batch-size 4,8 --accumulation 2 --device-name mine "
        "--steps 3 --warmup 1 --optimizer adam --threads 1",
    )
    assert (code, error) == (0, "wrote net.json; perfmodel predict --workload net.json\n")
    profile = read_profile(folder / "net.json")
    assert [layer.name for layer in profile.layers] == ["1", "3"]
    assert profile.parameter_bytes == 4 * (48 * 8 + 8 + 8 * 4 + 4)
    assert profile.optimizer_state_bytes_per_parameter_byte == 2.0
    assert [(t.device, t.batch_size, t.accumulation) for t in profile.timings] == [
        ("mine", 4, 2),
        ("mine", 8, 2),
    ]
    for timing in profile.timings:
        assert timing.per_layer
        assert timing.total_s > 0.0
        assert "Adam, cross entropy, random inputs of 3x4x4" in timing.source.text
        assert "20 pairs of steps" in timing.source.text
    assert "2 layers, 4 tensors, 1.712 kB of gradients" in out
    for word in ("forward", "backward", "optimizer", "loading", "copies", "other", "overhead"):
        assert word in out
    answer = predicted(folder, "--workload", "net.json", "--workers", "4", "--arch", "ring")
    assert (answer["model"], answer["batch_size"], answer["quality"]) == ("net", 8, "measured")
    # four tensors are handed over, at the pace of the slowest of four devices
    handover_s = handover_of(None).seconds(4, profile.parameter_bytes)
    expected_s = (profile.timings[1].total_s + handover_s) * (1.0 + 0.01 * normal_maximum(4))
    assert answer["compute_s"] == pytest.approx(expected_s)
    alone = predicted(folder, "--workload", "net.json", "--workers", "1", "--arch", "ring")
    assert alone["compute_s"] == pytest.approx(profile.timings[1].total_s)


@needs_torch
def test_user_batches_and_added_timings(folder: Path) -> None:
    assert profiled(folder, f"--model nets:words --batch nets:texts {QUICK}")[0] == 0
    code, out, _ = profiled(
        folder, f"--model nets:words --batch nets:texts {QUICK} --dtype bf16 --append --json"
    )
    assert code == 0
    profile = read_profile(folder / "words.json")
    assert [(t.precision, t.batch_size) for t in profile.timings] == [("float32", 8), ("mixed", 8)]
    assert "the model's own loss, data of nets:texts" in profile.timings[1].source.text
    answer = json.loads(out)
    (one,) = answer["measured"]
    assert answer["workload"]["name"] == "words"
    assert {layer["name"] for layer in one["layers"]} == {"words", "out"}
    passes = one["forward_s"] + one["backward_s"] + one["optimizer_s"]
    rest = one["data_loading_s"] + one["copy_s"] + sum(one["other_s"].values())
    assert one["step_s"] == pytest.approx(passes + rest)
    code, _, error = profiled(
        folder, f"--model nets:other --batch nets:images {QUICK} --output words.json --append"
    )
    assert code == 2
    assert "words: has 2 layers, but this model has 1; give another file" in error


@needs_torch
@pytest.mark.parametrize(
    ("loss", "batch", "said"),
    [
        ("", "images", "cross entropy"),
        ("--loss mse_loss", "numbers", "mse_loss"),
        ("--loss mean", "images", "mean of the output"),
        ("", "numbers", "mean of the output"),
        ("--loss nets:halved", "images", "nets:halved"),
    ],
)
def test_built_in_losses(folder: Path, loss: str, batch: str, said: str) -> None:
    arguments = f"--model nets:net --batch nets:{batch} {loss} {QUICK} --name a --json"
    code, out, error = profiled(folder, arguments)
    assert (code, error) == (0, "wrote a.json; perfmodel predict --workload a.json\n")
    assert (
        f", {said}, data of nets:{batch}, "
        in read_profile(folder / "a.json").timings[0].source.text
    )
    assert json.loads(out)["name"] == "a"


@needs_torch
def test_the_noise_scale_is_measured_and_saved(folder: Path) -> None:
    arguments = f"--model nets:net --batch nets:drawn {QUICK} --noise-scale --noise-steps 30"
    code, out, _ = profiled(folder, arguments)
    assert code == 0
    found = read_profile(folder / "net.json").noise_scale
    assert found is not None
    assert (found.batch_size, found.batches, found.steps) == (8, 8, 30)
    assert found.samples > 1.0
    assert f"{found}\n" in out
    assert "data of nets:drawn, initial parameters of net" in found.source.text
    profiled(folder, f"--model nets:net --batch nets:drawn {QUICK} --batch-size 4 --append")
    profile = read_profile(folder / "net.json")
    assert profile.noise_scale == found
    assert len(profile.timings) == 2
    for asked in ("--batch nets:images", "--input-shape 3,4,4"):
        code, _, error = profiled(folder, f"--model nets:net {asked} {QUICK} --noise-scale")
        assert (code, error.count("\n")) == (2, 1)
        assert error.startswith("perfmodel: error: noise scale: ")


NET = "--model nets:net --input-shape 3,4,4"
KNOWN = "torchvision:NAME, transformers:NAME or package.module:function"

MISTAKES = {
    "": "Missing option '--model'.",
    "--model net": f"model: expected {KNOWN}, got 'net'",
    "--model nets:nte": "model: module nets has no 'nte'; did you mean 'net'?",
    "--model nets:LOADED": "model: nets:LOADED is a int, not a function",
    "--model nots:net": "model: no module named 'nots' (searched {folder} first)",
    "--model nets:three": "model: nets:three returned a int, not a torch.nn.Module",
    "--model nets:failing": "nets:failing(): ValueError: planted",
    "--model nets:frozen --input-shape 3,4,4": "model: frozen has no trainable parameters",
    "--model nets:net":
        "model: the input shape of net is unknown; give the shape of one sample (--input-shape "
        "3,224,224) or a function that makes batches (--batch module:function)",
    "--model nets:net --input-shape 3,4,5":
        "model: net does not accept --input-shape, with inputs of shape 8x3x4x5: RuntimeError: ...",
    "--model nets:net --input-shape 3,x": "--input-shape: expected a whole number, got 'x'",
    "--model nets:net --input-shape 3,0": "input_shape: must be at least 1, got 0",
    f"{NET} --batch nets:images": "input_shape and batch: give one of them",
    "--model nets:net --batch nets:wrong":
        "model: net does not accept the batch, with inputs of shape 8x7: RuntimeError: ...",
    "--model nets:net --batch nets:nothing":
        "batch: nets:nothing returned a NoneType; expected (inputs, targets), a tensor of "
        "inputs, or a dict of the model's arguments",
    f"{NET} --loss mse_loss":
        "loss: mse_loss needs targets; give a function that makes batches "
        "(--batch module:function)",
    f"{NET} --loss mse_los":
        "unknown loss 'mse_los'; did you mean 'mse_loss'? (known: "
        "binary_cross_entropy_with_logits, cross_entropy, l1_loss, mean, mse_loss)",
    f"{NET} --loss nets:not_a_number":
        "loss: nets:not_a_number returns a tensor of shape 8x4, not a scalar",
    f"{NET} --optimizer adamm":
        "unknown --optimizer 'adamm'; did you mean 'adam'? (known: adam, adamw, sgd)",
    f"{NET} --dtype fp8": "unknown --dtype 'fp8' (known: bf16, float32)",
    f"{NET} --device gpu": "device: expected cpu, cuda or cuda:N, got 'gpu'",
    f"{NET} --batch-size 0": "batch_size: must be at least 1, got 0",
    f"{NET} --batch-size 6 --accumulation 4":
        "batch_size: 6 samples cannot be split evenly into 4 passes",
    f"{NET} --steps 1": "steps: must be at least 2, got 1",
    f"{NET} --warmup 0": "warmup: must be at least 1, got 0",
    f"{NET} --threads 0": "threads: must be at least 1, got 0",
    f"{NET} --noise-steps 9": "--noise-steps: needs --noise-scale",
    f"{NET} --noise-scale --noise-steps 1": "--noise-steps: must be at least 2, got 1",
    f"{NET} --noise-scale":
        "noise scale: random data do not have the noise of your data; give a function that "
        "makes batches (--batch module:function)",
    f"{NET} --output nowhere/a.json":
        f"nowhere/a.json: cannot write: {os.strerror(2)}",
    f"{NET} --output nets.py --append":
        "nets.py: not valid JSON: ...",
}  # fmt: skip


@needs_torch
@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line(
    folder: Path,
    arguments: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    monkeypatch.setattr(sys, "argv", ["perfmodel", "profile", *arguments.split()])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.modules.pop("nets", None)
    out, error = capsys.readouterr()
    said = MISTAKES[arguments].replace("{folder}", str(folder.resolve()))
    assert (ended.value.code, out) == (2, "")
    assert error.count("\n") == 1
    assert error.removesuffix("\n").startswith(f"perfmodel: error: {said.removesuffix('...')}")
    assert said.endswith("...") or error == f"perfmodel: error: {said}\n"
    left = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert left == {"nets.py"}


@needs_torch
def test_a_missing_gpu_is_reported_in_one_line(folder: Path) -> None:
    before = "import torch; torch.cuda.is_available = lambda: False"
    code, _, error = profiled(folder, f"{NET} --device cuda", before=before)
    said = "device: PyTorch finds no CUDA device for 'cuda'; use cpu"
    assert (code, error) == (2, f"perfmodel: error: {said}\n")


@needs_torch
@pytest.mark.parametrize(
    ("spec", "library"),
    [("torchvision:resnet18", "torchvision"), ("transformers:gpt2", "transformers")],
)
def test_a_missing_library_is_reported(folder: Path, spec: str, library: str) -> None:
    before = f"sys.modules[{library!r}] = None"
    code, _, error = profiled(folder, f"--model {spec}", before=before)
    said = f"model: {library} is missing: pip install {library}"
    assert (code, error) == (2, f"perfmodel: error: {said}\n")


@pytest.mark.parametrize("arguments", [NET, "--model torchvision:resnet18"])
def test_without_torch_the_extra_is_named(folder: Path, arguments: str) -> None:
    before = "sys.modules['torch'] = None"
    code, out, error = profiled(folder, arguments, before=before)
    said = "this needs PyTorch: pip install 'perfmodel[torch]'"
    assert (code, out, error) == (2, "", f"perfmodel: error: {said}\n")


def test_help_needs_no_torch(folder: Path) -> None:
    code, out, _ = profiled(folder, "--help", before="sys.modules['torch'] = None")
    assert code == 0
    assert "perfmodel profile --model torchvision:resnet50" in out


def names(library: str) -> Sequence[str]:
    return {
        "torchvision": ("vit_b_16", "googlenet"),
        "transformers": ("bert-base", "gpt2-small"),
    }[library]


@needs_torch
@pytest.mark.parametrize("library", ["torchvision", "transformers"])
def test_models_of_libraries_and_the_nearest_name(library: str) -> None:
    pytest.importorskip("torch", reason="the profiler measures PyTorch models")
    from perfmodel.base.errors import InputError
    from perfmodel.profiler import libraries

    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    for name in names(library):
        with pytest.raises(InputError, match=f"did you mean '{name}'"):
            libraries.build(f"{library}:{name}x")
