"""Instance catalogues: reading SkyPilot's columns, validation, and conversion to clusters."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from perfmodel import InputError, evaluate, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.instances import choose, choose_servers, read_instances

SKYPILOT = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice"  # noqa: E501
ROWS = (
    "m5.large,2.0,8.0,,,,us-east-1,us-east-1a,0.096,0.03",
    ",,,V100,1.0,V100,us-central1,us-central1-a,2.48,0.74",
    "p3.2xlarge,8.0,61.0,V100,1.0,V100,eu-west-1,eu-west-1a,3.305,",
    "p3.2xlarge,8.0,61.0,V100,1.0,V100,us-east-1,us-east-1a,3.06,0.95",
    "p3.2xlarge,8.0,61.0,V100,1.0,V100,us-east-1,us-east-1b,,0.91",
    "odd.xlarge,4.0,16.0,TPU-V4,1.0,TPU,us-east-1,us-east-1a,1.006,0.4",
    "x9.huge,8.0,61.0,V100,1.0,V100,us-east-1,us-east-1a,9.0,1.0",
)


def written(folder: Path, *rows: str, head: str = SKYPILOT) -> Path:
    path = folder / "vms.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_skypilot_catalogue_is_read_unchanged(tmp_path: Path) -> None:
    rows = read_instances(written(tmp_path, *ROWS))
    assert [row.name for row in rows] == ["p3.2xlarge"] * 3 + ["odd.xlarge", "x9.huge"]
    found, out = choose(rows)
    assert [(row.name, row.price_usd_per_h, row.region) for row in found] == [
        ("p3.2xlarge", 3.06, "us-east-1")
    ]
    assert found[0].network_bytes_per_s == 1.25e9  # from the shipped catalogue
    assert [text.partition(" ")[0] for text in out] == ["odd.xlarge", "x9.huge"]
    assert "'TPU-V4'" in out[0]
    assert "NetworkGbps" in out[1]


def test_regions_and_spot_prices_are_chosen(tmp_path: Path) -> None:
    rows = read_instances(written(tmp_path, *ROWS))
    assert choose(rows, region="eu-west-1")[0][0].price(spot=False) == 3.305
    assert choose(rows, spot=True)[0][0].price(spot=True) == 0.91
    assert choose(rows, region="eu-west-1", spot=True) == (
        [],
        ["p3.2xlarge (1 x V100): no spot price"],
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("p3.2xlarge,8,61,V100,1,V100,us-east-1,a,-3.06,", "line 2: Price: must be more than 0"),
        ("p3.2xlarge,8,61,V100,1,V100,us-east-1,a,dear,", "line 2: Price: expected a number"),
        ("p3.2xlarge,8,61,V100,1,V100,us-east-1,a,,", "line 2: Price: is empty, for p3.2xlarge"),
        ("p3.2xlarge,8,61,V100,0.5,V100,us-east-1,a,3.06,", "AcceleratorCount: expected a whole"),
        ("p3.2xlarge,8,61,V100,1,V100,us-east-1,a,1e9,", "Price: must be at most"),
        ("m5.large,2,8,,,,us-east-1,a,0.1,", "no row has both an InstanceType and an Accel"),
    ],
)
def test_bad_rows_are_named(row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        choose(read_instances(written(tmp_path, row)))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "p3.2xlarge,V100,1,us-east-1",
        head="InstanceType,AcceleratorName,AcceleratorCount,Region",
    )
    with pytest.raises(InputError, match="column 'Price' is missing"):
        read_instances(path)


def test_unknown_types_get_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"did you mean 'p3\.2xlarge'"):
        choose(read_instances(), types=["p3.2xlarg"])
    with pytest.raises(InputError, match="unknown region"):
        choose(read_instances(), region="mars-1")


def test_the_shipped_rows_have_sources_and_dates() -> None:
    rows = read_instances()
    assert len(rows) >= 40
    kinds = {row.accelerator.partition("-")[0] for row in rows}
    assert {"V100", "P100", "T4", "A100", "H100", "A10G", "L4"} <= kinds
    for row in rows:
        assert row.source
        if row.date:
            assert dt.date.fromisoformat(row.date).year >= 2024
        else:
            assert "date of the price not known" in row.source
        assert row.network_bytes_per_s is not None
        assert row.price_usd_per_h is not None
        per_device = row.price_usd_per_h / row.devices
        assert 0.3 < per_device < 20.0, row.label
    assert len({(row.name, row.accelerator, row.region) for row in rows}) == len(rows)


def test_the_shipped_spot_prices_have_sources_and_dates_and_are_lower() -> None:
    spot = [row for row in read_instances() if row.spot_usd_per_h is not None]
    assert len(spot) == 24 + 8  # of AWS and Google
    for row in spot:
        assert row.price_usd_per_h is not None
        assert 0.1 * row.price_usd_per_h < (row.spot_usd_per_h or 0.0) < row.price_usd_per_h
        assert "at commit" in row.spot_source
        dt.date.fromisoformat(f"{row.spot_date}-01"[:10])  # of a day or a month
    rows = {row.name: row for row in spot}
    assert rows["p5.48xlarge"].spot_usd_per_h == 19.4933
    assert rows["a3-highgpu-8g"].spot_usd_per_h == 35.3957497


def test_a_spot_price_has_its_own_source_and_date(tmp_path: Path) -> None:
    head = f"{SKYPILOT},NetworkGbps,Source,Date,SpotSource,SpotDate"
    row = "a,8,61,V100,1,V100,x,,3.0,1.0,10,list,2026-01-02"
    rows = read_instances(written(tmp_path, f"{row},feed,2026-03", f"{row},,", head=head))
    dated = [(one.source, one.date) for one in (rows[0], rows[0].rented(spot=False))]
    assert dated == [("list", "2026-01-02")] * 2
    for found in (choose(rows[:1], spot=True)[0], choose_servers(rows[:1], ["a"], spot=True)):
        assert [(one.source, one.date) for one in found] == [("feed", "2026-03")]
    assert rows[1].rented(spot=True) == rows[1]  # no better known


def test_devices_exist_in_the_catalogue() -> None:
    known = set(catalogue.device_names())
    for row in read_instances():
        assert row.device is None or row.device in known
        own = row.device_bytes
        if row.accelerator.endswith("80GB"):
            assert own == 80 * 2.0**30


def test_an_instance_becomes_a_cluster() -> None:
    rows = {row.name: row for row in read_instances()}
    p4d = rows["p4d.24xlarge"].cluster()
    assert (p4d.devices_per_node, p4d.nics_per_node) == (8, 4)
    assert p4d.nic.bandwidth_bytes_per_s == 100 * 1.25e8
    assert p4d.flow_bytes_per_s is None
    assert p4d.intra_node is not None
    assert p4d.intra_node.bandwidth_bytes_per_s == 300e9
    p3 = rows["p3.16xlarge"].cluster()
    assert (p3.nic.bandwidth_bytes_per_s, p3.flow_bytes_per_s) == (25 * 1.25e8, 0.9415 * 1.25e9)
    assert rows["Standard_ND96asr_v4"].cluster().nic.latency_s == pytest.approx(4e-6)


@pytest.mark.parametrize("fidelity", ["coarse", "fine"])
def test_the_connection_cap_limits_an_instance(fidelity: str, tmp_path: Path) -> None:
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,Region,NetworkGbps,FlowGbps"
    path = written(
        tmp_path, "a,V100,8,1,x,100,10", "b,V100,8,1,x,100,", "c,V100,8,1,x,10,", head=head
    )
    capped, free, slow = (
        predict(
            make_job(model="vgg16", device="v100", arch="ring", workers=16, cluster=row.cluster()),
            fidelity=fidelity,  # type: ignore[arg-type]
        ).iteration_s
        for row in read_instances(path)
    )
    assert free < 0.8 * capped
    assert capped == pytest.approx(slow, rel=1e-9)


def test_canary_a_cap_above_the_link_changes_nothing() -> None:
    row = next(row for row in read_instances() if row.name == "p3.2xlarge")
    job = make_job(model="vgg16", device="v100", arch="ring", cluster=row.cluster(), workers=4)
    steps = evaluate(job, workers=[4], bandwidth_bytes_per_s=[1.25e9]).iteration_s
    faster = evaluate(job, workers=[4], bandwidth_bytes_per_s=[12.5e9]).iteration_s
    assert faster[0] > 0.9 * steps[0]  # the limit of one connection is the same
