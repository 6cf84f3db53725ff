"""What the ops of DiLoCo mean for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.architectures.diloco.options import Options, fragments_of
from perfmodel.inputs.job import Job

if TYPE_CHECKING:
    from perfmodel.architectures.parts.recorder import Meaning, Recorder


def meaning(job: Job) -> tuple[Recorder, Meaning]:
    r"""Own steps; the outer step of a fragment as its average is there; and its merge as the next
    step begins.

    With the centre :math:`c_k`, the mean :math:`m_k` of the workers' models as they were sent, and
    :math:`\\eta`, :math:`\\mu` of the outer optimizer, Nesterov's step is
    :math:`c_{k+1} = z_{k+1} + \\mu (z_{k+1} - z_k)` with :math:`z_{k+1} = c_k - \\eta (c_k - m_k)`,
    which is a sum of the last two centres and the last two means.
    """
    from perfmodel.architectures.parts.recorder import Mix, Recorder
    from perfmodel.results.schedule import CENTRE

    options, n = Options.of(job), job.workers
    share = fragments_of(job).share
    recorder = Recorder(n, (share * job.workload.gradient_bytes).tolist(), central=False)
    rate, momentum = options.outer_learning_rate, options.outer_momentum
    count = len(share)
    sent = [[0] * n for _ in range(count)]  # versions of the models in the next average
    before: list[list[int] | None] = [None] * count  # and in the last one
    arrived: list[list[int]] = [[] for _ in range(n)]  # fragments that each has not merged yet

    def update(worker: int, _drawn: int) -> None:
        recorder.apply(worker, (worker,))

    def send(index: int, _drawn: int) -> None:
        worker, k = divmod(index, count)
        sent[k][worker] = recorder.version(worker, k)

    def average(k: int, _drawn: int) -> None:
        old = before[k]
        for worker in range(n):
            now = Mix(worker, sent[k][worker], (1.0 + momentum) * rate / n)
            recorder.part(CENTRE, now, worker, k)
            if old is not None and momentum:
                recorder.part(CENTRE, Mix(worker, old[worker], -momentum * rate / n), worker, k)
        version = recorder.version(CENTRE, k)
        if momentum:  # without an average before, the last two centres are one
            weight = -momentum * (1.0 - rate) if old is not None else -momentum
            recorder.part(CENTRE, Mix(CENTRE, max(version - 1, 0), weight), 0, k)
        recorder.together((CENTRE,), k)
        before[k] = list(sent[k])
        for waiting in arrived:
            waiting.append(k)

    def gradient(worker: int, drawn: int) -> None:
        for k in arrived[worker]:
            version = recorder.version(CENTRE, k)
            recorder.part(worker, Mix(CENTRE, version, 1.0 - options.kept_weight), worker, k)
            recorder.together((worker,), k)
        arrived[worker].clear()
        recorder.gradient(worker, drawn)

    return recorder, {
        "update": update,
        "pseudo-gradient": send,
        "average": average,
        "gradient": gradient,
    }
