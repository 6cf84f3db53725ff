"""The command line: one function per command, no arithmetic.

Only click is imported here; the rest is imported when a command runs, so that help is instant.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import click

from perfmodel import __version__
from perfmodel.errors import InputError, PerfmodelError

KINDS = ("architectures", "models", "devices", "clusters")


Reader = Callable[[click.Context, click.Parameter, Any], Any]


def _quantity(dimension: str) -> Reader:
    """Read text with a unit as SI."""

    def read(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
        from perfmodel.units import parse

        return None if text is None else parse(text, dimension, f"--{option.name}")

    return read


def _jitter(_: click.Context, __: click.Parameter, text: str | None) -> Any:
    from perfmodel.job import Jitter

    return None if text is None else Jitter.parse(text)


def _stragglers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    from perfmodel.job import Straggler

    return tuple(Straggler.parse(text) for text in texts)


def _fraction(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Read ``1%`` or ``0.01``."""
    from perfmodel.units import fraction

    return None if text is None else fraction(text, f"--{str(option.name).replace('_', '-')}")


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
@click.option("--job", metavar="FILE", help="Job file; the flags below override what it says.")
@click.option("--model", help="Model of the catalogue (see: perfmodel list models).")
@click.option("--workload", metavar="FILE", help="Workload file, instead of --model.")
@click.option("--device", help="Device the workload's times are for.")
@click.option("--precision", help="float32, tf32 or mixed, where the profile has it.")
@click.option("--batch-size", type=int, metavar="N", help="Samples per worker and iteration.")
@click.option("--global-batch-size", type=int, metavar="N", help="Samples of all workers together.")
@click.option("--cluster", metavar="NAME|FILE", help="Cluster of the catalogue, or a file.")
@click.option(
    "--bandwidth", metavar="10Gbps", callback=_quantity("bytes_per_s"), help="Of every link."
)
@click.option("--latency", metavar="50us", callback=_quantity("s"), help="One way, of every link.")
@click.option("--workers", type=int, metavar="N", help="[default: 1]")
@click.option("--arch", help="Architecture (perfmodel list).  [default: ps]")
@click.option("--servers", type=int, metavar="N", help="Parameter servers.  [default: 1]")
@click.option("--sync", metavar="bsp|asp|ssp", help="How the parameter server synchronises.")
@click.option(
    "--staleness-bound", metavar="S", help="Iterations a worker may be ahead (ssp); inf: any."
)
@click.option("--overlap/--no-overlap", default=None, help="Communicate during computation.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any option of the architecture (perfmodel show ARCH); repeatable.",
)
@click.option(
    "--jitter",
    metavar="0.1|gamma:0.1|measured",
    callback=_jitter,
    help="Random spread of compute per worker and iteration.",
)
@click.option(
    "--straggler",
    "stragglers",
    multiple=True,
    metavar="WORKER:FACTOR",
    callback=_stragglers,
    help="A worker that computes FACTOR times as long; repeatable.",
)
@click.option(
    "--start",
    type=click.Choice(["together", "staggered"]),
    help="Workers begin at once or at random offsets.",
)
@click.option("--seed", type=int, metavar="N", help="Of everything random.  [default: 0]")
@click.option(
    "--rel-ci",
    metavar="1%",
    callback=_fraction,
    help="Simulate a random job until its 95 % confidence interval is this narrow.  [default: 1%]",
)
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
    from perfmodel import api, files

    totals = {name: given.pop(name) for name in ("dataset_size", "epochs")}
    rel_ci = given.pop("rel_ci")
    totals |= {"rel_ci": rel_ci} if rel_ci is not None else {}
    job = api.make_job(**_job_arguments(given))
    with _progress() as advance:
        prediction = api.predict(job, **totals, progress=advance)
    if trace is not None:
        import json

        files.write(trace, json.dumps(prediction.to_chrome_trace()).encode())
        click.echo(f"wrote {trace}; open it at https://ui.perfetto.dev", err=True)
    if plot is not None:
        files.write(plot, prediction.to_image(plot.rpartition(".")[2].lower()))
        click.echo(f"wrote {plot}", err=True)
    if as_json:
        click.echo(prediction.to_json())
    else:
        from perfmodel import report

        report.prediction(prediction)


@cli.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
def list_(kind: str | None) -> None:
    """List architectures, models, devices and clusters."""
    from perfmodel import report

    report.listing((kind,) if kind else KINDS)


@cli.command()
@click.argument("name")
def show(name: str) -> None:
    """Show an architecture, model, device or cluster: its figures, assumptions and sources."""
    from perfmodel import report

    report.show(name)


def _job_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of make_job: those of the job file, then whatever flags were given."""
    from perfmodel.errors import whole_number
    from perfmodel.job import read_job

    path = given.pop("job")
    arguments = read_job(path) if path is not None else {}
    batch, whole = given.pop("batch_size"), given.pop("global_batch_size")
    options = _options(given)
    for flag, name in (("bandwidth", "bandwidth_bytes_per_s"), ("latency", "latency_s")):
        given[name] = given.pop(flag)
    for one, other in (("model", "workload"), ("workload", "model")):
        if given[one] is not None and given[other] is None:
            arguments.pop(other, None)
    arguments |= {name: value for name, value in given.items() if value not in (None, ())}
    if batch is not None and whole is not None:
        raise InputError("--batch-size and --global-batch-size: give one of them")
    if whole is not None:
        workers = whole_number("--workers", arguments.get("workers", 1))
        whole_number("--global-batch-size", whole)
        if whole % workers:
            raise InputError(
                f"--global-batch-size: {whole} samples cannot be shared evenly by {workers} workers"
            )
        batch = whole // workers
    if batch is not None:
        arguments["batch_size"] = batch
    return {**arguments, "options": {**arguments.get("options", {}), **options}}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The architecture's options from --option and from the flags that stand for one."""
    options: dict[str, Any] = {}
    for text in given.pop("options"):
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option: expected KEY=VALUE, got {text!r}")
        if key in options:
            raise InputError(f"--option: {key} is given twice")
        options[key] = value
    for flag in ("servers", "sync", "staleness_bound", "overlap"):
        value = given.pop(flag)
        if value is not None:
            if flag in options:
                dashed = flag.replace("_", "-")
                raise InputError(f"--{dashed} and --option {flag}: give one of them")
            options[flag] = value
    return options


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
