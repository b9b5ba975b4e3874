"""Training checkpoints that survive the loss of a worker, on any file system that Arrow supports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs
from pyspark import cloudpickle

from rueda import lifecycle
from rueda.engines.given import place_of
from rueda.engines.pickling import pickled
from rueda.errors import InvalidArgumentError
from rueda.objects import broadcast_object

__all__ = ["Checkpoint", "checkpoint_at"]

_FILE = "rueda-checkpoint.pickle"


@dataclass(frozen=True)
class Checkpoint:
    """The last state saved in a folder: ``file:///...``, ``s3://...``, ``hdfs://...`` or any other Arrow supports.

    Without a folder, :meth:`save` does nothing and :meth:`load` finds nothing, so a script needs no special case.
    """

    folder: str | None

    def load(self) -> Any:
        """The last saved state, the same on all ranks, or ``None``. Collective. Unpickles: load only trusted files."""
        found = None
        if self.folder is not None and lifecycle.rank() == 0:
            files, path = pyarrow.fs.FileSystem.from_uri(self.folder)
            if files.get_file_info(f"{path}/{_FILE}").type != pyarrow.fs.FileType.NotFound:
                with files.open_input_stream(f"{path}/{_FILE}") as file:
                    found = cloudpickle.loads(file.read())
        return broadcast_object(found, 0, "rueda.spark.checkpoint")

    def save(self, state: Any) -> None:
        """Replaces the saved state by rank 0's ``state``, any object that can be pickled; other ranks do nothing.

        If the process is killed meanwhile, the previous state stays in place.
        """
        if self.folder is None or lifecycle.rank() != 0:
            return
        content = pickled(cloudpickle.dumps, "the checkpoint", state)
        files, path = pyarrow.fs.FileSystem.from_uri(self.folder)
        files.create_dir(path, recursive=True)
        with files.open_output_stream(f"{path}/{_FILE}.part") as file:
            file.write(content)
        files.move(f"{path}/{_FILE}.part", f"{path}/{_FILE}")


def checkpoint_at(place: str | os.PathLike[str] | None) -> Checkpoint:
    """A checkpoint there. Raises :class:`rueda.InvalidArgumentError` if Arrow has no file system for the place."""
    if place is None:
        return Checkpoint(None)
    text = place_of("checkpoint", place)
    folder = text if "://" in text else Path(os.path.abspath(text)).as_uri()
    try:
        pyarrow.fs.FileSystem.from_uri(folder)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise InvalidArgumentError(
            f"checkpoint={text!r} is not a location to which Arrow can write: {error}"
        ) from error
    return Checkpoint(folder)
