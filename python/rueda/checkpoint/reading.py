"""Reads a checkpoint on one rank, and checks whether it fits."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rueda.checkpoint.content import Kind, difference, names_in, own_key, put_together
from rueda.checkpoint.files import Manifest, read_manifest, verify
from rueda.checkpoint.problems import CheckpointError
from rueda.checkpoint.snapshot import STATES
from rueda.torch.compression_state import COMPRESSION_STATE

__all__ = ["Reading"]


class Reading:
    """One rank's reading of a checkpoint, with :meth:`verify` and then :meth:`read`.

    ``differences``: why it does not fit; if there are any, the rest is not set. ``states``: of each part. ``extra``,
    ``each_rank``: see :class:`Loaded`.

    Both methods raise :class:`CheckpointError` and ``OSError``.
    """

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self._path = path
        self._rank = rank
        self._ranks = ranks
        self._manifest: Manifest
        self._metadata: Metadata
        self._reader = FileSystemReader(path)
        self.differences: list[str] = []
        self.states: dict[str, Any] = {}
        self.extra: Any = None
        self.each_rank: list[Any] = []

    def verify(self) -> None:
        """Verifies this rank's part of the files: each is checked by one rank."""
        self._manifest = read_manifest(self._path)
        names = sorted(self._manifest.files)
        verify(self._path, names[self._rank :: self._ranks], self._manifest)

    def read(self, parts: Mapping[str, Any]) -> None:
        """Reads the states of these parts, unless they do not fit."""
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, True)
        own_keys = [own_key(rank) for rank in range(self._manifest.ranks)]
        entries = self._read(dict.fromkeys([STATES, *own_keys]))
        saved = {name: pickle.loads(each) for name, each in entries[STATES]["states"].items()}
        self.extra = pickle.loads(entries[STATES]["extra"])
        self._compare(parts, saved)
        if self.differences:
            return
        own = [pickle.loads(entries[key]) for key in own_keys]
        values = [each["value"] for each in own]
        # What compression has lost with another number of ranks is of no use here.
        lost = own[self._rank]["parts"] if self._ranks == len(own) else {}
        states = {name: saved[name][1] for name in parts}
        wanted = [*states.values(), *(lost[name] for name in states if name in lost), *values]
        tensors = self._tensors({name for each in wanted for name in names_in(each)})
        self.states = {name: put_together(state, tensors) for name, state in states.items()}
        for name in states:
            if name in lost:
                self.states[name][COMPRESSION_STATE].update(put_together(lost[name], tensors))
        self.each_rank = [put_together(value, tensors) for value in values]

    def _compare(self, parts: Mapping[str, Any], saved: Mapping[str, tuple[Kind, Any]]) -> None:
        shapes = {
            name: (each.size, each.properties.dtype)
            for name, each in self._metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata)
        }
        for name, part in parts.items():
            if name in saved:
                found = difference(name, part, *saved[name], shapes)
            else:
                there = ", ".join(sorted(saved)) or "none"
                found = f"{name}: the checkpoint has no such state, but {there}"
            if found is not None:
                self.differences.append(found)

    def _tensors(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        flat = {}
        for name in names:
            known = self._metadata.state_dict_metadata.get(name)
            if isinstance(known, TensorStorageMetadata):
                flat[name] = torch.empty(known.size, dtype=known.properties.dtype, device="cpu")
            else:
                self._raise_missing(name)
        return self._read(flat)

    def _read(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Fills tensors, and replaces ``None`` by other values."""
        for name in flat:
            if name not in self._metadata.state_dict_metadata:
                self._raise_missing(name)
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(flat, self._metadata, True)
        plan = self._reader.prepare_local_plan(planner.create_local_plan())
        plan = self._reader.prepare_global_plan(planner.create_global_plan([plan]))[0]
        self._reader.read_data(planner.finish_plan(plan), planner).wait()
        return dict(planner.state_dict)

    def _raise_missing(self, name: str) -> None:
        raise CheckpointError(
            f"{self._path} lacks '{name}': it was not written by rueda.checkpoint",
            path=str(self._path),
        )
