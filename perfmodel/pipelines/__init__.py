"""Pipeline schedules as data: their orders, checks, times and pictures."""

from perfmodel.pipelines.actions import Action, Schedule, Updates
from perfmodel.pipelines.checks import check
from perfmodel.pipelines.drawing import draw
from perfmodel.pipelines.facts import (
    Transfers,
    in_flight,
    in_flight_by_stage,
    staleness,
    stored_versions,
    transfers,
    versions,
)
from perfmodel.pipelines.files import read, text, write
from perfmodel.pipelines.registry import canonical, names, schedule
from perfmodel.pipelines.timeline import Timeline, makespans, timeline

__all__ = [
    "Action",
    "Schedule",
    "Timeline",
    "Transfers",
    "Updates",
    "canonical",
    "check",
    "draw",
    "in_flight",
    "in_flight_by_stage",
    "makespans",
    "names",
    "read",
    "schedule",
    "staleness",
    "stored_versions",
    "text",
    "timeline",
    "transfers",
    "versions",
    "write",
]
