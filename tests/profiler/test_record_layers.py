"""Layers of the catalogue's models, found again on the meta device."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is missing", allow_module_level=True)

from benchmarks import record_layers
from perfmodel.base.provenance import Source
from perfmodel.catalogue import catalogue
from perfmodel.inputs.profile import Layer, Profile, Tensor, read_profile
from perfmodel.inputs.profile_files import difference, dumped

SOURCE = Source("exact", "made for a test")
TENSOR = Layer("first", tensors=(Tensor("w", 4.0),))

QUICK = ("vgg11", "ncf", "dlrm-dense")


def shipped(name: str) -> Profile:
    """The catalogue's model; skips if the library that makes it is missing."""
    if record_layers.MODELS[name].spec.startswith("transformers"):
        pytest.importorskip("transformers")
    return catalogue.model(name)


def same(name: str) -> None:
    """The layers equal those of the catalogue, tensor by tensor and operation by operation."""
    old, new = shipped(name), record_layers.recorded(name)
    assert difference(old, new) == "the layers are the same"
    for field in ("forward_flop", "activation_bytes"):
        found = [getattr(layer, field) for layer in new.layers]
        assert found == pytest.approx([getattr(layer, field) for layer in old.layers], rel=1e-5)
    for before, after in zip(old.layers, new.layers, strict=True):
        assert written(after) == written(before)


def written(layer: Layer) -> object:
    """The operators of a layer as files have them."""
    return json.loads(dumped(Profile(name="it", source=SOURCE, layers=(TENSOR, layer))))["layers"][
        1
    ].get("operators")


@pytest.mark.parametrize("name", QUICK)
def test_recorded_layers_equal_the_catalogue(name: str) -> None:
    same(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(record_layers.MODELS) - set(QUICK)))
def test_all_recorded_layers_equal_the_catalogue(name: str) -> None:
    same(name)


def test_canary_another_network_is_noticed() -> None:
    assert (
        difference(shipped("vgg13"), record_layers.recorded("vgg11")) != "the layers are the same"
    )


def test_a_file_keeps_its_timings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_layers.main(["ncf", "--output", str(tmp_path)])
    assert read_profile(tmp_path / "ncf.json").timings == ()
    (tmp_path / "ncf.json").write_bytes((catalogue.folder() / "models" / "ncf.json").read_bytes())
    record_layers.main(["ncf", "--output", str(tmp_path)])
    assert read_profile(tmp_path / "ncf.json").timings == catalogue.model("ncf").timings
    assert "ncf: 8 layers, 31.8326 M" in capsys.readouterr().out
