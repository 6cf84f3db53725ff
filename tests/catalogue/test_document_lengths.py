"""Lengths of documents, read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel import InputError, make_job
from perfmodel.catalogue.documents import read_lengths


@pytest.mark.parametrize(
    "text",
    ["10\n20.5\n\n30\n", "words\n10\n20.5\n30\n", "name,Tokens\na,10\nb,20.5\nc,30\n"],
    ids=["plain", "any header of one column", "named column"],
)
def test_lengths_are_read_with_and_without_header(tmp_path: Path, text: str) -> None:
    (tmp_path / "lengths.csv").write_text(text)
    assert list(read_lengths(tmp_path / "lengths.csv")) == [10.0, 20.5, 30.0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name,words\na,10\n", "line 1: expected a column 'tokens' or 'length', got name, words"),
        ("10\nlong\n", "line 2: expected a length in tokens, got 'long'"),
        ("name,length\na,10\nb\n", "line 3: expected a length in tokens, got ''"),
        ("tokens\n", "expected lengths below the header; got none"),
        ("\n", "expected lengths of documents in tokens, one a line; got none"),
    ],
)
def test_what_is_no_length_is_named(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "lengths.csv").write_text(text)
    with pytest.raises(InputError) as error:
        read_lengths(tmp_path / "lengths.csv")
    assert str(error.value) == f"{tmp_path / 'lengths.csv'}: {line}"


def test_passes_of_a_step_that_are_asked_for_are_those_of_the_job() -> None:
    """Four passes of 16 samples each are a batch of 64."""
    made = make_job(model="resnet18", arch="ring", workers=2, batch_size=64, accumulation=4)
    assert (made.workload.accumulation, made.workload.batch_size) == (4, 64)
