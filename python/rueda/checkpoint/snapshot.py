"""A copy of this rank's part of a state, with the plan by which torch writes it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from rueda.checkpoint.content import PARTS, VALUE, Content, own_key, pickled
from rueda.checkpoint.division import Piece, Shape, divide

__all__ = ["PICKLED", "STATES", "Entries", "Snapshot", "Snapshots"]

# The entry with the structure of all parts and with the application's extra data.
STATES = "rueda.states"
# In a rank's own entry: its ``each_rank``, which is unpickled only where it is asked for.
PICKLED = "pickled value"


@dataclass(frozen=True)
class Entries:
    """What a rank writes besides tensors. ``structures``: Rueda's entries; ``leaves``: those that only torch reads.

    Everything is pickled immediately: the application may change it afterwards.
    """

    structures: dict[str, Any]
    leaves: bytes

    @staticmethod
    def of(content: Content, extra: object, rank: int) -> Entries:
        """Raises :class:`rueda.InvalidArgumentError` for objects that pickle refuses."""
        own = {PARTS: content.own[PARTS], PICKLED: pickled("each_rank", content.own[VALUE])}
        structures: dict[str, Any] = {own_key(rank): pickled("a state of this rank", own)}
        if rank != 0:
            return Entries(structures, pickle.dumps({}))
        states = {
            name: pickled(f"the state '{name}'", each) for name, each in content.states.items()
        }
        structures[STATES] = {"extra": pickled("extra", extra), "states": states}
        return Entries(structures, pickled("a value of a state", content.leaves))


@dataclass(frozen=True)
class Snapshot:
    """``data``: by the indices of the plan's items."""

    plan: SavePlan
    data: dict[MetadataIndex, Any]


class Snapshots:
    """Takes all snapshots in the same memory: mapping fresh memory takes longer than copying."""

    def __init__(self) -> None:
        self._copies: dict[MetadataIndex, torch.Tensor] = {}

    def take(self, content: Content, entries: Entries, rank: int, ranks: int) -> Snapshot:
        """Takes a snapshot. The previous one must have been written."""
        shapes = [
            (name, Shape(tuple(tensor.shape), tensor.element_size()))
            for name, tensor in content.tensors.items()
            if name not in content.extra
        ]
        pieces = divide(shapes, ranks, content.of_first)[rank]
        sources = [content.tensors[piece.name] for piece in pieces]
        extra = {name: content.tensors[name] for name in content.tensors if name in content.extra}
        by_this_rank = {**(extra if rank == 0 else {}), **content.own_tensors}
        for name, tensor in by_this_rank.items():
            pieces.append(Piece(name, (0,) * tensor.dim(), tuple(tensor.shape), True))
            sources.append(tensor)
        items = [_item_of(piece, source) for piece, source in zip(pieces, sources, strict=True)]
        self._copies = {
            item.index: self._copied(item.index, piece, source)
            for item, piece, source in zip(items, pieces, sources, strict=True)
        }
        data: dict[MetadataIndex, Any] = dict(self._copies)
        paths = dict(content.paths) if rank == 0 else {}
        paths.update((name, (name,)) for name in [*entries.structures, *content.own_tensors])
        leaves = pickle.loads(entries.leaves) if rank == 0 else {}
        for name, value in [*entries.structures.items(), *leaves.items()]:
            items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
            data[items[-1].index] = value
        return Snapshot(SavePlan(items, planner_data=paths), data)

    def _copied(self, index: MetadataIndex, piece: Piece, source: torch.Tensor) -> torch.Tensor:
        part = source.detach()
        for axis, (offset, extent) in enumerate(zip(piece.offsets, piece.extents, strict=True)):
            if extent != part.shape[axis]:
                part = part.narrow(axis, offset, extent)
        copy = self._copies.get(index)
        if copy is None or copy.shape != part.shape or copy.dtype != part.dtype:
            # Later saves write to it, in any autograd mode.
            with torch.inference_mode(False):
                copy = torch.empty(part.shape, dtype=part.dtype, device="cpu")
        return copy.copy_(part)


def _item_of(piece: Piece, source: torch.Tensor) -> WriteItem:
    offsets, extents = torch.Size(piece.offsets), torch.Size(piece.extents)
    return WriteItem(
        MetadataIndex(piece.name, offsets),
        WriteItemType.TENSOR if piece.is_whole else WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            ChunkStorageMetadata(offsets, extents),
            TensorProperties.create_from_tensor(source),
            source.size(),
        ),
    )
