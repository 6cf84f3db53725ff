"""Record the layers and the measured CPU timings of the torchvision models in profiles/models.

Run from the root of the repository on a machine with nothing else to do:

    python benchmarks/record_profiles.py resnet18 --batch-size 8 16 32

For each model the file gets its layers anew, and measured timings of the same device and batch
size are replaced; all other timings in the file, such as published throughputs, stay. A file is
replaced in one move, so that an interrupted run leaves the old one whole.

Needs torch, torchvision, numpy and pillow. Where torchvision comes without operators built for
the installed torch (which is the case for some mixtures of packages), the two operators it insists
on at import are declared first; no model used here calls them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfmodel import profiler

URL = "https://pytorch.org/vision/stable/models.html"
# name -> (torchvision function, keyword arguments, title, remark on the source)
MODELS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "resnet18": ("resnet18", {}, "ResNet-18", ""),
    "resnet50": ("resnet50", {}, "ResNet-50", ""),
    "vgg16": ("vgg16", {"init_weights": False}, "VGG-16", ""),
    "alexnet": ("alexnet", {}, "AlexNet", ""),
    "inception_v1": (
        "googlenet",
        {"aux_logits": False, "init_weights": False},
        "Inception v1 (GoogLeNet)",
        ", with batch normalisation and without the auxiliary heads: 6,624,904 parameters",
    ),
}
CLASSES = 1000
IMAGE = (3, 224, 224)


def main() -> None:
    """Read the command line and record the models one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--batch-size", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--steps", type=int, default=10, help="measured steps (default 10)")
    parser.add_argument("--max-steps", type=int, help="limit when noisy (default 3 x steps)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu-epyc-2core", help="name to record")
    parser.add_argument("--hardware", default="AMD EPYC (2 cores)", help="text to record")
    parser.add_argument("--output", type=Path, default=Path("profiles/models"))
    arguments = parser.parse_args()

    torch, torchvision = import_torch(arguments.threads)
    for name in arguments.models:
        record(name, arguments, torch, torchvision)


def import_torch(threads: int) -> tuple[Any, Any]:
    """Import torch and torchvision; declare missing torchvision operators if it needs that."""
    import torch

    torch.set_num_threads(threads)
    try:
        import torchvision
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
        for module in [key for key in sys.modules if key.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float limit) -> Tensor")
        import torchvision

        torchvision.declared_operators = library  # they last as long as this object
    return torch, torchvision


def record(name: str, arguments: argparse.Namespace, torch: Any, torchvision: Any) -> None:
    """Measure one model with every batch size and write its file after each."""
    function, keywords, title, remark = MODELS[name]
    path = arguments.output / f"{name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    torch.manual_seed(0)
    model = getattr(torchvision.models, function)(weights=None, **keywords).train()
    version = torchvision.__version__.split("+")[0]
    workload: dict[str, Any] = {
        "schema": "perfmodel.workload/1",
        "name": name,
        "title": f"{title}, ImageNet {IMAGE[1]}x{IMAGE[2]}",
        "source": {
            "kind": "exact",
            "text": "layers and parameter tensors of torchvision.models."
            f"{function} (torchvision {version}){remark}",
            "url": URL,
        },
        "layers": profiler.layers(model, torch.randn(2, *IMAGE)),
        "timings": old.get("timings", []),
    }
    for batch_size in arguments.batch_size:
        timing = measure(model, batch_size, arguments, torch)
        same = (timing["device"], batch_size, "measured")
        kept = [
            entry
            for entry in workload["timings"]
            if (entry["device"], entry["batch_size"], entry["source"]["kind"]) != same
        ]
        measured = [entry for entry in kept if entry["source"]["kind"] == "measured"]
        others = [entry for entry in kept if entry["source"]["kind"] != "measured"]
        measured = sorted([*measured, timing], key=lambda entry: entry["batch_size"])
        workload["timings"] = [*measured, *others]
        write(path, workload)


def measure(
    model: Any, batch_size: int, arguments: argparse.Namespace, torch: Any
) -> dict[str, Any]:
    """Time one batch size and print how the parts compare with steps timed without hooks."""
    inputs = torch.randn(batch_size, *IMAGE)
    targets = torch.randint(0, CLASSES, (batch_size,))
    common: dict[str, Any] = {
        "loss": torch.nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
    }
    before = profiler.step_times(
        model, inputs, targets, **common, steps=max(3, arguments.steps // 2), warmup=5
    )
    cores = f"{arguments.threads} threads, {arguments.hardware}"
    timing = profiler.profile(
        model,
        inputs,
        targets,
        **common,
        batch_size=batch_size,
        device_name=arguments.device,
        steps=arguments.steps,
        warmup=arguments.warmup,
        max_steps=arguments.max_steps or 3 * arguments.steps,
        description=f"torch {torch.__version__.split('+')[0]} CPU, {cores}, "
        "SGD momentum 0.9, random data",
    )
    after = profiler.step_times(
        model, inputs, targets, **common, steps=max(3, arguments.steps // 2), warmup=1
    )
    whole = [*before, *after]
    forward, backward = sum(timing["forward_s"]), sum(timing["backward_s"])
    parts = forward + backward + timing["optimizer_s"]
    mean = statistics.fmean(whole)
    print(
        f"{timing['device']} batch {batch_size}: forward {forward:.4f} s, backward "
        f"{backward:.4f} s, optimizer {timing['optimizer_s']:.4f} s, sum {parts:.4f} s; whole "
        f"step without hooks {mean:.4f} s (std {statistics.stdev(whole):.4f}); "
        f"sum / whole {parts / mean:.3f}; {timing['source']['text']}",
        flush=True,
    )
    return timing


def write(path: Path, workload: dict[str, Any]) -> None:
    """Replace a file in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(dump(workload), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def dump(workload: dict[str, Any]) -> str:
    """Format a workload as JSON with one layer and one list of numbers per line."""
    lines = ["{"]
    for key, value in workload.items():
        comma = "" if key == list(workload)[-1] else ","
        if key == "layers":
            rows = ",\n".join("  " + json.dumps(layer) for layer in value)
            lines.append(f' "layers": [\n{rows}\n ]{comma}')
        elif key == "timings":
            entries = ",\n".join("  {" + timing_lines(entry) + "}" for entry in value)
            lines.append(f' "timings": [\n{entries}\n ]{comma}')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}{comma}")
    return "\n".join([*lines, "}"]) + "\n"


def timing_lines(entry: dict[str, Any]) -> str:
    """Format the inside of one timing; lists and what follows them start a line of their own."""
    text = ""
    for key, value in entry.items():
        own_line = isinstance(value, (list, dict)) or key == "optimizer_s"
        separator = ("" if not text else ",\n   ") if own_line else (", " if text else "")
        text += f"{separator}{json.dumps(key)}: {json.dumps(rounded(value))}"
    return text


def rounded(value: Any) -> Any:
    """Round floating-point numbers, also in lists, to 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


if __name__ == "__main__":
    main()
