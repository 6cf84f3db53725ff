"""Measured convolutions, which are not part of the repository: tests skip without them. Tests on
synthetic folders always run."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.accuracy import pipedream, triosim
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from tests.measured import predicted_cases

TENSORS = """TensorID,TensorShape
1,"[128, 16, 8, 8]"
2,"[32, 16, 3, 3]"
3,[32]
4,"[128, 32, 8, 8]"
"""
HEAD = "OperatorName,Operator_input,Operator_output,Operator_cudatimenooverlap\n"
CONVOLUTION = "aten::conv2d,[1; 2; 3],[4],30\n"
TRACE = HEAD + CONVOLUTION + "aten::relu_,[4],[4],3\n" + f"{triosim.BACKWARD},[4],[1],60\n"

LAYERS = """model,batch,node,layer,forward_ms,backward_ms,activation_bytes
net,8,node1,Input,1,0,100
net,8,node2,"Conv2d(16, 32, kernel_size=(3, 3), stride=(1, 1))",0.1,0.2,65536
net,8,node3,"Conv2d(32, 32, kernel_size=(3, 3), stride=(1, 1), groups=32)",0.1,0.2,65536
net,8,node4,"Conv2d(32, 64, kernel_size=(1, 1), stride=(2, 2), groups=4)",0.1,0,131072
"""


def traces(path: Path) -> Path:
    for model in triosim.MODELS:
        for kind, text in (("trace", TRACE), ("tensor", TENSORS)):
            file = path / f"{model}_bs128_{kind}.csv.gz"
            file.write_bytes(gzip.compress(text.encode()))
    return path


def test_operators_of_a_trace_are_cases(tmp_path: Path) -> None:
    found = triosim.cases(traces(tmp_path))
    assert [case.group for case in found[: len(found) // 2]] == [
        "triosim/convolutions-forward",
        "triosim/convolutions-backward",
        "triosim/memory_bound",
    ]
    assert [case.measured for case in found[:3]] == pytest.approx([30e-6, 60e-6, 3e-6])


def test_convolutions_of_layers_are_cases(tmp_path: Path) -> None:
    """But for the input, and for a depthwise one; one was not measured in backward."""
    (tmp_path / "layers.csv").write_text(LAYERS, encoding="utf-8")
    found = pipedream.cases(tmp_path)
    assert [(case.group, case.name.split()[1], case.measured) for case in found] == [
        ("pipedream/forward", "node2", 1e-4),
        ("pipedream/backward", "node2", 2e-4),
        ("pipedream/forward", "node4", 1e-4),
    ]


@pytest.mark.parametrize("source", [triosim, pipedream])
def test_a_missing_table_is_named(source: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        source.cases(tmp_path)  # type: ignore[attr-defined]


def test_measured_convolutions_are_predicted() -> None:
    found = summarise(predicted_cases(triosim))
    assert found["triosim/convolutions-forward"]["median"] < 0.10
    assert found["triosim/convolutions-forward"]["p90"] < 0.20
    assert found["triosim/convolutions-backward"]["median"] < 0.27
    assert found["triosim/memory_bound"]["median"] < 0.13


def test_convolutions_in_32_bits_are_predicted() -> None:
    """Host time dominates the small layers of this source, so only large networks are close."""
    cases = predicted_cases(pipedream)
    large = [case for case in cases if case.name.split()[0] in ("vgg16", "resnet50", "resnet101")]
    found = summarise(large)
    assert found["pipedream/forward"]["median"] < 0.40
    assert found["pipedream/backward"]["median"] < 0.20
