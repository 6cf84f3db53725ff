"""What reads the files of launchers, by their formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfmodel.base import formats
from perfmodel.launchers import chakra, commands, configurations, hosts, mlperf
from perfmodel.launchers.launch import Launch

READERS: Mapping[str, Callable[[str, str], Launch]] = {
    **dict.fromkeys((formats.HOSTFILE, formats.HOSTS), hosts.hostfile),
    formats.SLURM: hosts.slurm,
    formats.DEEPSPEED_JSON: configurations.deepspeed,
    formats.ACCELERATE: configurations.accelerate,
    formats.LIGHTNING: configurations.lightning,
    formats.NANOTRON: configurations.nanotron,
    formats.TORCHTITAN: configurations.torchtitan,
    formats.COMMAND: commands.command,
    formats.MEGATRON: commands.megatron,
    formats.CHAKRA_JSON: chakra.parse,
    formats.MLPERF: mlperf.parse,
}
"""Makes a launch of the text of a file and the file's name, by the name of its format."""


def launch_of(data: bytes, name: str) -> Launch | None:
    """What a file of a launcher says; None if it is none.

    Raises
    ------
    InputError : it is one, but cannot be read.
    """
    kind = formats.recognise(data, name)
    if kind is not None and kind.name == formats.CHAKRA:
        return chakra.parse_protobuf(data, name)
    if kind is None or kind.name not in READERS:
        return None
    text = formats.text_of(data[: formats.MOST_BYTES]) or ""
    return READERS[kind.name](text, name)
