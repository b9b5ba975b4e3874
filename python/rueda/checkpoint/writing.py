"""What the thread of a save does with the disk: every rank writes its part, and rank 0 makes it a checkpoint."""

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
    """What a rank has written, and what torch's metadata say of it."""

    plan: SavePlan
    results: list[WriteResult]
    sums: dict[str, FileSum]


class _Copies(DefaultSavePlanner):
    """Gives torch's writer what was copied, in the place of the state itself."""

    def __init__(self, data: dict[MetadataIndex, Any]) -> None:
        super().__init__()
        self._data = data

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._data[index]


def write_share(snapshot: Snapshot, folder: Path, rank: int) -> Written:
    """Writes a rank's files, onto the disk. Raises ``OSError`` that names the file."""
    if rank == 0:
        remove_leftovers(folder)
    make(folder.parent)
    writer, files = _writer(folder)
    writer.set_up_storage_writer(rank == 0)
    plan = writer.prepare_local_plan(snapshot.plan)
    # torch names the files of a rank by its place in the list.
    plan = writer.prepare_global_plan([SavePlan([])] * rank + [plan])[-1]
    written = writer.write_data(plan, _Copies(snapshot.data))
    written.wait()
    return Written(plan, written.value(), files.sums)


def finish(
    every: Sequence[Written | Problem], folder: Path, step: int, keep: int | None
) -> tuple[Checkpoint | None, Problem | None]:
    """When all ranks have written, or failed to: makes it the newest checkpoint, or removes it.

    Returns the checkpoint, where it is there, and what has gone wrong here: with both, a power failure may undo that it
    is there, and older ones have been kept.
    """
    written = [each for each in every if isinstance(each, Written)]
    if len(written) < len(every):
        _try_to_remove(folder)
        return None, None
    try:
        _complete(written, folder, step)
        complete = publish(folder, step)
    except Exception as error:  # told to every rank
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
            _log.warning("older checkpoints could not be removed: %s", error)
    return complete, None


def _try_to_remove(folder: Path) -> None:
    """What remains is removed by the next save. That nothing could be written is the error to be told."""
    with suppress(OSError, ValueError):  # of a path that cannot be one, too
        remove(folder)


def _complete(every: Sequence[Written], folder: Path, step: int) -> None:
    """Adds torch's metadata and the list of files, when all are there."""
    for rank, each in enumerate(every):
        for name, expected in each.sums.items():
            _require_seen(folder / name, rank, expected.size)
    writer, files = _writer(folder)
    _, metadata = _Copies({}).create_global_plan([each.plan for each in every])
    writer.finish(metadata, [each.results for each in every])
    sums = {name: each for rank in every for name, each in rank.sums.items()}
    Manifest(step, len(every), {**sums, **files.sums}).write(folder)


def _require_seen(path: Path, rank: int, size: int) -> None:
    """A folder of the same name may be another one on another host."""
    found = path.stat().st_size if path.exists() else None
    if found != size:
        raise CheckpointError(
            f"{path} was written by rank {rank}, and rank 0 finds {'nothing' if found is None else f'{found} bytes'} "
            "there: the folder must be one that all ranks share",
            path=str(path),
        )


def _writer(folder: Path) -> tuple[FileSystemWriter, CheckedFiles]:
    writer = FileSystemWriter(folder, sync_files=False, overwrite=False)  # the files see to it
    writer.fs = files = CheckedFiles()
    return writer, files
