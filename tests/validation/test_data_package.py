"""The package of measured runs: what is in it, and that nothing else gets out of it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.accuracy.sources import SOURCES, adapter
from benchmarks.data import package
from benchmarks.data.__main__ import main
from benchmarks.data.package import Manifest, Source, described, pack, problems, recorded, unpack
from perfmodel.base.errors import InputError

FREE = "- Source: github some/where commit 0123456789ab, a table\n- Licence: MIT. Numbers only.\n"
FACTS = "- Source: github else/where commit abcdef0123, b\n- Licence: none stated (facts only)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("free", FREE), ("facts", FACTS), ("ours", "# Runs\n")):
        place = tmp_path / "data" / name
        place.mkdir(parents=True)
        (place / "README.md").write_text(text, encoding="utf-8")
        (place / "rows.csv").write_text(f"name\n{name}\n", encoding="utf-8")
    return tmp_path / "data"


def test_the_manifest_lists_the_folder_of_each_source() -> None:
    manifest = package.read()
    of_adapters = {adapter(name).ABOUT.folder for name in SOURCES} - {"."}
    assert of_adapters <= set(manifest.folders)
    assert {name for name, source in manifest.folders.items() if source.licence == "own"} == {
        *("testbed", "testbed_hybrid"),
    }
    assert all(source.text for source in manifest.folders.values())


def test_a_folder_is_described_by_its_readme() -> None:
    assert described(FREE) == (
        "github some/where commit 0123456789ab, a table",
        {"https://github.com/some/where": "0123456789ab"},
        "MIT",
    )
    assert described(FACTS)[2] == "none stated (facts only)"
    assert described("# Runs\n") == ("runs of this project", {}, "own")
    several = "- Source: two places\n- Licence: a: none stated; b MIT\n"
    assert described(several)[2] == "a: none stated; b MIT"


def test_a_package_has_what_may_be_passed_on_and_is_the_same_each_time(folder: Path) -> None:
    manifest = recorded(folder)
    free = manifest.paths(free=True)
    assert {path.partition("/")[0] for path in free} == {"free", "ours"}
    data = pack(free, folder)
    assert data == pack(free, folder)
    there = folder.parent / "there"
    assert sorted(unpack(data, manifest.paths(), there)) == sorted(free)
    assert list(problems(free, there)) == []
    assert [text.partition("/")[0] for text in problems(manifest.paths(), there)] == ["facts"] * 2


def test_other_contents_are_noticed(folder: Path) -> None:
    manifest = recorded(folder)
    data = pack(manifest.paths(free=True), folder)
    (folder / "free" / "rows.csv").write_text("name\nfred\n", encoding="utf-8")
    assert list(problems(manifest.paths(["free"]), folder)) == ["free/rows.csv: other contents"]
    with pytest.raises(InputError, match=r"free/rows.csv: other contents"):
        pack(manifest.paths(["free"]), folder)
    changed = recorded(folder)
    with pytest.raises(InputError, match=r"free/rows.csv: other contents than the manifest says"):
        unpack(data, changed.paths(), folder.parent / "there")
    assert not (folder.parent / "there").exists()


def archive(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as packed:
        member = tarfile.TarInfo(name)
        member.size, member.type = len(content), kind
        packed.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive("../free/rows.csv", b"name\nfree\n"), "not in the manifest"),
        (archive("/etc/passwd", b"x"), "not in the manifest"),
        (archive("free/rows.csv", b"name\nfree\n" * 2), "not in the manifest"),
        (archive("free/rows.csv", b"", tarfile.SYMTYPE), "not in the manifest"),
        (archive("free/rows.csv", b"name\neerf\n"), "other contents"),
        (b"nonsense", "not an archive of the data"),
    ],
    ids=["above", "elsewhere", "longer", "link", "changed", "nonsense"],  # archives have times
)
def test_what_is_not_in_the_manifest_is_not_written(
    folder: Path, data: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        unpack(data, recorded(folder).paths(), folder.parent / "there")
    assert not (folder.parent / "there").exists()


def test_the_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*words: str | Path) -> tuple[int, str]:
        done = CliRunner().invoke(main, [str(word) for word in words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout

    there, packed = folder.parent / "there", folder.parent / "data.tar.gz"
    monkeypatch.setattr(package, "MANIFEST", folder.parent / "manifest.json")
    monkeypatch.setattr(package.read, "__defaults__", (package.MANIFEST,))
    assert called("record", folder) == (0, "")
    assert called("list", "free")[1].startswith("free: 2 files, 97 B, MIT\n    github some/where")
    code, text = called("pack", folder, packed)
    assert (code, text.split()[1:]) == (0, ["data.tar.gz", "(4", "files)"])
    assert called("fetch", packed, there)[0] == 0
    assert called("verify", there, "free", "ours")[0] == 0
    code, text = called("verify", there)
    assert code == 0
    assert text.startswith(f"not in {there}, as in no package: facts\n4 of 4 files are those")
    code, text = called("verify", there, "facts")
    assert (code, text.splitlines()[0]) == (1, "facts/README.md: missing")
    (there / "facts").mkdir()
    (there / "free" / "rows.csv").unlink()
    code, text = called("verify", there)
    assert code == 1
    assert {"facts/rows.csv: missing", "free/rows.csv: missing"} <= set(text.splitlines())
    assert "3 of 6 files are those of the manifest" in text
    with pytest.raises(InputError, match="expected a file or an address with https"):
        called("fetch", "http://example.org/data.tar.gz", there)
    with pytest.raises(InputError, match="unknown folder 'fre'"):
        called("list", "fre")


def test_only_known_licences_are_free() -> None:
    manifest = Manifest(package.SCHEMA, {})
    assert manifest.paths(free=True) == {}
    for licence, free in (("MIT", True), ("own", True), ("none stated", False), ("facts", False)):
        assert Source("somewhere", {}, licence, {}).free is free
