"""Times of the layers of a language model whose sequences are packed from documents.

Attention stays inside documents. A kernel takes as long as for the mean work of a sequence in equal
documents, as many as there can be; everything else takes as long as without documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.operator_shapes import Attention
from perfmodel.inputs.profile import Layer, Profile
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.workload import Workload
from perfmodel.theory.packing import (
    MOST_DOCUMENTS,
    Documents,
    attention_share,
    relative_loads,
)

Seconds = list[tuple[float, float]]
"""Forward and backward seconds of layers, (layers,)."""


class Packed(NamedTuple):
    """Times of layers with documents, and the part of the time of those with attention that grows
    with the squared lengths of documents, (layers,); 0 for others."""

    seconds: Seconds
    varying: tuple[float, ...]


def check(profile: Profile, documents: Documents) -> None:
    """Raise InputError unless attention of a model can stay inside such documents."""
    decoder = profile.decoder
    if decoder is None:
        raise InputError(
            f"document_length: {profile.name} is not a language model with given dimensions (its "
            "file has no decoder)"
        )
    if not decoder.flash:
        raise InputError(
            f"document_length: attention of {profile.name} stores its scores, also those of "
            "tokens of other documents (it needs decoder.flash)"
        )
    least = decoder.sequence_length / MOST_DOCUMENTS
    if documents.mean < least:
        raise InputError(
            f"document_length: the mean of {documents.mean:g} tokens is less than 1/"
            f"{MOST_DOCUMENTS} of the {decoder.sequence_length} of a sequence (at least {least:g})"
        )


def check_split(replica: Replica | None, workload: Workload) -> None:
    """Raise InputError if a replica divides documents, and its sequences have none."""
    if replica is not None and replica.context_split == "documents" and workload.packing is None:
        raise InputError(
            "context_split: documents needs packed sequences (document_length or document_lengths)"
        )


def packed(
    layers: Sequence[Layer],
    documents: Documents | None,
    times: Callable[[Sequence[Layer]], Seconds],
) -> Packed:
    """Return the times of layers whose attention stays inside documents, if there are any.

    Attention that is limited to a window varies less; how much less is the ratio of the
    coefficients of variation. All layers with attention get the same varying part.

    Parameters
    ----------
    times : returns the times of layers without documents.
    """
    seconds = times(layers)
    if documents is None:
        return Packed(seconds, (0.0,) * len(layers))
    where = [k for k, layer in enumerate(layers) if _kernels(layer)]
    whole = times([_with(layers[k], _kernels(layers[k])) for k in where])
    shorter = [[_in_documents(one, documents) for one in _kernels(layers[k])] for k in where]
    short = times([_with(layers[k], [s.kernel for s in parts])
                   for k, parts in zip(where, shorter, strict=True)])  # fmt: skip
    made, kernels_s, all_s = list(seconds), 0.0, 0.0
    for k, before, after, parts in zip(where, whole, short, shorter, strict=True):
        times_s = [parts[0].times * one for one in after]
        forward, backward = (
            max(layer_s - old, 0.0) + new
            for layer_s, old, new in zip(seconds[k], before, times_s, strict=True)
        )
        made[k] = forward, backward
        kernels_s += parts[0].varying * sum(times_s)
        all_s += forward + backward
    part = kernels_s / all_s if all_s > 0.0 else 0.0
    return Packed(made, tuple(part if _kernels(layer) else 0.0 for layer in layers))


def with_documents(
    workload: Workload,
    decoder: Decoder | None,
    documents: Documents | None,
    varying: Sequence[float],
) -> Workload:
    """Return a workload with the documents that its sequences are packed from, if there are any."""
    if decoder is None or documents is None:
        return workload
    packing = documents.in_sequences(decoder.sequence_length)
    share = attention_share(packing)
    spread = float(relative_loads(packing, 1).std())
    why = (
        f"attention inside documents does {share:.0%} of the work of whole sequences, and "
        f"{spread:.0%} more or less of that from one sequence to another"
    )
    mean = float(f"{packing.document_tokens:.6g}")
    layers = tuple(
        msgspec.structs.replace(layer, varying=part)
        for layer, part in zip(workload.layers, varying, strict=True)
    )
    note = Assumption("document_length", mean, "tokens", why)
    return msgspec.structs.replace(
        workload, layers=layers, packing=packing, assumptions=(*workload.assumptions, note)
    )


class _Short(NamedTuple):
    """A kernel in documents, by how much longer it takes than in equal ones, and how much it varies
    relative to attention without a window."""

    kernel: Attention
    times: float
    varying: float


def _in_documents(one: Attention, documents: Documents) -> _Short:
    """Return attention in as many equal documents as have about the mean work."""
    packing = documents.in_sequences(one.length)
    share = attention_share(packing, one.window)
    alike = 1.0
    if one.window is not None:
        spreads = [float(relative_loads(packing, 1, w).std()) for w in (one.window, None)]
        alike = spreads[0] / spreads[1] if spreads[1] > 0.0 else 1.0
    many = max(round(1.0 / attention_share(packing)), 1)
    length = max(one.length // many, 1)
    window = None if one.window is None or one.window >= length else one.window
    kernel = msgspec.structs.replace(one, length=length, count=one.count * many, window=window)
    return _Short(kernel, share * one.flop / kernel.flop, alike)


def _kernels(layer: Layer) -> list[Attention]:
    return [one for one in layer.operators if isinstance(one, Attention)]


def _with(layer: Layer, operators: Sequence[Attention]) -> Layer:
    return msgspec.structs.replace(layer, operators=tuple(operators))
