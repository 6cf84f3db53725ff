"""Tables written by hand: how they are read, and how mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel import InputError
from perfmodel.base import tables

GOOD = "workers,latency_s,samples_per_s,note\n1,25 us,100,first\n\n8,0.001,750.5,\n"


def table(text: str) -> tables.Table:
    return tables.decode(text.encode(), name="t.csv")


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())  # as in spreadsheets
    found = tables.read(path)
    assert found.columns == ("workers", "latency_s", "samples_per_s", "note")
    assert len(found) == 2
    first, second = found
    assert (first.whole("workers"), second.whole("workers")) == (1, 8)
    assert first.number("latency_s") == pytest.approx(25e-6, rel=1e-15)
    assert second.number("latency_s") == 1e-3
    assert second.number("samples_per_s") == 750.5
    assert first.text("note") == "first"
    assert (first.has("note"), second.has("note"), second.has("notes")) == (True, False, False)
    assert second.place == f"{path}: line 4"  # blank lines count


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("bandwidth_bytes_per_s", "10Gbps", 1.25e9),
        ("bandwidth_bytes_per_s", "1.25e9", 1.25e9),
        ("gradient_bytes", "25 MiB", 26214400.0),
        ("step_s", " 1.5ms ", 1.5e-3),
        ("efficiency", ".5", 0.5),
    ],
)
def test_numbers_may_have_units_of_the_column(column: str, text: str, value: float) -> None:
    assert table(f"{column}\n{text}\n").lines[0].number(column) == pytest.approx(value, rel=1e-15)


def test_quoted_cells_may_span_lines() -> None:
    found = table('a,b\n"one,\ntwo",3\n4,x\n')
    assert found.lines[0].text("a") == "one,\ntwo"
    assert found.lines[1].place == "t.csv: line 4"


def test_whole_numbers_may_have_a_decimal_point() -> None:
    line = table("workers\n8.0\n").lines[0]
    assert line.whole("workers") == 8
    assert isinstance(line.whole("workers"), int)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv: the file is empty; expected a header line and at least one row"),
        ("\n , \n", "t.csv: the file is empty; expected a header line and at least one row"),
        ("a,b\n", "t.csv: there are no rows below the header line"),
        ("a,b\n1,2\n3\n", "t.csv: line 3: expected 2 cells, got 1"),
        ("a,b\n1,2,3\n", "t.csv: line 2: expected 2 cells, got 3"),
        ("a,b,a\n1,2,3\n", "t.csv: line 1: column 'a' appears twice"),
        ("a,,b\n1,2,3\n", "t.csv: line 1: column 2 has no name"),
        ("a;b\n1;2\n", "t.csv: line 1: expected commas between columns, got 'a;b'"),
        ('a,b\n1,"2\n', "t.csv: line 2: not valid CSV: unexpected end of data"),
    ],
)
def test_files_that_are_not_tables_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        table(text)
    assert str(error.value) == said


def test_other_encodings_are_refused() -> None:
    with pytest.raises(InputError, match=r"^t\.csv: line 2: not UTF-8 \(byte 0xe9\)$"):
        tables.decode("a,b\né,1\n".encode("latin-1"), name="t.csv")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot read: "):
        tables.read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("workers", "four", "line 2: workers: expected a whole number, got 'four'"),
        ("workers", "1.5", "line 2: workers: expected a whole number, got '1.5'"),
        ("workers", "inf", "line 2: workers: expected a whole number, got 'inf'"),
        ("workers", "nan", "line 2: workers: expected a whole number, got 'nan'"),
        ("workers", "0", "line 2: workers: must be at least 1, got 0"),
    ],
)
def test_wrong_whole_numbers(column: str, cell: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        table(f"{column},b\n{cell},1\n").lines[0].whole(column)
    assert str(error.value) == f"t.csv: {said}"


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("x", "fast", "line 2: x: expected a number, got 'fast'"),
        ("x", "1 s", "line 2: x: expected a number, got '1 s'"),
        ("x", "nan", "line 2: x: expected a finite number, got nan"),
        ("x", "-1", "line 2: x: must be at least 0, got -1"),
        ("x", '"1,5"', "line 2: x: expected a number, got '1,5'"),
        ("step_s", "1 sec",
         "line 2: step_s: unit 'sec' does not fit in '1 sec' (like 50us or 1.5ms)"),
        # a rate is not a time
        ("samples_per_s", "3 ms", "line 2: samples_per_s: expected a number, got '3 ms'"),
    ],
)  # fmt: skip
def test_wrong_numbers(column: str, cell: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        table(f"{column},b\n{cell},1\n").lines[0].number(column)
    assert str(error.value).startswith(f"t.csv: {said}".removesuffix(" (like 50us or 1.5ms)"))


def test_missing_columns_and_empty_cells() -> None:
    found = table("worker,b\n,1\n")
    with pytest.raises(InputError) as error:
        found.need("b", "workers")
    said = "t.csv: column 'workers' is missing; did you mean 'worker'? (columns: worker, b)"
    assert str(error.value) == said
    with pytest.raises(InputError) as error:
        found.lines[0].whole("workers")
    assert str(error.value) == said
    with pytest.raises(InputError, match=r"^t\.csv: line 2: worker: is empty$"):
        found.lines[0].text("worker")
