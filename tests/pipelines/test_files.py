"""Schedules in files: what is written is read, and mistakes are located."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from perfmodel import InputError
from perfmodel.pipelines import Schedule, check, names, read, schedule, text, timeline, write
from perfmodel.pipelines.files import decode
from tests.settings import examples


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith("pipedream")])
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    s = schedule(name, 4, 8)
    path = tmp_path / "s.csv"
    write(path, s)
    again = read(path)
    assert again == s
    assert again.name == str(path)
    assert again.holders.tolist() == s.holders.tolist()
    assert again.copy_of.tolist() == s.copy_of.tolist()


def test_asynchronous_updates_are_not_written() -> None:
    assert decode(text(schedule("pipedream", 2, 2)).encode(), name="f") == schedule("1f1b", 2, 2)
    assert decode(text(schedule("pipedream", 2, 2)).encode(), name="f") != schedule(
        "pipedream", 2, 2
    )


def small(data: str) -> Schedule:
    return decode(data.encode(), name="f.csv")


def test_cells_without_computation_are_skipped() -> None:
    s = small(
        ",0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\r\n"
        " 1RECV_F0 ,1F0, 1B0,1SEND_B0,\r\n\r\n"
    )
    assert [str(a) for a in s.order(0)] == ["0F0", "0I0", "0W0"]
    assert [str(a) for a in s.order(1)] == ["1F0", "1B0"]
    assert not s.joined.any()


def test_joined_cells() -> None:
    s = small("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    assert [str(a) for a in s.order(0)] == ["0F0", "0F1", "0B0", "0B1"]
    assert s.joined.tolist() == [False, True, False, False]
    assert text(s) == "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            "0F0,0X0\n",
            "f.csv: line 1, cell 2: expected an action such as 0F0, 1B3, 2I1 or 2W1, got '0X0'; "
            "also allowed: empty cells, and UNSHARD,",
        ),
        ("0F0,0B0\n1F0,1B\n", "f.csv: line 2, cell 2: expected an action such as 0F0"),
        ("0F0,0B0,0WAIT1\n", "f.csv: line 1, cell 3: expected an action such as 0F0"),
        ("0F0,(0F1;0B0)OVERLAP_FB,0B1", "f.csv: line 1, cell 2: expected OVERLAP_F_B after actio"),
        ("0F0,(0B0)OVERLAP_F_B", "f.csv: line 1, cell 2: expected two actions in brackets, got 1"),
        ("0F0,0B0\n,,\n", "f.csv: line 2: a rank without actions"),
        ("", "f.csv: the file is empty; expected one line of actions per rank"),
        ("0F0,0F1,0B0\n", "f.csv: 0B1 is missing (or its parts 0I1 and 0W1)"),
        ("0F0,0B900000000\n", "f.csv: 1 stages of 900000001 micro-batches have at least"),
        ("\0\1", "f.csv: not a pipeline schedule"),
        ('{"schema": "perfmodel.job/1"}', "f.csv: line 1, cell 1: expected an action"),
    ],
)
def test_mistakes_are_located(data: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        small(data)
    assert str(error.value).startswith(expected)


def test_the_nearest_name_of_a_joined_cell() -> None:
    with pytest.raises(InputError, match="did you mean 'OVERLAP_F_B'"):
        small("0F0,(0F1;0B0)OVERLAP_FB,0B1")


CELLS = ["0F0", "0B0", "0I0", "0W0", "1F0", "1B0", "0F1", "0B1", "1F1", "1B1", "", "0SEND_F0"]
CELLS += [
    "(0F1;0B0)OVERLAP_F_B",
    "(0F1;0B0;0W0)OVERLAP_F_B",
    "()",
    "9F9",
    "\r",
    '"',
    "0F\u0661",
    "\u2028",
]


@examples(300)
@given(st.lists(st.lists(st.sampled_from(CELLS), max_size=8).map(",".join), max_size=3))
def test_any_file_is_a_schedule_that_can_run_or_an_error_of_one_line(lines: list[str]) -> None:
    try:
        s = small("\n".join(lines))
    except InputError as error:
        said = str(error)
    else:
        said = "f.csv: "
        assert timeline(check(s), 1.0, 2.0, 1.0, 1.0).makespan_s >= 3.0
    assert said.startswith("f.csv: ")
    assert "\n" not in said


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.csv"):
        read(tmp_path / "no.csv")
