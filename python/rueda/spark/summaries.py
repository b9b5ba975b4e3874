"""Writes TensorBoard summaries on rank 0, to any file system that fsspec supports."""

from __future__ import annotations

import io
import os
import socket
import time
import warnings
from collections.abc import Mapping
from typing import Any

from rueda import lifecycle
from rueda.engines.given import place_of
from rueda.engines.versions import Needs
from rueda.errors import InvalidArgumentError

__all__ = ["Summaries", "summaries_at"]

_FLUSH_SECONDS = 30.0
_needs = Needs(
    "rueda.spark.fit(tensorboard=)",
    "tensorboard",
    "tensorboard",
    (2,),
    "pip install tensorboard fsspec",
)


class Summaries:
    """Scalars in a folder of TensorBoard event files: ``s3://...``, ``hdfs://...``, a path.

    Without a folder nothing is written, so a script needs no special case. Each attempt of a stage has its own file,
    which hides what earlier attempts have written for the same and later steps.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._file: _EventFile | None = None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve on rank 0; other ranks do nothing. Average values over the ranks first.

        Writes every 30 seconds and at the end. If writing fails, issues a RuntimeWarning and retries the next time.
        """
        if self._folder is None or lifecycle.rank() != 0:
            return
        if self._file is None:
            self._file = _EventFile(self._folder, step)
        self._file.add(step, {name: float(value) for name, value in values.items()})

    def close(self) -> None:
        """Writes the remaining points."""
        if self._file is not None:
            self._file.flush()


def summaries_at(place: str | os.PathLike[str] | None) -> Summaries:
    """Raises :class:`rueda.InvalidArgumentError` for a place unknown to fsspec, ImportError without TensorBoard."""
    if place is None:
        return Summaries(None)
    folder = place_of("tensorboard", place)
    try:
        import fsspec
        import tensorboard.compat.proto.event_pb2  # noqa: F401 - what will be needed
    except ModuleNotFoundError:
        raise _needs.missing() from None
    try:
        fsspec.core.url_to_fs(folder)
    except (ImportError, ValueError) as error:
        raise InvalidArgumentError(
            f"tensorboard={folder!r} is not a location to which fsspec can write: {error}"
        ) from error
    return Summaries(folder if "://" in folder else os.path.abspath(folder))


class _EventFile:
    def __init__(self, folder: str, step: int) -> None:
        import fsspec

        self._files, path = fsspec.core.url_to_fs(folder)
        # With microseconds: attempts within a second are read in order, and none overwrites another.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.0"
        self._folder, self._path = path, f"{path}/{name}"
        self._written = b""  # kept for stores that cannot append
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._record(file_version="brain.Event:2")
        self._record(step=step, session_log={"status": "START"})

    def add(self, step: int, values: Mapping[str, float]) -> None:
        points = [{"tag": name, "simple_value": value} for name, value in values.items()]
        self._record(step=step, summary={"value": points})
        if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._waiting:
            return
        content = self._written + b"".join(self._waiting)
        try:
            self._files.makedirs(self._folder, exist_ok=True)
            self._files.pipe_file(self._path, content)
        except Exception as error:  # from any file system: training matters more than its curves
            warnings.warn(
                f"nothing could be written for TensorBoard to {self._path}: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        self._written = content
        self._waiting.clear()

    def _record(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(wall_time=time.time(), **fields)
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self._waiting.append(record.getvalue())
