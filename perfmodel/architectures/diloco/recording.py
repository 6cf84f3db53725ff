"""The meaning of DiLoCo's ops for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfmodel.architectures.diloco.options import Options
from perfmodel.inputs.job import Job

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record own steps, and the merge of a fragment: into all models once its average has arrived
    or, if workers compute meanwhile, into each model as its next step begins."""
    options, n = Options.of(job), job.workers
    fragments = range(options.fragments)
    outer = [_Outer(options, recorder, k) for k in fragments]
    waits = options.kept_weight == 0.0
    arrived: list[list[int]] = [[] for _ in range(n)]  # fragments that each has yet to merge

    def update(worker: int, _drawn: int) -> None:
        for k in fragments:
            recorder.apply(worker, (worker,), slice=k)

    def send(index: int, _drawn: int) -> None:
        worker, k = divmod(index, len(fragments))
        outer[k].send(worker)

    def average(k: int, _drawn: int) -> None:
        outer[k].average()
        if waits:
            outer[k].merge(range(n))
        else:
            for late in arrived:
                late.append(k)

    def gradient(worker: int, drawn: int) -> None:
        for k in arrived[worker]:
            outer[k].merge((worker,))
        arrived[worker].clear()
        recorder.gradient(worker, drawn)

    handlers = {"update": update, "pseudo-gradient": send, "average": average}
    return {**handlers, "gradient": gradient}


class _Outer:
    r"""The outer optimizer of a fragment, expressed in versions of the workers' models.

    With the outer parameters :math:`c_k`, the mean :math:`m_k` of the models as they were sent, the
    learning rate :math:`\eta` and the momentum :math:`\mu`, a step of SGD with Nesterov's momentum
    is :math:`c_{k+1} = z_{k+1} + \mu (z_{k+1} - z_k)` with :math:`z_0 = c_0` and
    :math:`z_{k+1} = c_k - \eta (c_k - m_k)`. A merge turns a model :math:`w` into
    :math:`w' = a w + (1 - a) c_k`, so :math:`c_k = (w' - a w) / (1 - a)`.
    """

    def __init__(self, options: Options, recorder: Recorder, slice: int) -> None:
        self._options, self._recorder, self._slice = options, recorder, slice
        n = recorder.workers
        self._sending = [0] * n
        self._sent: list[list[int]] = []  # versions in the last two averages
        self._merged: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        """Versions of each model before and after its last two merges."""

    def send(self, worker: int) -> None:
        """Note that a worker sends its model."""
        self._sending[worker] = self._recorder.version(worker, self._slice)

    def average(self) -> None:
        """Note that all models that were sent are averaged."""
        self._sent = [*self._sent[-1:], list(self._sending)]

    def merge(self, workers: Sequence[int]) -> None:
        """Let workers take in the outer parameters after the last average, together."""
        recorder, k = self._recorder, self._slice
        kept = self._options.kept_weight
        versions = [recorder.version(worker, k) for worker in workers]
        for worker in workers:
            for other, version, weight in self._parts(worker):
                recorder.part(worker, (other, version, (1.0 - kept) * weight), worker, k)
        recorder.together(workers, k)
        for worker, version in zip(workers, versions, strict=True):
            new = (version, recorder.version(worker, k))
            self._merged[worker] = [*self._merged[worker][-1:], new]

    def _parts(self, worker: int) -> Iterator[tuple[int, int, float]]:
        """Yield models, versions and weights whose sum is the outer parameters."""
        rate, momentum = self._options.outer_learning_rate, self._options.outer_momentum
        terms = [(1.0 + momentum, self._sent[-1], self._merged[worker][-1:])]
        if len(self._sent) > 1:
            terms.append((-momentum, self._sent[0], self._merged[worker][:-1]))
        elif momentum:
            yield worker, 0, -momentum
        for weight, sent, merged in terms:
            for other, version in enumerate(sent):
                yield from _some(other, version, weight * rate / len(sent))
            yield from self._outer_before(worker, merged, weight * (1.0 - rate))

    def _outer_before(
        self, worker: int, merged: list[tuple[int, int]], weight: float
    ) -> Iterator[tuple[int, int, float]]:
        """Yield the outer parameters that a worker has ``merged``; initially those at the start."""
        if not merged:
            yield from _some(worker, 0, weight)
            return
        kept = self._options.kept_weight
        before, after = merged[0]
        yield from _some(worker, after, weight / (1.0 - kept))
        yield from _some(worker, before, -weight * kept / (1.0 - kept))


def _some(model: int, version: int, weight: float) -> Iterator[tuple[int, int, float]]:
    """Yield a part unless its weight is zero."""
    if weight:
        yield model, version, weight
