"""Predictions of about 500 recorded jobs have not changed, to the last digit."""

from __future__ import annotations

import pytest

from perfmodel import predict
from tests import corpus
from tests.settings import thinned

PARTS = 40
TIMES, DIGITS = 1.0 + 1e-15, 1e-9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", thinned(range(PARTS), 28))
def test_predictions_have_not_changed(part: int) -> None:
    exactly = corpus.same_arithmetic()
    moved = []
    for number, entry in list(enumerate(corpus.read()))[part::PARTS]:
        now = corpus.predicted(entry)
        assert now.keys() == entry.found.keys()
        for route, (digest, samples_per_s) in entry.found.items():
            off = now[route][1] / samples_per_s - 1.0
            if abs(off) > DIGITS or (exactly and now[route][0] != digest):
                moved.append(f"job {number} {route}: throughput {off:+.3g}")
    assert not moved, "python -m tests.corpus records the new predictions:\n" + "\n".join(moved)


def test_the_corpus_has_all_options_of_all_architectures() -> None:
    from perfmodel.architectures.registry import all_architectures, find

    seen = {(find(e.job["arch"])[0].name, o) for e in corpus.read() for o in e.job["options"]}
    for architecture in all_architectures():
        for option in architecture.options.__struct_fields__:
            preset = any(option in given for given in architecture.aliases.values())
            assert preset or (architecture.name, option) in seen


def test_canary_a_change_of_the_last_digit_is_noticed() -> None:
    answer = predict(corpus.job_of(corpus.read()[0].job)).to_dict()
    moved = {**answer, "iteration_s": answer["iteration_s"] * TIMES}
    assert moved["iteration_s"] != answer["iteration_s"]
    assert corpus.digest(moved) != corpus.digest(answer)


def test_help_and_mistakes_record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "PATH", corpus.PATH.with_name("absent"))
    for arguments, code in ((["--help"], 0), (["--drew"], 2), (["7"], 2)):
        with pytest.raises(SystemExit) as ended:
            corpus.main(arguments)
        assert ended.value.code == code
    assert not corpus.PATH.exists()
