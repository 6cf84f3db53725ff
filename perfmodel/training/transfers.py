"""When stages of a pipeline post what they receive, and wait for what they send.

A transfer moves bytes once both ends have come to it. Which actions stand before it depends on the
framework:

- *torch*: with one chunk per stage, an input is asked for right before it is needed, and a stage
  waits for a transfer it has begun before it changes direction, from forward to backward or back
  (``Schedule1F1B`` and ``ScheduleGPipe`` of torch.distributed.pipelining). With several chunks, an
  input is asked for at the place in the receiver's order that it has reached when the order is laid
  out (``_add_send_recv``). The second pass of a pair begins after the first, once its own input is
  there, and the results of both leave after it (``OVERLAP_F_B``).
- *gloo*: the same; what a stage asks for is behind the data that it sends to the same stage before,
  and it waits only until it may send
  (``gloo::transport::tcp::Pair``: one connection, on which notices and data take turns).
- *blocking*: an input is asked for right before it is needed, and every transfer ends before its
  sender goes on (Megatron-LM, ``forward_backward_pipelining_without_interleaving``).
- *ahead*: inputs are asked for early enough, and nobody waits for what it sends (Megatron-LM with
  ``overlap_p2p_comm``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import NONE, Ids
from perfmodel.inputs.replica import Transfers
from perfmodel.pipelines.actions import FORWARD, Schedule
from perfmodel.pipelines.facts import transfers as sent
from perfmodel.pipelines.rounds import Round
from perfmodel.replicas.stage_work import together


class Handing(NamedTuple):
    """The transfers of a round, each (transfers,): actions as positions in its schedule's columns.

    Attributes
    ----------
    source, target : the action that makes the data, and the one that needs them.
    leaves : the action after which the data are sent: the source, or the second one of its pair.
    posted : the receiver's action that ends before it asks for the data, in the round of the
        source; NONE for none.
    held : the sender's action that begins after the transfer has ended; NONE for none.
    lag, held_lag : rounds from a source to its target, and to what it holds.
    """

    source: Ids
    target: Ids
    leaves: Ids
    posted: Ids
    held: Ids
    lag: Ids
    held_lag: Ids


def handing_of(repeated: Round, transfers: Transfers) -> Handing:
    """Return the transfers between different ranks, in the order of the schedule's columns."""
    schedule = repeated.schedule
    found = sent(schedule)
    source, target, forward = found.produced, found.consumed, schedule.kind == FORWARD
    lag, none = repeated.lag(source, target), np.full(len(source), NONE)
    held_lag = np.zeros_like(lag)
    joined = np.append(together(schedule, transfers), False)
    opens = target - joined[target - 1]  # two actions that run together begin and end together
    ends = source + schedule.joined[source]
    first, last = np.isin(opens, schedule.begins), np.isin(ends + 1, schedule.begins)
    before, after = np.where(first, NONE, opens - 1), np.where(last, NONE, ends + 1)
    if schedule.updates.kind != "flush":  # what opens a round follows what ends the one before
        before = np.where(first, schedule.begins[schedule.rank[target] + 1] - 1, before)
        after = np.where(last, schedule.begins[schedule.rank[source]], after)
        held_lag = last.astype(np.int64)
    if transfers == "ahead":
        return Handing(source, target, ends, none, none, lag, held_lag)
    if transfers == "blocking":
        return Handing(source, target, ends, before, after, lag, held_lag)
    if schedule.splits or schedule.stages > schedule.ranks:
        posted = np.minimum(_laid_out(schedule, source, target), before)
        return Handing(source, target, ends, posted, none, lag, held_lag)
    turns = (after != NONE) & (forward[source] != forward[np.where(after == NONE, 0, after)])
    held = np.where(turns, after, NONE)
    return Handing(source, target, ends, before, held, lag, held_lag)


def _laid_out(schedule: Schedule, source: Ids, target: Ids) -> Ids:
    """Return after which action of its rank each input is asked for, (transfers,).

    Ranks take turns, an action or a pair each, if they have what it needs; as an action is laid
    out, its result is asked for at the end of what has been laid out at the receiver.
    """
    rank, begins = schedule.rank.tolist(), schedule.begins.tolist()
    needs: dict[int, int] = dict(zip(target.tolist(), source.tolist(), strict=True))
    gives: dict[int, int] = {before: k for k, before in enumerate(source.tolist())}
    receiver = [rank[after] for after in target.tolist()]
    posted = [NONE] * len(source)
    at, done = begins[:-1].copy(), set[int]()
    joined = schedule.joined.tolist()
    while len(done) < len(rank):
        before = len(done)
        for one in range(schedule.ranks):
            if at[one] == begins[one + 1]:
                continue
            step = range(at[one], at[one] + 1 + joined[at[one]])
            if any(action in needs and needs[action] not in done for action in step):
                continue
            at[one] = step.stop
            done.update(step)
            for action in step:
                if action in gives:
                    other = receiver[gives[action]]
                    posted[gives[action]] = at[other] - 1 if at[other] > begins[other] else NONE
        if len(done) == before:
            break
    return np.array(posted, np.int64)
