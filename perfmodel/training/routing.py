"""Exchanges of tokens with the devices of experts, in the actions of a stage.

All workers that have a part of the experts wait for each other. In an action that is one op all
exchanges are one transfer, and all waits for the devices with the largest loads one wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.graph.builder import GraphBuilder
from perfmodel.inputs.replica import RoutedLayers, Sums
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT
from perfmodel.training.labels import EXPERT_EXCHANGE, EXPERT_WAIT, IMBALANCE


class Routes(NamedTuple):
    """Exchanges with experts and waits for the busiest, after some ops of every worker.

    Attributes
    ----------
    sums, waits_s : of each op, (ops,).
    names : of the ops, (ops,).
    """

    sums: Sequence[Sums]
    waits_s: Sequence[float]
    names: Sequence[str]


class Exchanging(NamedTuple):
    """The workers of a stage that exchange tokens: ``together`` in a row, the ``workers``' numbers
    (workers,), and the links of their nodes, (workers, 1, links), if anything passes these."""

    together: int
    workers: Ids
    path: Ids | None

    def after(self, b: GraphBuilder, routes: Routes, ops: Ids) -> Ids:
        """Add exchanges and waits after ``ops`` (workers, ops); return what ends them."""
        ends = ops.copy()
        group, worker = self.workers[:, None], ("worker", None)
        which = np.array([k for k, one in enumerate(routes.sums) if one != Sums()], np.int64)
        if len(which):
            sums = [routes.sums[k] for k in which.tolist()]
            axis = ("result of", [routes.names[k] for k in which.tolist()])
            sent = b.ops(
                EXPERT_EXCHANGE,
                (len(ops), len(which)),
                seconds=[one.seconds for one in sums],
                bytes=[one.bytes for one in sums],
                rate_cap_bytes_per_s=[one.rate_bytes_per_s for one in sums],
                path=self.path,
                group=group,
                axes=(worker, axis),
            )
            self._meet(b, ends[:, which].copy(), sent, axis)
            ends[:, which] = sent
        which = np.flatnonzero(np.array(routes.waits_s))
        if len(which):
            waited = b.ops(
                EXPERT_WAIT,
                (len(ops), len(which)),
                seconds=[routes.waits_s[k] for k in which.tolist()],
                group=group,
                cause=IMBALANCE,
                axes=(worker, ("result of", [routes.names[k] for k in which.tolist()])),
            )
            b.edge(ends[:, which].copy(), waited)
            ends[:, which] = waited
        return ends

    def _meet(
        self, b: GraphBuilder, before: Ids, sent: Ids, axis: tuple[str, Sequence[str]]
    ) -> None:
        """Let exchanges wait for all workers that take part."""
        n, size = len(before), self.together
        if not 1 < size <= n or n % size:
            b.edge(before, sent)
            return
        ready = b.ops(
            "tokens ready",
            (n // size, before.shape[1]),
            group=self.workers[::size, None],
            cause="straggler",
            axes=(("experts", [str(k) for k in range(n // size)]), axis),
        )
        for k in range(size):
            b.edge(before[k::size], ready)
            b.edge(ready, sent[k::size])


def routes_of(routing: RoutedLayers, kind: int) -> tuple[Sequence[Sums], Sequence[float]]:
    """Return exchanges and waits of each layer in an action of a kind, (layers,); none for the
    gradients of weights."""
    if kind == FORWARD:
        return routing.forward, routing.forward_waits_s
    if kind in (BACKWARD, INPUT):
        return routing.backward, routing.backward_waits_s
    return (Sums(),) * len(routing.forward), (0.0,) * len(routing.forward)


def between_layers(
    b: GraphBuilder, exchanging: Exchanging, routes: Routes, made: Ids, done: Ids, *, forward: bool
) -> Ids:
    """Add exchanges and waits between the layers of an action, which begin with ``made`` and end
    with ``done`` (workers, layers); return what ends it, (workers,)."""
    ends = exchanging.after(b, routes, done)
    order = list(range(made.shape[1])) if forward else list(range(made.shape[1]))[::-1]
    for one, following in itertools.pairwise(order):
        if (ends[:, one] != done[:, one]).any():
            b.edge(ends[:, one].copy(), made[:, following])
    return ends[:, order[-1]]
