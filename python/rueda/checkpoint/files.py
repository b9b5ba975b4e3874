"""Files of a checkpoint: synced to disk before anything relies on them, and verified by size and checksum.

The list of files, ``rueda.json``, is next to the files that torch knows. It reveals damage; torch does not check.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from torch.distributed.checkpoint.filesystem import FileSystem

from rueda.checkpoint.folder import sync
from rueda.checkpoint.problems import CheckpointError
from rueda.json_objects import read_object

__all__ = [
    "MANIFEST",
    "CheckedFiles",
    "FileSum",
    "Manifest",
    "is_checkpoint",
    "read_manifest",
    "verify",
]

MANIFEST = "rueda.json"
_VERSION = 1
_BLOCK = 1 << 20


class FileSum(NamedTuple):
    """What a file must have: its size in bytes and the CRC-32 of its content."""

    size: int
    crc32: int


class _Summed(io.RawIOBase):
    """Computes size and checksum of what is written. Keeps the first error: torch replaces it with another."""

    def __init__(self, raw: BinaryIO, path: str) -> None:
        self._raw = raw
        self._path = path
        self.size = 0
        self.crc32 = 0
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def tell(self) -> int:
        return self.size

    def write(self, content: Any) -> int:
        with self._noting_failure():
            written = self._raw.write(content)
            self.crc32 = zlib.crc32(content, self.crc32)
            self.size += written
            return written

    def flush(self) -> None:
        with self._noting_failure():
            self._raw.flush()

    def settle(self) -> None:
        """Returns once everything is on disk."""
        with self._noting_failure():
            self._raw.flush()
            os.fsync(self._raw.fileno())

    @contextmanager
    def _noting_failure(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            if self.failure is None:
                self.failure = OSError(error.errno, error.strerror, self._path)
            raise self.failure from None


class CheckedFiles(FileSystem):
    """The file system through which torch's FileSystemWriter writes. ``sums``: of the files so far, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, FileSum] = {}

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        """Like torch's, but a written file is on disk when the context ends."""
        raw = cast(BinaryIO, open(path, mode))  # noqa: SIM115 - closed below, whatever closing raises
        stream = _Summed(raw, str(path))
        try:
            yield stream
            stream.settle()
        except BaseException:
            with suppress(OSError):  # what could not be written before cannot be written now
                raw.close()
            if stream.failure is not None:
                raise stream.failure from None
            raise
        raw.close()
        self.sums[Path(path).name] = FileSum(stream.size, stream.crc32)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.sums[Path(new_path).name] = self.sums.pop(Path(path).name)


@dataclass(frozen=True)
class Manifest:
    """The parts of a checkpoint. ``ranks``: how many ranks have written it."""

    step: int
    ranks: int
    files: dict[str, FileSum]

    def write(self, folder: Path) -> None:
        """Writes it to disk, and syncs the folder's directory entries."""
        content = {
            "version": _VERSION,
            "step": self.step,
            "ranks": self.ranks,
            "files": {
                name: {"size": each.size, "crc32": f"{each.crc32:08x}"}
                for name, each in sorted(self.files.items())
            },
        }
        with CheckedFiles().create_stream(folder / MANIFEST, "wb") as stream:
            stream.write(json.dumps(content, indent=1).encode())
        sync(folder)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint itself, wherever it is now, instead of a folder of checkpoints."""
    return os.path.exists(folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Raises :class:`CheckpointError` if the manifest is missing or invalid, and ``OSError``."""
    path = folder / MANIFEST
    try:
        content = read_object(path.read_bytes())
        version = content["version"]
        files = {
            str(name): FileSum(int(each["size"]), int(each["crc32"], 16))
            for name, each in content["files"].items()
        }
        manifest = Manifest(int(content["step"]), int(content["ranks"]), files)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: the checkpoint is incomplete, or not of rueda.checkpoint",
            path=str(path),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {type(error).__name__}: {error}", path=str(path)
        ) from error
    if version != _VERSION:
        raise CheckpointError(
            f"{path} is of version {version}; this Rueda reads version {_VERSION}", path=str(path)
        )
    return manifest


def verify(folder: Path, names: Iterable[str], manifest: Manifest) -> None:
    """Raises :class:`CheckpointError` for the first of these files that is missing or differs from what was written."""
    for name in names:
        path, expected = folder / name, manifest.files[name]
        try:
            found = _sum_of(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing", path=str(path)) from None
        if found.size != expected.size:
            raise CheckpointError(
                f"{path} has {found.size} bytes, and {expected.size} were written", path=str(path)
            )
        if found.crc32 != expected.crc32:
            raise CheckpointError(
                f"{path} is damaged: its CRC-32 is {found.crc32:08x}, and {expected.crc32:08x} was written",
                path=str(path),
            )


def _sum_of(path: Path) -> FileSum:
    size = crc32 = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size += len(block)
            crc32 = zlib.crc32(block, crc32)
    return FileSum(size, crc32)
