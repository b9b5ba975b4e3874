"""Recordings for `rueda report`, made of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rueda.report.recording_format import (
    MAIN,
    ROW,
    Header,
    Kind,
    Recording,
    file_of,
    read_recording,
)

MS = 1_000_000


def header(rank: int = 0, size: int = 2, clock: str = "here", run: str = "a") -> Header:
    return Header(rank, size, size, 1, "host", 1, clock, run, 0.0, ["train.py"])


def row(
    kind: Kind, begin: int, end: int | None = None, key: int = 0, size: int = 0, flags: int = MAIN
) -> bytes:
    return ROW.pack(kind, flags, 0, key, size, begin, begin if end is None else end)


def recording(rows: list[bytes], folder: Path, **named: Any) -> Recording:
    path = file_of(folder, named.get("rank", 0))
    path.write_bytes(header(**named).line() + b"".join(rows))
    return read_recording(path)


def two_ranks(folder: Path, shift: int = 0, steps: int = 12, late: int = 20) -> list[Recording]:
    """Steps of 100 ms: 10 of input, 50 of compute (rank 1: ``late`` more), an allreduce of 5, and 5 of logging.

    The clock of rank 1 is ahead by ``shift``.
    """
    made = []
    for rank in (0, 1):
        ahead = shift * rank
        rows = [row(Kind.BEGIN, ahead), row(Kind.WORLD, ahead + MS, ahead + 2 * MS, size=2)]
        for step in range(steps):
            at = (100 + step * (70 + late)) * MS + ahead
            ready = at + (60 + late * rank) * MS
            done = at + (65 + late) * MS
            rows += [row(Kind.INPUT, at, at + 10 * MS)]
            rows += [row(Kind.SUBMIT, ready, ready, 7, 4096), row(Kind.WAIT, ready, done, 7)]
            rows += [row(Kind.STEP, done)]
        rows.append(row(Kind.END, done + 100 * MS))
        made.append(recording(rows, folder, rank=rank, clock="there" if shift and rank else "here"))
    return made
