"""Turns measurements into inputs: the actual costs of servers, links, collectives and devices."""

from perfmodel.calibration.parameters import Observation, Parameter
from perfmodel.calibration.runs.fit import RunsFit, fit_runs
from perfmodel.calibration.runs.table import RunsTable, read_runs
from perfmodel.calibration.servers.costs import ServerCosts, measured_costs, with_server
from perfmodel.calibration.servers.fit import fit_servers, serve_others
from perfmodel.calibration.servers.results import ServedWorkload, ServersFit
from perfmodel.calibration.statistics import Estimate, Fitted, Residuals

__all__ = [
    "Estimate",
    "Fitted",
    "Observation",
    "Parameter",
    "Residuals",
    "RunsFit",
    "RunsTable",
    "ServedWorkload",
    "ServerCosts",
    "ServersFit",
    "fit_runs",
    "fit_servers",
    "measured_costs",
    "read_runs",
    "serve_others",
    "with_server",
]
