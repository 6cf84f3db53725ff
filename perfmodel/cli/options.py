"""Options that several commands have, and what becomes of an answer: text, JSON and files."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from perfmodel.cli import types
from perfmodel.cli.verbosity import remark, verbosity

if TYPE_CHECKING:
    import msgspec

    from perfmodel.inputs.failures import Failures

Arguments = dict[str, Any]
"""Arguments of a call by their names."""

Command = Callable[..., object]
Decorator = Callable[[Command], Command]
File = tuple[str, bytes, str]
"""Path and contents of a file to write, and a hint to print behind its name."""


def option(
    flag: str,
    kind: types.ParamType | type,
    text: str,
    name: str | None = None,
    *,
    default: object = None,
    multiple: bool = False,
    required: bool = False,
) -> Decorator:
    """An option with a value; help shows its default, if there is one."""
    names = (flag,) if name is None else (flag, name)
    more: Arguments = {} if default is None else {"default": default, "show_default": True}
    return click.option(*names, type=kind, help=text, multiple=multiple, required=required, **more)


def source_of(name: str) -> ParameterSource | None:
    """Where the running command has the value of a parameter from."""
    return click.get_current_context().get_parameter_source(name)


def switch(flag: str, text: str, name: str | None = None) -> Decorator:
    """An option without a value; ``--on/--off`` is None if it is not given."""
    names = (flag,) if name is None else (flag, name)
    return click.option(*names, is_flag=True, default=None if "/" in flag else False, help=text)


def all_of(*options: Decorator) -> Decorator:
    """Add several options to a command, in this order."""

    def add(command: Command) -> Command:
        for decorator in reversed(options):
            command = decorator(command)
        return command

    return add


def gathered(name: str, fields: Sequence[str], make: Callable[..., object]) -> Decorator:
    """Pass those of a command's values that are ``fields`` as one argument ``name``."""

    def around(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: object) -> object:
            members = {field: values.pop(field) for field in fields if field in values}
            return command(**values, **{name: make(**members)})

        return run

    return around


executor_options = all_of(
    option(
        "--jobs",
        types.WHOLE,
        "Number of local processes.  [default: 1; all cores after 5 s]",
        "processes",
    ),
    option("--dask", types.ADDRESS, "Use the Dask cluster of this scheduler (extra: dask)."),
)
"""Options for :func:`perfmodel.sweeping.executors.opened`, which predicts the jobs of a study."""

training_options = all_of(
    option("--dataset-size", types.WHOLE, "Samples per epoch, for training time."),
    option("--epochs", types.WHOLE, "Epochs of the training time.  [default: 1]"),
)
"""How long a training is."""

FAILURES = {
    "--failures-per-device-day": "per_device_day",
    "--interruptions-per-node-day": "interruptions_per_node_day",
    "--restart-time": "restart_s",
    "--replacement-time": "replacement_s",
    "--elastic": "elastic",
    "--resize-time": "resize_s",
    "--checkpoint-interval": "checkpoint_interval_s",
    "--storage-bandwidth": "storage_bytes_per_s",
    "--checkpointing": "checkpointing",
}
"""Fields of :class:`perfmodel.Failures` by their flags."""

OF_NODES = ("replacement_s", "elastic", "resize_s")
"""Those of nodes that are taken away."""


def read_failures(**given: Any) -> Failures | None:
    """Make the failures of a training of the flags that are given."""
    from perfmodel.base.errors import InputError

    known = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    if not known:
        return None
    flags = [flag for flag, name in FAILURES.items() if name in known]
    if "per_device_day" not in known and "interruptions_per_node_day" not in known:
        raise InputError(f"{flags[0]}: needs --failures-per-device-day, such as 0.0005")
    for flag, name in FAILURES.items():
        if name in known and name in OF_NODES and "interruptions_per_node_day" not in known:
            raise InputError(f"{flag}: needs --interruptions-per-node-day, such as 0.5")
    from perfmodel.inputs.failures import Failures

    return Failures(**known)


failure_options = all_of(
    option(
        "--failures-per-device-day",
        types.FAILURES,
        "Failures of the run, each back to a checkpoint.  [default: none]",
        "per_device_day",
    ),
    option(
        "--interruptions-per-node-day",
        types.number("0.5"),
        "Nodes taken away, such as spot instances.  [default: none]",
    ),
    option("--restart-time", types.time("10min"), "From a failure to the next step.", "restart_s"),
    option(
        "--replacement-time",
        types.time("2min"),
        "Until another node is there.  [default: 0]",
        "replacement_s",
    ),
    switch("--elastic", "Go on with the nodes that are left."),
    option("--resize-time", types.time("1min"), "To go on with fewer or more nodes.", "resize_s"),
    option(
        "--checkpoint-interval",
        types.time("30min"),
        "Work between checkpoints.  [default: the best]",
        "checkpoint_interval_s",
    ),
    option(
        "--storage-bandwidth",
        types.RATE,
        "Of all devices together.  [default: 0.12 GB/s each]",
        "storage_bytes_per_s",
    ),
    option("--checkpointing", types.CHECKPOINTING, "How checkpoints are written."),
    gathered("failures", tuple(FAILURES.values()), read_failures),
)
"""Failures of a training."""

run_options = all_of(
    option("--iterations", types.WHOLE, "Predict the first N iterations, not the long run."),
    option("--run-iterations", types.WHOLE, "Give the interval for a run of N iterations."),
    training_options,
    failure_options,
)
"""Which part of a run a prediction is about, and how long the training is."""


def check_files(plot: str | None, *others: str | None) -> None:
    """Refuse files that cannot be written, before the work starts."""
    from perfmodel.base import files

    for path in filter(None, (plot, *others)):
        files.check_writable(path)
    if plot is not None:
        from perfmodel.reporting.images import check

        check(ending(plot))


def ending(path: str) -> str:
    """The ending of a file's name, in lower case and without its dot."""
    return path.rpartition(".")[2].lower()


def encoded(value: msgspec.Struct, path: str) -> bytes:
    """A value as the contents of a file: TOML if the name of the file ends so, else JSON."""
    import msgspec

    if ending(path) == "toml":
        import tomli_w

        return tomli_w.dumps(_without_null(msgspec.to_builtins(value))).encode()
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _without_null(value: Any) -> Any:
    """JSON-like values without fields that are null, which TOML cannot say."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_files(written: Sequence[File]) -> None:
    """Write files, and print the names of those that are not standard output."""
    from perfmodel.base import files
    from perfmodel.base.errors import plain

    for path, data, hint in written:
        files.write(path, data)
        if path != files.STDOUT:
            remark(plain(f"wrote {path}{hint}"))


class Outputs(NamedTuple):
    """Where the answer of a command goes, besides its text."""

    csv: str | None = None
    parquet: str | None = None
    as_json: bool = False
    plot: str | None = None
    page: str | None = None

    def check(self, *others: str | None) -> None:
        """Refuse files that cannot be made or written, before the work starts."""
        if self.parquet is not None:
            from perfmodel.base.tables import need_parquet

            need_parquet()
        if self.page is not None:
            from perfmodel.reporting import page

            page.check(ending(self.page))
        check_files(self.plot, self.csv, self.parquet, self.page, *others)

    def put(
        self,
        answer: Any,
        written: Sequence[File] = (),
        values: Mapping[str, object] | None = None,
        remarks: Sequence[str] = (),
    ) -> bool:
        """Write the files, those ``written`` first, and print JSON; returns whether to print text.

        The JSON is that of ``values`` if there are any, else of the answer.
        """
        from perfmodel.base import files

        files_of_answer = [*written]
        if self.csv is not None:
            files_of_answer.append((self.csv, answer.to_csv().encode(), ""))
        if self.parquet is not None:
            files_of_answer.append((self.parquet, answer.to_parquet(), ""))
        if self.page is not None:
            files_of_answer.append((self.page, answer.report().encode(), "; open it in a browser"))
        if self.plot is not None:
            files_of_answer.append((self.plot, answer.to_image(ending(self.plot)), ""))
        write_files(files_of_answer)
        for line in remarks:
            remark(line)
        if self.as_json:
            import json

            click.echo(answer.to_json() if values is None else json.dumps(values, indent=2))
        return self.csv != files.STDOUT and not self.as_json


OUTPUTS = {
    "csv": option("--csv", types.OUTPUT, "Write the table as CSV."),
    "parquet": option("--parquet", types.BINARY, "Write it as Parquet (extra: parquet)."),
    "json": switch("--json", "Print one JSON object.", "as_json"),
    "plot": option("--plot", types.FIGURE, "Draw it as png, svg or pdf (extra: plot)."),
    "report": option("--report", types.OUTPUT, "Write it as an HTML page (extra: report).", "page"),
}
"""Options of :class:`Outputs`, by their names."""


def outputs(*names: str) -> Decorator:
    """Add some of :data:`OUTPUTS`; the command gets them as ``out``."""
    return all_of(*(OUTPUTS[name] for name in names), gathered("out", Outputs._fields, Outputs))


def progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's standard error; none elsewhere, and none with --quiet."""
    from perfmodel.cli.printing.text import moves_cursor

    if verbosity() < 0 or not moves_cursor(sys.stderr):
        return nullcontext()
    from perfmodel.cli.printing import tables

    return tables.progress()
