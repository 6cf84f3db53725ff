"""The command line: one function per command, no arithmetic.

Only click is imported here; the rest is imported when a command runs, so that help is instant.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import click

from perfmodel import __version__
from perfmodel.errors import InputError, PerfmodelError

if TYPE_CHECKING:
    from perfmodel.grids import Skipped

KINDS = ("architectures", "models", "devices", "clusters")

Command = Callable[..., Any]
Callback = Callable[[click.Context, click.Parameter, Any], Any]
Reader = Callable[[str, str], Any]
"""Reads the text of an option, whose flag comes second, for errors."""


def _text(text: str, _: str) -> str:
    return text


def _whole(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{flag}: expected a whole number, got {text!r}") from None


def _quantity(dimension: str) -> Reader:
    """Read text with a unit as SI."""

    def read(text: str, flag: str) -> float:
        from perfmodel.units import parse

        return parse(text, dimension, flag)

    return read


def _jitter(text: str, _: str) -> Any:
    from perfmodel.job import Jitter

    return Jitter.parse(text)


def _stragglers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    from perfmodel.job import Straggler

    return tuple(Straggler.parse(text) for text in texts)


def _fraction(text: str, flag: str) -> float:
    """Read ``1%`` or ``0.01``."""
    from perfmodel.units import fraction

    return fraction(text, flag)


def _one(read: Reader) -> Callback:
    """Read a value."""
    return lambda _, option, text: None if text is None else read(text, option.opts[0])


def _list(read: Reader, *, ranges: bool) -> Callback:
    """Read a list of values, or a single one."""

    def callback(_: click.Context, option: click.Parameter, text: str | None) -> Any:
        flag = option.opts[0]
        return None if text is None else _items(text, flag, read, ranges=ranges)

    return callback


def _items(text: str, flag: str, read: Reader = _text, *, ranges: bool = True) -> Any:
    from perfmodel.grids import values

    found = [read(part, flag) for part in values(text, flag, ranges=ranges)]
    return found if len(found) > 1 else found[0]


def _all_of(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def job_options(*, lists: bool = False, jobs: bool = False) -> Callable[[Command], Command]:
    """The options that describe a job.

    With ``lists`` those that name a value take several; with ``jobs`` there may be several --job.
    """

    def value(
        flag: str, read: Reader, metavar: str, help: str, *, ranges: bool = False
    ) -> Callable[[Command], Command]:
        callback = _list(read, ranges=ranges) if lists else _one(read)
        return click.option(
            flag, callback=callback, metavar=f"{metavar},..." if lists else metavar, help=help
        )

    def whole(flag: str, help: str) -> Callable[[Command], Command]:
        return value(flag, _whole, "N", help, ranges=True)

    job = "Job file; the flags below override what it says."
    described = (
        click.option("--job", metavar="FILE", multiple=jobs, help=job + " Repeatable." * jobs),
        value("--model", _text, "NAME", "Model of the catalogue (see: perfmodel list models)."),
        value("--workload", _text, "FILE", "Workload file, instead of --model."),
        value("--device", _text, "NAME", "Device the workload's times are for."),
        value("--precision", _text, "NAME", "float32, tf32 or mixed, where the profile has it."),
        whole("--batch-size", "Samples per worker and iteration."),
        whole("--global-batch-size", "Samples of all workers together."),
        value("--cluster", _text, "NAME|FILE", "Cluster of the catalogue, or a file."),
        value("--bandwidth", _quantity("bytes_per_s"), "10Gbps", "Of every link."),
        value("--latency", _quantity("s"), "50us", "One way, of every link."),
        whole("--workers", "[default: 1]"),
        value("--arch", _text, "NAME", "Architecture (perfmodel list).  [default: ps]"),
        whole("--servers", "Parameter servers.  [default: 1]"),
        value("--sync", _text, "bsp|asp|ssp", "How the parameter server synchronises."),
        value(
            "--staleness-bound",
            _text,
            "S",
            "Iterations a worker may be ahead (ssp); inf: any.",
            ranges=True,
        ),
        click.option(
            "--overlap/--no-overlap", default=None, help="Communicate during computation."
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE,..." if lists else "KEY=VALUE",
            help="Any option of the architecture (perfmodel show ARCH); repeatable.",
        ),
        value(
            "--jitter",
            _jitter,
            "0.1|gamma:0.1|measured",
            "Random spread of compute per worker and iteration.",
            ranges=True,
        ),
        click.option(
            "--straggler",
            "stragglers",
            multiple=True,
            metavar="WORKER:FACTOR",
            callback=_stragglers,
            help="A worker that computes FACTOR times as long; repeatable.",
        ),
        click.option(
            "--start",
            type=click.Choice(["together", "staggered"]),
            help="Workers begin at once or at random offsets.",
        ),
        whole("--seed", "Of everything random.  [default: 0]"),
    )

    return _all_of(described)


def model_options(default: str, *more: str) -> Callable[[Command], Command]:
    """The options that say how a job is predicted."""
    kinds = ["fine", "coarse", *more, "auto"]
    described = (
        click.option(
            "--fidelity",
            type=click.Choice(kinds),
            default=default,
            help="Simulate every operation (fine), or add up phases (coarse); auto: coarse where "
            f"its error is within --tolerance.  [default: {default}]",
        ),
        click.option(
            "--tolerance",
            metavar="5%",
            callback=_one(_fraction),
            help="Error that auto accepts in 9 of 10 jobs, of the iteration.  [default: 5%]",
        ),
        click.option(
            "--rel-ci",
            metavar="1%",
            callback=_one(_fraction),
            help="Simulate a random job until its 95 % confidence interval is this narrow.  "
            "[default: 1%]",
        ),
    )

    return _all_of(described)


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="perfmodel")
@click.pass_context
def cli(context: click.Context) -> None:
    """Predict throughput, idleness and staleness of distributed deep-learning training."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@job_options()
@model_options("fine", "both")
@click.option("--dataset-size", type=int, metavar="N", help="Samples per epoch, for its time.")
@click.option("--epochs", type=int, metavar="N", help="Epochs, for the training time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--trace", metavar="FILE", help="Write two iterations as a trace for Perfetto.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def predict(as_json: bool, trace: str | None, plot: str | None, **given: Any) -> None:
    """Predict how fast a training job runs, and why.

    \b
    perfmodel predict --model resnet18 --arch ps --workers 8
    perfmodel predict --model vgg16 --device v100 --arch ring --workers 16 --bandwidth 25Gbps
    """
    from perfmodel import api
    from perfmodel.grids import per_worker

    asked = {name: given.pop(name) for name in ("dataset_size", "epochs")} | _asked(given)
    fidelity = asked["fidelity"]
    if trace is not None and fidelity in ("coarse", "auto"):
        raise InputError("--trace: shows a simulation; needs --fidelity fine")
    _check_files(plot, trace)
    arguments = _job_arguments(given, given.pop("job"))
    job = api.make_job(**per_worker(arguments, "--global-batch-size"))
    if fidelity == "both":
        asked["fidelity"] = "fine"
    with _progress() as advance:
        prediction = api.predict(job, **asked, progress=advance)
    other = api.predict(job, **asked | {"fidelity": "coarse"}) if fidelity == "both" else None
    written = []
    if trace is not None:
        import json

        data = json.dumps(prediction.to_chrome_trace()).encode()
        written.append((trace, data, "; open it at https://ui.perfetto.dev"))
    if plot is not None:
        written.append((plot, prediction.to_image(_ending(plot)), ""))
    _write(written)
    if as_json and other is not None:
        from perfmodel.comparison import both_as_json

        click.echo(both_as_json(prediction, other))
    elif as_json:
        click.echo(prediction.to_json())
    else:
        from perfmodel import report

        if other is not None:
            report.both(prediction, other)
        else:
            report.prediction(prediction)


@cli.command()
@job_options(lists=True)
@model_options("auto")
@click.option("--csv", metavar="FILE", help="Write the table as CSV; - prints it instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def sweep(csv: str | None, as_json: bool, plot: str | None, **given: Any) -> None:
    """Predict every combination of lists of values.

    Options with a value take lists: 10Gbps,25Gbps. Lists of numbers may continue: 1,2,4..64
    doubles, 8,16..64 goes up by 8, 1..8 by 1.

    \b
    perfmodel sweep --model resnet50 --device v100 --arch ring,ps --workers 1,2,4..64
    perfmodel sweep --model vgg16 --device v100 --workers 8 --option servers=1..8 --plot servers.png
    """
    from perfmodel import sweeps

    if csv == "-" and as_json:
        raise InputError("--csv - and --json: both print; give one of them")
    _check_files(plot, csv if csv != "-" else None)
    asked = _asked(given)
    arguments = _job_arguments(given, given.pop("job"), lists=True)
    with _progress() as advance:
        found = sweeps.sweep(**asked, **arguments, progress=advance)
    written = []
    if csv is not None and csv != "-":
        written.append((csv, found.to_csv().encode(), ""))
    if plot is not None:
        written.append((plot, found.to_image(_ending(plot)), ""))
    _write(written)
    if csv == "-":
        click.echo(found.to_csv(), nl=False)
    elif as_json:
        click.echo(found.to_json())
    else:
        from perfmodel import report

        report.sweep(found)
    _say(found.notes, found.skipped)


@cli.command()
@job_options(lists=True, jobs=True)
@model_options("fine")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def compare(as_json: bool, plot: str | None, **given: Any) -> None:
    """Put jobs side by side, and say why one is faster than another.

    The jobs are files, every combination of lists of values as in perfmodel sweep, or both.

    \b
    perfmodel compare --model vgg16 --device v100 --workers 8 --arch ring,ps --servers 1,4
    perfmodel compare --job old.toml --job new.toml
    """
    from perfmodel import comparison

    _check_files(plot)
    asked = _asked(given)
    paths: tuple[str | None, ...] = given.pop("job") or (None,)
    found = comparison.gathered(
        [(path, _job_arguments(dict(given), path, lists=True)) for path in paths]
    )
    with _progress() as advance:
        answer = comparison.compare(found.jobs, found.names, **asked, progress=advance)
    if plot is not None:
        _write([(plot, answer.to_image(_ending(plot)), "")])
    if as_json:
        click.echo(answer.to_json())
    else:
        from perfmodel import report

        report.comparison(answer)
    _say(found.notes, found.skipped)


@cli.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
def list_(kind: str | None) -> None:
    """List architectures, models, devices and clusters."""
    from perfmodel import report

    report.listing((kind,) if kind else KINDS)


@cli.command()
@job_options()
@click.option("--against", metavar="NAME", help="Where is this architecture faster, or slower?")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(against: str | None, as_json: bool, **given: Any) -> None:
    """Say which phase of an iteration rules, and where it stops ruling.

    By the formulas of the coarse model: at how many workers, which bandwidth or batch size another
    phase takes longer, and how many workers saturate a server.

    \b
    perfmodel explain --model resnet50 --device v100 --arch ps --workers 8
    perfmodel explain --model resnet50 --device v100 --arch asp --workers 8 --against ring
    """
    from perfmodel import api, crossovers, report
    from perfmodel.grids import per_worker

    arguments = per_worker(_job_arguments(given, given.pop("job")), "--global-batch-size")
    job = api.make_job(**arguments)
    found = crossovers.explain(job)
    others: tuple[crossovers.Crossover, ...] = ()
    if against is not None:
        other = api.make_job(**crossovers.other_arguments(arguments, against))
        others = crossovers.against(job, other, arguments.get("arch", job.architecture), against)
    if as_json:
        import json

        values = found.to_dict() | {"against": [c.to_dict() for c in others]}
        click.echo(json.dumps(values, indent=2))
    else:
        report.explanation(found, job, others)


@cli.command()
@click.argument("name")
@click.option("--formula", is_flag=True, help="Of an architecture: its coarse model, to read.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --formula, an option of the architecture; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="With --formula: print one JSON object.")
def show(name: str, formula: bool, options: tuple[str, ...], as_json: bool) -> None:
    """Show an architecture, model, device or cluster: its figures, assumptions and sources.

    \b
    perfmodel show resnet50
    perfmodel show ps --formula --option overlap=false
    """
    from perfmodel import report

    if not formula:
        for flag, given in (("--option", bool(options)), ("--json", as_json)):
            if given:
                raise InputError(f"{flag}: needs --formula")
        report.show(name)
        return
    from perfmodel import formulas

    flags = {"servers": None, "sync": None, "staleness_bound": None, "overlap": None}
    chosen = _options({"options": options, **flags}, lists=False)
    found = formulas.of_architecture(name, chosen)
    if as_json:
        import json

        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        report.formula(found)


def _job_arguments(
    given: dict[str, Any], path: str | None, *, lists: bool = False
) -> dict[str, Any]:
    """Arguments of make_job, or of a sweep: those of the job file, then whatever flags were given.

    Either may have ``global_batch_size`` in the place of ``batch_size``.
    """
    from perfmodel.job import read_job

    arguments = read_job(path) if path is not None else {}
    options = _options(given, lists=lists)
    for flag, name in (("bandwidth", "bandwidth_bytes_per_s"), ("latency", "latency_s")):
        given[name] = given.pop(flag)
    for one, other in (
        *(("model", "workload"), ("workload", "model")),
        ("global_batch_size", "batch_size"),
    ):
        if given[one] is not None and given[other] is None:
            arguments.pop(other, None)
    if given["batch_size"] is not None and given["global_batch_size"] is not None:
        raise InputError("--batch-size and --global-batch-size: give one of them")
    arguments |= {name: value for name, value in given.items() if value not in (None, ())}
    return {**arguments, "options": {**arguments.get("options", {}), **options}}


def _options(given: dict[str, Any], *, lists: bool) -> dict[str, Any]:
    """The architecture's options from --option and from the flags that stand for one."""
    options: dict[str, Any] = {}
    for text in given.pop("options"):
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option: expected KEY=VALUE, got {text!r}")
        if key in options:
            raise InputError(f"--option: {key} is given twice")
        options[key] = _items(value, f"--option {key}") if lists else value
    for flag in ("servers", "sync", "staleness_bound", "overlap"):
        value = given.pop(flag)
        if value is not None:
            if flag in options:
                dashed = flag.replace("_", "-")
                raise InputError(f"--{dashed} and --option {flag}: give one of them")
            options[flag] = value
    return options


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Takes out of ``given`` how to predict, as arguments of predict, without what is not given."""
    asked = {name: given.pop(name) for name in ("fidelity", "tolerance", "rel_ci")}
    if asked["tolerance"] is not None and asked["fidelity"] != "auto":
        raise InputError("--tolerance: needs --fidelity auto")
    return {name: value for name, value in asked.items() if value is not None}


def _ending(path: str) -> str:
    return path.rpartition(".")[2].lower()


def _check_files(plot: str | None, *others: str | None) -> None:
    """Refuse files that cannot be written before work is done for them."""
    for path in filter(None, (plot, *others)):
        import tempfile
        from pathlib import Path

        try:
            if Path(path).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with tempfile.NamedTemporaryFile(dir=Path(path).parent):
                pass
        except OSError as error:
            raise InputError(f"{path}: cannot write: {error.strerror or error}") from None
    if plot is not None:
        from perfmodel.plot import check

        check(_ending(plot))


def _write(written: Sequence[tuple[str, bytes, str]]) -> None:
    """Write files, each with what to say of it."""
    from perfmodel import files

    for path, data, hint in written:
        files.write(path, data)
        click.echo(f"wrote {path}{hint}", err=True)


def _say(notes: Iterable[str], skipped: Iterable[Skipped]) -> None:
    """Say on standard error what of a sweep is missing, and why."""
    from perfmodel.grids import reasons

    for note in notes:
        click.echo(f"note: {note}", err=True)
    for line in reasons(skipped):
        click.echo(line, err=True)


def _progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        return nullcontext()
    from perfmodel import report

    return report.progress()


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit code 2."""
    gc.set_threshold(100_000)  # one short run: collecting often would only cost time
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "±" still gets its answer
    try:
        cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _fail(error.format_message())
    except PerfmodelError as error:
        _fail(str(error))
    except OSError as error:  # files have errors of their own: this is the output
        # what is still buffered would fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        _fail(f"standard output: cannot write: {error.strerror}")
    except MemoryError:
        _fail("the job does not fit into this machine's memory")
    except (click.Abort, KeyboardInterrupt):
        click.echo("perfmodel: interrupted", err=True)
        sys.exit(130)
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    line = " ".join(message.split())
    click.echo(f"perfmodel: error: {line}", err=True)
    sys.exit(2)
