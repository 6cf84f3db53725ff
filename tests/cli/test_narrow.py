"""On narrow terminals no line is wider than the terminal, and nothing is left out."""

from __future__ import annotations

import json
from collections import Counter
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from perfmodel import cli as command_line
from perfmodel.cli import cli
from perfmodel.cli.printing.tables import FittingTable
from perfmodel.cli.printing.text import _wrapped, bold, show_rows
from tests.terminals import ESCAPE, Terminal, on_terminal, perfmodel, printed_here

JOB = "--model resnet18 --arch ps"
COMMANDS = [
    f"sweep {JOB},asp --workers 1,2 --servers 1,2",
    f"compare {JOB} --workers 1,2",
    f"explain {JOB}",
    f"require bandwidth --to throughput>30 {JOB}",
    "list",
    "show ps",
    "show resnet18",
    f"predict {JOB}",
    pytest.param("validate", marks=pytest.mark.slow),
    pytest.param("advise --model vgg16 --device v100 --workers 8", marks=pytest.mark.slow),
    pytest.param(
        "plan --model resnet50 --dataset-size 1281167 --instance g2-standard-4 "
        "--workers 8,16 --arch ps,allreduce --batch-size 64 --top 3 --fidelity coarse",
        marks=pytest.mark.slow,
    ),
]


def too_wide(text: str, columns: int) -> list[str]:
    """Lines that are wider than a terminal, but for one word that cannot be broken."""
    lines = ESCAPE.sub("", text).splitlines()
    return [line for line in lines if len(line.rstrip()) > columns and len(line.split()) > 1]


def lost(wide: str, narrow: str) -> Counter[str]:
    """Words of a text that another lacks; where they stand may differ, and words may be cut."""
    left = "".join(ESCAPE.sub("", narrow).split())
    words = Counter(ESCAPE.sub("", wide).split()) - Counter(ESCAPE.sub("", narrow).split())
    return Counter({word: n for word, n in words.items() if word not in left})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_answers_fit(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    wide = printed_here(monkeypatch, command.split(), 1000)
    for columns in (40, 60):
        narrow = printed_here(monkeypatch, command.split(), columns)
        assert too_wide(narrow, columns) == []
        assert lost(wide, narrow) == Counter()


@pytest.mark.parametrize("name", ["", *command_line.COMMANDS])
def test_help_fits(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words, columns = (
        [*filter(None, [name]), "--help"],
        60,
    )  # as wide as a pair of flags
    wide, narrow = (printed_here(monkeypatch, words, width) for width in (100, columns))
    # examples are kept whole: they are for copying
    lines = [line for line in too_wide(narrow, columns) if not _example(line)]
    assert lines == []
    assert lost(wide, narrow) == Counter()


def _example(line: str) -> bool:
    return line.strip().startswith(("perfmodel ", "torchrun ", "--address", "-m perfmodel"))


@pytest.mark.slow
def test_a_process_takes_the_width_of_its_terminal() -> None:
    seen = on_terminal(perfmodel("show", "ps"), columns=40)
    assert too_wide(seen, 40) == []
    assert max(len(line) for line in ESCAPE.sub("", seen).splitlines()) > 30


def table(*heads: str, rows: list[list[str]], columns: int, plain: bool = False) -> str:
    """A table on a terminal."""
    made = FittingTable(*heads)
    if plain:
        made = Table(*heads, box=None)  # type: ignore[assignment]
    for row in rows:
        made.add_row(*row)
    stream = Terminal()
    Console(file=stream, width=columns, color_system=None).print(made)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


HEADS = ("workers", "throughput", "iteration", "idle")
ROWS = [["1", "29.1 samples/s", "1.1 s", "0.0%"], ["2", "52.4 samples/s", "1.22 s", "9.9%"]]


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    assert table(*HEADS, rows=ROWS, columns=80).splitlines() == [
        "workers  throughput      iteration  idle",
        "1        29.1 samples/s  1.1 s      0.0%",
        "2        52.4 samples/s  1.22 s     9.9%",
    ]


def test_a_table_that_does_not_fit_has_a_record_for_each_row() -> None:
    assert table(*HEADS, rows=ROWS, columns=36).splitlines() == [
        "workers     1",
        "throughput  29.1 samples/s",
        "iteration   1.1 s",
        "idle        0.0%",
        "",
        "workers     2",
        "throughput  52.4 samples/s",
        "iteration   1.22 s",
        "idle        9.9%",
    ]


def test_records_of_rows_without_a_name_begin_with_their_first_cell() -> None:
    rows = [["samples/s", "13.643 samples/s", "27.282 samples/s"], ["idle", "", "0.0%"]]
    assert table("", "1 worker", "2 workers", rows=rows, columns=30).splitlines() == [
        "samples/s",
        "1 worker   13.643 samples/s",
        "2 workers  27.282 samples/s",
        "",
        "idle",
        "2 workers  0.0%",
    ]


def test_the_longest_texts_are_wrapped_first() -> None:
    rows = [["sync", "bsp", "an update waits for every worker"]]
    assert table("option", "default", "meaning", rows=rows, columns=34).splitlines() == [
        "option  default  meaning",
        "sync    bsp      an update waits",
        "                 for every worker",
    ]


def test_canary_a_table_that_loses_words_is_seen() -> None:
    narrow = table(*HEADS, rows=ROWS, columns=14, plain=True)
    wide = table(*HEADS, rows=ROWS, columns=80)
    assert lost(wide, narrow)
    assert lost(wide, table(*HEADS, rows=ROWS, columns=36)) == Counter()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("short", "short"),
        ("twelve chars and more", "twelve chars\nand more"),
        ("why   a longer text", "why   a\n      longer\n      text"),
        ("- a longer text", "- a longer\n  text"),
        ("longer/than/a/terminal", "longer/than/\na/terminal"),
    ],
)
def test_lines_go_on_below_their_text(line: str, expected: str) -> None:
    assert _wrapped(line, 12) == expected


def test_styles_take_no_room() -> None:
    assert _wrapped(bold("twelve chars"), 12) == bold("twelve chars")
    if tuple(map(int, version("click").split(".")[:2])) < (8, 4):  # counts the codes of styles
        return
    assert click.unstyle(_wrapped(bold("why") + "   a longer text", 12)) == (
        "why   a\n      longer\n      text"
    )


@pytest.mark.parametrize("name", ["pcie3", "v100"])
def test_json_is_never_wrapped(name: str) -> None:
    done = CliRunner().invoke(cli, ["show", name])
    assert json.loads(done.stdout)["name"] == name
    assert any(len(line) > 160 for line in done.stdout.splitlines()) is (name == "pcie3")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (60, ["iteration  2.346 s  of which 2.345 s compute", "idle       0.0%     network"]),
        (30, ["iteration  2.346 s", "           of which 2.345 s", "           compute",
              "idle       0.0%", "           network"]),
    ],
)  # fmt: skip
def test_remarks_go_below_values_where_there_is_no_room_beside_them(
    monkeypatch: pytest.MonkeyPatch, columns: int, expected: list[str]
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", str(columns))
    show_rows([("iteration", "2.346 s", "of which 2.345 s compute"), ("idle", "0.0%", "network")])
    lines = ESCAPE.sub("", stream.getvalue()).splitlines()
    assert [line.rstrip() for line in lines] == expected
