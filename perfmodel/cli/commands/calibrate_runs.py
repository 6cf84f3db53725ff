"""``perfmodel calibrate runs`` and ``server``: parameters from past training runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.options import check_files, drawn, progress, remark, write_files

if TYPE_CHECKING:
    import msgspec

    from perfmodel.calibration.runs.table import RunsTable
    from perfmodel.inputs.cluster import Cluster
    from perfmodel.inputs.profile import Profile


@click.command()
@click.argument("table", metavar="TABLE.csv")
@click.option(
    "--model",
    metavar="NAME",
    help="Model from the catalogue, for lines without one; for a table of placements or with "
    "--servers, the model of --workload-output.",
)
@click.option("--workload", metavar="FILE", help="Workload file instead of --model.")
@click.option("--device", metavar="NAME", help="Device, for lines without one.")
@click.option(
    "--cluster", metavar="NAME|FILE", help="Cluster of the runs.  [default: ethernet-10g]"
)
@click.option(
    "--fit",
    metavar="NAME,...",
    help="Parameters to fit: latency_s, efficiency, inside_efficiency, update_per_tensor_s, "
    "update_per_byte_s, slowdown_per_neighbour, handover_per_tensor_s, handover_per_byte_s, "
    "compute_factor, jitter, overlap.  [default: all with an effect, but the handover]",
)
@click.option(
    "--servers",
    is_flag=True,
    help="Fit what parameter servers cost, and the compute time of each model.",
)
@click.option("--output", metavar="FILE", help="Write the cluster with what was found.")
@click.option("--workload-output", metavar="FILE", help="Write the workload with scaled times.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def runs(
    table: str,
    model: str | None,
    workload: str | None,
    device: str | None,
    cluster: str | None,
    fit: str | None,
    servers: bool,
    output: str | None,
    workload_output: str | None,
    plot: str | None,
    as_json: bool,
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
    from perfmodel.base import tables
    from perfmodel.calibration.placements.table import has_placements
    from perfmodel.calibration.runs.fit import fit_runs
    from perfmodel.calibration.runs.table import read_runs
    from perfmodel.inputs import catalogue

    check_files(plot, output, workload_output)
    if output is not None and output == workload_output:
        raise InputError(f"--output and --workload-output: both are {output}")
    base = catalogue.cluster_or_file(cluster or catalogue.DEFAULT_CLUSTER)
    columns = tables.read(table)
    if has_placements(columns):
        for name, value in (
            *(("--workload", workload), ("--device", device)),
            *(("--fit", fit), ("--servers", servers or None)),
        ):
            if value is not None:
                raise InputError(f"{name}: cannot be used with a table of placements")
        _placements(table, base, model, output, workload_output, plot, as_json)
        return
    named = servers and bool({"model", "workload"} & set(columns.columns))
    profile = _profile(None if named else model, workload)
    found = read_runs(table, cluster=base, profile=profile, device=device)
    if servers:
        if fit is not None:
            raise InputError("--fit: cannot be used with --servers")
        _servers(found, base, model, output, workload_output, plot, as_json)
        return
    names = None if fit is None else [name.strip() for name in fit.split(",")]
    with progress() as advance:
        fitted = fit_runs(found.runs, fit=names, progress=advance)
    written = []
    if output is not None:
        written.append((output, _json(fitted.cluster(base)), ""))
    if workload_output is not None:
        workloads = [r.job.workload for r in found.runs]
        if len(found.profiles) > 1 or len({(w.device, w.precision) for w in workloads}) > 1:
            raise InputError("--workload-output: the runs are of several workloads or devices")
        scaled = fitted.profile(found.profiles[0], workloads[0])
        written.append((workload_output, _workload(scaled), ""))
    write_files([*written, *drawn(fitted, plot)])
    _remark_unused(found)
    if as_json:
        click.echo(fitted.to_json())
    else:
        from perfmodel.cli.printing import calibration

        calibration.runs(fitted)


def _servers(
    table: RunsTable,
    base: Cluster,
    model: str | None,
    output: str | None,
    workload_output: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    from perfmodel.calibration.servers.fit import fit_servers
    from perfmodel.calibration.servers.results import series_name

    names = list(dict.fromkeys(series_name(run.job.workload) for run in table.runs))
    if model is None and len(names) > 1 and (output or workload_output):
        raise InputError(f"--output: needs --model, one of {', '.join(names)}")
    fit, written = fit_servers(table.runs), []
    if output is not None or workload_output is not None:
        served = fit[model if model is not None else next(iter(fit.workloads))]
        like = next(
            run.job.workload
            for run in table.runs
            if fit.workloads[series_name(run.job.workload)] is served
        )
        if output is not None:
            written.append((output, _json(served.cluster(base)), ""))
        if workload_output is not None:
            profile = next(each for each in table.profiles if each.name == like.name)
            written.append((workload_output, _workload(served.profile(profile, like)), ""))
    write_files([*written, *drawn(fit, plot)])
    _remark_unused(table)
    if as_json:
        click.echo(fit.to_json())
    else:
        from perfmodel.cli.printing import calibration

        calibration.servers(fit)


def _remark_unused(table: RunsTable) -> None:
    if table.unused:
        remark(f"unused columns: {', '.join(table.unused)}")


def _placements(
    table: str,
    base: Cluster,
    model: str | None,
    output: str | None,
    workload_output: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    from perfmodel.base.errors import unknown_name
    from perfmodel.calibration.placements import calibrate_placements
    from perfmodel.calibration.placements.table import read_trainings

    trainings = {each.name: each for each in read_trainings(table)}
    name = model if model is not None else next(iter(trainings))
    if name not in trainings:
        raise unknown_name(f"model of {table}", name, trainings)
    if workload_output is not None and model is None and len(trainings) > 1:
        raise InputError(f"--workload-output: needs --model, one of {', '.join(trainings)}")
    fit = calibrate_placements(list(trainings.values()), base)
    written = [] if output is None else [(output, _json(fit.cluster), "")]
    if workload_output is not None:
        profile = fit.profile(trainings[name], base.devices_per_node)
        written.append((workload_output, _workload(profile), ""))
    write_files([*written, *drawn(fit, plot)])
    if as_json:
        click.echo(_json(fit).decode().rstrip())
    else:
        from perfmodel.cli.printing import calibration

        calibration.placements(fit, base)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN.json...")
@click.option(
    "--cluster", metavar="NAME|FILE", help="Cluster of the server.  [default: ethernet-10g]"
)
@click.option("--output", metavar="FILE", help="Write the cluster with what was found.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def server(
    paths: tuple[str, ...],
    cluster: str | None,
    output: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Find the cost of updates on a parameter server from runs that measured it.

    To find it from a table of throughputs, use perfmodel calibrate runs.

    \b
    perfmodel calibrate server run1.json run2.json --cluster lab.toml --output lab.json
    """
    from perfmodel.calibration.servers.costs import measured_costs
    from perfmodel.inputs import catalogue
    from perfmodel.measuring.training.run import read_run

    check_files(plot, output)
    base = catalogue.cluster_or_file(cluster or catalogue.DEFAULT_CLUSTER)
    found = measured_costs([read_run(path) for path in paths], base)
    written = [(output, _json(found.cluster(base)), "")] if output is not None else []
    write_files([*written, *drawn(found, plot)])
    if as_json:
        click.echo(found.to_json())
    else:
        from perfmodel.cli.printing import calibration

        calibration.server(found)


def _profile(model: str | None, workload: str | None) -> Profile | None:
    if model is not None and workload is not None:
        raise InputError("--model and --workload: give only one of them")
    from pathlib import Path

    from perfmodel.inputs import catalogue

    if workload is not None:
        return catalogue.profile(Path(workload))
    return None if model is None else catalogue.model(model)


def _workload(profile: Profile) -> bytes:
    from perfmodel.inputs.profile_files import dumped

    return dumped(profile)


def _json(value: msgspec.Struct) -> bytes:
    """A file's bytes."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
