"""Arrow batches on this host's disk, written once and read in each later epoch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import pyarrow as pa

from rueda.errors import RuedaError

__all__ = ["Spill", "local_folder"]


class Spill:
    """An unnamed file in Arrow's stream format in ``folder``; it vanishes with the process, however that ends.

    ``bytes_written``: its size so far. Raises :class:`rueda.RuedaError` if writing fails, such as on a full disk.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.bytes_written = 0
        self._file = tempfile.TemporaryFile(dir=folder, prefix="rueda-")  # noqa: SIM115 - kept
        self._writer: pa.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        with self._telling():
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
            self.bytes_written = self._file.tell()

    def finish(self) -> None:
        """Completes the file after the last batch."""
        with self._telling():
            if self._writer is not None:
                self._writer.close()
            self._file.flush()
            self.bytes_written = self._file.tell()

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches in the order they were written, read lazily from the disk."""
        if self._writer is None:
            return
        # Reopens the file, so that each reader has its own position.
        with (
            pa.OSFile(f"/proc/self/fd/{self._file.fileno()}") as file,
            pa.ipc.open_stream(file) as stream,
        ):
            yield from stream

    def close(self) -> None:
        # Closing retries buffered writes that failed. That failure was reported already, and the data is unneeded now.
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RuedaError(
                f"batches for later epochs cannot be kept in {self._folder}: {error}; set spark.local.dir to a folder "
                "with more space, or pass spill=False if train iterates only once"
            ) from error


def local_folder(number: int) -> str:
    """One of the folders that Spark gives its workers for temporary files, those of ``spark.local.dir``."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")
    folder = folders[number % len(folders)]
    os.makedirs(folder, exist_ok=True)
    return folder
