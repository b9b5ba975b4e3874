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


def header(
    rank: int = 0,
    size: int = 2,
    clock: str = "here",
    run: str = "a",
    epoch: int = 0,
    began: float = 0.0,
) -> Header:
    return Header(rank, size, size, 1, "host", 1, clock, run, began, ["train.py"], [], {}, epoch)


def row(
    kind: Kind, begin: int, end: int | None = None, key: int = 0, size: int = 0, flags: int = MAIN
) -> bytes:
    return ROW.pack(kind, flags, 0, key, size, begin, begin if end is None else end)


def recording(rows: list[bytes], folder: Path, **named: Any) -> Recording:
    path = file_of(folder, named.get("rank", 0), *filter(None, [named.get("epoch")]))
    path.write_bytes(header(**named).line() + b"".join(rows))
    return read_recording(path)


def two_ranks(folder: Path, shift: int = 0, steps: int = 12, late: int = 20) -> list[Recording]:
    """Steps of 100 ms: 10 of input, 50 of compute (rank 1: ``late`` more), an allreduce of 5, and 5 of logging.

    The clock of rank 1 is ahead by ``shift``.
    """
    made = []
    for rank in (0, 1):
        ahead = shift * rank - min(shift, 0)  # no clock tells a time before 0
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


def world(at: int, size: int, epoch: int = 0) -> bytes:
    """The world with this number was formed in the millisecond before ``at``."""
    return row(Kind.WORLD, at - MS, at, size=size | epoch << 32)


def elastic_run(folder: Path, lost: int = 6, joins: int = 8, steps: int = 20) -> list[Recording]:
    """Two ranks, of which rank 1 is lost after ``lost`` steps; after ``joins``, if it is one, another joins as rank 1.

    Steps are 60 ms of compute, of the one that joins 80, and an allreduce of 5. The real-time clock tells 1000 s when
    the first world is formed.
    """
    rows = [[row(Kind.BEGIN, 0), world(10 * MS, 2)] for _ in range(2)]
    rows.append([])
    present, at = [0, 1], 10 * MS
    joined_at = 0
    for step in range(steps):
        if step == lost:
            present, at = [0], at + 40 * MS
            rows[0].append(world(at, 1, 1))
        if step == joins:
            present, at = [0, 2], at + 40 * MS
            joined_at = at
            rows[2] += [row(Kind.BEGIN, at - 20 * MS), world(at, 2, 2)]
            rows[0].append(world(at, 2, 2))
        done = at + (85 if 2 in present else 65) * MS
        for who in present:
            ready = at + (80 if who == 2 else 60) * MS
            rows[who] += [row(Kind.SUBMIT, ready, ready, 7, 64), row(Kind.WAIT, ready, done, 7)]
            rows[who].append(row(Kind.STEP, done))
        at = done
    for who in present:
        rows[who].append(row(Kind.END, at + MS))
    made = [recording(rows[rank], folder, rank=rank, began=1000.0) for rank in (0, 1)]
    if 2 in present:
        joined = 1000 + (joined_at - 10 * MS) * 1e-9
        made.append(recording(rows[2], folder, rank=1, epoch=2, began=joined))
    return made
