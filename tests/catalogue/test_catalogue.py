"""The shipped profiles are consistent with their descriptions and sources."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import InputError, Source, make_job, predict
from perfmodel.base import files
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.instances import read_instances
from perfmodel.cli import cli
from perfmodel.inputs.profile import NoiseScale, Timing
from perfmodel.validation.cases import shipped_cases
from tests.settings import thinned

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "inception_v1": 6_624_904,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "inception_v3": 23_834_568,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg19": 143_667_240,
    "mobilenet_v2": 3_504_872,
    "efficientnet-b0": 5_288_548,
    "efficientnet-b4": 19_341_616,
    "densenet121": 7_978_856,
    "vit-l16": 304_326_632,
}
"""Published by torchvision (inception_v1: googlenet, and inception_v3, without auxiliary heads)."""

TENSORS = {
    "resnet18": 62, "resnet50": 161, "vgg16": 32, "alexnet": 16, "inception_v1": 173,
    "resnet101": 314, "resnet152": 467, "inception_v3": 284, "vgg11": 22, "vgg13": 26, "vgg19": 38,
    "mobilenet_v2": 158, "efficientnet-b0": 213, "efficientnet-b4": 418, "densenet121": 364,
    "vit-l16": 296,
}  # fmt: skip

MILLIONS = {
    "bert-large": 335, "gnmt": 161, "transformer-big": 211, "transformer-xl-base": 192,
    "transformer-xl-large": 284, "ncf": 31.8, "resnext101-32x4d": 44.2,
    "se-resnext101-32x4d": 49.0, "dlrm-dense": 2.37, "ssd300-resnet50": 22.9,
}  # fmt: skip
"""Millions of parameters of networks that are not torchvision's, as published to these digits, or
added up by hand (dlrm-dense, ssd300-resnet50)."""
GPUS = ["a100", "a10g", "gtx1080ti", "h100", "k80", "mi300x", "p100", "t4", "titan-v", "v100"]


def test_the_catalogue_has_the_contents_named_in_the_readme() -> None:
    assert set(PARAMETERS) <= set(catalogue.model_names())
    assert set(GPUS) <= set(catalogue.device_names())
    assert catalogue.DEFAULT_CLUSTER in catalogue.cluster_names()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    profile = catalogue.model(name)
    assert profile.parameter_bytes == 4 * PARAMETERS[name]
    assert sum(len(layer.tensors) for layer in profile.layers) == TENSORS[name]


@pytest.mark.parametrize("name", MILLIONS)
def test_parameters_of_other_networks(name: str) -> None:
    assert catalogue.model(name).parameter_bytes / 4e6 == pytest.approx(MILLIONS[name], rel=4e-3)


def test_a_model_without_timings_needs_only_a_device() -> None:
    vgg = catalogue.model("vgg13")
    assert not vgg.timings
    with pytest.raises(InputError, match="device: vgg13 has no timings; name a device"):
        catalogue.workload(vgg)
    alone = catalogue.workload(vgg, device_name="v100", batch_size=16)
    smaller = catalogue.workload(catalogue.model("vgg11"), device_name="v100", batch_size=16)
    assert alone.error_fraction is not None
    assert 1.1 < alone.compute_s / smaller.compute_s < 2.0  # 1.5 times the operations


def test_a_precision_without_a_timing_is_estimated() -> None:
    inception = catalogue.model("inception_v3")
    assert {t.precision for t in inception.timings if t.device == "v100"} == {"float32"}
    half = catalogue.workload(inception, device_name="v100", precision="mixed", batch_size=64)
    assert half.precision == "mixed"
    assert half.error_fraction is not None


@pytest.mark.parametrize("name", catalogue.model_names())
def test_every_timing_has_a_source(name: str) -> None:
    profile = catalogue.model(name)
    for timing in profile.timings:
        assert timing.source.text
        if timing.source.kind == "published":
            assert timing.source.url
            assert not timing.per_layer, "nobody published times per layer"
        else:
            assert timing.source.kind == "measured"
            assert timing.source.date


def test_a_model_that_was_not_measured_has_exact_layers() -> None:
    for name in catalogue.model_names():
        profile = catalogue.model(name)
        if profile.decoder is not None:
            continue
        measured = any(timing.per_layer for timing in profile.timings)
        assert measured or all(layer.tensors or layer.operators for layer in profile.layers), name
        assert measured or profile.source.kind == "exact", name


ESTIMATED = [name for name in catalogue.model_names() if catalogue.model(name).decoder is None]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "device"), thinned(itertools.product(ESTIMATED, GPUS), 10))
def test_every_model_runs_on_every_gpu_as_an_estimate(name: str, device: str) -> None:
    w = catalogue.workload(catalogue.model(name), device_name=device, batch_size=32)
    timings = [one for one in catalogue.model(name).timings if one.device == device]
    if not any(one.source.kind == "measured" for one in timings):
        assert w.quality == "estimated"
        assert w.source.kind in ("published", "estimated")
    most_s = 500.0 if name in ("t5-3b", "t5-11b") else 50.0
    assert (1e-6 if name == "ncf" else 1e-4) < w.compute_s < most_s  # its sample is two numbers
    assert min(min(la.forward_s, la.backward_s) for la in w.layers) >= 0.0
    if device not in catalogue.model(name).devices:
        assert w.error_fraction is not None
        assert 0.1 < w.error_fraction < 10.0


@pytest.mark.parametrize("name", catalogue.device_names())
def test_every_device_has_a_kind(name: str) -> None:
    kind = name[:3] if name.startswith(("cpu", "tpu")) else "gpu"
    assert catalogue.device(name).kind == kind


def test_times_on_a_tpu_are_given_or_refused() -> None:
    with pytest.raises(InputError, match=r"times on Google Cloud TPU v5p .* give the speed of one"):
        make_job(model="llama-7b", device="tpu-v5p")
    with pytest.raises(InputError, match="on another tpu of the catalogue; or give the speed"):
        make_job(model="resnet50", device="v6e")
    job = make_job(
        model="llama-7b",
        device="v5p",
        precision="bf16",
        one_device_step_s=2.0,
        workers=16,
        arch="ring",
        options={"overlap": False},
    )
    w = job.workload
    assert (w.device, w.precision, job.cluster.name) == ("tpu-v5p", "mixed", "tpu-v5p")
    assert w.compute_s == pytest.approx(2.0)
    # a ring of 16 chips in a pod sends 15/16 of the gradients twice, at 0.8 of 600 GB/s each way;
    # each bucket waits for less than 40 latencies
    least = 2 * 15 / 16 * w.gradient_bytes / 480e9
    assert least < predict(job).iteration_s - 2.0 < least + 40 * 2e-6 * w.gradient_bytes / 25e6


@pytest.mark.parametrize(("alias", "name"), [("a100-40", "a100"), ("v5e", "tpu-v5e")])
def test_an_alias_names_a_device_whose_speed_is_given(alias: str, name: str) -> None:
    job = make_job(model="llama-7b", device=alias, one_device_samples_per_s=1.0)
    assert job.workload.device == name


@pytest.mark.slow
def test_one_device_reaches_the_published_throughput() -> None:
    for name in catalogue.model_names():
        profile = catalogue.model(name)
        published = [t for t in profile.timings if t.source.kind == "published"]
        for timing in published:
            which = {"precision": timing.precision, "batch_size": timing.batch_size}
            work = catalogue.workload(profile, device_name=timing.device, **which)
            assert work.batch_size / work.compute_s == pytest.approx(timing.samples_per_s, rel=1e-9)
        for timing in published[:1]:
            job = make_job(
                model=name,
                device=timing.device,
                precision=timing.precision,
                batch_size=timing.batch_size,
                workers=1,
                arch="ring",
            )
            rate = predict(job).throughput_samples_per_s
            assert rate == pytest.approx(timing.samples_per_s, rel=1e-9)


def test_measured_cpu_profile_is_the_default_and_is_called_measured() -> None:
    result = predict(make_job(model="resnet18"))
    assert (result.quality, result.device) == ("measured", "cpu-epyc-2core")


def test_every_cluster_loads_and_every_device_has_a_source() -> None:
    for name in catalogue.cluster_names():
        assert catalogue.cluster(name).source.text
    for name in catalogue.device_names():
        assert catalogue.device(name).source.text


CHIPS = {
    "gtx1080ti": (3584, 1582, 352, 11),
    "m40": (3072, 1114, 384, 6),
    "p4": (2560, 1063, 256, 6),
    "rtx2060": (1920, 1680, 192, 14),
    "rtx2070": (2304, 1620, 256, 14),
    "rtx2080": (2944, 1710, 256, 14),
    "rtx2080ti": (4352, 1545, 352, 14),
    "rtx3060": (3584, 1777, 192, 15),
    "rtx3070": (5888, 1725, 256, 14),
    "rtx3080": (8704, 1710, 320, 19),
    "rtx3080ti": (10240, 1665, 384, 19),
    "rtx3090": (10496, 1695, 384, 19.5),
    "rtx3090ti": (10752, 1860, 384, 21),
    "rtx4060ti": (4352, 2535, 128, 18),
    "rtx4070": (5888, 2475, 192, 21),
    "rtx4070ti": (7680, 2610, 192, 21),
    "rtx4080": (9728, 2505, 256, 22.4),
    "rtx4090": (16384, 2520, 384, 21),
    "rtx5070ti": (8960, 2452, 256, 28),
    "rtx5080": (10752, 2617, 256, 30),
    "rtx5090": (21760, 2407, 512, 28),
    "rtxpro6000": (24064, 2617, 512, 28),
}
"""Cores, boost clock in MHz, bits of the memory bus, and Gbit/s of each."""


@pytest.mark.parametrize("name", CHIPS)
def test_peak_rates_follow_from_cores_and_clocks(name: str) -> None:
    """A core does one multiply-add per cycle; with sums in float32, the tensor cores of a GeForce
    card do 4 (RTX 20) or 2 (RTX 30 on) times as much, those of a professional card 4 times."""
    cores, clock_mhz, bits, rate = CHIPS[name]
    one = catalogue.device(name)
    float32 = one.peak_flop_per_s.float32
    assert float32 == pytest.approx(2 * cores * clock_mhz * 1e6, rel=0.025)
    assert one.memory_bandwidth_bytes_per_s == pytest.approx(bits / 8 * rate * 1e9, rel=0.001)
    times = 4 if name.startswith(("rtx20", "rtxpro")) else 2
    if name in ("gtx1080ti", "m40", "p4"):
        assert one.precisions == ("float32",)
    else:
        assert one.peak("mixed") == pytest.approx(times * float32, rel=0.02)
    if not name.startswith("rtx20"):
        times = (2 if name == "rtxpro6000" else 1) * one.sustained
        assert one.peak("tf32") == pytest.approx(times * float32, rel=0.01)


@pytest.mark.parametrize(
    ("name", "rates", "bandwidth", "gib"),
    [
        ("a10g", (35e12, 70e12, 35e12), 600e9, 24),
        ("mi250x", (95.7e12 / 2, 383e12 / 2, None), 3276.8e9 / 2, 64),
        ("mi300x", (163.4e12, 1307.4e12, 653.7e12), 5300e9, 192),
        ("mi325x", (163.4e12, 1307.4e12, 653.7e12), 6000e9, 256),
        ("mi355x", (157.3e12, 4096 * 256 * 2.4e9, None), 8000e9, 288),
        ("gh200", (66.9e12, 989.4e12, 494.7e12), 4000e9, 96),
    ],
)
def test_published_rates_of_other_devices(
    name: str, rates: tuple[float | None, ...], bandwidth: float, gib: int
) -> None:
    one = catalogue.device(name)
    peaks = one.peak_flop_per_s
    for peak, rate in zip((peaks.float32, peaks.mixed, peaks.tf32), rates, strict=True):
        assert peak == (None if rate is None else pytest.approx(rate, rel=1e-4))
    assert one.memory_bandwidth_bytes_per_s == bandwidth
    assert one.memory_bytes == gib * 2**30


@pytest.mark.parametrize("name", ["gb200", "gb300"])
def test_a_rack_has_72_devices(name: str) -> None:
    """The rack's published rates, with sparsity twice as high: 360e15 in 16 bits, 576e12 bytes/s of
    memory, 130e12 of NVLink both ways."""
    one, rack = (
        catalogue.device(name),
        catalogue.cluster(str(catalogue.device(name).default_cluster)),
    )
    assert 72 * 2 * one.peak("mixed") == 360e15
    assert 72 * one.memory_bandwidth_bytes_per_s == 576e12
    assert rack.devices_per_node == 72
    assert rack.intra_node is not None
    assert 72 * 2 * rack.intra_node.bandwidth_bytes_per_s == pytest.approx(130e12, rel=0.01)


@pytest.mark.parametrize(
    "typed", ["1080ti", "rtx-2060", "3080", "rtx-3080ti", "4070ti", "rtx-5090", "rtx-pro-6000"]
)
def test_a_device_is_known_by_its_short_name(typed: str) -> None:
    one = catalogue.device(typed)
    assert one.name.endswith(typed.replace("-", ""))
    assert make_job(model="resnet50", device=typed, batch_size=8).workload.device == one.name


PLACEHOLDERS = {"emulated", "pascal", "site", "unnamed"}
"""Devices of shipped cases that give the times themselves, so that any name will do."""


def test_every_device_that_is_named_exists() -> None:
    known = set(catalogue.device_names())
    timed = {d for name in catalogue.model_names() for d in catalogue.model(name).devices}
    assert timed <= known
    rented = {one.accelerator: one.device for one in read_instances()}
    assert [name for name, device in rented.items() if device is None] == []
    measured = {case.job.workload.device for case in shipped_cases()}
    assert measured - known == PLACEHOLDERS
    models = {u.model for name in known for u in catalogue.device(name).language_models}
    assert models <= set(catalogue.model_names())


def test_canary_an_accelerator_that_is_no_device_is_noticed() -> None:
    (one, *_) = read_instances()
    assert msgspec.structs.replace(one, accelerator="TPU-V4").device is None


def test_device_aliases_are_unambiguous() -> None:
    names = catalogue.device_names()
    every = [*names, *(alias for name in names for alias in catalogue.device(name).aliases)]
    assert len(every) == len(set(every))
    assert catalogue.device("a100-40") == catalogue.device("a100")
    one = make_job(model="bert-base", device="v100-16")
    assert (one.workload.device, one.workload.quality) == (
        "v100",
        make_job(model="bert-base", device="v100").workload.quality,
    )
    with pytest.raises(InputError, match="did you mean"):
        catalogue.device("a100-30")


def test_a_device_of_more_memory_has_the_rates_of_the_smaller_one() -> None:
    small, large = catalogue.device("a100"), catalogue.device("a100-80")
    assert small.peak_flop_per_s == large.peak_flop_per_s
    assert (small.memory_bytes, large.memory_bytes) == (40 * 2**30, 80 * 2**30)


@pytest.mark.parametrize("name", ["../x", "", "resnet18.json/", "models/resnet18"])
def test_names_cannot_leave_the_catalogue(name: str) -> None:
    with pytest.raises(InputError, match="unknown model"):
        catalogue.model(name)


@pytest.mark.parametrize(("device", "name"), [("a100", "dgx-a100"), ("h100", "dgx-h100")])
def test_data_centre_gpus_have_their_usual_cluster(device: str, name: str) -> None:
    """Eight devices on NVSwitch with a NIC each; the assumption is shown."""
    one = make_job(model="resnet50", device=device, workers=16, arch="allreduce")
    where = one.cluster
    assert (where.name, where.devices_per_node, where.nics_per_node) == (name, 8, 8)
    assert where.intra_node is not None
    assert where.intra_node.kind == "per_device"
    noted = {a.name: (a.value, a.source) for a in one.assumptions}
    assert noted["cluster"] == (name, f"default for {device}")
    assert noted["devices per node"] == (8, f"cluster {name}")
    asked = make_job(model="resnet50", device=device, workers=2, cluster="ethernet-10g")
    assert asked.cluster.name == "ethernet-10g"


def test_other_devices_have_the_general_default() -> None:
    job = make_job(model="resnet18", device="cpu-epyc-2core")
    assert job.cluster.name == catalogue.DEFAULT_CLUSTER
    assert catalogue.default_cluster_of("no such device") is None


@pytest.mark.parametrize("name", catalogue.device_names())
def test_default_clusters_exist(name: str) -> None:
    assert catalogue.default_cluster_of(name) in {None, *catalogue.cluster_names()}


@pytest.mark.parametrize(
    ("model", "device", "precision", "text"),
    [
        ("bert-base", "v100", "tf32", "Tesla V100 SXM2 16 GB has no tf32 (it has: float32, mixed)"),
        ("bert-base", "p100", "mixed", "has no mixed (it has: float32)"),
        ("bert-base", "p100", "bf16", "has no bf16 (it has: float32)"),
        (
            "bert-base",
            "v100",
            "bf16",
            "has no bf16 (it has: float32, mixed); mixed has float16 there",
        ),
        ("gpt2-xl", "t4", "BF16-mixed", "(it has: float32, mixed); mixed has float16 there"),
        ("gpt2-xl", "p100", "fp16", "has no fp16 (it has: float32)"),
    ],
)
def test_a_precision_the_device_lacks_is_refused(
    model: str, device: str, precision: str, text: str
) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        make_job(model=model, device=device, precision=precision)
    assert make_job(model=model, device=device, precision="float32").workload.compute_s > 0.0


@pytest.mark.parametrize(
    ("model", "device", "given", "expected"),
    [
        *(("gpt2-xl", "a100", name, "mixed") for name in ("bf16", "BF16-mixed", "fp16_mixed")),
        ("gpt2-xl", None, "bfloat16", "mixed"),
        ("gpt2-xl", "v100", "fp16", "mixed"),
        ("resnet50", "v100", "16-mixed", "mixed"),
        ("resnet50", "a100", "Mixed", "mixed"),
        ("gpt2-xl", "h100", "fp8-block", "fp8_block"),
        ("resnet50", "v100", "FP32", "float32"),
        ("resnet50", None, "fp32", "float32"),
    ],
)
def test_a_precision_may_be_called_as_elsewhere(
    model: str, device: str | None, given: str, expected: str
) -> None:
    asked, named = (
        make_job(model=model, device=device, precision=name).workload for name in (given, expected)
    )
    assert asked.precision == expected
    assert asked.compute_s == named.compute_s
    fast = make_job(
        model=model, device=device or "my-device", precision=given, one_device_samples_per_s=10.0
    )
    assert fast.workload.precision == expected


def test_a_precision_that_was_measured_keeps_its_name() -> None:
    plain = catalogue.model("resnet50")
    timings = [
        msgspec.structs.replace(t, precision="bf16" if t.precision == "mixed" else t.precision)
        for t in plain.timings
        if t.device == "v100"
    ]
    measured = msgspec.structs.replace(plain, timings=tuple(timings))
    found = make_job(workload=measured, device="v100", precision="bf16").workload
    assert found.precision == "bf16"
    mixed = make_job(model="resnet50", device="v100", precision="mixed").workload
    assert found.compute_s == mixed.compute_s


def test_a_noise_scale_is_shown_and_used_by_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = catalogue.model("resnet18")
    noise = NoiseScale(96.0, 8, Source("measured", "a test"), 8, 20, 9.0)
    noisy = msgspec.structs.replace(plain, noise_scale=noise)
    path = tmp_path / "noisy.json"
    files.write(path, msgspec.json.encode(noisy))
    command = ["sweep", "--workload", str(path), "--arch", "ring", "--batch-size", "16"]
    swept = CliRunner().invoke(cli, [*command, "--workers", "2,4"])
    assert swept.exit_code == 0
    assert "goodput" in swept.stdout
    assert "80.0%" in swept.stdout  # (96 + 32) / (96 + 64)
    assert swept.stderr == "note: noise scale: 96 samples, measured with the workload\n"
    said = "gradient noise scale: 96 ± 9 samples (20 x 8 batches of 8)"
    assert said not in CliRunner().invoke(cli, ["show", "resnet18"]).stdout
    monkeypatch.setattr(catalogue, "model", lambda name: noisy)
    assert said in CliRunner().invoke(cli, ["show", "resnet18"]).stdout


MOST_OF_THE_PEAK = 0.82
"""Fraction of a device's peak rate that no published step reaches without Winograd's convolutions;
the most is 0.80 (Transformer, V100, 32 bits)."""


def of_the_peak(model: str) -> dict[str, float]:
    """Fractions of the peak rate in the published steps of a model."""
    profile = catalogue.model(model)
    flop = 3.0 * sum(layer.forward_flop for layer in profile.layers)
    return {
        f"{t.device} {t.precision}": flop * t.batch_size / t.total_s
        / catalogue.device(t.device).peak(t.precision)
        for t in profile.timings
    }  # fmt: skip


def test_published_speeds_are_below_the_peak_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: of_the_peak(name) for name in catalogue.model_names() if is_plain(name)}
    assert {"bert-large-512", "transformer-big", "gnmt"} <= set(found)
    fastest = {f"{name} on {on}": x for name, of in found.items() for on, x in of.items()}
    assert max(fastest.values()) < MOST_OF_THE_PEAK, max(fastest, key=fastest.__getitem__)
    # the canary: sequences without their padding, counted as if each had 512 tokens
    bert = catalogue.model("bert-large-512")
    fast = Timing("v100", 8, Source("published", "padding was left out"), precision="float32",
                  samples_per_s=19.0)  # fmt: skip
    planted = msgspec.structs.replace(bert, timings=(fast,))
    monkeypatch.setattr(catalogue, "model", lambda name: planted)
    assert of_the_peak("bert-large-512")["v100 float32"] == pytest.approx(1.34, abs=0.01)


def is_plain(name: str) -> bool:
    """Whether a model with published times has no convolution."""
    profile = catalogue.model(name)
    return bool(profile.timings) and all("conv" not in one.kind.lower() for one in profile.layers)
