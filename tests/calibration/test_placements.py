"""Clusters and DNNs calibrated from placements, on a synthetic cluster with known parameters."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

import perfmodel as pm
from benchmarks.accuracy.placements import smoothed
from perfmodel.base import files
from perfmodel.calibration.placements import (
    Placements,
    Step,
    Training,
    Traits,
    calibrate_placements,
)
from perfmodel.calibration.placements.fit import formula_s
from perfmodel.calibration.placements.spreads import NOISE, Left, Spreads, learnt, noise_of
from perfmodel.calibration.placements.table import OneNode
from perfmodel.cli import main
from perfmodel.inputs.profile import read_profile

FEW = [(1,), (2,), (3,), (4,)]
SEVERAL = [(1, 1), (2, 2), (4, 4), (1, 4), (1, 1, 1), (2, 2, 2), (4, 4, 4)]
MORE = [(2,) * 4, (4,) * 4, (4,) * 8, (1, 3, 3, 4)]
BATCHES = (8, 16, 32, 64)
DNNS = {"small": (20e6, 2e-3, 1.0), "middle": (100e6, 4e-3, 1.15), "large": (300e6, 8e-3, 0.9)}
"""Gradient bytes, seconds per sample, and the factor by which the bytes take longer."""


def cluster(efficiency: float = 0.5, pair: float = 0.8, inside: float = 0.5) -> pm.Cluster:
    return pm.Cluster(
        name="made up",
        nic=pm.Link(2e9, 8e-6, efficiency),
        intra_node=pm.IntraNode(5e9, 6e-6, inside, kind="per_device"),
        pair_efficiency=pair,
        devices_per_node=4,
        source=pm.Source("estimated", "made up"),
    )


TRUTH = Placements(
    cluster=cluster(),
    traits={
        name: Traits(bytes=more, hidden_fraction=0.5, messages=6.0)
        for name, (_, _, more) in DNNS.items()
    },
    spreads=Spreads(),
)
EXPECTED = cluster(0.35, 0.74, 0.3)


def computing_s(name: str, devices: int, batch: int) -> float:
    return (0.02 + DNNS[name][1] * batch) * (1.0 + 0.05 * (1.0 - 1.0 / devices))


@functools.cache
def true_step_s(name: str, devices: tuple[int, ...], batch: int) -> float:
    """Simulated step time of a job on the true cluster."""
    most = max(devices)
    alone = Step((1,), batch, computing_s(name, most, batch))
    table = Training(name=name, gradient_bytes=DNNS[name][0], steps=(alone,))
    return pm.predict(TRUTH.job(TRUTH.profile(table), devices, batch)).iteration_s


def training(
    name: str, placements: Sequence[tuple[int, ...]], noise: float = 0.01, factor: float = 1.0
) -> Training:
    """Step times of a DNN; ``factor`` lengthens those on several nodes."""
    generator = np.random.Generator(np.random.Philox(len(name)))
    steps = []
    for devices in placements:
        for batch in BATCHES:
            step_s = true_step_s(name, devices, batch) * (factor if len(devices) > 1 else 1.0)
            step_s *= math.exp(noise * generator.standard_normal())
            waiting_s = max(0.0, step_s - computing_s(name, max(devices), batch))
            steps.append(Step(devices, batch, step_s, waiting_s))
    return Training(name=name, gradient_bytes=DNNS[name][0], steps=tuple(steps))


def predicted(
    fit: Placements, known: Training, devices: tuple[int, ...], batch: int
) -> pm.Prediction:
    return pm.predict(fit.job(fit.profile(known, max(devices)), devices, batch))


def errors(fit: Placements, known: Training, wanted: Sequence[tuple[int, ...]]) -> list[float]:
    fit = fit.knowing(known)
    return [
        abs(predicted(fit, known, devices, batch).iteration_s
            / true_step_s(known.name, devices, batch) - 1.0)
        for devices in wanted
        for batch in BATCHES[:2]
    ]  # fmt: skip


@pytest.fixture(scope="module")
def fit() -> Placements:
    return calibrate_placements([training(name, [*FEW, *SEVERAL]) for name in DNNS], EXPECTED)


@pytest.fixture(scope="module")
def others() -> Placements:
    """All steps except those of the middle DNN."""
    some = [training(name, [*FEW, *SEVERAL]) for name in ("small", "large")]
    return calibrate_placements(some, EXPECTED)


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_the_formula_of_the_fit_agrees_with_both_routes(fidelity: pm.api.Fidelity) -> None:
    """To rounding, for whole numbers of messages."""
    known = training("middle", FEW)
    own = OneNode(msgspec.structs.replace(known, steps=known.steps[:4]))
    placements = [*SEVERAL, *MORE]
    steps = [Step(devices, 16, 1.0) for devices in placements]
    for messages in (1.0, 5.0):
        traits = Traits(bytes=1.3, hidden_fraction=0.4, messages=messages)
        fixed = msgspec.structs.replace(TRUTH, traits={"middle": traits})
        profiles = {k: fixed.profile(own.training, k) for k in range(1, 5)}
        jobs = [fixed.job(profiles[max(devices)], devices, 16) for devices in placements]
        found = [pm.predict(job, fidelity=fidelity).iteration_s for job in jobs]
        assert found == pytest.approx(formula_s(fixed.cluster, traits, own, steps), rel=1e-9)
        wrong = msgspec.structs.replace(traits, messages=messages + 1.0)
        assert found != pytest.approx(formula_s(fixed.cluster, wrong, own, steps), rel=1e-3)


@pytest.mark.slow
def test_links_are_recovered(fit: Placements) -> None:
    found, true = fit.cluster, TRUTH.cluster
    assert found.nic.efficiency == pytest.approx(true.nic.efficiency, rel=0.2)
    assert found.pair_efficiency == pytest.approx(true.pair_efficiency, rel=0.1)
    scales = [fit.traits[name].bytes for name in DNNS]
    assert scales[1] > scales[2]
    assert {each.known for each in fit.traits.values()} == {"nodes"}


@pytest.mark.slow
def test_steps_on_more_nodes_are_predicted(fit: Placements) -> None:
    for name in DNNS:
        assert max(errors(fit, training(name, FEW), MORE)) < 0.12


@pytest.mark.slow
def test_a_dnn_measured_on_one_node_or_device_is_predicted(others: Placements) -> None:
    """Except that its bytes take longer than those of other DNNs, which is unknown."""
    assert max(errors(others, training("middle", FEW), [*SEVERAL, *MORE])) < 0.2
    assert np.median(errors(others, training("middle", [(1,)]), [*FEW, *SEVERAL])) < 0.2


@pytest.mark.slow
def test_canary_slower_runs_make_a_slower_network(others: Placements) -> None:
    slow = [training(name, [*FEW, *SEVERAL], factor=2.0) for name in ("small", "large")]
    wrong = calibrate_placements(slow, EXPECTED)
    assert wrong.cluster.nic.efficiency < 0.7 * others.cluster.nic.efficiency
    assert np.median(errors(wrong, training("middle", FEW), SEVERAL)) > 0.25


def test_waiting_is_the_step_minus_computing(fit: Placements) -> None:
    known = training("large", FEW)
    for devices in ((1, 1), (4, 4), (2, 2, 2)):
        step_s = true_step_s("large", devices, 16)
        waiting = 1.0 - computing_s("large", max(devices), 16) / step_s
        found = predicted(fit, known, devices, 16)
        assert found.idle_fraction.mean == pytest.approx(waiting, abs=0.05)


def test_computing_on_a_node_grows_as_measured_there(fit: Placements) -> None:
    known = training("large", [(1,), (2,)], noise=0.0)
    assert fit.profile(known, 4).timings[0].total_s == pytest.approx(
        computing_s("large", 4, 8), rel=0.03
    )


def test_an_embedding_cannot_be_hidden() -> None:
    known = training("middle", [(1,)])
    late = msgspec.structs.replace(known, overlap_fraction=0.0)
    found = [predicted(TRUTH, each, (2, 2, 2), 64).iteration_s for each in (known, late)]
    assert found[1] > 1.1 * found[0]


# -- intervals -------------------------------------------------------------------------------------


def spread(fit: Placements, known: Training, devices: tuple[int, ...], batch: int = 16) -> float:
    return predicted(fit, known, devices, batch).interval.parts.total


def test_intervals_widen_with_missing_knowledge(fit: Placements, others: Placements) -> None:
    device, node = training("middle", [(1,)]), training("middle", FEW)
    unseen = calibrate_placements([], EXPECTED)
    assert spread(others, node, (4, 4, 4)) < spread(others, device, (4, 4, 4))
    assert spread(others, device, (4, 4, 4)) < spread(unseen, device, (4, 4, 4))
    assert others.spreads.step < Spreads().step
    assert fit.traits_of(node).spread < others.traits_of(node).spread


def test_intervals_widen_outside_the_fitted_range(fit: Placements) -> None:
    known = training("large", FEW)
    within, twice, far = (
        predicted(fit, known, (4,) * n, 16).interval.parts.extrapolation for n in (3, 6, 24)
    )
    assert within == 0.0
    assert far == pytest.approx(3.0 * twice)
    assert twice > 0.0


def left(noise: float, *, off: float = 0.0, count: int = 400) -> Left:
    """Steps of a held-out DNN: half of each is the exchange, whose bytes take longer."""
    generator = np.random.Generator(np.random.Philox(7))
    half, misses = np.full(count, 0.5), noise * generator.standard_normal(count) + off
    return Left(
        node=misses, device=misses, exchanged=half, computing=half, links=np.zeros((5, count)),
        noise=noise, computed=misses,
    )  # fmt: skip


def test_spreads_separate_differences_between_dnns_from_those_between_steps() -> None:
    unknown = np.zeros((5, 5))
    alike, noisy, unlike = (
        learnt([left(noise, off=s * off) for s in (-1.0, 1.0)] * 2, [0.0], unknown)
        for noise, off in ((0.01, 0.0), (0.2, 0.0), (0.01, 0.2))
    )
    assert noisy.noise > 3.0 * alike.noise
    assert noisy.step < 0.5 * noisy.noise  # a spread between DNNs, not within one
    assert unlike.node > 1.5 * alike.node
    assert unlike.computing > 1.5 * alike.computing
    known = learnt([left(0.01, off=0.2)], [0.0], np.eye(5))
    assert known == learnt([left(0.01, off=0.2)], [0.0], unknown)  # no link matters here


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noise_is_the_part_not_explained_by_devices_and_batches(noise: float) -> None:
    devices, batch = (each.ravel() for each in np.meshgrid([2, 3, 4, 5, 6, 7, 8], np.arange(40)))
    generator = np.random.Generator(np.random.Philox(1))
    misses = 0.1 * devices - 0.02 * batch + noise * generator.standard_normal(len(devices))
    assert noise_of(misses, devices, batch) == pytest.approx(noise, rel=0.15)
    assert noise_of(misses[:1], devices[:1], batch[:1]) == pytest.approx(NOISE)
    assert noise_of(misses[:0], devices[:0], batch[:0]) == pytest.approx(NOISE)


def test_a_noisy_dnn_has_wider_intervals(others: Placements) -> None:
    quiet, noisy = (training("middle", FEW, noise=noise) for noise in (0.001, 0.15))
    for devices in ((1,), (4,), (4, 4)):
        found = [predicted(others, each, devices, 16).interval.parts for each in (quiet, noisy)]
        assert found[1].model > 2.0 * found[0].model
        assert found[1].calibration > found[0].calibration


def test_links_are_known_better_if_dnns_are_similar() -> None:
    """Three DNNs with the same cost per byte determine them better than three whose costs differ by
    half."""

    def unknown(more: float) -> float:
        some = [
            msgspec.structs.replace(
                each, gradient_bytes=each.gradient_bytes * (more if each.name == "small" else 1.0)
            )
            for each in (training(name, [*FEW, *SEVERAL]) for name in DNNS)
        ]
        found = calibrate_placements(some, EXPECTED).cluster.calibration
        assert found is not None
        return math.sqrt(found.covariance[0][0])

    assert unknown(2.0) > 1.3 * unknown(1.0)


def test_idle_fractions_are_as_uncertain_as_compute_times(fit: Placements) -> None:
    known = training("large", FEW)
    job = fit.job(fit.profile(known, 4), (4, 4), 16)
    calibration = job.cluster.calibration
    assert calibration is not None
    widths = []
    for computing in (0.0, 0.3):
        changed = msgspec.structs.replace(calibration, computing_spread=computing)
        cluster = msgspec.structs.replace(job.cluster, calibration=changed)
        found = pm.predict(msgspec.structs.replace(job, cluster=cluster)).interval
        widths.append(found.idle_fraction)
        assert found.iteration_s == predicted(fit, known, (4, 4), 16).interval.iteration_s
    assert widths[1][0] < widths[0][0] - 0.1
    assert widths[1][1] > widths[0][1] + 0.04


@pytest.mark.slow
def test_steps_on_more_than_two_nodes_show_how_errors_grow() -> None:
    def growth(factor: float) -> float:
        some = [
            msgspec.structs.replace(
                each,
                steps=tuple(
                    msgspec.structs.replace(s, step_s=s.step_s * factor)
                    if len(s.devices) > 2
                    else s
                    for s in each.steps
                ),
            )
            for each in (training(name, [*FEW, *SEVERAL]) for name in DNNS)
        ]
        found = calibrate_placements(some, EXPECTED).cluster.calibration
        assert found is not None
        return found.growth["nodes"]

    assert growth(1.0) == pytest.approx(0.03, rel=0.5)  # the assumption for all jobs
    assert growth(1.5) > 3.0 * growth(1.0)


# -- files and mistakes ----------------------------------------------------------------------------


def test_files_of_a_fit_predict_the_same(fit: Placements, tmp_path: Path) -> None:
    known = training("large", FEW)
    profile = fit.profile(known, 4)
    for name, found in (("lab", fit.cluster), ("net", profile)):
        files.write(tmp_path / f"{name}.json", msgspec.json.encode(found))
    again = pm.make_job(
        workload=tmp_path / "net.json", cluster=tmp_path / "lab.json", workers=8, batch_size=16,
        arch="allreduce", options={"algorithm": "ring", "bucketing": "layer"},
    )  # fmt: skip
    same = predicted(fit, known, (4, 4), 16)
    assert pm.predict(again).iteration_s == pytest.approx(same.iteration_s, rel=1e-9)
    assert pm.predict(again).interval.iteration_s == pytest.approx(same.interval.iteration_s)


def test_without_steps_a_cluster_keeps_the_prior() -> None:
    found = calibrate_placements([], EXPECTED, {"nic.efficiency": 0.1})
    assert found.cluster.nic == EXPECTED.nic
    assert found.cluster.calibration is not None
    assert found.cluster.calibration.covariance[0][0] == pytest.approx(0.1**2, rel=1.0)
    assert found.spreads == Spreads()
    slow = training("large", FEW)
    assert found.traits_of(slow).known == "node"


def test_linear_fits_can_replace_steps() -> None:
    found = smoothed(training("large", [*FEW, (2, 2)], noise=0.0), [20])
    assert [(step.devices, step.batch_size) for step in found.steps] == [(k, 20) for k in FEW]
    assert found.steps[0].step_s == pytest.approx(computing_s("large", 1, 20), rel=1e-3)


def test_equal_steps_count_as_their_mean() -> None:
    steps = (Step((1,), 8, 1.0), Step((1,), 8, 3.0))
    table = OneNode(Training(name="any", gradient_bytes=1e6, steps=steps))
    assert table.step_s(1, 8) == 2.0
    assert table.step_s(2, 8) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"devices": ()}, "devices: needs at least one node"),
        ({"devices": (0, 2)}, r"devices\[0\]: must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
        ({"step_s": 0.0}, "step_s: must be more than 0, got 0"),
        ({"waiting_s": 2.0}, "waiting_s: must be at most 1, got 2"),
    ],
)
def test_wrong_steps_are_named(changed: Mapping[str, object], message: str) -> None:
    good = Step((1,), 8, 1.0, 0.1)
    with pytest.raises(pm.InputError, match=message):
        msgspec.structs.replace(good, **changed)


def test_mistakes_are_named() -> None:
    small = training("small", FEW)
    with pytest.raises(pm.InputError, match="small: steps: needs at least one on a single device"):
        training("small", SEVERAL)
    with pytest.raises(pm.InputError, match="names must differ: small, small"):
        calibrate_placements([small, small], EXPECTED)
    bus = msgspec.structs.replace(EXPECTED, intra_node=None)
    with pytest.raises(pm.InputError, match="cluster: needs intra_node of kind per_device"):
        calibrate_placements([small], bus)
    with pytest.raises(pm.InputError, match="unknown fitted link 'latency'"):
        calibrate_placements([small], EXPECTED, {"latency": 0.1})
    with pytest.raises(pm.InputError, match="pair_efficiency: must be more than 0"):
        calibrate_placements([small], EXPECTED, {"pair_efficiency": 0.0})
    with pytest.raises(pm.InputError, match=r"devices\[1\]: must be at least 1"):
        TRUTH.job(TRUTH.profile(small), (2, 0), 8)


# -- the command -----------------------------------------------------------------------------------

EXPECTED_TOML = """\
schema = "perfmodel.cluster/1"
name = "made up"
devices_per_node = 4
pair_efficiency = 0.74
nic = {bandwidth_bytes_per_s = 2e9, latency_s = 8e-6, efficiency = 0.35}
intra_node = {kind = "per_device", bandwidth_bytes_per_s = 5e9, latency_s = 6e-6, efficiency = 0.3}
source = {kind = "estimated", text = "made up"}
"""
HEADS = "model,placement,batch_size,step_s,gradient_bytes,waiting_s"


def lines(names: Sequence[str]) -> list[str]:
    """A table of steps on one and two nodes."""
    return [
        HEADS,
        *(
            f"{name},{'+'.join(map(str, s.devices))},{s.batch_size},{s.step_s!r},"
            f"{DNNS[name][0]},{s.waiting_s!r}"
            for name in names
            for s in training(name, [*FEW, (1, 1), (4, 4)]).steps
        ),
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("expected.toml").write_text(EXPECTED_TOML, encoding="utf-8")
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str) -> str:
    """What a command prints, including errors."""
    monkeypatch.setattr("sys.argv", ["perfmodel", *text.split()])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr()
    return out.out + out.err


COMMAND = "calibrate runs t.csv --cluster expected.toml"


@pytest.mark.slow
def test_the_command_writes_files_that_predict_can_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.csv").write_text("\n".join(lines(["small", "large"])), encoding="utf-8")
    plot = " --plot fit.svg" if importlib.util.find_spec("matplotlib") else ""
    files = f"--output lab.json --workload-output w.json{plot}"
    out = call(monkeypatch, capsys, f"{COMMAND} --model large {files}")
    assert not plot or Path("fit.svg").read_bytes().startswith(b"<?xml")
    assert "steps of 2 models on several devices" in out
    assert "wrote lab.json" in out
    assert "wrote w.json" in out
    where, what = pm.read_cluster("lab.json"), read_profile("w.json")
    assert where.calibration is not None
    assert where.nic.efficiency == pytest.approx(0.5, rel=0.2)
    assert what.name == "large"
    job = pm.make_job(
        workload=what, cluster=where, workers=8, batch_size=16, arch="allreduce",
        options={"algorithm": "ring", "bucketing": "layer"},
    )  # fmt: skip
    assert pm.predict(job).iteration_s == pytest.approx(true_step_s("large", (4, 4), 16), rel=0.1)


@pytest.mark.parametrize(
    ("change", "flags", "said"),
    [
        (("small,2,8", "small,2x,8"), "", "line 6: placement: '2x': expected devices on each node"),
        (("small,2,8", f"small,{'9' * 5000},8"), "", "99...': expected devices on each node"),
        (("small,2,8", "small,\u00b2,8"), "", "expected devices on each node"),
        (("small,2,8", "small,0,8"), "", "line 6: devices[0]: must be at least 1, got 0"),
        (("small,2,8", "small,2,eight"), "", "line 6: batch_size"),
        (("small,1,", "small,1+1,"), "", "small: steps: needs at least one on a single device"),
        (("20000000.0", "2e7 B/s"), "", "gradient_bytes"),
        (("small,2,8", "small,2,8"), "--model smal", "did you mean 'small'"),
        (("small,2,8", "small,2,8"), "--workload-output w.json", "needs --model, one of small"),
        (("small,2,8", "small,2,8"), "--fit efficiency", "--fit: cannot be used with a table of"),
        (("small,2,8", "small,2,8"), "--cluster ethernet-10g", "intra_node of kind per_device"),
    ],
)
def test_a_wrong_table_gets_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    flags: str,
    said: str,
) -> None:
    text = "\n".join(lines(["small", "large"])).replace(*change)
    Path("t.csv").write_text(text, encoding="utf-8")
    out = call(monkeypatch, capsys, f"{COMMAND} {flags}")
    assert out.startswith("perfmodel: error: ")
    assert said in out
    assert len(out.strip().splitlines()) == 1
    assert {path.name for path in folder.iterdir()} == {"expected.toml", "t.csv"}
