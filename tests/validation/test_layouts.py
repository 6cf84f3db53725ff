"""Tables of hybrid layouts, on made rows: jobs, references, and rows that cannot be predicted.

The measurements are not part of the repository; tests that need them are skipped if they are
missing.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import (
    bigscience_tr11,
    layouts,
    libai,
    megatron_bridge,
    sailor,
    simumax_b200,
    small_tables,
    torchtitan,
    vtrain_llm,
)
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.sources import adapter
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError, make_job, predict
from perfmodel.inputs.replica import read_stage_layers
from perfmodel.inputs.usual_losses import DEVICE_SPREAD, SLOWDOWN_PER_NEIGHBOUR
from tests.measured import predicted_cases

ROW: dict[str, Any] = {
    "id": "one", "model": "gpt", "hidden": 256, "layers": 8, "heads": 4, "vocab": 128,
    "seq_len": 256, "devices": 1, "devices_per_node": 8, "device": "a", "precision": "bf16",
    "framework": "Megatron-LM", "tp": 1, "pp": 1, "dp": 1, "micro_batch": 2, "microbatches": 8,
    "recompute": "none", "iteration_s": 8.0, "repeat": 0, "note": "",
}  # fmt: skip

FOUR_STAGES = {"id": "pipeline", "devices": 4, "pp": 4, "iteration_s": 2.75}

WIDE = {"hidden": 2048, "heads": 16, "seq_len": 512}
"""Blocks that take so long that what is before and after them does not count."""

DEVICES = {
    "libai": "", "bigscience_tr11": "A100-80GB", "simumax_b200": "B200", "sailor": "GH200-96GB",
    "torchtitan": "H100-SXM-96GB-HBM2e-500W", "megatron_bridge": "H100",
    "small_tables": "A100-80GB", "mlperf_v5_1": "GB200",
}  # fmt: skip
"""Sources with common columns, and a device of each."""

SLOWEST = {2: 0.564, 4: 1.029}
"""Expected largest of so many standard normal values."""

GATED = {"gated": 1, "ffn": 512, "kv_heads": 2}


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def predicted(folder: Path, source: str, *changes: dict[str, Any]) -> dict[str, Case]:
    """The cases of a table of made rows, by way and name."""
    row = {**ROW, "device": DEVICES[source]}
    write(folder / "runs.csv", [row | change for change in changes])
    return {f"{c.group.partition('/')[2]}: {c.name}": c for c in adapter(source).cases(folder)}


# -- what a row says -------------------------------------------------------------------------------


def row(**given: Any) -> layouts.Row:
    return layouts.Row(**{**ROW, **given})


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "single"),
        ({"dp": 2}, "data"),
        ({"tp": 2}, "tensor"),
        ({"pp": 2, "dp": 2}, "pipeline x data"),
        ({"tp": 2, "pp": 2}, "tensor x pipeline"),
        ({"tp": 2, "pp": 2, "dp": 2}, "3D"),
        ({"tp": 2, "cp": 2}, "context"),
    ],
)
def test_the_kind_of_a_layout(given: dict[str, int], kind: str) -> None:
    assert row(**given).kind == kind


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, ""),
        ({"experts": 8}, ""),
        ({"ep": 2}, "experts not stated"),
        ({"cp": 2, "devices": 2}, ""),
        ({"cp": 2, "devices": 1}, "layout of other devices"),
        ({"heads": None, "layers": None}, "layers, heads not stated"),
        ({"iteration_s": None}, "iteration_s not stated"),
        ({"devices": 4}, "layout of other devices"),
        ({"repeat": 1}, "printed before"),
    ],
)
def test_why_a_row_is_left_out(given: dict[str, Any], why: str) -> None:
    assert row(**given).why_not == why


def test_a_layout_as_arguments_of_a_job() -> None:
    found = layouts.layout_of(row(tp=2, pp=4, dp=3, vp=2, seq_parallel=1, recompute="full"))
    assert found == {
        "precision": "mixed", "workers": 3, "batch_size": 16, "accumulation": 8,
        "recompute": "full", "tensor": 2,
        "pipeline": 4, "virtual_stages": 2, "sequence_parallel": True,
    }  # fmt: skip
    assert "tensor" not in layouts.layout_of(row(dp=3))
    long = layouts.layout_of(row(cp=4, dp=2))
    assert (long["context"], long["workers"]) == (4, 2)


@pytest.mark.parametrize(
    ("layers", "stages", "partition", "blocks"),
    [
        (72, 12, "", [6] * 12),
        (78, 12, "", [7] * 11 + [1]),
        (70, 12, "embeddings count as layers", [5, *[6] * 10, 5]),
        (106, 12, "embeddings count as layers", [8, *[9] * 10, 8]),
        (8, 1, "", [8]),
    ],
)
def test_stages_of_deepspeed(layers: int, stages: int, partition: str, blocks: list[int]) -> None:
    one = bigscience_tr11.Row(**{**ROW, "layers": layers, "pp": stages, "partition": partition})
    assert list(read_stage_layers(bigscience_tr11.stage_layers(one))) == blocks


# -- references ------------------------------------------------------------------------------------


def test_a_reference_takes_as_long_as_measured() -> None:
    """Whatever its layout; 1 % slower devices take longer."""
    for given in ({}, {"devices": 8, "pp": 2, "dp": 2, "tp": 2}):
        one = row(**given)
        arguments = libai.arguments(one)
        anchor = layouts.Anchor.of(one, arguments, 8.0)
        assert predict(anchor.job(arguments)).iteration_s == pytest.approx(8.0, rel=2e-3)
        slower = layouts.Anchor(1.01 * anchor.factor, anchor.micro_batch)
        assert predict(slower.job(arguments)).iteration_s > 8.0 * 1.005


def test_the_reference_is_the_nearest_row_on_the_fewest_devices() -> None:
    rows = [
        row(id="8", devices=8),
        row(id="pipeline", devices=2, pp=2),
        row(id="tensor", devices=2, tp=2),
        row(id="more", devices=2, tp=2, microbatches=16),
        row(id="large", devices=2, tp=2, micro_batch=8, microbatches=32),
        row(id="far", micro_batch=1),
    ]
    found = layouts.reference(rows[0], rows, lambda a, b: float(a.micro_batch != b.micro_batch))
    assert found.id == "more"
    assert layouts.reference(rows[0], rows, lambda a, b: 0.0).id == "far"


def test_a_pipeline_from_one_device_by_hand(tmp_path: Path) -> None:
    """Eight micro-batches of one second each: four stages of a quarter of a second take
    (8 + 4 - 1) / 4 seconds, with next to no head, and next to no sends. Three neighbours and the
    slowest of four devices add the usual losses."""
    found = predicted(tmp_path, "libai", WIDE, WIDE | FOUR_STAGES)
    assert set(found) == {
        "estimated-single: one", "estimated-pipeline: pipeline", "anchored-pipeline: pipeline",
    }  # fmt: skip
    case = found["anchored-pipeline: pipeline"]
    slower = (1.0 + 3 * SLOWDOWN_PER_NEIGHBOUR) * (1.0 + DEVICE_SPREAD * SLOWEST[4])
    assert case.predicted == pytest.approx(slower * 11.0 / 4.0, rel=0.02)
    assert case.measured == 2.75
    assert case.interval is not None


def test_canary_a_pipeline_is_not_as_fast_as_its_stages(tmp_path: Path) -> None:
    found = predicted(tmp_path, "libai", WIDE, WIDE | FOUR_STAGES)
    case = found["anchored-pipeline: pipeline"]
    assert case.predicted != pytest.approx(8.0 / 4.0, rel=0.1)


def test_several_rows_of_a_layout_are_one_reference(tmp_path: Path) -> None:
    """Two runs of one device, of 8 and of 8.8 s: the pipeline takes 5 % longer than from one."""
    again = WIDE | {"id": "again", "iteration_s": 8.8}
    one = predicted(tmp_path, "libai", WIDE, WIDE | FOUR_STAGES)
    both = predicted(tmp_path, "libai", WIDE, again, WIDE | FOUR_STAGES)
    name = "anchored-pipeline: pipeline"
    assert both[name].predicted / one[name].predicted == pytest.approx(1.05, rel=2e-3)


def test_other_layouts_only_are_anchored(tmp_path: Path) -> None:
    """A second run of the reference's layout is estimated, but says nothing of the model."""
    found = predicted(tmp_path, "libai", {}, {"id": "again", "iteration_s": 9.0})
    assert set(found) == {"estimated-single: one", "estimated-single: again"}


def test_a_smaller_micro_batch_starts_from_the_speed_of_the_reference() -> None:
    """Per sample it is no faster than the reference."""
    one, arguments = row(), libai.arguments(row(micro_batch=1, microbatches=16))
    anchor = layouts.Anchor.of(one, libai.arguments(one), 8.0)
    job = anchor.job(arguments)
    assert job.workload.batch_size == 16
    assert 8.0 * 0.999 <= predict(job).iteration_s < 20.0


def test_frameworks_are_not_alike(tmp_path: Path) -> None:
    found = predicted(tmp_path, "libai", {}, FOUR_STAGES | {"framework": "LiBai"})
    assert not [name for name in found if name.startswith("anchored")]


# -- every adapter ---------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", DEVICES)
def test_rows_of_other_kinds_do_not_stop_an_adapter(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [
        {"id": "experts", "experts": 8, "ep": 4}, {"id": "context", "cp": 3, "devices": 3},
        {"id": "unnamed", "device": "abacus"}, {"id": "odd", "heads": 5},
        {"id": "blank", "hidden": ""}, {"id": "word", "recompute": "some"},
        {"id": "deep", "devices": 16, "pp": 16}, {"id": "wide", "devices": 3, "tp": 3},
    ]  # fmt: skip
    if source == "sailor":
        write(tmp_path / "layer_profiles.csv", [TIME])
        write(tmp_path / "layer_sizes.csv", [SIZE])
    good = GATED | {"devices": 8, "dp": 8, "id": "good"}
    found = predicted(tmp_path, source, good, *[GATED | one for one in bad])
    assert "estimated-data: good" in found
    said = capsys.readouterr().err
    for name in ("experts", "context", "odd", "blank", "word", "deep", "wide"):
        assert f"left out: {name}" in said or f"; {name}" in said, name


def test_jobs_of_each_source() -> None:
    one = {**ROW, **GATED, "devices": 8, "tp": 2, "pp": 2, "dp": 2, "zero": 1, "seq_parallel": 1}
    mega = simumax_b200.arguments(layouts.Row(**{**one, "device": "B200"}))
    assert mega["arch"] == "zero1"
    assert mega["transfers"] == "blocking"
    assert make_job(**mega).devices == 8
    titan = torchtitan.arguments(torchtitan.Row(**one | {"device": "H100-SXM-96GB-HBM2e-500W"}))
    assert titan["options"]["unit_bytes"] == 4 * (3 * 256 * 512 + 3 * 256 * 256 + 2 * 256)
    bridge = {**one, "device": "GB200", "vp": 2, "precision": "FP8-CS"}
    tuned = megatron_bridge.arguments(megatron_bridge.Row(**bridge))
    assert tuned["cluster"] == "gb200-nvl72"
    for chunks, how in ((2, "ahead"), (1, "blocking")):  # as Megatron-LM hands over
        row = megatron_bridge.Row(**bridge | {"vp": chunks, "microbatches": 4, "micro_batch": 1})
        replica = make_job(**megatron_bridge.arguments(row)).replica
        assert replica is not None
        assert (replica.transfers, replica.virtual_stages) == (how, chunks)
    sharded = megatron_bridge.arguments(megatron_bridge.Row(**bridge | {"zero": 3}))
    assert sharded["arch"] == "fsdp"


def test_layers_in_eight_bits_have_a_reference_in_eight_bits(tmp_path: Path) -> None:
    eight = GATED | {"precision": "float8 linear (bf16 else)"}
    found = predicted(tmp_path, "torchtitan", GATED, eight | {"id": "8 bits", "iteration_s": 4.0},
                      eight | {"id": "more", "devices": 8, "dp": 8})  # fmt: skip
    assert set(found) == {
        "estimated-single: one", "estimated-single: 8 bits", "estimated-data: more",
        "anchored-data: more",
    }  # fmt: skip
    assert 4.0 < found["anchored-data: more"].predicted < 4.4


def test_unknown_precisions_are_anchored_only(tmp_path: Path) -> None:
    five = GATED | {"precision": "FP5", "task": "SFT"}
    found = predicted(tmp_path, "megatron_bridge", five, five | {"id": "8", "devices": 8, "dp": 8})
    assert set(found) == {"anchored-data: 8"}


def test_rows_in_four_bits_have_references_in_four_bits_only(tmp_path: Path) -> None:
    four = GATED | {"precision": "NVFP4", "device": "B200"}
    eight = four | {"precision": "MXFP8", "id": "eight"}
    found = predicted(tmp_path, "megatron_bridge", four, eight)
    assert set(found) == {"estimated-single: one", "estimated-single: eight"}


@pytest.mark.parametrize(
    ("name", "precision"),
    [("bf16", "mixed"), ("", "mixed"), ("FP8", "fp8"), ("MXFP8", "mxfp8"), ("NVFP4", "nvfp4"),
     ("FP5", None), ("float8 rowwise linear (bf16 else)", "fp8")],
)  # fmt: skip
def test_precisions_of_jobs(name: str, precision: str | None) -> None:
    assert row(precision=name).computed_in == precision


def test_figures_of_the_catalogue_are_no_predictions(tmp_path: Path) -> None:
    """A run that the catalogue has a utilisation of is no reference of others either."""
    given = GATED | {"model": "llama3-8b", "precision": "FP8"}
    others = [given | {"id": "b", "device": "GB200"}, given | {"id": "c", "device": "B300"}]
    found = predicted(tmp_path, "megatron_bridge", given, *others)
    assert set(found) == {"estimated-single: c"}
    ids = ("fms-fsdp-7b-A100", "fms-fsdp-13b-A100")
    assert [small_tables.Row(**ROW | {"id": name}).figure for name in ids] == [True, False]


@pytest.mark.slow
def test_references_of_releases_and_devices_are_told_apart(tmp_path: Path) -> None:
    """The second of two releases is twice as fast: layouts of a release are met from it, and those
    of the other are predicted twice or half as long. Another device is as fast as its release."""
    one = GATED | WIDE | {"precision": "FP8", "version": "1"}
    two = one | {"devices": 2, "dp": 2}
    fast = {"version": "2", "iteration_s": 4.0}
    rows = [one, two | {"id": "one two"}, one | {"id": "two one"} | fast,
            two | {"id": "two two"} | fast,
            one | {"id": "other", "device": "B200"} | fast]  # fmt: skip
    found = predicted(tmp_path, "megatron_bridge", *rows)
    seconds = {name: case.predicted for name, case in found.items()}
    slower = seconds["estimated-single: other"] / seconds["estimated-single: two one"]
    expected = {
        "anchored-data: one two": 8.0,
        "anchored-data: two two": 4.0,
        "anchored in another release-data: one two": 4.0,
        "anchored in another release-data: two two": 8.0,
        "anchored on another device-single: two one": 4.0 / slower,
        "anchored on another device-data: two two": 4.0 / slower,
        "anchored on another device-single: other": 4.0 * slower,
    }
    anchored = {name: value for name, value in seconds.items() if name.startswith("anchored")}
    assert anchored == pytest.approx(expected, rel=0.02)


def test_the_nearest_device_is_one_of_the_same_architecture_at_the_same_precision() -> None:
    def of(device: str, precision: str) -> megatron_bridge.Row:
        return megatron_bridge.Row(**ROW | {"device": device, "precision": precision})

    unlike = partial(megatron_bridge._unlike, of("GB300", "MXFP8"))
    near = [of("B200", "MXFP8"), of("B200", "FP8"), of("H100", "MXFP8"), of("H100", "FP8")]
    assert [unlike(row) for row in near] == [0.0, 1.0, 2.0, 3.0]


def test_precisions_of_releases_are_the_same() -> None:
    names = {"": "FP8", "FP8-CS": "FP8", "FP8-MX": "MXFP8", "NVFP4": "NVFP4"}
    for name, bits in names.items():
        assert megatron_bridge.Row(**{**ROW, "precision": name}).bits == bits
    assert megatron_bridge.Row(**{**ROW, "precision": "", "id": "607b"}).bits == "MXFP8"


def test_facts_complete_a_row() -> None:
    """Rows of a page by pattern; a rate is turned into the time of a step: 2 x 4096 / 8192."""
    given = ROW | {"id": "fms-fsdp-7b-X", "seq_len": None, "iteration_s": None, "microbatches": 1}
    one = small_tables.Row(**given, tokens_per_s_per_device=8192.0).complete
    assert (one.seq_len, one.iteration_s) == (4096, 1.0)
    # 6 operations per token and parameter but look-ups, and 12 per pair of hidden value and token
    long = {"id": "nemo-long-X", "framework": "NeMo", "cp": 2, "dp": 2, "devices": 4, "heads": 4,
            "iteration_s": None, "microbatches": None, "global_batch": 6}  # fmt: skip
    nemo = small_tables.Row(**ROW | GATED | long, tflops_per_device=1e-6).complete
    blocks = 8 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512 + 2 * 256)
    flop = 6 * (blocks + 256 * 128 + 256) + 12 * 8 * 256 * 256
    assert (nemo.micro_batch, nemo.microbatches) == (1, 3)
    assert nemo.iteration_s == pytest.approx(flop * 256 * 6 / 4 / 1e6)
    odd = small_tables.Row(
        **ROW | long | {"global_batch": 3, "device": "B200"}, tflops_per_device=1.0
    ).complete
    assert odd.why_not == "microbatches not stated"
    large = small_tables.Row(id="megatron-lm-1t", model="gpt-1t", device="A100", vocab=51200,
                             seq_len=2048).complete  # fmt: skip
    assert large.why_not == ""
    assert large.replica == 512


def test_vtrain_rows_in_common_columns(tmp_path: Path) -> None:
    given = {
        "GPUs": 8, "global_batch": 16, "micro_batch": 2, "hidden_size": 256, "attention_heads": 4,
        "layers": 8, "sequence_length": 256, "tensor_parallelism": 2, "data_parallelism": 2,
        "pipeline_parallelism": 2, "iteration_time_ms": 250.0,
    }  # fmt: skip
    one = vtrain_llm.Measured(**given).row
    assert (one.microbatches, one.iteration_s, one.kind) == (4, 0.25, "3D")
    assert vtrain_llm.Measured(**given | {"micro_batch": 3}).row.why_not
    write(tmp_path / vtrain_llm.FILES[0], [given])
    write(tmp_path / vtrain_llm.FILES[1], [given | {"GPUs": 16, "data_parallelism": 4}])
    groups = {case.group for case in vtrain_llm.cases(tmp_path)}
    assert groups == {"vtrain_llm/estimated-3D", "vtrain_llm/anchored-3D"}


TIME: dict[str, Any] = {
    "model": "OPT-350", "device": "GH200-96GB", "micro_batch": 2, "tp": 4, "layer": 0,
    "forward_s": 0.1, "backward_s": 0.2, "update_s": 0.01,
}  # fmt: skip
SIZE: dict[str, Any] = {
    "model": "OPT-350", "tp": 4, "layer": 0, "parameters": 1000, "activation_output_elements": 8,
}  # fmt: skip


def test_a_profiled_node_by_hand() -> None:
    """Four layers of 0.3 s on two nodes: (8 + 1) micro-batches of 0.6 s, and two updates of
    0.01 s each, at the pace of the slower of two nodes; a node has four times the parameters of a
    device, of four bytes."""
    given = {"model": "opt-350m", "device": "GH200-96GB", "devices": 8, "tp": 4, "pp": 2}
    one = sailor.Row(**ROW | given | {"devices_per_node": 4, "layers_per_stage": "2 2"})
    times = [sailor.Time(**TIME | {"layer": k}) for k in range(4)]
    sizes = [sailor.Size(**SIZE | {"layer": k}) for k in range(4)]
    job = sailor.profiled(one, times, sizes)
    assert job.workload.gradient_bytes == 4 * 4 * 4 * 1000
    slower = 1.0 + DEVICE_SPREAD * SLOWEST[2]
    assert predict(job).iteration_s == pytest.approx((9 * 0.6 + 0.02) * slower, rel=1e-3)
    with pytest.raises(InputError, match="no profile of a node"):
        sailor.profiled(one, [], sizes)


def test_unequal_devices_are_left_out() -> None:
    mixed = sailor.Row(**ROW | {"device": "GH200-96GB", "stage_devices": "A100-40GB|GH200-96GB"})
    assert mixed.why_not == "devices differ"


# -- the measurements ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "group", "median"),
    [
        ("sailor", "sailor/anchored", 0.10),
        ("torchtitan", "torchtitan/anchored-data", 0.05),
        ("torchtitan", "torchtitan/anchored-context", 0.15),
        ("small_tables", "small_tables/estimated", 0.15),
        ("small_tables", "small_tables/anchored-context", 0.06),
        ("simumax_b200", "simumax_b200/anchored-context", 0.03),
        ("libai", "libai/estimated-single", 0.10),
    ],
)
def test_published_layouts(source: str, group: str, median: float) -> None:
    assert summarise(predicted_cases(adapter(source), "runs.csv"))[group]["median"] < median
