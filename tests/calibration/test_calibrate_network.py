"""Fits to synthetic networks with known parameters, and to published measurements."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.accuracy import collectives as sets
from benchmarks.accuracy.collectives import plain_alpha_beta
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError, Source, predict
from perfmodel.calibration.network.collectives import Point, fit_collective
from perfmodel.calibration.network.fit import fit_network, merged, read
from perfmodel.calibration.network.links import fit_link
from perfmodel.calibration.network.robust import estimates, least_absolute
from perfmodel.cli import cli
from perfmodel.inputs.cluster import (
    Cluster,
    Collective,
    Link,
    NodeOverride,
    Piece,
    Server,
    read_cluster,
)
from perfmodel.inputs.measured_collectives import measured_collective_s
from perfmodel.measuring.measurements import Measurement, Measurements, Operation
from perfmodel.theory.collective_times import Growth
from tests.jobs import job, workload
from tests.measured import measured, predicted_cases
from tests.settings import SOURCE_TESTS, thinned

SIZES = [float(2**k) for k in range(3, 27, 2)]


def points_of(
    truth: Sequence[Piece],
    ranks: Sequence[int],
    sizes: Sequence[float] = SIZES,
    *,
    cv: float = 0.0,
    seed: int = 0,
) -> list[Point]:
    """Synthetic measurements of a collective, with relative noise."""
    whole = Collective(operation="all_reduce", pieces=tuple(truth), ranks=(2, 64), bytes=(0, 1e9))
    noise = np.random.default_rng(seed)
    return [
        Point(p, n, measured_collective_s(whole, p, n) * math.exp(cv * noise.standard_normal()))
        for p in ranks
        for n in sizes
    ]


def late(points: Sequence[Point], every: int, factor: float) -> list[Point]:
    """The same points, with every n-th one ``factor`` times as long."""
    return [
        msgspec.structs.replace(p, seconds=p.seconds * (factor if i % every == 1 else 1.0))
        for i, p in enumerate(points)
    ]


TWO = (
    Piece(20e-6, 1e-9, 0.0, "log", "constant"),
    Piece(300e-6, 0.4e-9, 2.0**17, "constant", "ring"),
)


# -- lines -----------------------------------------------------------------------------------------


def test_a_line_goes_through_most_points() -> None:
    sizes = 2.0 ** np.arange(3, 27)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    truth = design @ np.array([50e-6, 1e-9])
    spoiled = truth.copy()
    spoiled[::3] *= 20.0  # a third of the points
    assert least_absolute(design, spoiled) == pytest.approx([50e-6, 1e-9], rel=0.01)
    # canary: least squares is far off
    squares = np.linalg.lstsq(design, spoiled, rcond=None)[0]
    assert abs(squares[1] / 1e-9 - 1.0) > 0.5


def test_factors_are_never_negative() -> None:
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    assert (least_absolute(design, sizes**2) >= 0.0).all()


@pytest.mark.slow
def test_intervals_cover_the_truth() -> None:
    """90 % of intervals should; among 60 synthetic sets at least 80 % do."""
    sizes = np.array(SIZES)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    truth = np.array([50e-6, 1e-9])
    held = []
    for seed in range(60):
        noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(len(sizes)))
        found = estimates(design, design @ truth * noise)
        held += [e.low <= t <= e.high for e, t in zip(found, truth, strict=True)]
        # canary: a very wide interval would say nothing
        assert all(e.high < 1.5 * e.low for e in found)
    assert np.mean(held) >= 0.8


def test_as_many_points_as_parameters_give_no_interval() -> None:
    design = np.array([[1.0, 1.0], [1.0, 10.0]])
    assert [e.high for e in estimates(design, np.array([2.0, 11.0]))] == [math.inf, math.inf]


# -- collectives -----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cv", [0.0, 0.02])
def test_pieces_growth_and_breaks_are_recovered(cv: float) -> None:
    fit = fit_collective("all_reduce", points_of(TWO, (2, 4, 8), cv=cv))
    found = fit.collective
    assert len(found.pieces) == 2
    assert found.pieces[1].above_bytes == pytest.approx(2.0**17, rel=1.01)  # an octave
    for piece, truth in zip(found.pieces, TWO, strict=True):
        assert piece.startup_growth == truth.startup_growth
        assert piece.startup_s == pytest.approx(truth.startup_s, rel=0.05)
        assert piece.per_byte_s == pytest.approx(truth.per_byte_s, rel=0.1)
    assert found.pieces[1].per_byte_growth == "ring"
    assert found.ranks == (2, 8)
    assert found.bytes == (SIZES[0], SIZES[-1])
    assert fit.residuals.p90 == found.error_fraction
    assert fit.residuals.median < 1e-4 + 2 * cv


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("startup", "per_byte"), thinned(itertools.product(("constant", "log", "ring"), repeat=2))
)
def test_each_kind_of_growth_is_recognised_and_extrapolated(
    startup: Growth, per_byte: Growth
) -> None:
    truth = (Piece(50e-6, 1e-9, 0.0, startup, per_byte),)
    fit = fit_collective("broadcast", points_of(truth, (2, 3, 4), cv=0.01))
    (piece,) = fit.collective.pieces
    assert (piece.startup_growth, piece.per_byte_growth) == (startup, per_byte)
    for point in points_of(truth, (16,)):
        assert fit.predict(16, point.bytes, extrapolate=True) == pytest.approx(
            point.seconds, rel=0.05
        )


@pytest.mark.slow
def test_noise_does_not_add_a_piece() -> None:
    truth = (Piece(50e-6, 1e-9),)
    counts = []
    for seed in range(10):
        fit = fit_collective("all_reduce", points_of(truth, (2, 4), cv=0.05, seed=seed))
        counts.append(len(fit.collective.pieces))
    assert max(counts) <= 2
    assert np.median(counts) == 1


@pytest.mark.slow
def test_outliers_do_not_matter() -> None:
    spoiled = late(points_of(TWO, (2, 4, 8), cv=0.01), every=7, factor=10.0)
    fit = fit_collective("all_reduce", spoiled)
    plain_s = plain_alpha_beta(spoiled)
    held_out = points_of(TWO, (2, 4, 8))
    errors = [abs(fit.predict(p.ranks, p.bytes) / p.seconds - 1.0) for p in held_out]
    assert np.quantile(errors, 0.9) < 0.05
    # canary: the plain fit to the same points
    others = [abs(plain_s(p.ranks, p.bytes) / p.seconds - 1.0) for p in held_out]
    assert np.quantile(others, 0.9) > 0.2


def test_the_median_of_repeated_times_counts() -> None:
    good = points_of((Piece(50e-6, 1e-9),), (2, 4))
    bad = [msgspec.structs.replace(p, seconds=p.seconds * 50.0) for p in good]
    fit = fit_collective("all_reduce", [*good, *good, *bad])
    assert fit.points == len(good)
    assert fit.residuals.worst < 1e-3


def test_extrapolation_is_refused_unless_asked_for() -> None:
    fit = fit_collective("all_reduce", points_of(TWO, (2, 4)))
    assert fit.predict(3, 1000.0) > 0.0
    for ranks, size, name in ((8, 1000.0, "ranks"), (4, 4.0, "bytes"), (4, 1e9, "bytes")):
        with pytest.raises(InputError, match=f"{name}: .* is outside the measured range"):
            fit.predict(ranks, size)
        assert fit.predict(ranks, size, extrapolate=True) > 0.0


def test_a_single_number_of_ranks_grows_like_known_libraries() -> None:
    fit = fit_collective("all_reduce", points_of((Piece(50e-6, 1e-9),), (4,)))
    (piece,) = fit.collective.pieces
    assert (piece.startup_growth, piece.per_byte_growth) == ("log", "ring")
    assert fit.predict(8, SIZES[-1], extrapolate=True) == pytest.approx(
        fit.predict(4, SIZES[-1]) * 1.75 / 1.5, rel=0.01
    )


def test_a_single_size_is_taken_to_be_bytes() -> None:
    fit = fit_collective("all_reduce", points_of((Piece(0.0, 1e-9),), (2, 4), [1e8]))
    assert fit.predict(4, 2e8, extrapolate=True) == pytest.approx(2 * fit.predict(4, 1e8))


@pytest.mark.slow
def test_ranks_that_do_not_fit_the_growth_are_marked_uneven() -> None:
    points = points_of((Piece(50e-6, 1e-9),), (2, 3, 4, 5, 6), cv=0.01)
    odd = [
        msgspec.structs.replace(p, seconds=p.seconds * (2.5 if p.ranks == 3 else 1.0))
        for p in points
    ]
    (uneven,) = fit_collective("all_reduce", odd).collective.uneven
    assert uneven.ranks == 3
    assert uneven.factor == pytest.approx(2.5, rel=0.03)
    assert fit_collective("all_reduce", points).collective.uneven == ()


def test_concurrent_collectives_are_compared_with_a_single_one() -> None:
    alone = points_of((Piece(0.0, 1e-9),), (2,))
    crowd = [
        Point(2, p.bytes, p.seconds * (1.0 + 1.3 * (k - 1)), at_once=k)
        for p in alone
        for k in (2, 3)
    ]
    fit = fit_collective("all_reduce", [*alone, *crowd])
    assert fit.contention is not None
    assert fit.contention.value == pytest.approx(1.3)
    assert fit.predict(2, SIZES[-1], at_once=5) == pytest.approx(6.2 * fit.predict(2, SIZES[-1]))
    assert fit_collective("all_reduce", alone).predict(2, SIZES[-1], at_once=5) == pytest.approx(
        5 * fit.predict(2, SIZES[-1])
    )
    with pytest.raises(InputError, match="at least one point with at_once = 1"):
        fit_collective("all_reduce", crowd)


# -- links -----------------------------------------------------------------------------------------


def messages(
    latency_s: float = 40e-6,
    bytes_per_s: float = 1.1e9,
    per_message_s: float = 2e-6,
    *,
    cv: float = 0.0,
    seed: int = 0,
) -> list[Measurement]:
    """Messages over a synthetic link: each direction gets 0.8 of the rate while both send, and
    three concurrent senders need 1.5 times as long as with even sharing."""
    noise = np.random.default_rng(seed)

    def one(operation: Operation, n: float, seconds: float, **fields: int) -> Measurement:
        times = seconds * np.exp(cv * noise.standard_normal(9))
        return Measurement(operation=operation, bytes=n, seconds=tuple(times.tolist()), **fields)

    found = []
    for n in SIZES:
        found.append(one("ping_pong", n, latency_s + n / bytes_per_s))
        found.append(one("duplex", n, latency_s + n / bytes_per_s / 0.8))
        found.append(one("incast", n, latency_s + 1.5 * 3 * n / bytes_per_s, ranks=4))
    for count in (10, 100):
        for n in SIZES[:6]:
            seconds = latency_s + (count - 1) * per_message_s + count * n / bytes_per_s
            found.append(one("messages", n, seconds, count=count))
    return found


@pytest.mark.parametrize("cv", [0.0, 0.05])
def test_a_link_is_recovered(cv: float) -> None:
    fit = fit_link(messages(cv=cv))
    assert fit.latency_s.value == pytest.approx(40e-6, rel=0.05)
    assert fit.bandwidth_bytes_per_s.value == pytest.approx(1.1e9, rel=0.05)
    assert fit.per_message_s is not None
    assert fit.per_message_s.value == pytest.approx(2e-6, rel=0.05)
    assert fit.duplex_fraction is not None
    assert fit.duplex_fraction.value == pytest.approx(0.8, rel=0.05)
    assert fit.incast_factor is not None
    assert fit.incast_factor.value == pytest.approx(1.5, rel=0.05)
    for estimate in (fit.latency_s, fit.bandwidth_bytes_per_s, fit.per_message_s):
        assert estimate.low <= estimate.value <= estimate.high


def test_intervals_of_a_link_cover_the_truth() -> None:
    held = []
    for seed in range(20):
        fit = fit_link(messages(cv=0.1, seed=seed))
        assert fit.per_message_s is not None
        for estimate, truth in (
            (fit.latency_s, 40e-6),
            (fit.bandwidth_bytes_per_s, 1.1e9),
            (fit.per_message_s, 2e-6),
        ):
            held.append(estimate.low <= truth <= estimate.high)
    assert np.mean(held) >= 0.8


def test_unmeasured_properties_of_a_link_are_unknown() -> None:
    fit = fit_link([m for m in messages() if m.operation == "ping_pong"])
    assert (fit.per_message_s, fit.duplex_fraction, fit.incast_factor) == (None, None, None)


def test_a_link_needs_messages_of_several_sizes() -> None:
    one = Measurement(operation="ping_pong", bytes=8.0, seconds=(1e-3,))
    with pytest.raises(InputError, match="ping_pong or stream of at least two sizes, got 1"):
        fit_link([one])
    more = msgspec.structs.replace(one, bytes=1000.0, seconds=(0.5e-3,))
    with pytest.raises(InputError, match="more bytes took no longer"):
        fit_link([one, more])


def test_a_nominal_bandwidth_has_an_efficiency() -> None:
    fit = fit_link(messages())
    link = fit.link(1.25e9)
    assert link.efficiency == pytest.approx(0.88, rel=1e-3)
    assert link.goodput_bytes_per_s == pytest.approx(fit.link().goodput_bytes_per_s, rel=1e-5)
    with pytest.raises(InputError, match=r"the achieved 8\.8 Gbps exceeds the nominal 8 Gbps"):
        fit.link(1e9)


# -- a cluster -------------------------------------------------------------------------------------


def network(
    name: str = "lab", nodes: tuple[int, ...] = (), ranks: Sequence[int] = (2, 4, 8)
) -> Measurements:
    reduced = tuple(
        Measurement(operation="all_reduce", ranks=p.ranks, bytes=p.bytes, seconds=(p.seconds,))
        for p in points_of(TWO, ranks)
    )
    return Measurements(
        name=name,
        backend="tcp",
        measurements=(*messages(), *reduced),
        source=Source("measured", "made up", date="2026-05-01"),
        nodes=nodes,
    )


def test_a_cluster_is_fitted_and_predicts() -> None:
    fit = fit_network([network()], nominal_bytes_per_s=1.25e9)
    found = fit.cluster
    assert found.name == "lab"
    assert found.nic.bandwidth_bytes_per_s == 1.25e9
    assert found.nic.latency_s == pytest.approx(40e-6, rel=0.01)
    assert (found.source.kind, found.source.date) == ("measured", "2026-05-01")
    assert "lab (tcp): made up" in found.source.text
    work = workload([0.1], [0.2], [4e6])
    one = job(work, found, 4, "ring", {"overlap": False})
    truth = 300e-6 + 1.5 * 0.4e-9 * 4e6
    for fidelity in ("fine", "coarse"):
        answer = predict(one, fidelity=fidelity)
        assert answer.iteration_s == pytest.approx(0.3 + truth, rel=1e-4)


def test_the_base_cluster_provides_what_was_not_measured() -> None:
    base = Cluster(
        name="old",
        nic=Link(1.0),
        intra_node=Link(5e9),
        server=Server(update_per_byte_s=1e-9),
        overrides=(NodeOverride(1, speed=0.5),),
        collectives=tuple(
            Collective(operation=operation, pieces=(Piece(1, 1),), ranks=(2, 2), bytes=(1, 2))
            for operation in ("broadcast", "all_reduce")
        ),
        source=Source("estimated", "a guess"),
    )
    found = fit_network([network()], base=base).cluster
    assert found.name == "old"
    assert (found.server, found.overrides, found.intra_node) == (
        base.server,
        base.overrides,
        base.intra_node,
    )
    assert [each.operation for each in found.collectives] == ["broadcast", "all_reduce"]
    assert found.collectives[1].ranks == (2, 8)
    assert found.nic.goodput_bytes_per_s == pytest.approx(1.1e9, rel=0.01)
    assert "all else from cluster old: a guess" in found.source.text
    assert merged(base, found, devices=False).devices_per_node == 1


@pytest.mark.slow
def test_node_names_tell_which_link_was_measured() -> None:
    inside = fit_network([network(nodes=(0, 0, 0, 0), ranks=(2, 4))])
    assert inside.link is None
    assert inside.cluster.intra_node is not None
    assert (inside.cluster.nodes, inside.cluster.devices_per_node) == (1, 4)
    base = Cluster(name="old", nic=Link(7.0), source=Source("estimated", "a guess"))
    two = fit_network([network(nodes=(0, 0, 1, 1), ranks=(2, 4))], base=base)
    assert two.cluster.nic == Link(7.0)
    assert two.cluster.devices_per_node == 2
    assert two.collectives[0].collective.ranks == (4, 4)
    assert two.notes == ("all_reduce: runs within one node are left out: others span nodes",)
    with pytest.raises(InputError, match="no ping_pong, stream or collective between two nodes"):
        fit_network([network(nodes=(0, 0, 1, 1), ranks=(2,))])
    assert fit_network([network(nodes=(0, 0, 1, 1), ranks=(2, 4))], base=base,
                       devices_per_node=1).collectives[0].collective.ranks == (2, 4)  # fmt: skip
    with pytest.raises(InputError, match="measurements: needs at least one file"):
        fit_network([])


# -- the command line ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.json").write_bytes(msgspec.json.encode(network()))
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["operation", "ranks", "bytes", "seconds"])
        for p in points_of(TWO, (2, 4)):
            writer.writerow(["all_gather", p.ranks, p.bytes, p.seconds])
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(cli, ["calibrate", "network", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_measurements_become_a_cluster_file(folder: Path) -> None:
    code, out, err = run("lab.json", "--nominal", "10Gbps", "--name", "ours", "--output", "c.json")
    assert (code, err) == (0, "wrote c.json\n")
    found = read_cluster(folder / "c.json")
    assert found == fit_network([network()], name="ours", nominal_bytes_per_s=1.25e9).cluster
    said = ("link: latency", "40 us", "each further message", "duplex", "incast", "grows as log")
    for text in (*said, "all_reduce from 0 B to 131.1 kB: startup", "9 in 10 within"):
        assert text in out, text


@pytest.mark.slow
def test_a_name_that_ends_in_toml_makes_toml(folder: Path) -> None:
    import tomllib

    assert run("lab.json", "--output", "c.toml")[0] == run("lab.json", "--output", "c.json")[0] == 0
    assert tomllib.loads((folder / "c.toml").read_text())["schema"] == "perfmodel.cluster/1"
    assert read_cluster(folder / "c.toml") == read_cluster(folder / "c.json")
    (folder / "renamed.toml").write_bytes((folder / "c.json").read_bytes())
    assert read_cluster(folder / "renamed.toml") == read_cluster(folder / "c.json")


@pytest.mark.slow
def test_a_table_of_times_adds_a_collective(folder: Path) -> None:
    assert run("lab.json", "--output", "c.json")[0] == 0
    assert run("table.csv", "--base", "./c.json", "--output", "c.json")[0] == 0
    found = read_cluster(folder / "c.json")
    assert [each.operation for each in found.collectives] == ["all_reduce", "all_gather"]
    assert found.nic.latency_s == pytest.approx(40e-6, rel=0.01)


def test_json_holds_all_results(folder: Path) -> None:
    code, out, _ = run("table.csv", "lab.json", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["cluster"]["schema"] == "perfmodel.cluster/1"
    assert found["link"]["latency_s"]["low"] <= 40e-6 * 1.01
    assert [c["collective"]["operation"] for c in found["collectives"]] == [
        "all_reduce",
        "all_gather",
    ]


@pytest.mark.slow
@pytest.mark.draws
def test_a_figure_is_written_next_to_the_cluster(folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    code, _, err = run("lab.json", "--output", "c.json", "--plot", "fit.svg")
    assert (code, err) == (0, "wrote c.json\nwrote fit.svg\n")
    assert (folder / "fit.svg").read_text().startswith("<?xml")
    found = CliRunner().invoke(cli, ["calibrate", "network", "lab.json", "--plot", "fit.doc"])
    assert "cannot write 'doc' files" in str(found.exception)


def test_an_unknown_interval_is_null(folder: Path) -> None:
    (folder / "few.csv").write_text(
        "operation,ranks,bytes,seconds\nall_reduce,2,1e6,0.1\nall_reduce,2,2e6,0.2\n"
    )
    code, out, _ = run("few.csv", "--nominal", "10Gbps", "--json")
    assert code == 0
    assert json.loads(out)["collectives"][0]["startup_s"][0]["high"] is None
    assert "interval unknown" in run("few.csv", "--nominal", "10Gbps")[1]


@pytest.mark.parametrize(
    ("operation", "sent"), [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)]
)
@pytest.mark.parametrize("nodes", [(), (0, 0, 0, 0)])
def test_collectives_alone_show_the_bandwidth_of_the_link(
    operation: Operation, sent: float, nodes: tuple[int, ...]
) -> None:
    """Four ranks at 1 GB/s: a ring sends 2 x 3/4 of the bytes, half a ring 3/4, a tree all."""
    times = [Measurement(operation=operation, ranks=4, bytes=n, seconds=(1e-4 + sent * n / 1e9,))
             for n in (1e6, 4e6, 16e6, 64e6)]  # fmt: skip
    told = Source("measured", "made")
    measured = Measurements(
        name="lab", backend="nccl", measurements=tuple(times), nodes=nodes, source=told
    )
    cluster = fit_network([measured]).cluster
    assert cluster.nic.goodput_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert (cluster.intra_node is not None) == bool(nodes)
    nominal = fit_network([measured], nominal_bytes_per_s=1.25e9)
    assert nominal.cluster.nic.efficiency == pytest.approx(0.8, rel=1e-3)
    assert f"link: 8 Gbps, the bus bandwidth of {operation};" in nominal.notes[0]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("operation,ranks,bytes\n", "few.csv: there are no rows below"),
        ("operation,ranks,bytes\nall_reduce,2,1\n", "column 'seconds' is missing"),
        (
            "operation,ranks,bytes,seconds\nall_redcue,2,1,1\n",
            "few.csv: line 2: unknown operation 'all_redcue'; did you mean 'all_reduce'?",
        ),
        ("operation,ranks,bytes,seconds\nall_reduce,1,1,1\n", "ranks: must be at least 2, got 1"),
        ("operation,ranks,bytes,seconds\nall_reduce,2,1,0\n", "seconds: must be more than 0"),
        ("operation,ranks,bytes,seconds\nincast,2,1,1\n", "give a base cluster"),
    ],
)
def test_a_wrong_table_is_one_line(folder: Path, table: str, text: str) -> None:
    (folder / "few.csv").write_text(table)
    with pytest.raises(InputError) as raised:
        fit_network([read("few.csv")])
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_nothing_is_written_after_an_error(folder: Path) -> None:
    code, _, _ = run("lab.json", "missing.json", "--output", "c.json")
    assert code != 0
    assert not (folder / "c.json").exists()


# -- published measurements ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def groups() -> dict[str, dict[str, Any]]:
    measured("comm_microbench")
    return summarise(predicted_cases(sets))


@pytest.mark.family(SOURCE_TESTS)
@pytest.mark.parametrize(
    ("group", "median"),
    [
        ("ranks/osu", 0.20),
        ("sizes/osu", 0.08),
        ("ranks/deepbench", 0.15),
        ("sizes/deepbench", 0.06),
        ("ranks/cloud", 0.10),
        ("sizes/cloud", 0.05),
        ("sizes/vtrain", 0.04),
    ],
)
@pytest.mark.slow
def test_half_of_a_set_predicts_the_other_half(
    groups: dict[str, dict[str, Any]], group: str, median: float
) -> None:
    assert groups[f"collectives/{group}"]["median"] < median


@pytest.mark.parametrize(
    "group", ["sizes/osu", "sizes/deepbench", "sizes/vtrain", "ranks/deepbench"]
)
@pytest.mark.slow
def test_piecewise_fits_beat_a_single_alpha_and_beta(
    groups: dict[str, dict[str, Any]], group: str
) -> None:
    found = groups[f"collectives/{group}"]
    assert found["median"] < 0.85 * found["others"][sets.PLAIN]["median"]
