"""DiLoCo: workers train independently, and an outer optimizer combines their progress."""

from __future__ import annotations

from perfmodel.architectures.base import Architecture, Coarse, Traffic, ring_traffic, uniform_age
from perfmodel.architectures.diloco.formulas import exact, leaves_out, phases
from perfmodel.architectures.diloco.graph import build
from perfmodel.architectures.diloco.options import Options, fragments_of
from perfmodel.architectures.diloco.recording import meaning
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.units import show
from perfmodel.communication.collectives import measured_notes
from perfmodel.communication.network import SERVER_ASSUMPTION
from perfmodel.communication.reduction import REDUCTION_ASSUMPTIONS
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.results.memory import Footprint
from perfmodel.results.prediction import ModelAge


def _fold(job: Job) -> OpGraph | None:
    return None if Options.of(job).by_server else build(job, fold=True)


def model_age(job: Job) -> ModelAge | None:
    """Return the steps since the last exchange of a fragment began: uniform on 0 to period - 1 if
    workers wait for it, and ``overlap_steps`` more if they compute meanwhile."""
    if job.workers == 1:
        return None
    options = Options.of(job)
    return uniform_age(options.period, options.overlap_steps)


def notes(job: Job) -> tuple[str, ...]:
    """Return notes on the mean rate at which a worker sends, the rate that hides an exchange, and
    measured collectives that the job extrapolates."""
    options = Options.of(job)
    if job.workers == 1:
        return ()
    cut, step_s = fragments_of(job), job.device_work.compute_s
    sizes = cut.share * job.workload.gradient_bytes * options.sent_share / options.messages
    remarks: tuple[str, ...] = ()
    if (moved := traffic(job)) is not None and step_s > 0.0:
        mean = show(moved.sent / step_s, "bytes_per_s")
        remarks = (f"a worker sends {mean} on average if it never waits for an exchange",)
        if hidden_s := _hidden_s(job):
            peak = moved.sent * options.period * float(cut.share.max()) / hidden_s
            remarks = (
                f"{remarks[0]}, and {show(peak, 'bytes_per_s')} during a fragment's exchange",
            )
    if not options.by_server and options.by_measurements:
        remarks += measured_notes(job, {"all_reduce": sizes})
    return remarks


def _hidden_s(job: Job) -> float:
    """Return how long a worker computes while it exchanges a fragment."""
    options, work = Options.of(job), job.device_work
    during = work.backward_s + work.optimizer_s if options.during_backward else 0.0
    return options.overlap_steps * work.compute_s + during


def memory(job: Job) -> Parts:
    """Return the memory of a worker and of a server.

    A worker keeps a replica, the parameters since the last exchange, of which the pseudo-gradient
    is the difference, and the largest fragment in flight, as it is sent. The outer momentum, and
    also the parameters, are on the server if there is one, with a receive buffer for a fragment of
    each worker. A single worker makes no outer step.
    """
    options, model = Options.of(job), job.workload.gradient_bytes
    worker = replica_of(job.workload)
    fragment = float(fragments_of(job).share.max()) * model * options.sent_share
    if options.by_server:
        worker = with_copies(worker, outer_parameters=model, fragment_in_flight=fragment)
        received = job.workers * fragment
        server = with_copies(
            Footprint(), outer_parameters=model, outer_momentum=model, receive_buffers=received
        )
        return Parts(worker, server)
    if job.workers > 1:
        worker = with_copies(
            worker, outer_parameters=model, outer_momentum=model, fragment_in_flight=fragment
        )
    return Parts(worker)


def traffic(job: Job) -> Traffic | None:
    """Return a worker's bytes on a ring, or to and from a server, in one of ``period`` steps."""
    options, n = Options.of(job), job.workers
    share = options.exchanged_share * options.sent_share * job.workload.gradient_bytes
    if options.by_server:
        return Traffic(share, share, n * share, n * share)
    return ring_traffic(n, share, options.algorithm)


ARCHITECTURE = Architecture(
    name="diloco",
    title="DiLoCo (local SGD with an outer optimizer; streaming in fragments)",
    options=Options,
    build=build,
    memory=memory,
    assumptions=(
        *REDUCTION_ASSUMPTIONS,
        "pseudo-gradients have as many elements as gradients, with 32 bits each before encoding",
        "all workers exchange a fragment at the same time, and only one fragment at a time",
        "fragments differ by at most one in their number of layers with parameters; a model with "
        "fewer such layers than fragments is cut into equal parts",
        "a worker waits for a fragment before the step that follows overlap_steps; a fragment that "
        "arrives earlier is merged before the next step begins",
        "between two exchanges workers do not wait for each other",
        "a single worker makes no outer step",
        SERVER_ASSUMPTION,
    ),
    source="Douillard et al., 2023, arXiv 2311.08105; Douillard et al., 2025, arXiv 2501.18512; "
    "Jaghouar et al., 2024, arXiv 2407.07852 and 2412.01152",
    fold=_fold,
    notes=notes,
    model_age=model_age,
    variants=(
        {"period": 1, "outer_learning_rate": 1.0, "outer_momentum": 0.0},
        {"period": 2, "algorithm": "ring", "sent_as": "bf16", "messages": 3,
         "encode_per_byte_s": 0.001, "outer_s": 0.5},
        {"period": 4, "fragments": 2, "pattern": "strided", "overlap_steps": 1,
         "algorithm": "tree", "sent_as": "fp4", "local_weight": 0.25},
        {"period": 3, "during_backward": True, "algorithm": "double_tree", "chunks": 2,
         "sent_as": "int8"},
        {"period": 3, "fragments": 3, "overlap_steps": 2, "outer_s": 0.25,
         "algorithm": "hierarchical", "reduce_per_byte_s": 0.001},
        {"period": 4, "algorithm": "node_tree"},
        {"period": 2, "fragments": 2, "exchange": "server", "outer_s": 0.5,
         "algorithm": "halving_doubling"},
    ),
    traffic=traffic,
    meaning=meaning,
    slices=lambda job: (fragments_of(job).share * job.workload.gradient_bytes).tolist(),
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)  # fmt: skip
