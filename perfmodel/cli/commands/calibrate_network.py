"""``perfmodel calibrate network``: from measured messages and collectives to a cluster file."""

from __future__ import annotations

import click

from perfmodel.cli.options import check_files, drawn, one, read_quantity, write_files


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="MEASUREMENTS...")
@click.option(
    "--nominal",
    metavar="RATE",
    callback=one(read_quantity("bytes_per_s")),
    help="Nominal bandwidth of links, such as 10Gbps.  [default: what is achieved]",
)
@click.option("--name", metavar="NAME", help="Name of the cluster.")
@click.option("--base", metavar="NAME|FILE", help="Cluster that provides what was not measured.")
@click.option(
    "--devices-per-node",
    type=int,
    metavar="N",
    help="Devices of a node.  [default: ranks of a measured node]",
)
@click.option("--output", metavar="FILE", help="Write the cluster file.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def network(
    paths: tuple[str, ...],
    nominal: float | None,
    name: str | None,
    base: str | None,
    devices_per_node: int | None,
    output: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Fit links and collectives to measurements.

    Reads measurement files, the output of nccl-tests, iperf3 --json, OSU micro-benchmarks and
    perftest (ib_write_bw), or tables (.csv) with the columns operation, ranks, bytes and seconds.

    \b
    perfmodel calibrate network network.json --nominal 10Gbps --output lab.json
    perfmodel calibrate network all_reduce_perf.txt iperf3.json --output lab.json
    perfmodel calibrate network gloo.csv --base lab.json --output lab.json
    """
    import msgspec

    from perfmodel.calibration.network.fit import fit_network, read
    from perfmodel.inputs import catalogue

    check_files(plot, output)
    fitted = fit_network(
        [read(path) for path in paths],
        name=name,
        nominal_bytes_per_s=nominal,
        devices_per_node=devices_per_node,
        base=None if base is None else catalogue.cluster_or_file(base),
    )
    written = []
    if output is not None:
        data = msgspec.json.format(msgspec.json.encode(fitted.cluster), indent=2)
        written.append((output, data + b"\n", ""))
    write_files([*written, *drawn(fitted, plot)])
    if as_json:
        import json

        click.echo(json.dumps(fitted.to_dict(), indent=2))
    else:
        from perfmodel.cli.printing.text import show

        show("\n".join(fitted.lines()))
