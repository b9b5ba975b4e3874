"""What a training keeps over the loss of a worker, wherever Arrow can write."""

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
    """The last state that was saved in a folder: ``file:///...``, ``s3://...``, ``hdfs://...`` or what Arrow knows.

    Without a folder nothing is saved, and nothing is found, so that a script is the same with and without.
    """

    folder: str | None

    def load(self) -> Any:
        """What was saved last, the same on all ranks, or ``None``. Collective. It is unpickled: load what you trust."""
        found = None
        if self.folder is not None and lifecycle.rank() == 0:
            files, path = pyarrow.fs.FileSystem.from_uri(self.folder)
            if files.get_file_info(f"{path}/{_FILE}").type != pyarrow.fs.FileType.NotFound:
                with files.open_input_stream(f"{path}/{_FILE}") as file:
                    found = cloudpickle.loads(file.read())
        return broadcast_object(found, 0, "rueda.spark.checkpoint")

    def save(self, state: Any) -> None:
        """Replaces what was saved by ``state`` of rank 0, anything that pickle takes; other ranks do nothing.

        Who is killed meanwhile leaves the former state there.
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
    """Raises :class:`rueda.InvalidArgumentError` for a place that Arrow has no file system for."""
    if place is None:
        return Checkpoint(None)
    text = place_of("checkpoint", place)
    folder = text if "://" in text else Path(os.path.abspath(text)).as_uri()
    try:
        pyarrow.fs.FileSystem.from_uri(folder)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise InvalidArgumentError(
            f"checkpoint={text!r} is no place to which Arrow can write: {error}"
        ) from error
    return Checkpoint(folder)
