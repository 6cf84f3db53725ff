"""``perfmodel calibrate``: from measurements to cluster and workload files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.cli import types
from perfmodel.cli.groups import CommandGroup
from perfmodel.cli.options import (
    File,
    Outputs,
    check_files,
    encoded,
    option,
    outputs,
    progress,
    switch,
    write_files,
)

if TYPE_CHECKING:
    import msgspec

    from perfmodel.calibration.runs.table import RunsTable
    from perfmodel.inputs.cluster import Cluster
    from perfmodel.inputs.profile import Profile

CLUSTER = option("--cluster", types.CLUSTER, "Cluster of the runs.  [default: ethernet-10g]")
OUTPUT = option("--output", types.OUTPUT, "Write the fitted cluster.")


@click.group(cls=CommandGroup)
def calibrate() -> None:
    """Fit a cluster or a workload to measurements."""


@calibrate.command()
@click.argument("paths", nargs=-1, required=True, type=types.INPUT, metavar="MEASUREMENTS...")
@option("--nominal", types.RATE, "Nominal bandwidth of links.  [default: what is achieved]")
@option("--name", types.TEXT, "Name of the cluster.")
@option("--base", types.CLUSTER, "Cluster that provides what was not measured.")
@option(
    "--devices-per-node", types.WHOLE, "Devices of a node.  [default: ranks of a measured node]"
)
@option("--output", types.OUTPUT, "Write the cluster file.")
@outputs("plot", "json")
def network(
    paths: tuple[str, ...],
    nominal: float | None,
    name: str | None,
    base: str | None,
    devices_per_node: int | None,
    output: str | None,
    out: Outputs,
) -> None:
    """Fit links and collectives to measurements.

    Reads measurement files, the output of nccl-tests, iperf3 --json, OSU micro-benchmarks and
    perftest (ib_write_bw), or tables (.csv) with the columns operation, ranks, bytes and seconds.

    \b
    perfmodel calibrate network network.json --nominal 10Gbps --output lab.json
    perfmodel calibrate network all_reduce_perf.txt iperf3.json --output lab.json
    perfmodel calibrate network gloo.csv --base lab.json --output lab.json
    """
    from perfmodel.calibration.network.fit import fit_network, read
    from perfmodel.catalogue import catalogue

    out.check(output)
    fitted = fit_network(
        [read(path) for path in paths],
        name=name,
        nominal_bytes_per_s=nominal,
        devices_per_node=devices_per_node,
        base=None if base is None else catalogue.cluster_or_file(base),
    )
    written = [] if output is None else [(output, encoded(fitted.cluster, output), "")]
    if out.put(fitted, written, fitted.to_dict()):
        from perfmodel.cli.printing.text import show

        show("\n".join(fitted.lines()))


class Wanted(NamedTuple):
    """What to write of a fit to a table, and where its answer goes."""

    model: str | None
    cluster: Cluster
    output: str | None
    workload_output: str | None
    out: Outputs

    def files(
        self, cluster: Callable[[], msgspec.Struct], workload: Callable[[], Profile]
    ) -> list[File]:
        """The files that are asked for."""
        from perfmodel.inputs.profile_files import dumped

        written: list[File] = []
        if self.output is not None:
            written.append((self.output, encoded(cluster(), self.output), ""))
        if self.workload_output is not None:
            written.append((self.workload_output, dumped(workload()), ""))
        return written


@calibrate.command()
@click.argument("table", type=types.INPUT, metavar="TABLE.csv")
@option(
    "--model",
    types.MODEL,
    "Model of lines without one; of placements or --servers, that of --workload-output.",
)
@option("--workload", types.INPUT, "Workload file instead of --model.")
@option("--device", types.DEVICE, "Device, for lines without one.")
@CLUSTER
@option(
    "--fit",
    types.Several(types.TEXT, always=True),
    "Parameters to fit: latency_s, efficiency, inside_efficiency, update_per_tensor_s, "
    "update_per_byte_s, slowdown_per_neighbour, handover_per_tensor_s, handover_per_byte_s, "
    "compute_factor, jitter, overlap.  [default: all with an effect, but the handover]",
)
@switch("--servers", "Fit what parameter servers cost, and the compute time of each model.")
@OUTPUT
@option("--workload-output", types.OUTPUT, "Write the workload with scaled times.")
@outputs("plot", "json")
def runs(
    table: str,
    model: str | None,
    workload: str | None,
    device: str | None,
    cluster: str | None,
    fit: list[str] | None,
    servers: bool,
    output: str | None,
    workload_output: str | None,
    out: Outputs,
) -> None:
    """Fit links, servers and compute times to a table of past runs.

    Each line is a run: its workers, arch and options, and step_s, samples_per_s or steps_per_s. Or
    each line is a data-parallel step without a profile: model, placement, batch_size, step_s and
    gradient_bytes. With --servers, several models share the parameter servers of the runs.

    \b
    perfmodel calibrate runs runs.csv --model resnet50 --device v100 --output lab.json
    perfmodel calibrate runs runs.csv --workload mine.json --fit latency_s,efficiency
    perfmodel calibrate runs ps.csv --servers --model resnet50 --output ps.json
    perfmodel calibrate runs placements.csv --model speech --cluster expected.toml --output lab.json
    """
    from pathlib import Path

    from perfmodel.base import tables
    from perfmodel.calibration.placements.table import has_placements
    from perfmodel.calibration.runs.table import read_runs
    from perfmodel.catalogue import catalogue

    out.check(output, workload_output)
    if output is not None and output == workload_output:
        raise InputError(f"--output and --workload-output: both are {output}")
    base = catalogue.cluster_or_file(cluster or catalogue.DEFAULT_CLUSTER)
    wanted = Wanted(model, base, output, workload_output, out)
    columns = tables.read(table)
    if has_placements(columns):
        useless = {"--workload": workload, "--device": device, "--fit": fit, "--servers": servers}
        for flag, value in useless.items():
            if value:
                raise InputError(f"{flag}: cannot be used with a table of placements")
        _placements(table, wanted)
        return
    if servers and fit is not None:
        raise InputError("--fit: cannot be used with --servers")
    if servers and {"model", "workload"} & set(columns.columns):
        model = None  # the lines have theirs
    if model is not None and workload is not None:
        raise InputError("--model and --workload: give only one of them")
    profile = None if model is None else catalogue.model(model)
    if workload is not None:
        profile = catalogue.profile(Path(workload))
    observed = read_runs(table, cluster=base, profile=profile, device=device)
    if servers:
        _servers(observed, wanted)
    else:
        _runs(observed, fit, wanted)


def _runs(table: RunsTable, names: list[str] | None, wanted: Wanted) -> None:
    from perfmodel.calibration.runs.fit import fit_runs

    with progress() as advance:
        fit = fit_runs(table.runs, fit=names, progress=advance)

    def workload() -> Profile:
        workloads = [run.job.workload for run in table.runs]
        if len(table.profiles) > 1 or len({(w.device, w.precision) for w in workloads}) > 1:
            raise InputError("--workload-output: the runs are of several workloads or devices")
        return fit.profile(table.profiles[0], workloads[0])

    written = wanted.files(lambda: fit.cluster(wanted.cluster), workload)
    if wanted.out.put(fit, written, remarks=_unused(table)):
        from perfmodel.cli.printing import calibration

        calibration.runs(fit)


def _servers(table: RunsTable, wanted: Wanted) -> None:
    from perfmodel.calibration.servers.fit import fit_servers
    from perfmodel.calibration.servers.results import series_name

    workloads = [run.job.workload for run in table.runs]
    names = list(dict.fromkeys(map(series_name, workloads)))
    if wanted.model is None and len(names) > 1 and (wanted.output or wanted.workload_output):
        raise InputError(f"--output: needs --model, one of {', '.join(names)}")
    fit = fit_servers(table.runs)
    name = wanted.model if wanted.model is not None else names[0]

    def workload() -> Profile:
        like = next(w for w in workloads if fit.workloads[series_name(w)] is fit[name])
        profile = next(p for p in table.profiles if p.name == like.name)
        return fit[name].profile(profile, like)

    written = wanted.files(lambda: fit[name].cluster(wanted.cluster), workload)
    if wanted.out.put(fit, written, remarks=_unused(table)):
        from perfmodel.cli.printing import calibration

        calibration.servers(fit)


def _unused(table: RunsTable) -> list[str]:
    return [f"unused columns: {', '.join(table.unused)}"] if table.unused else []


def _placements(table: str, wanted: Wanted) -> None:

    from perfmodel.calibration.placements import calibrate_placements
    from perfmodel.calibration.placements.table import read_trainings

    trainings = {training.name: training for training in read_trainings(table)}
    name = wanted.model if wanted.model is not None else next(iter(trainings))
    if name not in trainings:
        raise unknown_name(f"model of {table}", name, trainings)
    if wanted.workload_output is not None and wanted.model is None and len(trainings) > 1:
        raise InputError(f"--workload-output: needs --model, one of {', '.join(trainings)}")
    fit = calibrate_placements(list(trainings.values()), wanted.cluster)
    devices = wanted.cluster.devices_per_node
    written = wanted.files(lambda: fit.cluster, lambda: fit.profile(trainings[name], devices))
    if wanted.out.put(fit, written, fit.to_dict()):
        from perfmodel.cli.printing import calibration

        calibration.placements(fit, wanted.cluster)


@calibrate.command()
@click.argument("paths", nargs=-1, required=True, type=types.INPUT, metavar="RUN.json...")
@CLUSTER
@OUTPUT
@outputs("plot", "json")
def server(paths: tuple[str, ...], cluster: str | None, output: str | None, out: Outputs) -> None:
    """Find the cost of updates on a parameter server from runs that measured it.

    To find it from a table of throughputs, use perfmodel calibrate runs.

    \b
    perfmodel calibrate server run1.json run2.json --cluster lab.toml --output lab.json
    """
    from perfmodel.calibration.servers.costs import measured_costs
    from perfmodel.catalogue import catalogue
    from perfmodel.measuring.training.run import read_run

    out.check(output)
    base = catalogue.cluster_or_file(cluster or catalogue.DEFAULT_CLUSTER)
    costs = measured_costs([read_run(path) for path in paths], base)
    written = [] if output is None else [(output, encoded(costs.cluster(base), output), "")]
    if out.put(costs, written):
        from perfmodel.cli.printing import calibration

        calibration.server(costs)


@calibrate.command()
@click.argument("paths", nargs=-1, required=True, type=types.INPUT, metavar="TABLE.csv...")
@option("--device", types.DEVICE, "The device that was measured.", required=True)
@option("--called", types.TEXT, "Take only rows with this device.  [default: all]")
@option("--source", types.TEXT, "Where the times come from.", default="own measurement")
@option("--output", types.OUTPUT, "Write the tables instead of printing them.")
def operators(
    paths: tuple[str, ...], device: str, called: str | None, source: str, output: str | None
) -> None:
    """Fit what products and attention achieve on a device to measured times.

    Prints the tables that belong into the device file.

    \b
    perfmodel calibrate operators gemm.csv attention.csv --device h100
    """
    from perfmodel.base.provenance import Source
    from perfmodel.calibration.operators import block_of, fit_operators
    from perfmodel.catalogue import catalogue

    check_files(None, output)
    figures = fit_operators(catalogue.device(device), paths, Source("measured", source), called)
    block = block_of(figures)
    if output is None:
        click.echo(block, nl=False)
    else:
        write_files([(output, block.encode(), "")])
