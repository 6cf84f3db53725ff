"""Models by name: from torchvision, from transformers, or from the user's own function.

Libraries are imported on first use. Options that a model needs to train in a plain loop are set
here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.base.errors import InputError, exception_line, unknown_name
from perfmodel.foreign.functions import call, load
from perfmodel.foreign.pytorch import import_torch

if TYPE_CHECKING:
    from torch.nn import Module

FORMS = "torchvision:NAME, transformers:NAME or package.module:function"

TOKENS = 128
"""Default length of a random text, in tokens."""

IMAGE = (3, 224, 224)
LARGER_IMAGE = (3, 299, 299)
"""Input size of Inception v3 (Szegedy et al., CVPR 2016)."""

PLAIN: Mapping[str, dict[str, bool]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
}
"""Options for torchvision's models: no auxiliary heads, and no slow initialisation."""

TRANSFORMERS: Mapping[str, tuple[str, str, dict[str, int]]] = {
    "bert-base": ("BertForMaskedLM", "BertConfig", {}),
    "bert-large": (
        "BertForMaskedLM",
        "BertConfig",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {}),
    "gpt2-small": ("GPT2LMHeadModel", "GPT2Config", {}),
    "gpt2-medium": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    ),
}
"""Model class, configuration class, and differences from the configuration's defaults.

Sizes: Devlin et al., "BERT", NAACL 2019, section 3; Radford et al., "Language Models are
Unsupervised Multitask Learners", 2019, table 2.
"""


class Built(NamedTuple):
    """A model and its properties.

    ``input_shape`` is the input shape of one sample, None if unknown. ``tokens`` is the vocabulary
    size of a model that takes token numbers, 0 for a model that takes real numbers. ``text``
    describes where the model's definition comes from.
    """

    model: Module
    name: str
    text: str
    url: str | None = None
    input_shape: tuple[int, ...] | None = None
    tokens: int = 0


def build(spec: str) -> Built:
    """Make the model that ``spec`` names, with random weights.

    Raises
    ------
    InputError : PyTorch or the library is missing, there is no such model or function, or the
        function does not return a ``torch.nn.Module``.
    """
    library, colon, name = spec.partition(":")
    if not colon or not library or not name:
        raise InputError(f"model: expected {FORMS}, got {spec!r}")
    torch = import_torch()
    if library == "torchvision":
        return _torchvision(name)
    if library == "transformers":
        return _transformers(name)
    model = call(load(spec, "model"), spec)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model: {spec} returned a {type(model).__name__}, not a torch.nn.Module")
    return Built(model, name.rpartition(".")[2], f"layers and parameter tensors of {spec}")


def _torchvision(name: str) -> Built:
    torchvision = _import_torchvision()
    models = torchvision.models
    names = models.list_models(module=models)
    if name not in names:
        raise unknown_name("torchvision model", name, names, "torchvision.models.list_models()")
    plain = PLAIN.get(name, {"init_weights": False} if name.startswith("vgg") else {})
    version = torchvision.__version__.partition("+")[0]
    text = f"layers and parameter tensors of torchvision.models.{name} (torchvision {version})"
    if "aux_logits" in plain:
        text += ", without the auxiliary heads"
    shape = LARGER_IMAGE if name == "inception_v3" else IMAGE
    url = "https://pytorch.org/vision/stable/models.html"
    return Built(models.get_model(name, weights=None, **plain), name, text, url, shape)


def _import_torchvision() -> ModuleType:
    """Import torchvision, even if its compiled operators do not match the installed torch.

    In that case its import needs operators that no classification model calls, so they are declared
    without an implementation.
    """
    torch = import_torch()
    try:
        return importlib.import_module("torchvision")
    except ImportError:
        raise InputError("model: torchvision is missing: pip install torchvision") from None
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
    for module in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor boxes, Tensor scores, float limit) -> Tensor")
    torchvision = importlib.import_module("torchvision")
    torchvision.declared_operators = library  # type: ignore[attr-defined]  # keeps it alive
    return torchvision


def _transformers(name: str) -> Built:
    if name not in TRANSFORMERS:
        raise unknown_name("transformers model", name, TRANSFORMERS)
    kind, config_kind, sizes = TRANSFORMERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other libraries that it looks for
        try:
            transformers = importlib.import_module("transformers")
        except ImportError:
            raise InputError("model: transformers is missing: pip install transformers") from None
        if importlib.util.find_spec("torchvision") is not None:
            _import_torchvision()  # transformers then uses the repaired import
        transformers.logging.set_verbosity_error()
        try:
            config = getattr(transformers, config_kind)(**sizes)
            model = getattr(transformers, kind)(config)
        except ImportError as error:
            raise InputError(
                f"model: transformers cannot create {kind}: {exception_line(error)}"
            ) from error
    text = f"layers and parameter tensors of transformers.{kind} (transformers "
    text += f"{transformers.__version__}) with a default {config_kind}"
    if sizes:
        text += " but " + ", ".join(f"{key} {value}" for key, value in sizes.items())
    url = "https://huggingface.co/docs/transformers"
    return Built(model, name, text, url, (TOKENS,), int(config.vocab_size))
