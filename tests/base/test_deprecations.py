"""Names that go away say so until the version that removes them."""

from __future__ import annotations

import warnings

import pytest

import perfmodel
from perfmodel.base import deprecations
from perfmodel.base.deprecations import Deprecation, overdue


def test_nothing_is_overdue() -> None:
    assert overdue(perfmodel.__version__) == []


def test_old_names_work_and_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"predict_job": Deprecation("predict", "2.0")}
    monkeypatch.setattr(deprecations, "RENAMED", entries)
    with pytest.warns(FutureWarning, match=r"predict_job is deprecated and goes away in 2\.0"):
        found = perfmodel.predict_job
    assert found is perfmodel.predict
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert perfmodel.predict is found
    with pytest.raises(AttributeError, match="has no attribute 'predict_jobs'"):
        perfmodel.predict_jobs  # noqa: B018


@pytest.mark.parametrize(
    ("version", "late"), [("1.9.3", []), ("2.0.0", ["old"]), ("2.1.0", ["old"]), ("10.0", ["old"])]
)
def test_canary_an_overdue_name_is_noticed(
    monkeypatch: pytest.MonkeyPatch, version: str, late: list[str]
) -> None:
    monkeypatch.setattr(deprecations, "RENAMED", {"old": Deprecation("new", "2.0")})
    assert overdue(version) == late
