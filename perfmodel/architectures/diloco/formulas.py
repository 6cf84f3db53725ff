"""The coarse model of DiLoCo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from perfmodel.architectures.diloco.options import Options, fragments_of
from perfmodel.base.quantities import Quantity, ceiling, is_symbol, maximum, minimum, where
from perfmodel.communication.formulas import Formulas, exact_formula
from perfmodel.inputs.job import Job
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities, quantities_of
from perfmodel.training.workers import alike, left_out, plain


def phases(job: Job, q: Quantities) -> Phases:
    r"""Return computation, and a step's share of what the exchanges of a period add to it.

    With a step time :math:`c`, the exchange :math:`T_p` of a fragment is exposed for
    :math:`\max(0, T_p - h)`. The hidden part :math:`h` is :math:`\tau c` plus, with
    *during_backward*, a backward pass with its optimizer step, but no more than the :math:`H c / P`
    from one exchange to the next.
    """
    options = Options.of(job)
    period = options.period
    alone = q.workers <= 1
    between = period / options.fragments
    late = q.slowest(steps=period // options.fragments)
    step = q.forward_s + q.backward_s + q.optimizer_s
    extra = _device_s(options, q)
    hidden = options.overlap_steps * step * late
    if options.during_backward:
        hidden = hidden + (q.backward_s + q.optimizer_s) * late
    hidden = minimum(hidden, between * (step * late + extra / period))
    seconds, use = (_through_server if options.by_server else _all_reduced)(job, q)
    exposed: Quantity = 0.0
    busy: dict[str, Quantity] = {}
    for share, times in _shares(job, q):
        exposed = exposed + times * maximum(seconds(share) - hidden, 0.0)
        for name, seconds_s in use(share).items():
            busy[name] = busy.get(name, 0.0) + seconds_s * times / period
    compute = step + where(alone, 0.0, extra / period)
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "wait for the slowest": Phase(compute * (late - 1.0), "straggler"),
            "exchange": Phase(where(alone, 0.0, exposed / period), "network"),
        },
        busy_s={name: where(alone, 0.0, seconds_s) for name, seconds_s in busy.items()},
        updates=1.0 / q.workers,
    )


Seconds = Callable[[float], Quantity]
"""Maps a share of the parameters to the time of its exchange."""

Busy = Callable[[float], dict[str, Quantity]]
"""Maps a share of the parameters to the busy time of each resource in its exchange."""


def _shares(job: Job, q: Quantities) -> Iterable[tuple[float, int]]:
    """Return the fragments' shares of the parameters, and how many fragments have each; equal
    shares for symbols."""
    options = Options.of(job)
    if is_symbol(q.workers):
        return [(1 / options.fragments, options.fragments)]
    return Counter(fragments_of(job).share.tolist()).items()


def _device_s(options: Options, q: Quantities) -> Quantity:
    """Return a device's time per period to encode, and for the outer step if workers make it."""
    outer_s = 0.0 if options.by_server else options.outer_s
    encode_s = options.encode_per_byte_s * q.gradient_bytes if options.encode_per_byte_s else 0.0
    return (encode_s + outer_s) * q.slowdown


def _all_reduced(job: Job, q: Quantities) -> tuple[Seconds, Busy]:
    """Return the exchange by an all-reduce."""
    options = Options.of(job)
    rate, count = Formulas(job, q).all_reduce(options), options.messages
    one = q.gradient_bytes * options.sent_share / count
    return (
        lambda share: count * rate.seconds(one * share),
        lambda share: rate.busy(one * share).times(count).by_link(job),
    )


def _through_server(job: Job, q: Quantities) -> tuple[Seconds, Busy]:
    """Return the exchange through a server: all workers push, it updates, then all pull."""
    options = Options.of(job)
    whole = q.gradient_bytes * options.sent_share
    at_server_s = q.workers * whole / q.server_bandwidth_bytes_per_s
    at_worker_s = whole * q.on_a_nic(q.fullest) / q.bandwidth_bytes_per_s
    at_core_s = q.workers * whole / q.core_with_servers_bytes_per_s
    moved_s = maximum(at_server_s, at_worker_s, at_core_s, whole / q.flow_bytes_per_s)
    update_s = q.update_per_tensor_s * q.tensors + q.update_per_byte_s * q.gradient_bytes
    work_s = ceiling(q.workers / q.update_threads) * update_s + options.outer_s
    served_s = q.workers * update_s / q.update_threads + options.outer_s

    def seconds(share: float) -> Quantity:
        return 2.0 * (q.latency_s + share * moved_s) + share * work_s

    def use(share: float) -> dict[str, Quantity]:
        return {
            "link out of the servers": share * at_server_s,
            "link into the servers": share * at_server_s,
            "servers": share * served_s,
        }

    return seconds, use


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation."""
    options = Options.of(job)
    if job.workload.data_loading_s or not alike(job) or leaves_out(job) is not None:
        return False
    if options.by_server:
        return plain(job) and _apart(job)
    return exact_formula(job, options) and _apart(job)


def _apart(job: Job) -> bool:
    """Return whether each exchange ends before the next begins, and nothing else of the exchange
    takes time on a device that is computing."""
    options = Options.of(job)
    hidden = options.overlap_steps + options.during_backward
    if hidden and (options.encode_per_byte_s or options.outer_s):
        return False
    return hidden <= options.period // options.fragments


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    if not Options.of(job).by_server:
        return left_out(job, core=False, connections=False)
    beyond = {
        "servers colocated with workers": job.cluster.server.placement == "colocated",
        "exchanges through a server that overlap each other": _overlapping(job),
    }
    return left_out(job, beyond, connections=False)


def _overlapping(job: Job) -> bool:
    """Return whether workers push a fragment before they have pulled the preceding one.

    This takes a step that begins without the preceding fragment and ends with a push, and an
    exchange that is longer than the steps in between. The two exchanges then share links and update
    threads; by an all-reduce they would take turns.
    """
    options = Options.of(job)
    between = options.period // options.fragments
    if job.workers == 1 or options.overlap_steps < between:
        return False
    q = quantities_of(job)
    seconds, _ = _through_server(job, q)
    step_s = q.forward_s + q.backward_s + q.optimizer_s
    return bool(seconds(float(fragments_of(job).share.max())) > between * step_s)
