"""``perfmodel list`` and ``perfmodel show``: the catalogue and the architectures."""

from __future__ import annotations

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import option_values
from perfmodel.cli.options import Outputs, option, outputs, switch

KINDS = ("architectures", "models", "devices", "clusters")


@click.command("list")
@click.argument("kind", type=types.Words(KINDS), required=False)
def list_(kind: str | None) -> None:
    """Lists all of them, or those of one kind."""
    from perfmodel.cli.printing import catalogue

    catalogue.listing((kind,) if kind else KINDS)


@click.command()
@click.argument("name", type=types.Text(names=types.everything))
@switch("--formula", "Print the coarse model of an architecture as formulas.")
@option(
    "--option",
    types.OptionOf("name", "ps"),
    "With --formula: an option of the architecture; repeatable.",
    "options",
    multiple=True,
)
@outputs("json")
@switch("--workload", "Print a model as a workload file, to edit.")
def show(name: str, formula: bool, options: tuple[str, ...], out: Outputs, workload: bool) -> None:
    """Prints its figures, assumptions and sources.

    \b
    perfmodel show resnet50
    perfmodel show resnet50 --workload > net.json
    perfmodel show ps --formula --option overlap=false
    """
    from perfmodel.cli.printing import catalogue, studies

    if workload and formula:
        raise InputError("--workload and --formula: give one of them")
    if formula:
        from perfmodel.studies import formulas

        result = formulas.of_architecture(name, option_values(options))
        if out.put(result, values=result.to_dict()):
            studies.formula(result)
        return
    for flag, value in (("--option", options), ("--json", out.as_json)):
        if value:
            raise InputError(f"{flag}: needs --formula")
    if workload:
        catalogue.workload_file(name)
    else:
        catalogue.show(name)
