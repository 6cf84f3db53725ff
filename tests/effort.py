"""How many rounds are simulated."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.engine.measures import Measures
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.graph.op_graph import OpGraph


def counted(graph: OpGraph, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[Measures, int]:
    """Measures of a graph, and the rounds that were simulated for them."""
    rounds = []
    leave = Simulation.__exit__

    def left(run: Simulation, *error: object) -> None:
        rounds.append(run.rounds)
        leave(run, *error)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "__exit__", left)
        found = simulate(graph, **how)
    return found, sum(rounds)
