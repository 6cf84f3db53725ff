"""The manifest of the data, and archives of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError

MANIFEST = Path(__file__).with_name("manifest.json")
SCHEMA = "perfmodel.data/1"

FREE = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "own")
"""Licences under which others may pass the figures on."""

EPOCH = 1577836800
"""Time of all files of an archive, so that the same data are the same archive."""


class File(msgspec.Struct, frozen=True):
    """A file: its size, and its digest in hexadecimal."""

    size_bytes: int
    sha256: str


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of measured runs.

    Attributes
    ----------
    text : where the figures were read, in words.
    repositories : addresses of the repositories among these places, each with its commit.
    licence : an identifier of SPDX; *own* for runs of this project; *none stated* or others.
    """

    text: str
    repositories: dict[str, str]
    licence: str
    files: dict[str, File]

    @property
    def free(self) -> bool:
        """Whether the figures may be passed on as a package."""
        return self.licence in FREE


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All folders, by name."""

    schema: str
    folders: dict[str, Source]

    def paths(self, names: Iterable[str] = (), *, free: bool = False) -> dict[str, File]:
        """The files by their paths, of some folders or of all, only free ones if asked for."""
        chosen = self.chosen(names)
        return {
            f"{name}/{path}": file
            for name in chosen
            if self.folders[name].free or not free
            for path, file in self.folders[name].files.items()
        }

    def left_out(self, folder: Path) -> list[str]:
        """The sources that may not be passed on, and of which a folder has nothing."""
        return [
            name
            for name, source in self.folders.items()
            if not source.free and not (folder / name).exists()
        ]

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The given folders, or all.

        Raises
        ------
        InputError : there is no such folder.
        """
        wanted = list(names) or list(self.folders)
        for name in wanted:
            if name not in self.folders:
                raise InputError(f"unknown folder {name!r} (known: {', '.join(self.folders)})")
        return wanted


def read(path: Path = MANIFEST) -> Manifest:
    """Read the manifest."""
    return files.read(path, Manifest, SCHEMA)


def digest(data: bytes) -> File:
    """The entry of a file with these contents."""
    return File(len(data), hashlib.sha256(data).hexdigest())


def problems(wanted: dict[str, File], folder: Path) -> Iterator[str]:
    """What differs between the files of a folder and those of the manifest, in words."""
    for path, file in wanted.items():
        place = folder / path
        if not place.is_file():
            yield f"{path}: missing"
        elif digest(place.read_bytes()) != file:
            yield f"{path}: other contents"


def described(readme: str) -> tuple[str, dict[str, str], str]:
    """What the readme of a folder says: its source, repositories with commits, and licence."""
    source = re.search(r"^- Sources?(?:, licences)?: (.*)$", readme, re.M)
    licence = re.search(r"^- Licence: (.*)$", readme, re.M)
    if source is None:
        return "runs of this project", {}, "own"
    text = source[1].partition(" (facts only")[0]
    pairs = re.findall(
        r"github ([\w.-]+/[\w.-]+)(?:,? [\w -]*?)?,? commits? ([0-9a-f]{7,40})", text
    )
    stated = licence[1] if licence else text
    found = re.findall("|".join(FREE[:-1]), stated)
    partly = re.search("none stated|per example|facts only|^facts", stated) or len(set(found)) != 1
    known = stated.rstrip(".") if licence else "as each source states"
    addresses = {f"https://github.com/{name}": commit for name, commit in pairs}
    return text, addresses, known if partly else found[0]


def recorded(folder: Path) -> Manifest:
    """The manifest of a folder that holds a folder for each source."""
    folders = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        readme = place / "README.md"
        text = readme.read_text(encoding="utf-8") if readme.exists() else ""
        entries = {
            path.relative_to(place).as_posix(): digest(path.read_bytes())
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }
        folders[place.name] = Source(*described(text), entries)
    return Manifest(SCHEMA, folders)


def pack(wanted: dict[str, File], folder: Path) -> bytes:
    """An archive of these files of a folder: the same bytes for the same files.

    Raises
    ------
    InputError : a file is missing, or is not the one of the manifest.
    """
    for problem in problems(wanted, folder):
        raise InputError(f"{folder}: {problem}")
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 9, packed, EPOCH) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(wanted):
            data = (folder / path).read_bytes()
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(data), EPOCH, 0o644
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def unpack(data: bytes, wanted: dict[str, File], folder: Path) -> list[str]:
    """Write the files of an archive that the manifest knows, and return their paths.

    Nothing is written unless all of them are as the manifest says.

    Raises
    ------
    InputError : it is not such an archive; a file is not in the manifest, or has other contents.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                file = wanted.get(member.name)
                if file is None or not member.isfile() or member.size != file.size_bytes:
                    raise InputError(f"{member.name}: not in the manifest")
                stream = archive.extractfile(member)
                found[member.name] = stream.read() if stream is not None else b""
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"not an archive of the data: {error}") from None
    for path, contents in found.items():
        if digest(contents) != wanted[path]:
            raise InputError(f"{path}: other contents than the manifest says")
    for path, contents in found.items():
        place = folder.joinpath(*PurePosixPath(path).parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write(place, contents)
    return list(found)


def fetched(address: str, most: int) -> bytes:
    """The contents of a file, or of a page that begins with https.

    Raises
    ------
    InputError : it cannot be read, or has more than ``most`` bytes.
    """
    if not address.startswith("https://"):
        if "://" in address:
            raise InputError(f"{address}: expected a file or an address with https")
        return files.read_bytes(address, most)
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return files.beginning(answer, most, address)
    except OSError as error:
        raise InputError(f"{address}: cannot read: {error}") from None
