"""Reading and writing files: links, devices, pipes, modes, huge and unusual files."""

from __future__ import annotations

import json
import os
import stat
import threading
import tomllib
from pathlib import Path

import pytest

from perfmodel.base import files
from perfmodel.base.errors import InputError
from perfmodel.inputs.cluster import Cluster


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to("there/target")
    files.check_writable(link)
    files.write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["link", "target", "there"]


def test_a_link_to_nothing_yet_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    files.write(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    reader.start()
    data = bytes(300_000)  # more than a pipe buffers
    files.write(pipe, data)
    reader.join(timeout=30)
    assert heard == [data]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"x")
    except OSError as error:
        pytest.skip(f"devices cannot be made or used here: {error.strerror}")
    files.check_writable(null)
    files.write(null, b"new")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_terminal_is_written_to() -> None:
    ours, theirs = os.openpty()
    try:
        name = os.ttyname(theirs)
        files.check_writable(name)
        files.write(name, b"new")
        assert os.read(ours, 100) == b"new"
        assert stat.S_ISCHR(Path(name).stat().st_mode)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("before", [0o600, 0o640, 0o755])
def test_an_old_file_keeps_its_mode(before: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(before)
    files.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert oct(mode(path)) == oct(before)


def test_a_new_file_has_the_default_mode(tmp_path: Path) -> None:
    files.write(tmp_path / "file", b"new")
    (tmp_path / "opened").write_bytes(b"new")
    assert mode(tmp_path / "file") == mode(tmp_path / "opened")


def test_the_longest_file_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    files.write(path, b"new")
    assert path.read_bytes() == b"new"


def test_an_old_file_is_replaced_atomically(tmp_path: Path) -> None:
    """A reader that has the old file open keeps reading it."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as file:
        files.write(path, b"new!")
        assert file.read() == b"old"


def test_a_name_with_a_null_byte_is_refused() -> None:
    for use in (lambda p: files.read_bytes(p), lambda p: files.write(p, b""), files.check_writable):
        with pytest.raises(
            InputError, match=r"a\\x00b: cannot (read|write): .*embedded null (byte|character)"
        ):
            use("a\0b")


def test_an_endless_file_is_refused() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    with pytest.raises(InputError, match=r"^/dev/zero: the file is too large: the limit is 64 MB$"):
        files.read("/dev/zero", Cluster, "any")


def test_control_characters_of_a_file_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        'schema = "perfmodel.cluster/1"\nname = "a\\u001b[2Jb"\nnic = {bandwidth_bytes_per_s = 1e9}'
        "\n"
        'source = {kind = "exact", text = "two\\nlines"}\n'
    )
    found = files.read(path, Cluster, "perfmodel.cluster/1")
    assert found.name == "a\\x1b[2Jb"
    assert found.source.text == "two\nlines"


CLUSTER = (
    'schema = "perfmodel.cluster/1"\nname = "{}"\nnic = {{bandwidth_bytes_per_s = 1e9}}\n'
    'source = {{kind = "exact", text = "x"}}\n'
)


@pytest.mark.parametrize(
    "character",
    ["\u202e", "\u2066", "\u200f", "\ufeff", "\u200b", "\x85", "\u2028", "\U000e0041", "\u061c"],
)
def test_invisible_characters_of_a_file_are_escaped(tmp_path: Path, character: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER.format(f"a{character}b"), "utf-8")
    escaped = f"a{character.encode('unicode_escape').decode()}b"
    assert files.read(path, Cluster, "perfmodel.cluster/1").name == escaped


def test_a_key_of_very_many_parts_is_refused_at_once(tmp_path: Path) -> None:
    """tomllib takes 40 s and 10 GB for 50 000 parts."""
    path = tmp_path / "cluster.toml"
    for key in ("a." * 50_000 + "b = 1", f"x = {{{'a . ' * 5_000}b = 1}}", f"[{'a.' * 5_000}b]"):
        path.write_text(CLUSTER.format("lab") + key, "utf-8")
        with pytest.raises(InputError, match="not valid TOML: a key of more than 100 parts"):
            files.read(path, Cluster, "perfmodel.cluster/1")
    numbers = ", ".join(["1.5"] * 1000)
    path.write_text(CLUSTER.format("v1.2.3, and so on...") + f"nodes = [{numbers}]", "utf-8")
    with pytest.raises(InputError, match="nodes: expected"):
        files.read(path, Cluster, "perfmodel.cluster/1")


def test_names_in_any_script_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    name = "Grüße, 集群, кластер, \N{HEBREW LETTER ALEF}, \N{GRINNING FACE}"
    path.write_text(CLUSTER.format(name), "utf-8")
    assert files.read(path, Cluster, "perfmodel.cluster/1").name == name


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_byte_order_mark_at_the_beginning_is_skipped(tmp_path: Path, ending: str) -> None:
    text = CLUSTER.format("lab")
    if ending == "json":
        text = json.dumps(tomllib.loads(text))
    path = tmp_path / f"cluster.{ending}"
    path.write_text(text, "utf-8-sig")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    assert files.read(path, Cluster, "perfmodel.cluster/1").name == "lab"
    assert files.is_json(path.read_bytes()) == (ending == "json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a second one is a mistake
    with pytest.raises(InputError, match="not valid"):
        files.read(path, Cluster, "perfmodel.cluster/1")
