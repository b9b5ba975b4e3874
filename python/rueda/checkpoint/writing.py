"""The disk work of a save's thread: every rank writes its part, and rank 0 turns the parts into a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from rueda.checkpoint.files import CheckedFiles, FileSum, Manifest
from rueda.checkpoint.folder import (
    Checkpoint,
    make,
    publish,
    remove,
    remove_leftovers,
    retain,
    sync,
)
from rueda.checkpoint.problems import CheckpointError, Problem, problem_of
from rueda.checkpoint.snapshot import Snapshot

__all__ = ["Written", "finish", "write_share"]

_log = logging.getLogger("rueda")


@dataclass(frozen=True)
class Written:
    """What a rank has written, and its part of torch's metadata."""

    plan: SavePlan
    results: list[WriteResult]
    sums: dict[str, FileSum]


class _Copies(DefaultSavePlanner):
    """Gives torch's writer the copies instead of the state itself."""

    def __init__(self, data: dict[MetadataIndex, Any]) -> None:
        super().__init__()
        self._data = data

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._data[index]


def write_share(snapshot: Snapshot, folder: Path, rank: int) -> Written:
    """Writes a rank's files to disk. Raises ``OSError`` that names the file."""
    if rank == 0:
        remove_leftovers(folder)
    make(folder.parent)
    writer, files = _writer(folder)
    writer.set_up_storage_writer(rank == 0)
    plan = writer.prepare_local_plan(snapshot.plan)
    # torch names a rank's files by its position in the list.
    plan = writer.prepare_global_plan([SavePlan([])] * rank + [plan])[-1]
    written = writer.write_data(plan, _Copies(snapshot.data))
    written.wait()
    return Written(plan, written.value(), files.sums)


def finish(
    every: Sequence[Written | Problem], folder: Path, step: int, keep: int | None
) -> tuple[Checkpoint | None, Problem | None]:
    """Once all ranks have written or failed: makes it the newest checkpoint, or removes it.

    Returns the checkpoint, if it exists, and the problem here, if any. With both, a power failure may undo the
    checkpoint, and older ones have been kept.
    """
    written = [each for each in every if isinstance(each, Written)]
    if len(written) < len(every):
        _try_to_remove(folder)
        return None, None
    try:
        _complete(written, folder, step)
        complete = publish(folder, step)
    except Exception as error:  # every rank is told
        _try_to_remove(folder)
        return None, problem_of(error, 0, folder)
    try:
        sync(complete.path.parent)
    except OSError as error:
        return complete, problem_of(error, 0, complete.path.parent)
    if keep is not None:
        try:
            retain(complete.path.parent, keep)
        except OSError as error:
            _log.warning("older checkpoints could not be looked for: %s", error)
    return complete, None


def _try_to_remove(folder: Path) -> None:
    """The next save removes what remains. The error to report is the failed write."""
    with suppress(OSError, ValueError):  # also for an impossible path
        remove(folder)


def _complete(every: Sequence[Written], folder: Path, step: int) -> None:
    """Adds torch's metadata and the list of files, once all parts are there."""
    for rank, each in enumerate(every):
        for name, expected in each.sums.items():
            _require_seen(folder / name, rank, expected.size)
    writer, files = _writer(folder)
    _, metadata = _Copies({}).create_global_plan([each.plan for each in every])
    writer.finish(metadata, [each.results for each in every])
    sums = {name: each for rank in every for name, each in rank.sums.items()}
    Manifest(step, len(every), {**sums, **files.sums}).write(folder)


def _require_seen(path: Path, rank: int, size: int) -> None:
    """Detects a folder that has the same name but is a different one on another host."""
    found = path.stat().st_size if path.exists() else None
    if found != size:
        raise CheckpointError(
            f"{path} was written by rank {rank}, and rank 0 finds {'nothing' if found is None else f'{found} bytes'} "
            "there: the folder must be one that all ranks share",
            path=str(path),
        )


def _writer(folder: Path) -> tuple[FileSystemWriter, CheckedFiles]:
    writer = FileSystemWriter(folder, sync_files=False, overwrite=False)  # CheckedFiles syncs
    writer.fs = files = CheckedFiles()
    return writer, files
