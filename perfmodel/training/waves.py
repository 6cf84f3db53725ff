"""The longest path of :mod:`perfmodel.training.spans` for many layouts at once, wave by wave.

Actions and transfers of a wave depend on those of waves before only, so that each wave is a few
operations on arrays, whatever the number of stages.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.inputs.replica import Replica
from perfmodel.training.spans import Paths, Spans, paths_of


class Nodes(NamedTuple):
    """Actions or transfers in the order of waves: the position of each in its columns, (nodes,),
    and the first of each wave, (waves + 1,)."""

    order: Ids
    begins: list[int]


class Waves(NamedTuple):
    """What each action and each transfer waits for, in the order of waves; NONE for nothing.

    Attributes
    ----------
    actions, transfers : those of a wave of transfers come before its actions.
    last, waits : of each action, the one before it on its rank, (actions,), and the transfers of
        its inputs and those that must have ended, (actions, most of any).
    leaves, posted, ahead : of each transfer, the action after which its data are sent, the one that
        ends before it is asked for, and the transfer before it on its connection, (transfers,).
    """

    actions: Nodes
    transfers: Nodes
    last: Ids
    waits: Ids
    leaves: Ids
    posted: Ids
    ahead: Ids


@functools.lru_cache(maxsize=64)
def waves_of(replica: Replica, micro_batches: int) -> Waves:
    """Return the waves of a replica's schedule, which has a flush, and whose ranks do one
    action at a time.

    Raises
    ------
    InputError : see :func:`perfmodel.training.spans.paths_of`.
    """
    return _waves(paths_of(replica, micro_batches))


def _waves(paths: Paths) -> Waves:
    """Return the waves of paths. As in :func:`perfmodel.training.spans.spans`, a transfer whose
    predecessor on the connection is needed only later does not wait for it."""
    leaves, posted = paths.handing.leaves.tolist(), paths.handing.posted.tolist()
    ahead, count = list(paths.ahead), len(paths.schedule)
    of_action = [-1] * (count + 1)  # the wave of each; the last is that of none
    of_transfer = [-1] * (len(leaves) + 1)
    most = 0
    for action, past, inputs, held, _ in paths.steps:
        wave = of_action[past] + 1
        for one in inputs + held:
            if of_transfer[one] < 0:
                before = ahead[one]
                if of_transfer[before] < 0:
                    before = ahead[one] = NONE
                waits = of_action[leaves[one]], of_action[posted[one]], of_transfer[before]
                of_transfer[one] = max(waits) + 1
            wave = max(wave, of_transfer[one])
        of_action[action] = wave
        most = max(most, len(inputs) + len(held))
    many = max(of_action) + 1
    actions, action_at = _nodes(of_action, many)
    transfers, transfer_at = _nodes(of_transfer, many)
    last = np.full(count, NONE)
    waited = np.full((count, most), NONE)
    for action, past, inputs, held, _ in paths.steps:
        last[action] = past
        if inputs or held:
            waited[action, : len(inputs) + len(held)] = inputs + held
    return Waves(
        actions,
        transfers,
        last=action_at[last[actions.order]],
        waits=transfer_at[waited[actions.order]],
        leaves=action_at[paths.handing.leaves[transfers.order]],
        posted=action_at[paths.handing.posted[transfers.order]],
        ahead=transfer_at[np.array(ahead, np.int64)[transfers.order]],
    )


def _nodes(wave: list[int], waves: int) -> tuple[Nodes, Ids]:
    """Return nodes by their waves, the last of which is none; and the position of each among them,
    then NONE."""
    of_node = np.array(wave[:-1], np.int64)
    order = np.argsort(of_node, kind="stable")
    position = np.full(len(wave), NONE)
    position[order] = np.arange(len(order))
    begins = np.searchsorted(of_node[order], np.arange(waves + 1))
    return Nodes(order, begins.tolist()), position


def spans_of(waves: Waves, seconds: Floats, send_s: Floats, latency_s: Floats) -> Spans:
    """Return begin and end of each action, as :func:`perfmodel.training.spans.spans`.

    Parameters
    ----------
    seconds : of each action, (actions, layouts).
    send_s, latency_s : of each transfer, (transfers, layouts), and what of it the connection is
        free in.
    """
    actions, transfers = waves.actions, waves.transfers
    many = seconds.shape[1]
    took, sent = seconds[actions.order], send_s[transfers.order]
    begin, end = np.zeros_like(seconds), np.zeros((len(seconds) + 1, many))
    arrived, free = np.zeros((len(send_s) + 1, many)), np.zeros((len(send_s) + 1, many))
    free[:-1] = latency_s[transfers.order]  # the last of each is that of none
    for wave in range(len(actions.begins) - 1):
        some = slice(transfers.begins[wave], transfers.begins[wave + 1])
        if some.start < some.stop:
            before = waves.ahead[some]
            asked = np.maximum(end[waves.leaves[some]], end[waves.posted[some]])
            arrived[some] = np.maximum(asked, arrived[before] - free[before]) + sent[some]
        some = slice(actions.begins[wave], actions.begins[wave + 1])
        starts = end[waves.last[some]]
        for column in waves.waits[some].T:
            starts = np.maximum(starts, arrived[column])
        begin[some] = starts
        end[some] = starts + took[some]
    result = Spans(np.empty_like(begin), np.empty_like(begin))
    result.begin[actions.order], result.end[actions.order] = begin, end[:-1]
    return result
