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

from rueda.checkpoint.content import (
    PARTS,
    VALUE,
    Kind,
    Slot,
    difference,
    is_of_value,
    own_key,
    put_together,
    slots_in,
)
from rueda.checkpoint.files import Manifest, read_manifest, verify
from rueda.checkpoint.own_states import completed, of_other_ranks
from rueda.checkpoint.problems import CheckpointError
from rueda.checkpoint.snapshot import PICKLED, STATES
from rueda.torch.layouts import fitted, laid_out, uninitialized

__all__ = ["Reading"]


class Reading:
    """One rank's reading of a checkpoint, with :meth:`verify` and then :meth:`read`.

    ``differences``: why it does not fit; if there are any, the rest is not set. ``states``: of each part.
    :meth:`extra`, :meth:`each_rank`: see :class:`Loaded`.

    All methods raise :class:`CheckpointError`; :meth:`verify` and :meth:`read` also ``OSError``.
    """

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self._path = path
        self._rank = rank
        self._ranks = ranks
        self._manifest: Manifest
        self._metadata: Metadata
        self._reader = FileSystemReader(path)
        self._extra: bytes
        self._own: list[dict[str, Any]] = []
        self._of_values: dict[str, torch.Tensor] = {}
        self.differences: list[str] = []
        self.states: dict[str, Any] = {}

    def verify(self) -> None:
        """Verifies this rank's part of the files: each is checked by one rank."""
        self._manifest = read_manifest(self._path)
        names = sorted(self._manifest.files)
        verify(self._path, names[self._rank :: self._ranks], self._manifest)

    def read(self, parts: Mapping[str, Any]) -> None:
        """Reads the states of these parts, unless they do not fit. Only what is asked for is unpickled."""
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, True)
        own_keys = [own_key(rank) for rank in range(self._manifest.ranks)]
        entries = self._read(dict.fromkeys([STATES, *own_keys]))
        there = entries[STATES]["states"]
        saved = {
            name: self._unpickled(f"the state '{name}'", there[name])
            for name in parts
            if name in there
        }
        self._extra = entries[STATES]["extra"]
        self._compare(parts, saved, there)
        if self.differences:
            return
        self._own = [
            self._unpickled(f"what rank {rank} has saved", entries[key])
            for rank, key in enumerate(own_keys)
        ]
        states = {name: saved[name][1] for name in parts}
        of_values = {
            name
            for name, each in self._metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata) and is_of_value(name)
        }
        tensors = self._tensors([*map(Slot, of_values), *slots_in(states)])
        self._of_values = {name: tensors[name] for name in of_values}
        for name, state in states.items():
            whole = completed(put_together(state, tensors), self._own_of(name))
            part = parts[name]
            if isinstance(part, torch.optim.Optimizer):
                whole = fitted(whole, part, saved[name][0].strides)
            self.states[name] = whole

    def extra(self) -> Any:
        """Unpickles it."""
        return self._unpickled("extra", self._extra)

    def each_rank(self) -> list[Any]:
        """Unpickles it."""
        values = [
            self._unpickled(f"each_rank of rank {rank}", own[PICKLED])
            if PICKLED in own
            else own[VALUE]  # of an earlier version
            for rank, own in enumerate(self._own)
        ]
        for slot in slots_in(values):  # their strides are not known before
            self._of_values[slot.name] = laid_out(self._of_values[slot.name], slot.strides)
        return [put_together(value, self._of_values) for value in values]

    def _own_of(self, name: str) -> dict[str, Any]:
        """What a part gets besides what all ranks share: what this rank has saved, if there are as many ranks."""
        every = [own[PARTS].get(name, {}) for own in self._own]
        # One after another: together, they may be as large as the model on each rank.
        if self._ranks == len(every):
            return self._with_tensors(every[self._rank])
        return of_other_ranks(map(self._with_tensors, every))

    def _with_tensors(self, state: dict[str, Any]) -> dict[str, Any]:
        together: dict[str, Any] = put_together(state, self._tensors(slots_in(state)))
        return together

    def _unpickled(self, what: str, content: bytes) -> Any:
        try:
            return pickle.loads(content)
        except Exception as error:  # whatever its classes raise
            raise CheckpointError(
                f"{self._path}: {what} cannot be unpickled here: {type(error).__name__}: {error}",
                path=str(self._path),
            ) from error

    def _compare(
        self,
        parts: Mapping[str, Any],
        saved: Mapping[str, tuple[Kind, Any]],
        there: Iterable[str],
    ) -> None:
        shapes = {
            name: (each.size, each.properties.dtype)
            for name, each in self._metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata)
        }
        for name, part in parts.items():
            if name in saved:
                found = difference(name, part, *saved[name], shapes)
            else:
                others = ", ".join(sorted(there)) or "none"
                found = f"{name}: the checkpoint has no such state, but {others}"
            if found is not None:
                self.differences.append(found)

    def _tensors(self, slots: Iterable[Slot]) -> dict[str, torch.Tensor]:
        """Reads the tensors for these slots, by name, with the slots' strides."""
        cpu = torch.device("cpu")
        flat: dict[str, Any] = {}
        for slot in slots:
            known = self._metadata.state_dict_metadata.get(slot.name)
            if isinstance(known, TensorStorageMetadata):
                dtype = known.properties.dtype
                flat[slot.name] = uninitialized(known.size, slot.strides, dtype, cpu)
            else:
                self._raise_missing(slot.name)
        return self._read(flat) if flat else {}

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
