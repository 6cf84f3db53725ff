"""Shells complete commands, options, names, KEY= of architectures, and files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from perfmodel.architectures import registry
from perfmodel.cli import cli, outline
from perfmodel.cli.shared import COMPLETE
from perfmodel.inputs import catalogue
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
        ("measure training --backend g", ["gloo"]),
        ("measure training --arch p", ["ps"]),
        ("profile --model tor", ["torchvision:"]),
        ("-q list mod", ["models"]),
        ("completion z", ["zsh"]),
    ],
)  # fmt: skip
def test_words_are_completed(line: str, expected: list[str]) -> None:
    found = completed(line)
    if line == "predict --device h100-p":
        expected = [n for n in catalogue.device_names() if n.startswith("h100-p")]
    assert found == expected


def test_clusters_are_names_and_files() -> None:
    found = completed("predict --cluster ")
    assert found == [*catalogue.cluster_names(), "<file>"]


def test_show_completes_everything_that_it_shows() -> None:
    for line in ("show resnet1", "show v100", "show asp", "show ethernet-1"):
        for name in completed(line):
            assert CliRunner().invoke(cli, ["show", name]).exit_code == 0
        assert completed(line)


def test_architectures_read_as_text_are_those_of_the_registry() -> None:
    known = registry.all_architectures()
    expected = {name: a.name for a in known for name in (a.name, *a.aliases)}
    assert outline.architectures() == expected


@pytest.mark.parametrize("name", registry.names())
def test_options_read_as_text_are_those_of_the_architecture(name: str) -> None:
    fields = described(registry.find(name)[0].options)
    found = {each.name: each for each in outline.options(name)}
    assert set(found) == {each.name for each in fields}
    for each in fields:
        assert found[each.name].help == each.about.help
        words = get_args(each.type) if get_origin(each.type) is Literal else ()
        expected = ("true", "false") if each.type is bool else tuple(map(str, words))
        assert found[each.name].words == expected + tuple(each.about.by_cluster)


def test_options_of_what_is_no_architecture_are_none() -> None:
    assert outline.options("rong") == []


ASKED = """
import os, sys
os.environ["{variable}"] = "bash_complete"
os.environ["COMP_LINE"] = "perfmodel {line}"
sys.argv = ["perfmodel"]
from perfmodel.cli import main
try:
    main()
except SystemExit:
    print(sorted({{"numpy", "msgspec", "rich"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("line", ["predict --arch asp --option se", "sweep --workers 1,2 --mo"])
def test_nothing_is_imported_that_takes_long(line: str) -> None:
    code = ASKED.format(variable=COMPLETE, line=line)
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    *found, imported = done.stdout.splitlines()
    assert found == ["plain,servers="] if "option" in line else ["plain,--model"]
    assert imported == "[]"


BASH = """
perfmodel() {{ {python} -m perfmodel "$@"; }}
eval "$(perfmodel completion bash)"
compopt() {{ echo compopt "$@"; }}
while read -r COMP_LINE; do
    COMP_LINE="${{COMP_LINE%.}}" COMP_POINT=${{#COMP_LINE}}
    complete -p perfmodel > /dev/null || exit 1
    _perfmodel_completion perfmodel
    echo "${{COMPREPLY[*]}}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="runs Bash")
def test_bash_completes_words_with_equals_signs() -> None:
    lines = [
        "perfmodel predict --arch zer",
        "perfmodel predict --arch=zer",
        "perfmodel predict --arch ps --option syn",
        "perfmodel predict --arch ps --option sync=a",
        "perfmodel predict --job x",
    ]
    without = {name: value for name, value in os.environ.items() if name != COMPLETE}
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH.format(python=sys.executable)],
        input="".join(f"{line}.\n" for line in lines), capture_output=True, text=True, check=True,
        env=without,
    )  # fmt: skip
    assert done.stderr == ""
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "zero1 zero2 zero3",
        "zero1 zero2 zero3",
        "compopt -o nospace",
        "sync=",
        "asp",
        "compopt -o default",
        "",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert COMPLETE in done.stdout
    assert f"{shell}_complete" in done.stdout


def test_other_shells_are_refused() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == click.UsageError.exit_code
    assert "'bash', 'zsh', 'fish'" in done.stderr


def test_a_broken_installation_completes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(outline, "ROOT", tmp_path)
    outline._tree.cache_clear()
    assert completed("predict --arch ") == []
    outline._tree.cache_clear()
