"""Record the layers of models in profiles/models without computing anything, on the meta device.

Run from the root of the repository:

    python -m benchmarks.record_layers resnet101 bert-large

The command replaces the layers in a file; its timings stay. Needs torch, and torchvision or
transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from perfmodel import Source
from perfmodel.base import files
from perfmodel.inputs.operator_shapes import Product
from perfmodel.inputs.profile import Layer, Profile, read_profile
from perfmodel.inputs.profile_files import dumped
from perfmodel.profiler import libraries
from perfmodel.profiler.unmeasured import describe

OWN = "layers and parameter tensors of benchmarks.networks.{} (torch {}), {}"


class Model(NamedTuple):
    """A model of the catalogue: how to build it, a title, and further contents of its file.

    ``shape`` is that of a sample; ``integers`` says whether a sample consists of words (for models
    that are neither from torchvision nor from transformers).
    """

    spec: str
    title: str
    shape: tuple[int, ...] = ()
    integers: bool = False
    remark: str = ""


def _own(name: str, title: str, shape: tuple[int, ...], paper: str, integers: bool = True) -> Model:
    return Model(f"benchmarks.networks:{name}", title, shape, integers, paper)


IMAGENET = "ImageNet 224x224"
MODELS = {
    "resnet101": Model("torchvision:resnet101", f"ResNet-101, {IMAGENET}"),
    "resnet152": Model("torchvision:resnet152", f"ResNet-152, {IMAGENET}"),
    "inception_v3": Model("torchvision:inception_v3", "Inception v3, ImageNet 299x299"),
    "vgg11": Model("torchvision:vgg11", f"VGG-11, {IMAGENET}"),
    "vgg13": Model("torchvision:vgg13", f"VGG-13, {IMAGENET}"),
    "vgg19": Model("torchvision:vgg19", f"VGG-19, {IMAGENET}"),
    "mobilenet_v2": Model("torchvision:mobilenet_v2", f"MobileNet-v2, {IMAGENET}"),
    "efficientnet-b0": Model("torchvision:efficientnet_b0", f"EfficientNet-B0, {IMAGENET}"),
    "efficientnet-b4": Model(
        "torchvision:efficientnet_b4", "EfficientNet-B4, ImageNet 380x380", (3, 380, 380)
    ),
    "densenet121": Model("torchvision:densenet121", f"DenseNet-121, {IMAGENET}"),
    "vit-l16": Model("torchvision:vit_l_16", f"ViT-L/16, {IMAGENET}"),
    "bert-large": Model("transformers:bert-large", "BERT large, masked words, 128 tokens", (128,)),
    "bert-base-384": Model(
        "transformers:bert-base", "BERT base, 384 tokens (as in SQuAD)", (384,)
    ),
    "bert-large-384": Model(
        "transformers:bert-large", "BERT large, 384 tokens (as in SQuAD)", (384,)
    ),
    "bert-large-512": Model(
        "transformers:bert-large", "BERT large, masked words, 512 tokens", (512,)
    ),
    "resnext101-32x4d": _own(
        "resnext101_32x4d", f"ResNeXt-101 32x4d, {IMAGENET}", libraries.IMAGE,
        "Xie et al., CVPR 2017", False,
    ),
    "se-resnext101-32x4d": _own(
        "se_resnext101_32x4d", f"SE-ResNeXt-101 32x4d, {IMAGENET}", libraries.IMAGE,
        "Hu et al., CVPR 2018", False,
    ),
    "ssd300-resnet50": _own(
        "SSD300", "SSD with ResNet-50, COCO 300x300", (3, 300, 300),
        "Liu et al., ECCV 2016, with the backbone of MLPerf", False,
    ),
    "ncf": _own("NeuMF", "NCF (NeuMF), MovieLens-20M", (2,), "He et al., WWW 2017"),
    "dlrm-dense": _own(
        "DLRMDense", "DLRM, the dense part, Criteo", (13 + 26 * 128,),
        "Naumov et al., arXiv 1906.00091, with the sizes of MLPerf v0.7", False,
    ),
    "gnmt": _own(
        "GNMT", "GNMT, WMT English to German, 25 tokens each", (50,),
        "Wu et al., arXiv 1609.08144, with the sizes of MLPerf",
    ),
    "transformer-big": _own(
        "TransformerBig", "Transformer (big), WMT English to German, 32 tokens each", (64,),
        "Vaswani et al., NeurIPS 2017",
    ),
    "transformer-xl-base": _own(
        "transformer_xl_base", "Transformer-XL base, WikiText-103, 192 tokens", (192,),
        "Dai et al., ACL 2019, with the sizes of NVIDIA DeepLearningExamples",
    ),
    "transformer-xl-large": _own(
        "transformer_xl_large", "Transformer-XL large, WikiText-103, 384 tokens", (384,),
        "Dai et al., ACL 2019, with the sizes of NVIDIA DeepLearningExamples",
    ),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and record the models one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--output", type=Path, default=Path("profiles/models"))
    asked = parser.parse_args(arguments)
    for name in asked.models:
        path = asked.output / f"{name}.json"
        profile = recorded(name)
        if path.exists():
            profile = msgspec.structs.replace(profile, timings=read_profile(path).timings)
        files.write(path, dumped(profile))
        print(f"{name}: {len(profile.layers)} layers, {profile.parameter_bytes / 4e6:.6g} M")


def recorded(name: str) -> Profile:
    """Return the profile of a model of :data:`MODELS`, without timings."""
    libraries._import_torchvision()  # outside of the meta device, and before networks do
    model = MODELS[name]
    with torch.device("meta"):
        built = libraries.build(model.spec)
    shape = model.shape or built.input_shape

    def batch(samples: int) -> Any:
        kind = torch.long if model.integers else torch.float32
        return torch.zeros(samples, *(shape or ()), dtype=kind), None

    described = describe(
        built,
        input_shape=shape if built.tokens else None,
        batch=None if built.tokens else batch,
        loss=None if built.tokens else "mean",
    )
    text = built.text
    if model.remark:
        text = OWN.format(model.spec.partition(":")[2], torch.__version__.partition("+")[0],
                          model.remark)  # fmt: skip
    elif model.shape and built.tokens:
        text += f", {model.shape[0]} tokens"
    return Profile(
        name=name,
        title=model.title,
        source=Source("exact", text, url=built.url),
        layers=by_pixel(described.layers),
    )


def by_pixel(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers whose images are stored pixel by pixel, as in most programs whose published
    speeds the catalogue has."""
    return tuple(
        msgspec.structs.replace(
            layer,
            operators=tuple(
                msgspec.structs.replace(one, layout="rows") if isinstance(one, Product) else one
                for one in layer.operators
            ),
        )
        for layer in layers
    )


if __name__ == "__main__":
    main()
