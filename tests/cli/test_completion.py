"""Shells complete commands, options, names, KEY= of architectures, and files."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Literal, get_args, get_origin

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from perfmodel.architectures import registry
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli, types
from perfmodel.cli.shared import COMPLETE
from perfmodel.inputs.options import described


@pytest.fixture(autouse=True)
def _asked_by_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETE, "bash_complete")


def completed(line: str) -> list[str]:
    """How the last word of a line can be completed; paths are the word and their type."""
    *given, word = line.split(" ")
    items = ShellComplete(cli, {}, "perfmodel", COMPLETE).get_completions(given, word)
    return [i.value if i.type == "plain" else f"{i.value}<{i.type}>" for i in items]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pre", ["predict"]),
        ("predict --model resnet1", ["resnet101", "resnet152", "resnet18"]),
        ("predict --device h100-p", ["h100-pcie"]),
        ("predict --arch zer", ["zero1", "zero2", "zero3"]),
        ("predict --arch=zer", ["zero1", "zero2", "zero3"]),
        ("predict --arch h", ["hierarchical_allreduce", "horovod", "hsdp", "hybrid_shard"]),
        ("predict --arch All-Reduce --option buck", ["bucketing=", "bucket_cap_bytes="]),
        ("predict --arch hsdp --option shard_group=", ["shard_group=node"]),
        ("sweep --arch ring,p2", ["ring,p2p"]),
        ("sweep --workers 2,4,8 --arch ring,p2", ["ring,p2p"]),
        ("explain --against go", ["gosgd"]),
        ("predict --island-arch loc", ["local_sgd"]),
        ("predict --cluster office/a", ["office/a<file>"]),
        ("predict --job ", ["<file>"]),
        ("predict --fidelity c", ["coarse"]),
        ("predict --schedule inter", ["interleaved_1f1b", "interleaved_zb", "inter<file>"]),
        ("sweep --schedule 1f1b,gp", ["1f1b,gpipe", "gp<file>"]),
        ("predict --transfers g", ["gloo"]),
        ("require mic", ["micro-batches"]),
        ("predict --sync ", ["bsp", "asp", "ssp"]),
        ("predict --precision t", ["tf32"]),
        ("sweep --resume x", ["x<dir>"]),
        ("predict --option ser", ["servers="]),
        ("predict --arch ring --option ser", []),
        ("predict --arch asp --jitter 0.1 --option sync=", ["sync=bsp", "sync=asp", "sync=ssp"]),
        ("predict --arch ps --option overlap=t", ["overlap=true"]),
        ("predict --arch ps --option servers=", []),
        ("predict --arch rong --option ", []),
        ("predict --island-option algorithm=h", ["algorithm=halving_doubling",
                                                 "algorithm=hierarchical"]),
        ("plan --option stag", ["stage="]),
        ("show pcie", ["pcie-host", "pcie3", "pcie4", "pcie5"]),
        ("show zero1 --formula --option stage=", ["stage=1", "stage=2", "stage=3"]),
        ("require bandw", ["bandwidth"]),
        ("import t", ["t<file>"]),
        ("validate a.toml b", ["b<file>"]),
        ("calibrate ru", ["runs"]),
        ("calibrate network lab", ["lab<file>"]),
        ("profile --optimizer a", ["adam", "adamw"]),
        ("profile --model tor", ["torchvision:"]),
        ("-q list mod", ["models"]),
    ],
)  # fmt: skip
def test_words_are_completed(line: str, expected: list[str]) -> None:
    result = completed(line)
    if line == "predict --device h100-p":
        expected = [n for n in catalogue.device_names() if n.startswith("h100-p")]
    assert result == expected


def test_clusters_are_names_and_files() -> None:
    result = completed("predict --cluster ")
    assert result == [*catalogue.cluster_names(), "<file>"]


def test_show_completes_everything_that_it_shows() -> None:
    for line in ("show resnet1", "show v100", "show asp", "show ethernet-1"):
        for name in completed(line):
            assert CliRunner().invoke(cli, ["show", name]).exit_code == 0
        assert completed(line)


@pytest.mark.parametrize("name", registry.names())
def test_all_options_of_an_architecture_are_completed(name: str) -> None:
    fields = described(registry.find(name)[0].options)
    assert completed(f"predict --arch {name} --option ") == [f"{field.name}=" for field in fields]
    for field in fields:
        words = get_args(field.type) if get_origin(field.type) is Literal else ()
        expected = ("true", "false") if field.type is bool else words
        assert completed(f"predict --arch {name} --option {field.name}=") == [
            f"{field.name}={word}" for word in (*expected, *field.about.by_cluster)
        ]


ASKED = """
import os, sys
os.environ["{variable}"] = "bash_complete"
os.environ["COMP_WORDS"] = "perfmodel {line}"
os.environ["COMP_CWORD"] = str(len("{line}".split()))
sys.argv = ["perfmodel"]
from perfmodel.cli import main
try:
    main()
except SystemExit:
    print(sorted({{"numpy", "msgspec", "rich"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("predict --model resnet15", "plain,resnet152"),
        ("sweep --workers 1,2 --mo", "plain,--model"),
    ],
)
def test_nothing_is_imported_that_takes_long(line: str, expected: str) -> None:
    code = ASKED.format(variable=COMPLETE, line=line)
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    *result, imported = done.stdout.splitlines()
    assert result == [expected]
    assert imported == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'perfmodel'; "
         "from perfmodel.cli import main; main()"],
        env={**os.environ, COMPLETE: f"{shell}_source"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{COMPLETE}={shell}_complete" in done.stdout


def test_a_broken_installation_completes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> list[str]:
        raise InputError("the shipped profiles are missing")

    monkeypatch.setattr(types.MODEL, "names", fail)
    assert completed("predict --model ") == []
