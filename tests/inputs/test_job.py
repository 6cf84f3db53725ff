"""Jobs as values: equality and hashes."""

from __future__ import annotations

import msgspec

from perfmodel import make_job


def test_jobs_are_equal_whatever_arguments_made_them() -> None:
    made = make_job(model="resnet18", arch="ring", workers=4)
    copy = msgspec.structs.replace(made, given=None)
    assert made == copy
    assert hash(made) == hash(copy)
    assert len({made, copy}) == 1


def test_jobs_that_differ_in_one_field_are_unequal() -> None:
    made = make_job(model="resnet18", arch="ring", workers=4)
    others = [
        msgspec.structs.replace(made, workers=5),
        msgspec.structs.replace(made, seed=1),
        msgspec.structs.replace(made, flat=made),
        make_job(model="resnet18", arch="ps", workers=4),
    ]
    assert all(made != other for other in others)
    assert made != made.given
