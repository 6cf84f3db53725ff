"""``python -m benchmarks.data``: list, check, pack and fetch the measured runs of others."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from benchmarks.data import package
from perfmodel.base import files
from perfmodel.base.errors import InputError
from perfmodel.base.units import show

FOLDER = click.Path(file_okay=False, path_type=Path)
ROOM = 2**20
"""What an archive may have beyond its files: names, and blocks that are filled up."""


@click.group()
def main() -> None:
    """The measured runs that docs/accuracy.md is made from.

    They are not part of the repository. manifest.json lists each file with its SHA-256, and each
    folder with its source and licence.
    """


@main.command("list")
@click.argument("names", nargs=-1)
def list_(names: tuple[str, ...]) -> None:
    """Print the folders, their licences, and where their figures were read."""
    manifest = package.read()
    for name in manifest.chosen(names):
        source = manifest.folders[name]
        size = show(sum(file.size_bytes for file in source.files.values()), "bytes")
        click.echo(f"{name}: {len(source.files)} files, {size}, {source.licence}")
        click.echo(f"    {source.text}")


@main.command()
@click.argument("folder", type=FOLDER)
@click.argument("names", nargs=-1)
def verify(folder: Path, names: tuple[str, ...]) -> None:
    """Compare the files in FOLDER with the manifest; exit with 1 if one differs or is missing.

    What a package leaves out for its licence may be missing, unless it is named.
    """
    manifest = package.read()
    out = [] if names else manifest.left_out(folder)
    wanted = manifest.paths(names or [name for name in manifest.folders if name not in out])
    if out:
        click.echo(f"not in {folder}, as in no package: {', '.join(out)}")
    found = list(package.problems(wanted, folder))
    for problem in found:
        click.echo(problem)
    click.echo(f"{len(wanted) - len(found)} of {len(wanted)} files are those of the manifest")
    sys.exit(1 if found else 0)


@main.command()
@click.argument("folder", type=FOLDER)
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
def pack(folder: Path, archive: Path, names: tuple[str, ...]) -> None:
    """Write the files in FOLDER that may be passed on to ARCHIVE (.tar.gz); print its SHA-256."""
    wanted = package.read().paths(names, free=True)
    data = package.pack(wanted, folder)
    files.write(archive, data)
    click.echo(f"{package.digest(data).sha256}  {archive.name} ({len(wanted)} files)")


@main.command()
@click.argument("address")
@click.argument("folder", type=FOLDER)
def fetch(address: str, folder: Path) -> None:
    """Read an archive at ADDRESS, a file or https://..., check it, and write it to FOLDER."""
    wanted = package.read().paths()
    most = sum(file.size_bytes for file in wanted.values()) + ROOM
    written = package.unpack(package.fetched(address, most), wanted, folder)
    click.echo(f"{len(written)} files are those of the manifest, and now in {folder}")


@main.command()
@click.argument("folder", type=FOLDER)
def record(folder: Path) -> None:
    """Write the manifest anew from FOLDER, whose folders say in README.md where they are from."""
    values = msgspec.to_builtins(package.recorded(folder))
    text = msgspec.json.format(msgspec.json.encode(values), indent=1)
    files.write(package.MANIFEST, text + b"\n")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
