"""Chakra traces in protobuf form are read, and what they lack or need is said in a line."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError
from perfmodel.base import formats
from perfmodel.base.chakra import COLLECTIVE, read_chakra
from perfmodel.cli import cli
from perfmodel.inputs.job_files import read_job

BY_HAND = bytes(
    [
        *(0x07, 0x0A, 0x05, *b"0.0.4"),  # metadata of 7 bytes: field 1, a text of 5
        0x1B,  # a node of 27 bytes
        *(0x08, 0x01),  # field 1, id: 1
        *(0x12, 0x02, *b"ar"),  # field 2, name: a text of 2
        *(0x18, 0x07),  # field 3, type: 7, a collective
        *(0x52, 0x11),  # field 10, an attribute of 17 bytes
        *(0x0A, 0x09, *b"comm_size"),  # its field 1, name: a text of 9
        *(0x48, 0x80, 0x20),  # its field 9, int64: 32 * 128
        *(0xD8, 0x01, 0x01),  # its field 27, a truth value, which is not read
    ]
)
"""A collective whose ``comm_size`` is 4096, written byte by byte."""

GROUPS = '[{"pg_name": "0", "group_size": 16}, {"pg_name": "1", "group_size": 4}]'


def written(*nodes: dict[str, Any], version: str = "0.0.4") -> bytes:
    """A trace, by protobuf itself."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import proto

    from perfmodel.base.chakra import message_classes

    classes = message_classes()
    out = BytesIO()
    proto.serialize_length_prefixed(classes["GlobalMetadata"](version=version), out)
    for node in nodes:
        proto.serialize_length_prefixed(classes["Node"](**node), out)
    return out.getvalue()


def reduction(size: int, kind: int = 0) -> dict[str, Any]:
    attributes = [
        {"name": "comm_type", "int64_val": kind},
        {"name": "comm_size", "int64_val": size},
    ]
    return {"id": size, "name": "nccl", "type": COLLECTIVE, "attr": attributes}


def job() -> bytes:
    made = {"id": 1, "name": "## process_group:init ##", "inputs": {"values": GROUPS}}
    return written(made, reduction(4000), reduction(6000), reduction(7, kind=2))


def test_groups_and_all_reduces_are_read() -> None:
    told = read_chakra(job(), "a.et")
    assert told == ("0.0.4", 4, (16, 4), 10_000)


def test_a_file_by_hand_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ``comm_type`` it is no all-reduce, unless that is what such nodes are."""
    pytest.importorskip("google.protobuf")
    assert read_chakra(BY_HAND, "a.et") == ("0.0.4", 1, (), 0)
    monkeypatch.setattr("perfmodel.base.chakra.ALL_REDUCE", None)  # any collective
    assert read_chakra(BY_HAND, "a.et").reduced_bytes == 4096


def test_it_is_recognised_by_content() -> None:
    for data in (job(), BY_HAND):
        found = formats.recognise(data)
        assert found is not None
        assert found.name == formats.CHAKRA


def test_as_a_job_it_gives_the_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(job())
    assert read_job(path)["workers"] == 16
    path.write_bytes(written(reduction(1)))
    with pytest.raises(InputError, match="without process groups"):
        read_job(path)


def test_import_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(job())
    run = CliRunner().invoke(cli, ["import", str(path)])
    assert isinstance(run.exception, InputError)
    assert "(4 nodes) has no times of kernels; " in str(run.exception)
    assert "(--gradient-bytes 10000B)" in str(run.exception)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_truncated_file_is_one_line(cut: int) -> None:
    data = job()
    with pytest.raises(InputError, match="truncated") as caught:
        read_chakra(data[:-cut], "a.et")
    assert "\n" not in str(caught.value)


def test_damage_is_one_line() -> None:
    data = job()
    with pytest.raises(InputError, match="truncated or damaged"):
        read_chakra(data[:8] + b"\x05\xff\xff\xff\xff\xff" + data[8:], "a.et")
    with pytest.raises(InputError, match="empty"):
        read_chakra(b"", "a.et")


def test_without_protobuf_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(InputError, match=r"needs protobuf: pip install 'perfmodel\[chakra\]'"):
        read_chakra(BY_HAND, "a.et")
