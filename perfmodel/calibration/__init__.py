"""Turns measurements into inputs: the actual costs of servers, links, collectives and devices."""

from perfmodel.calibration.observations import Observation
from perfmodel.calibration.runs.fit import RunsFit, fit_runs
from perfmodel.calibration.runs.table import RunsTable, read_runs
from perfmodel.calibration.servers.asynchronous import (
    AsynchronousFit,
    Series,
    fit_asynchronous_servers,
)
from perfmodel.calibration.servers.costs import ServerCosts, measured_costs, with_server
from perfmodel.calibration.servers.synchronous import (
    Dnn,
    SynchronousFit,
    SynchronousRun,
    fit_synchronous_servers,
)
from perfmodel.calibration.statistics import Estimate, Fitted, Residuals

__all__ = [
    "AsynchronousFit",
    "Dnn",
    "Estimate",
    "Fitted",
    "Observation",
    "Residuals",
    "RunsFit",
    "RunsTable",
    "Series",
    "ServerCosts",
    "SynchronousFit",
    "SynchronousRun",
    "fit_asynchronous_servers",
    "fit_runs",
    "fit_synchronous_servers",
    "measured_costs",
    "read_runs",
    "with_server",
]
