"""Record the layers and the measured CPU timings of the models in profiles/models.

Run from the root of the repository on an otherwise idle machine:

    python -m benchmarks.record_profiles resnet18 --batch-size 8 16 32

The command replaces the layers in a file and the measured timings of the device; all other timings,
such as published throughputs, stay. The file is written atomically once all batch sizes are
measured. Needs torch, and torchvision or transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.record_layers import by_pixel
from perfmodel.base import files
from perfmodel.inputs.profile import Profile, read_profile
from perfmodel.inputs.profile_files import dumped, ordered
from perfmodel.profiler import RecordedProfile, record
from perfmodel.profiler.training import build


class Model(NamedTuple):
    """A model of the catalogue: how to build it, and further contents of its file."""

    spec: str
    title: str
    input_shape: tuple[int, ...] = (3, 224, 224)
    remark: str = ""


MODELS = {
    "resnet18": Model("torchvision:resnet18", "ResNet-18, ImageNet 224x224"),
    "resnet50": Model("torchvision:resnet50", "ResNet-50, ImageNet 224x224"),
    "vgg16": Model("torchvision:vgg16", "VGG-16, ImageNet 224x224"),
    "alexnet": Model("torchvision:alexnet", "AlexNet, ImageNet 224x224"),
    "inception_v1": Model(
        "torchvision:googlenet",
        "Inception v1 (GoogLeNet), ImageNet 224x224",
        remark=", with batch normalisation: 6,624,904 parameters",
    ),
    "vit-b16": Model("torchvision:vit_b_16", "ViT-B/16, ImageNet 224x224"),
    "bert-base": Model("transformers:bert-base", "BERT base, masked words, 128 tokens", (128,)),
    "gpt2-small": Model("transformers:gpt2-small", "GPT-2 small, next word, 128 tokens", (128,)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and record the models one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--batch-size", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--steps", type=int, default=10, help="measured steps (default 10)")
    parser.add_argument("--max-steps", type=int, help="limit when noisy (default 3 x steps)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=10, help="for the overhead (default 10)")
    parser.add_argument("--optimizer", default="sgd", help="sgd, adam or adamw (default sgd)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu-epyc-2core", help="name to record")
    parser.add_argument("--hardware", default="AMD EPYC (2 cores)", help="text to record")
    parser.add_argument("--output", type=Path, default=Path("profiles/models"))
    asked = parser.parse_args(arguments)
    for name in asked.models:
        model = MODELS[name]
        recorded = record(
            build(model.spec),
            batch_sizes=asked.batch_size,
            input_shape=model.input_shape,
            optimizer=asked.optimizer,
            steps=asked.steps,
            max_steps=asked.max_steps or 3 * asked.steps,
            warmup=asked.warmup,
            threads=asked.threads,
            name=name,
            title=model.title,
            device_name=asked.device,
            hardware=asked.hardware,
            overhead_pairs=asked.pairs,
        )
        say(recorded)
        path = asked.output / f"{name}.json"
        files.write(path, dumped(renewed(path, recorded.profile, model.remark)))


def renewed(path: Path, new: Profile, remark: str) -> Profile:
    """Return the new workload with the file's timings of other devices and from other sources."""
    source = msgspec.structs.replace(new.source, text=new.source.text + remark)
    kept = []
    decoder = None
    if path.exists():
        decoder = read_profile(path).decoder
        devices = set(new.devices)
        kept = [
            timing
            for timing in read_profile(path).timings
            if timing.source.kind != "measured" or timing.device not in devices
        ]
    timings = ordered([*new.timings, *kept])
    return msgspec.structs.replace(
        new, source=source, timings=timings, decoder=decoder, layers=by_pixel(new.layers)
    )


def say(recorded: RecordedProfile) -> None:
    """Print a line for each batch size."""
    for one in recorded.measured:
        average = one.average
        print(
            f"{recorded.profile.name} on {one.timing.device}, batch {one.timing.batch_size}: "
            f"step {average.step_s:.4f} s (std {average.step_std_s:.4f}), forward "
            f"{sum(average.forward_s):.4f} s, backward {sum(average.backward_s):.4f} s, "
            f"optimizer {average.optimizer_s:.4f} s, other {average.all_other_s:.4f} s; "
            f"{one.timing.source.text}",
            flush=True,
        )


if __name__ == "__main__":
    main()
