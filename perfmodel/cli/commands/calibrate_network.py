"""``perfmodel calibrate network``: from measured messages and collectives to a cluster file."""

from __future__ import annotations

import click

from perfmodel.cli import types
from perfmodel.cli.options import Outputs, encoded, option, outputs


@click.command()
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
    from perfmodel.inputs import catalogue

    out.check(output)
    fitted = fit_network(
        [read(path) for path in paths],
        name=name,
        nominal_bytes_per_s=nominal,
        devices_per_node=devices_per_node,
        base=None if base is None else catalogue.cluster_or_file(base),
    )
    written = [] if output is None else [(output, encoded(fitted.cluster), "")]
    if out.put(fitted, written, fitted.to_dict()):
        from perfmodel.cli.printing.text import show

        show("\n".join(fitted.lines()))
