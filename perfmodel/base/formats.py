"""Recognises files of other programs by their content, and says what to do with them.

Readers use it where they cannot read a file: :func:`refusal` makes the error. To add a format, add
a row to :data:`BINARY` or :data:`TEXT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from perfmodel.base.errors import InputError
from perfmodel.base.units import show

HEAD_BYTES = 2**16
"""Bytes at the beginning of a file that it is recognised by."""

MOST_BYTES = 2**22
"""Bytes of a file in which figures are looked for."""

OWN = "perfmodel"
"""Name of the format of perfmodel's own files."""

TRACE = "trace"
CHAKRA_JSON = "chakra-json"
CHAKRA = "chakra"
NCCL_TESTS = "nccl-tests"
IPERF3 = "iperf3"
OSU = "osu"
PERFTEST = "perftest"
DEEPSPEED = "deepspeed"
GZIP = "gzip"
TOPOLOGY = "topology"
HOSTFILE, HOSTS, SLURM, COMMAND = "hostfile", "hosts", "slurm", "command"
DEEPSPEED_JSON, ACCELERATE, LIGHTNING = "deepspeed-json", "accelerate", "lightning"
NANOTRON, TORCHTITAN, MEGATRON = "nanotron", "torchtitan", "megatron"
HOROVOD, MLPERF, NCCL_LOG = "horovod-timeline", "mlperf", "nccl-log"

AS_JOB = "give it as --job, or to perfmodel diagnose"
"""What to do with files that say how a job was launched."""

RECORD = "record a trace with torch.profiler and give it to perfmodel import"


class Format(NamedTuple):
    """A format: its name here, what a file of it is, and what to do with the file."""

    name: str
    what: str
    advice: str


class _Text(NamedTuple):
    """A format of text: the pattern to search for, and advice, possibly made of the text."""

    name: str
    pattern: str
    what: str
    advice: str | Callable[[str], str]


def _of_own(text: str) -> str:
    match = re.search(r"perfmodel\.(\w+)/", text)
    return OWN_USES.get(match[1] if match else "", "see the reference of perfmodel's files")


OWN_USES = {
    "workload": "give a workload file as --workload",
    "cluster": "give a cluster file as --cluster",
    "job": "give a job file as --job",
    "cases": "perfmodel validate reads cases files",
    "measurements": "perfmodel calibrate network reads measurement files",
    "run": "perfmodel validate and calibrate server read runs",
    "schedule": "perfmodel converge --replay reads schedules",
}
"""What reads each kind of perfmodel's own files."""


def _of_topology(text: str) -> str:
    devices = len(set(re.findall(r"^[ \t]*(GPU\d+)[ \t]", text, flags=re.M)))
    links = sorted(set(re.findall(r"\bNV\d+\b", text)))
    contents = f"{devices} GPUs" + (f", NVLink ({', '.join(links)})" if links else ", no NVLink")
    return (
        f"it names the links of a node ({contents}) but not their speed: write devices_per_node = "
        f"{devices} and intra_node into a cluster file, or measure with nccl-tests and give that "
        "to perfmodel calibrate network"
    )


def _of_summary(text: str) -> str:
    match = re.search(r"Trainable params: *(\d[\d,]{0,20})(?![\d,])", text)
    size = 4 * int(match[1].replace(",", "")) if match else 0
    contents = f" but {size} bytes of gradients ({show(size, 'bytes')} as float32)" if size else ""
    option = f" --gradient-bytes {size}B" if size else ""
    return (
        f"it has no times{contents}: profile the model with perfmodel profile, or {RECORD}{option}"
    )


def _of_hostfile(text: str) -> str:
    slots = [int(n) for n in re.findall(r"\bslots=(\d{1,9})\b", text)]
    most = max(slots, default=1)
    return (
        f"it lists {len(slots)} nodes with {sum(slots)} slots: give --workers {sum(slots)} and a "
        f"cluster with devices_per_node = {most} as --cluster, or the file itself as --job"
    )


def _of_task(text: str) -> str:
    nodes = re.search(r"^num_nodes: *(\d{1,9})\b", text, flags=re.M)
    count = int(nodes[1]) if nodes else 1
    kind = re.search(r"accelerators: *[\[{]? *['\"]?([\w-]+)['\"]?(?: *: *(\d{1,9})\b)?", text)
    if kind is None:
        return "name its model and machines: perfmodel plan --model NAME chooses instances"
    device, devices = kind[1].lower(), int(kind[2] or 1)
    return (
        f"it asks for {count} x {devices} {kind[1]}: perfmodel predict --model NAME --device "
        f"{device} --workers {count * devices}, or perfmodel plan, which chooses instances"
    )


TEXT: tuple[_Text, ...] = (
    _Text(OWN, r"[\"']?schema[\"']?\s*[:=]\s*[\"']perfmodel\.\w+/", "a file of perfmodel", _of_own),
    _Text(
        NCCL_TESTS,
        r"#\s*nThread\s+\d+\s+nGpus|^#\s+size\s+count\b.*\btime\s+algbw\s+busbw",
        "the output of nccl-tests",
        "perfmodel calibrate network reads it",
    ),
    _Text(
        IPERF3,
        r"\"version\":\s*\"iperf 3|\A\s*\{\s*\"start\":\s*\{\s*\"connected\"",
        "the output of iperf3 --json",
        "perfmodel calibrate network reads it",
    ),
    _Text(
        "iperf3-text",
        r"^\[ *ID\] Interval +Transfer +(Bitrate|Bandwidth)",
        "the output of iperf3 as text",
        "run iperf3 with --json, and give that to perfmodel calibrate network",
    ),
    _Text(
        OSU,
        r"^(?:\[\d+,\d+\]<std\w+>:|\d+:)?[ \t]*# OSU MPI",
        "the output of an OSU benchmark",
        "perfmodel calibrate network reads it",
    ),
    _Text(
        PERFTEST,
        r"^[ \t]*(?:RDMA_Write|RDMA_Read|Send) .*Test\b|^[ \t]*#bytes\s+#iterations\s",
        "the output of perftest",
        "perfmodel calibrate network reads it",
    ),
    _Text(
        DEEPSPEED,
        r"DeepSpeed Flops Profiler|^params per gpu:|^params per GPU:",
        "the output of DeepSpeed's flops profiler",
        "perfmodel import reads it",
    ),
    _Text(
        HOROVOD,
        r"\"name\":\s*\"NEGOTIATE_",
        "a Horovod timeline",
        "perfmodel diagnose reads the time of a step and of its collectives; it has none of "
        f"computing: {RECORD}; for the network, measure with nccl-tests or perfmodel measure "
        "network",
    ),
    _Text(
        MLPERF,
        r"^.{0,80}:::MLL(?:OG)? \{",
        "a log of MLPerf",
        "perfmodel diagnose reads its throughput and batch size",
    ),
    _Text(
        DEEPSPEED_JSON,
        r"\A\s*\{(?s:.)*\"(?:zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)\"\s*:",
        "a configuration of DeepSpeed",
        AS_JOB,
    ),
    _Text(
        CHAKRA_JSON,
        r"\"schema\":\s*\"[^\"]*chakra",
        "a Chakra execution trace",
        "it has no times: give the PyTorch profiler trace of the same run to perfmodel import; as "
        "--job it gives the number of ranks",
    ),
    _Text(TRACE, r"\"traceEvents\"", "a trace", "perfmodel import reads traces of torch.profiler"),
    _Text(
        TOPOLOGY,
        r"^[ \t]*GPU0[ \t].*\b(?:CPU Affinity|GPU1)\b|^GPU0[ \t]+X[ \t]",
        "the output of nvidia-smi topo -m",
        _of_topology,
    ),
    _Text(
        "model-summary",
        r"Layer \(type(?::depth-idx)?\)|^Trainable params: *[\d,]+",
        "a summary of a model's layers, as torchinfo prints",
        _of_summary,
    ),
    _Text(
        HOSTFILE,
        r"\A(?:[ \t]*(?:#.*)?\n)*[\w.-]+(?:(?:[ \t]+(?:max_)?slots=\d+)+|:\d+)[ \t]*(?:#.*)?$",
        "a hostfile of mpirun or DeepSpeed",
        _of_hostfile,
    ),
    _Text(
        NCCL_LOG,
        r"\bNCCL INFO (?:NET/|Using network |Channel )",
        "a log of NCCL (NCCL_DEBUG=INFO)",
        "perfmodel diagnose reads over what its channels go",
    ),
    _Text(
        SLURM,
        r"\bSLURM_(?:JOB_)?(?:NODELIST|NUM_NODES|NNODES)=|"
        r"\A\s*[A-Za-z][\w-]{0,200}\[[\d,-]{1,5000}\][\w.,\[\]-]{0,9999}\s*\Z",
        "a node list of Slurm",
        AS_JOB,
    ),
    _Text(
        HOSTS,
        r"\A(?:(?=[\w.-]{0,200}\d)[A-Za-z][\w.-]{0,250}[ \t]{0,9}(?:\n|\Z)){2,}\Z",
        "a list of hosts, as scontrol show hostnames writes",
        AS_JOB,
    ),
    _Text(
        "skypilot",
        r"^resources:[ \t]*\n(?:[ \t].*\n)*?[ \t]+(?:- *)?accelerators:|^num_nodes:[ \t]*\d",
        "a SkyPilot task",
        _of_task,
    ),
    _Text(
        ACCELERATE,
        r"^(?:compute_environment|distributed_type):[ \t]",
        "a configuration of Accelerate",
        AS_JOB,
    ),
    _Text(
        LIGHTNING,
        r"^trainer:[ \t]*\n(?:[ \t].*\n)*?[ \t]+(?:accelerator|devices|strategy|num_nodes):",
        "a configuration of Lightning",
        AS_JOB,
    ),
    _Text(
        NANOTRON,
        r"^parallelism:[ \t]*\n(?:[ \t].*\n)*?[ \t]+dp:[ \t]*\d",
        "a configuration of nanotron",
        AS_JOB,
    ),
    _Text(
        TORCHTITAN,
        r"^[ \t]*(?:data_parallel_shard_degree|tensor_parallel_degree|local_batch_size)[ \t]*=",
        "a configuration of torchtitan",
        AS_JOB,
    ),
    _Text(
        MEGATRON,
        r"\btensor_model_parallel_size \.{3,} \d",
        "arguments that Megatron-LM prints",
        AS_JOB,
    ),
    _Text(
        COMMAND,
        r"^[ \t$]{0,20}(?:[A-Z_]{1,60}=\S{0,200}[ \t]{1,20}){0,20}(?:srun[ \t].{0,200})?"
        r"(?:python3?[ \t]+-m[ \t]+torch\.distributed\.(?:run|launch)|torchrun|accelerate launch|"
        r"deepspeed|horovodrun|mpirun|mpiexec)[ \t]+-|^#SBATCH[ \t]+--(?:nodes|ntasks|gpus)",
        "a command line of a launcher",
        AS_JOB,
    ),
)
"""Formats of text, the more specific first."""

BINARY: tuple[tuple[bytes, Format], ...] = (
    (
        rb"SQLite format 3\0",
        Format("sqlite", "an SQLite database, as nsys export writes", f"it is not read: {RECORD}"),
    ),
    (
        rb"PK\x03\x04(?s:.){0,200}data\.pkl",
        Format(
            "torch", "a PyTorch file (torch.save)",
            "weights have no times: profile the model with perfmodel profile",
        ),
    ),
    (
        rb"\x80[\x02-\x05]",
        Format(
            "pickle", "a Python pickle, as old versions of torch.save write",
            "weights have no times: profile the model with perfmodel profile",
        ),
    ),
    (
        rb"(?s:.){8}\{\"[^\"]+\":\s*\{\"(dtype|format)\"",
        Format(
            "safetensors", "a safetensors file",
            "weights have no times: profile the model with perfmodel profile",
        ),
    ),
    (
        rb"[\x00-\xff]{1,2}\n[\x01-\x20][\w.-]*\d\.\d|(?s:.){0,64}chakra",
        Format(
            CHAKRA, "a Chakra execution trace (protobuf)",
            "it has no times of kernels: give the PyTorch profiler trace of the same run to "
            "perfmodel import; as --job it gives the number of ranks",
        ),
    ),
    (
        rb"\x1f\x8b",
        Format(
            GZIP, "compressed with gzip",
            "unpack it first (only perfmodel import reads compressed files)",
        ),
    ),
    (rb"PK\x03\x04", Format("zip", "a zip archive", "unpack it first")),
    (
        rb"BZh|\xfd7zXZ\0|\x28\xb5\x2f\xfd",
        Format("compressed", "a compressed file", "unpack it first"),
    ),
)  # fmt: skip
"""Formats that are no text, each with a pattern for its first bytes."""

NAMED = {
    (".nsys-rep", ".qdrep", ".ncu-rep"): Format(
        "nsight", "a report of NVIDIA Nsight", f"it is not read: {RECORD}"
    ),
}
"""Formats that are no text and are known by the ending of their names."""

UNKNOWN_BINARY = Format("binary", "a binary file", "expected text")

YAML = Format("yaml", "a YAML file", "files of perfmodel are TOML or JSON (see the job file)")


def recognise(data: bytes, name: str = "") -> Format | None:
    """Return the format of a file's content; None if it is not known.

    ``name`` is the file's name, whose ending counts only if the content does not tell.

    >>> recognise(b"node1 slots=4\\nnode2 slots=4\\n").what
    'a hostfile of mpirun or DeepSpeed'
    """
    head = data[:HEAD_BYTES]
    ending = next((f for endings, f in NAMED.items() if name.lower().endswith(endings)), None)
    text = text_of(head)
    if text is None:
        matches = (format_ for pattern, format_ in BINARY if re.match(pattern, head))
        return next(matches, ending or (UNKNOWN_BINARY if b"\0" in head else None))
    for rule in TEXT:
        if re.search(rule.pattern, text, flags=re.M):
            advice = rule.advice
            if not isinstance(advice, str):
                advice = advice(text_of(data[:MOST_BYTES]) or text)
            return Format(rule.name, rule.what, advice)
    if name.lower().endswith((".yaml", ".yml")):
        return YAML
    return None


def refusal(
    data: bytes, name: str, wanted: str, reads: Collection[str] = (OWN,)
) -> InputError | None:
    """Return the error for a file of a known format that is not the ``wanted`` one.

    None if the format is unknown, or one of those that the reader ``reads`` itself: then what is
    wrong with the file is for the reader to say.
    """
    known = recognise(data, name)
    if known is None or known.name in reads:
        return None
    return InputError(f"{name}: not {wanted} but {known.what}: {known.advice}")


def text_of(data: bytes) -> str | None:
    """Return content as text with plain line ends, also of UTF-16; None if it is binary."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data[: len(data) // 2 * 2].decode("utf-16", errors="replace")
        return text.replace("\r\n", "\n")
    if re.search(rb"[\0-\x06\x0e-\x1a\x1c-\x1f]", data) or re.match(rb"\x80[\x02-\x05]", data):
        return None
    return data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
