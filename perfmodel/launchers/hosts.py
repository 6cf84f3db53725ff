"""Reads lists of hosts: hostfiles of MPI, DeepSpeed and Horovod, and those of Slurm.

See the pages of ``mpirun`` (``--hostfile``, ``-H``), of DeepSpeed's resource configuration, and of
``scontrol show hostnames`` and ``srun`` (environment variables).
"""

from __future__ import annotations

import re
from collections import Counter

from perfmodel.base.errors import InputError
from perfmodel.launchers.launch import Launch

MOST_HOSTS = 200_000
"""Most hosts of a list; a limit that catches typing errors."""

_SLOTS = re.compile(r"[ \t]slots=(\d{1,9})\b|:(\d{1,9})(?=\s|$)")

_PER_NODE = (
    r"\bSLURM_(?:GPUS_PER_NODE|GPUS_ON_NODE)=[\"']?(?:[a-z][\w-]*:)?(\d{1,6})",
    r"\bSLURM_(?:NTASKS_PER_NODE|TASKS_PER_NODE)=[\"']?(\d{1,6})",
)
"""Devices of a node: of GPUs if these are known, else one for each task."""


def hostfile(text: str, name: str) -> Launch:
    """Read a hostfile: a host in each line, with its slots or without.

    A host that has no number of slots, in all its lines, has as many as it has lines.

    Raises
    ------
    InputError : it lists no hosts.

    >>> hostfile("node1 slots=4\\nnode2 slots=4\\n", "hosts").devices
    8
    """
    slots: Counter[str] = Counter()
    listed = False
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if not words:
            continue
        host = re.split(r"[\s:]", words, maxsplit=1)[0]
        given = _SLOTS.search(words)
        listed |= given is not None
        slots[host] += int(given[1] or given[2]) if given else 1
    most = max(slots.values(), default=0)
    if most == 0:
        raise InputError(f"{name}: a hostfile without hosts; expected lines such as node1 slots=8")
    if not listed and most == 1:
        return Launch("a list of hosts", nodes=len(slots))
    total = sum(slots.values())
    return Launch("a hostfile", len(slots), most if total > most else None, total)


def slurm(text: str, name: str) -> Launch:
    """Read a node list of Slurm: ``node[001-004,7]``, or variables such as ``SLURM_JOB_NODELIST``.

    Raises
    ------
    InputError : the list cannot be read.

    >>> slurm("SLURM_JOB_NODELIST=gpu[01-04]\\nSLURM_NTASKS_PER_NODE=8\\n", "env").devices
    32
    """
    listed = re.search(r"\bSLURM_(?:JOB_)?NODELIST=[\"']?([^\s\"']+)", text)
    count = re.search(r"\bSLURM_(?:JOB_NUM_NODES|NNODES)=[\"']?(\d{1,6})", text)
    per_node = next((int(m[1]) for p in _PER_NODE if (m := re.search(p, text))), None)
    if listed is not None:
        nodes = len(expanded(listed[1], name))
    elif count is not None:
        nodes = int(count[1])
    else:
        nodes = len(expanded(",".join(text.split()), name))
    tasks = re.search(r"\bSLURM_NTASKS=[\"']?(\d{1,9})", text)
    devices = nodes * per_node if per_node else int(tasks[1]) if tasks else None
    if per_node is None and devices is not None and devices % nodes == 0:
        per_node = devices // nodes
    return Launch("a node list of Slurm", nodes, per_node, devices)


def expanded(listed: str, name: str) -> list[str]:
    """Return the hosts of a list of Slurm; ``name`` is the file's.

    Raises
    ------
    InputError : a range runs backwards, or a bracket is not closed.

    >>> expanded("a[1-2,07]b,c", "nodes.txt")
    ['a1b', 'a2b', 'a07b', 'c']
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+|[\[\]]", listed):
        if part in "[]":
            raise InputError(f"{name}: node list {listed[:60]!r}: a bracket is not closed")
        names = [""]
        for plain, inside in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else _numbers(inside, name)
            if len(names) * len(ends) + len(hosts) > MOST_HOSTS:
                raise InputError(f"{name}: node list {listed[:60]!r}: more than {MOST_HOSTS} hosts")
            names = [begin + end for begin in names for end in ends]
        hosts += names
    return hosts


def _numbers(inside: str, name: str) -> list[str]:
    """The numbers of a bracket, with leading zeros."""
    numbers: list[str] = []
    for part in inside.split(","):
        matched = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if matched is None:
            raise InputError(f"{name}: node list [{inside[:40]}]: expected numbers such as 001-004")
        first, last = matched[1], matched[2] or matched[1]
        if int(last) < int(first) or int(last) - int(first) > MOST_HOSTS:
            raise InputError(f"{name}: node list [{inside[:40]}]: {part} is no range")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers
