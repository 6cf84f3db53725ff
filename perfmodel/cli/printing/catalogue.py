"""The catalogue: lists, and details of an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click
import msgspec

from perfmodel.architectures import registry
from perfmodel.architectures.base import Architecture
from perfmodel.base.errors import spelling, unknown_name
from perfmodel.base.units import show as quantity
from perfmodel.catalogue import catalogue
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, dim, show as show_text
from perfmodel.inputs.decoder_layers import with_layers
from perfmodel.inputs.options import described
from perfmodel.inputs.profile import Profile

MOST_DEVICES = 5
"""Most devices with published figures that a listing names for a model."""


def listing(kinds: Sequence[str]) -> None:
    """Print the entries of each kind."""
    rows: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "architectures": lambda: [
            row for a in registry.all_architectures() for row in _architecture_rows(a)
        ],
        "models": lambda: [(n, _model_line(catalogue.model(n))) for n in catalogue.model_names()],
        "devices": lambda: [(n, catalogue.device(n).title) for n in catalogue.device_names()],
        "clusters": lambda: [(n, catalogue.cluster(n).title) for n in catalogue.cluster_names()],
    }
    for kind in kinds:
        if len(kinds) > 1:
            show_text(dim(kind))
        indent = "  " * (len(kinds) > 1)
        print_table(("", ""), [(f"{indent}{name}", text) for name, text in rows[kind]()])


def _architecture_rows(architecture: Architecture) -> list[tuple[str, str]]:
    """An architecture, and what each of its other names stands for."""
    name = architecture.name
    return [
        (name, architecture.title),
        *((f"  {alias}", _meaning(name, preset)) for alias, preset in architecture.aliases.items()),
    ]


def _meaning(name: str, preset: Mapping[str, object]) -> str:
    if not preset:
        return f"another name of {name}"
    values = (f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in preset.items())
    return f"short for {name} with {', '.join(values)}"


def _model_line(profile: Profile) -> str:
    measured = dict.fromkeys(t.device for t in profile.timings if t.source.kind == "measured")
    others = [d for d in profile.devices if d not in measured]
    if profile.decoder is not None and not profile.timings:
        return f"{profile.title} or others"
    if not profile.timings:
        return f"{profile.title}; estimated for every device"
    line = profile.title + (f"; measured on {', '.join(measured)}" if measured else "")
    if len(others) > MOST_DEVICES:
        others[MOST_DEVICES - 1 :] = [f"{len(others) - MOST_DEVICES + 1} others"]
    return line + (f"; published for {', '.join(others)}" if others else "")


def show(name: str) -> None:
    """Print the details of an architecture, model, device or cluster.

    Raises
    ------
    InputError : nothing has that name.
    """
    aliases = [alias for a in registry.all_architectures() for alias in a.aliases]
    known: list[tuple[Sequence[str], Callable[[str], None]]] = [
        ([*registry.names(), *aliases], _show_architecture),
        (catalogue.model_names(), _show_model),
        (catalogue.device_names(), lambda n: _show_struct(catalogue.device(n))),
        (catalogue.cluster_names(), lambda n: _show_struct(catalogue.cluster(n))),
    ]
    name = catalogue.device_called(name)
    for names, printer in known:
        if name in names:
            printer(name)
            return
    if registry.knows(name):
        _show_architecture(name)
        return
    raise unknown_name("name", name, [n for names, _ in known for n in names])


def workload_file(name: str) -> None:
    """Print a model of the catalogue as a workload file.

    Raises
    ------
    InputError : there is no such model.
    """
    from perfmodel.inputs.profile_files import dumped

    click.echo(dumped(catalogue.model(name)), nl=False)


def _show_architecture(name: str) -> None:
    architecture, preset = registry.find(name)
    show_text(f"{bold(name)}: {architecture.title}")
    if spelling(name) != spelling(architecture.name):
        show_text(_meaning(architecture.name, preset))
    show_text(f"\n{dim('options (--option NAME=VALUE)')}")
    options = described(architecture.options)
    rows = [(option.name, str(option.default), option.about.help) for option in options]
    print_table(("option", "default", ""), rows)
    show_text(f"\n{dim('assumptions')}")
    for assumption in architecture.assumptions:
        show_text(f"- {assumption}")
    show_text(f"\n{dim('source')} {architecture.source}")


def _show_model(name: str) -> None:
    profile = catalogue.model(name)
    dimensions, timings = profile.decoder, profile.timings
    if not profile.layers:
        profile = with_layers(profile, "float32")
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    show_text(f"{bold(name)}: {profile.title}")
    show_text(
        f"{len(profile.layers)} layers, {tensors} tensors, "
        f"{quantity(profile.parameter_bytes, 'bytes')} of parameters (float32)"
    )
    if profile.noise_scale is not None:
        show_text(str(profile.noise_scale))
    show_text(f"{dim(profile.source.text)}\n")
    if dimensions is not None:
        items = msgspec.structs.asdict(dimensions).items()
        texts = (f"{k.replace('_', ' ')} {v}" for k, v in items if v is not None)
        show_text(f"{', '.join(texts)}\n")
    if not timings:
        show_text(dim("estimated on every device of the catalogue: nothing was measured"))
        return
    rows = []
    for t in sorted(timings, key=lambda t: (t.device, t.precision, t.batch_size)):
        kind = "measured per layer" if t.per_layer and t.source.kind == "measured" else "estimated"
        rate = f"{t.batch_size / t.total_s:.4g}"
        source = f"{t.source.kind}: {t.source.text}"
        rows.append((t.device, t.precision, str(t.batch_size), rate, kind, source))
    print_table(("device", "precision", "batch", "samples/s", "", "source"), rows)
    show_text(dim("estimated: the layers' times are shares, by roofline, of the published step"))


def _show_struct(value: msgspec.Struct) -> None:
    import json

    click.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
