"""Types of options and arguments: how their texts are read, and what a shell completes them to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, get_args

import click
from click import Context, Parameter

from perfmodel.base.errors import InputError, PerfmodelError, unknown_name
from perfmodel.catalogue import shipped
from perfmodel.inputs.precisions import RECIPES

if TYPE_CHECKING:  # generic since Click 8.4
    from click.shell_completion import CompletionItem

    from perfmodel.inputs.job import Jitter, Straggler
    from perfmodel.inputs.options import OptionDescription

    Items = list[CompletionItem[str]]
    ParamType = click.ParamType[object]
    Choice = click.Choice[str]
else:
    ParamType, Choice = click.ParamType, click.Choice

Reader = Callable[[str, str], object]
"""Reads the text of an option; the second argument is its flag, for errors."""

Names = Callable[[], Iterable[str]]


def label(parameter: Parameter | None) -> str:
    """The flag of an option, or the name of an argument in help, as errors call it."""
    if isinstance(parameter, click.Argument):
        return (parameter.metavar or str(parameter.name).upper()).strip("[].")
    return parameter.opts[0] if parameter is not None else ""


class Named(ParamType):
    """A type that help shows by its name as it is."""

    def get_metavar(self, param: Parameter, ctx: Context | None = None) -> str:
        """What stands for it in help."""
        return self.name


class Text(Named):
    """A text: read by a function, and completed to names that may be others' as well."""

    def __init__(
        self,
        read: Reader | None = None,
        names: Names | None = None,
        name: str = "NAME",
        *,
        ranges: bool = False,
    ) -> None:
        """Without a reader it is taken as it is; ``name`` stands for it in help.

        With ``ranges``, lists of it may continue: 1,2,4..64.
        """
        self.read, self.names, self.name, self.ranges = read, names, name, ranges

    def convert(self, value: object, param: Parameter | None, ctx: Context | None) -> object:
        """Read the text, unless a shell only asks for completions."""
        if self.read is None or not isinstance(value, str) or (ctx and ctx.resilient_parsing):
            return value
        return self.read(value, label(param))

    def shell_complete(self, ctx: Context, param: click.Parameter, incomplete: str) -> Items:
        """The names that begin so; none where the installation is broken."""
        from click.shell_completion import CompletionItem  # imported only by a shell

        with suppress(PerfmodelError, OSError):
            names = self.names() if self.names is not None else ()
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


class Words(Choice):
    """One of a few words; the error for another one suggests the nearest."""

    def get_metavar(self, param: Parameter, ctx: Context) -> str | None:
        """What stands for it in help; optional arguments get their brackets from click."""
        text = super().get_metavar(param, ctx)
        if text and isinstance(param, click.Argument) and not param.required:
            return text.strip("[]")  # click 8.2 would put a second pair around them
        return text

    def convert(self, value: object, param: Parameter | None, ctx: Context | None) -> str:
        """Refuse other words."""
        if value not in self.choices:
            raise unknown_name(label(param), str(value), self.choices)
        return str(value)


def split(text: str, flag: str, *, ranges: bool = True) -> list[str]:
    """The values of a text with commas between them."""
    from perfmodel.sweeping.grids import values

    return values(text, flag, ranges=ranges)


class Several(Named):
    """Values of another type with commas between them.

    A single value is itself, or with ``always`` a list of one.
    """

    def __init__(self, kind: Text | File, *, always: bool = False) -> None:
        self.kind, self.always, self.name = kind, always, f"{kind.name},..."

    def convert(self, value: object, param: Parameter | None, ctx: Context | None) -> object:
        """Read each value."""
        if not isinstance(value, str) or (ctx and ctx.resilient_parsing):
            return value
        ranges = isinstance(self.kind, Text) and self.kind.ranges
        parts = split(value, label(param), ranges=ranges)
        several = [self.kind.convert(part, param, ctx) for part in parts]
        return several if self.always or len(several) > 1 else several[0]

    def shell_complete(self, ctx: Context, param: click.Parameter, incomplete: str) -> Items:
        """Complete the last value."""
        head, comma, last = incomplete.rpartition(",")
        items = self.kind.shell_complete(ctx, param, last)
        for item in items:
            if item.type == "plain":
                item.value = head + comma + item.value
        return items


class File(click.Path):
    """A file that a command reads or writes, or a name from the catalogue; ``-`` is a stream."""

    def __init__(
        self,
        does: Literal["read", "write"],
        *,
        names: Names | None = None,
        binary: bool = False,
        ending: bool = False,
    ) -> None:
        """A ``binary`` file is not for terminals; one whose ``ending`` counts is no stream."""
        super().__init__()
        self.name = "NAME|FILE" if names is not None else "FILE"
        self.does, self.names, self.binary, self.ending = does, names, binary, ending

    def convert(self, value: object, param: Parameter | None, ctx: Context | None) -> str:
        """The path; of ``-`` the name of the stream."""
        if value != "-":
            return str(value)
        from perfmodel.base import files

        if self.ending:
            raise InputError(
                f"{label(param)}: the ending of the file's name tells the format (png, svg or "
                "pdf), and - has none"
            )
        if self.binary and sys.stdout.isatty():
            raise InputError(
                f"{label(param)}: standard output is a terminal, and the file is binary"
            )
        return files.STDIN if self.does == "read" else files.STDOUT

    def shell_complete(self, ctx: Context, param: click.Parameter, incomplete: str) -> Items:
        """Names of the catalogue, and files."""
        names = Text(names=self.names).shell_complete(ctx, param, incomplete)
        return [*names, *super().shell_complete(ctx, param, incomplete)]


def files_of(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Those of the parameters that are a file, or a list of files."""
    return [p for p in parameters if isinstance(getattr(p.type, "kind", p.type), File)]


class OptionOf(Text):
    """KEY=VALUE, an option of the architecture that another parameter names."""

    def __init__(self, parameter: str, default: str) -> None:
        """The architecture is ``default`` where the parameter is not given."""
        super().__init__(name="KEY=VALUE")
        self.parameter, self.default = parameter, default

    def shell_complete(self, ctx: Context, param: click.Parameter, incomplete: str) -> Items:
        """The keys, and after a key its words."""
        from click.shell_completion import CompletionItem

        from perfmodel.architectures import registry
        from perfmodel.inputs.options import described

        # an argument is in args as long as the line cannot be parsed as a whole
        named = ctx.params.get(self.parameter) or (ctx.args[:1] or [self.default])[0]
        key, equals, _ = incomplete.partition("=")
        options: dict[str, OptionDescription] = {}
        for name in str(named).split(","):
            with suppress(PerfmodelError):
                options |= {o.name: o for o in described(registry.find(name)[0].options)}
        if not equals:
            items = [CompletionItem(f"{n}=", help=o.about.help) for n, o in options.items()]
        elif key in options:
            option = options[key]
            words = ("true", "false") if option.type is bool else get_args(option.type)
            items = [CompletionItem(f"{key}={w}") for w in (*words, *option.about.by_cluster)]
        else:
            items = []
        return [item for item in items if item.value.startswith(incomplete)]


def architecture_names() -> list[str]:
    """Names and aliases of the architectures."""
    from perfmodel.architectures import registry

    return sorted(name for a in registry.all_architectures() for name in (a.name, *a.aliases))


def schedule_names() -> list[str]:
    """Names of the schedules of pipelines."""
    from perfmodel.pipelines.registry import names

    return sorted(names())


def everything() -> list[str]:
    """What ``perfmodel show`` shows."""
    devices, clusters = shipped.device_names(), shipped.cluster_names()
    return sorted({*architecture_names(), *shipped.model_names(), *devices, *clusters})


def parsed_by(parse: Callable[[str], object], expected: str) -> Reader:
    """A reader by a function that raises ValueError for text that is not as ``expected``."""

    def read(text: str, flag: str) -> object:
        try:
            return parse(text)
        except ValueError:
            raise InputError(f"{flag}: expected {expected}, got {text!r}") from None

    return read


def read_quantity(dimension: str) -> Reader:
    """Read text with a unit as SI."""

    def read(text: str, flag: str) -> float:
        from perfmodel.base.units import parse

        return parse(text, dimension, flag)

    return read


def read_seconds(text: str, flag: str) -> object:
    """Read a time with a unit, or a number of seconds."""
    with suppress(ValueError):
        return float(text)
    return read_quantity("s")(text, flag)


def read_speed(text: str, flag: str) -> float | str:
    """Read samples per second as a number; text in another unit stays text."""
    from perfmodel.times import one_device

    speed = one_device.read_speed(text, flag)
    return speed.value if speed.unit == one_device.UNITS[0] else text.strip()


def read_jitter(text: str, _: str) -> Jitter:
    """Read ``0.1``, ``gamma:0.1`` or ``measured``."""
    from perfmodel.inputs.job import Jitter

    return Jitter.parse(text)


def read_straggler(text: str, _: str) -> Straggler:
    """Read ``WORKER:FACTOR``."""
    from perfmodel.inputs.job import Straggler

    return Straggler.parse(text)


def read_failures(text: str, _: str) -> float:
    """Read failures per device and day: a number, or the name of a published run."""
    from perfmodel.inputs.failures import Failures

    return Failures.rate(text)


def read_run(text: str, flag: str) -> tuple[int, float]:
    """Read ``WORKERS:TIME``."""
    from perfmodel.base.units import parse

    workers, _, seconds = text.partition(":")
    if not workers.isdecimal() or not seconds:
        raise InputError(f"{flag}: cannot read {text!r}; expected WORKERS:TIME, such as 8:250ms")
    return int(workers), parse(seconds, "s", flag)


def read_fraction(text: str, flag: str) -> float:
    """Read ``1%`` or ``0.01``."""
    from perfmodel.base.units import fraction

    return fraction(text, flag)


def suggested(*words: str, name: str | None = None) -> Text:
    """A text that a shell completes to these words; what else it may be, others check."""
    return Text(names=lambda: words, name=name or "|".join(words))


def stored(table: str) -> Names:
    """The keys of a table of :mod:`perfmodel.inputs.storage`, imported only by a shell."""

    def names() -> Iterable[str]:
        from perfmodel.inputs import storage

        return tuple(getattr(storage, table))

    return names


def time(example: str) -> Text:
    """A time, with an example for help."""
    return Text(read_quantity("s"), name=example)


def number(example: str) -> Text:
    """A number, with an example or a unit for help."""
    return Text(parsed_by(float, "a number"), name=example)


def whole(example: str) -> Text:
    """A whole number, or a range in lists of them, with what stands for it in help."""
    return Text(parsed_by(int, "a whole number"), name=example, ranges=True)


def fraction(example: str) -> Text:
    """A fraction or a percentage, with an example for help."""
    return Text(read_fraction, name=example)


TEXT = Text()
ADDRESS = Text(name="ADDRESS")
WHOLE, NUMBER, FRACTION = whole("N"), number("N"), fraction("5%")
JITTER = Text(read_jitter, name="0.1|gamma:0.1|measured", ranges=True)
STRAGGLER = Text(read_straggler, name="WORKER:FACTOR")
SPEED = Text(read_speed, name="171|'12000 tokens/s'", ranges=True)
BOUND = Text(name="S", ranges=True)
SECONDS = Text(read_seconds, name="60s")
SIZE = Text(read_quantity("bytes"), name="SIZE")
RATE = Text(read_quantity("bytes_per_s"), name="10Gbps")
PRECISION = suggested(*("float32", "tf32", "mixed", *RECIPES), name="float32|tf32|mixed|fp8|...")
RECOMPUTATION = suggested(
    *("none", "selective", "selective:products", "full"), name="none|selective[:products|:N]|full"
)
OTHER_RUN = Text(read_run, name="WORKERS:TIME")
FAILURES = Text(read_failures, name="0.0005|llama-3|bloom|opt")
CHECKPOINTING = suggested("blocking", "asynchronous")
STACK = suggested("as_found", "recent", "tuned")
FRAMEWORK = Text(name="pytorch")
LAUNCHES = suggested("eager", "compiled", "graphs")
OPTIMIZER = Text(names=stored("OPTIMIZERS"))
POLICY = Text(names=stored("POLICIES"))
LORA = Text(name="16|16:q+v|16:all:4")
SYNC = suggested("bsp", "asp", "ssp")
TRANSFERS = suggested("torch", "gloo", "blocking", "ahead")
WAY = suggested("direct", "pairwise", "hierarchical")
RANK_ORDER = suggested("tp-dp-pp", "tp-pp-dp")
EXCHANGE = suggested(
    *("ring", "all-gather", "all-to-all", "hierarchical"), name="ring|all-gather|all-to-all|..."
)
SPLIT = suggested("zigzag", "contiguous", "documents")
BACKEND = suggested("gloo", "nccl")
TORCH_DEVICE = suggested("cpu", "cuda")
MODEL = Text(names=shipped.model_names)
DEVICE = Text(names=shipped.device_names)
ARCHITECTURE = Text(names=architecture_names)


def count(name: str) -> Text:
    """A number, or text such as ``8+8+4`` or ``equal:100``."""
    return Text(lambda text, _: int(text) if text.isdecimal() else text, name=name)


INPUT = File("read")
OUTPUT = File("write")
BINARY = File("write", binary=True)
FIGURE = File("write", ending=True)
CLUSTER = File("read", names=shipped.cluster_names)
SCHEDULE = File("read", names=schedule_names)
FOLDER = click.Path(file_okay=False, readable=False)
FOLDER.name = "FOLDER"
