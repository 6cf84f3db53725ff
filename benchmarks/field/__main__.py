"""``python -m benchmarks.field [FOLDER]``: predict the reported runs, one row each.

With FOLDER, which holds ``cases.csv``, the cases file of this folder is written anew first.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from benchmarks.accuracy.field import cases_file
from benchmarks.field.table import CASES, table
from perfmodel.base import files
from perfmodel.base.errors import InputError


@click.command()
@click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
def main(folder: Path | None) -> None:
    """Print a table of all reported runs, their predictions, and the errors."""
    if folder is not None:
        text = msgspec.json.format(msgspec.json.encode(cases_file(folder)), indent=1)
        files.write(CASES, text + b"\n")
    click.echo(table())


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
