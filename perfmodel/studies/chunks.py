"""The jobs of a study in chunks, each predicted wherever an executor has it done."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.predicting.installation import fingerprint
from perfmodel.results.prediction import Prediction

Answer = Prediction | InputError
"""A prediction without its timeline, or why there is none."""

COARSE_JOBS, MOST_JOBS, LEAST_CHUNKS = 256, 16, 64
"""Jobs of a chunk where all are predicted by formulas; elsewhere at most so many, and fewer where
there would not be so many chunks."""


class Chunk:
    """Jobs that are predicted together, and how: the arguments of :func:`perfmodel.predict`.

    To other processes it goes as :class:`Sent`. Jobs are values: nothing else is read there.
    """

    def __init__(self, jobs: Sequence[Job], how: Mapping[str, Any]) -> None:
        self.jobs, self.how = tuple(jobs), dict(how)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sent, (fingerprint(), pickle.dumps((self.jobs, self.how)))

    def opened(self) -> Chunk:
        """The chunk itself."""
        return self


class Sent(NamedTuple):
    """A chunk on its way, which is read only by the installation that has written it."""

    client: str
    pickled: bytes

    def opened(self) -> Chunk:
        """The chunk.

        Raises
        ------
        InputError : this is another installation.
        """
        if fingerprint() != self.client:
            raise InputError(
                f"worker {platform.node()} has {fingerprint()}, and the client {self.client}: "
                "install the same on both"
            )
        return Chunk(*pickle.loads(self.pickled))


def predicted(sent: Chunk | Sent) -> list[Answer]:
    """The answer to each job of a chunk."""
    chunk = sent.opened()
    return [_answer(job, chunk.how) for job in chunk.jobs]


def _answer(job: Job, how: Mapping[str, Any]) -> Answer:
    try:
        # the timeline is the job, which the client has
        return msgspec.structs.replace(api.predict(job, **how), timeline=None)
    except InputError as error:
        return error


def slices(count: int, fidelity: str) -> Iterator[slice]:
    """The chunks of so many jobs, the same wherever they are predicted.

    >>> [each.stop for each in slices(300, "coarse")], len(list(slices(300, "fine")))
    ([256, 300], 75)
    """
    size = COARSE_JOBS if fidelity == "coarse" else min(MOST_JOBS, max(1, count // LEAST_CHUNKS))
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
