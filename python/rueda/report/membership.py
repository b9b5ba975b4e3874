"""Which worlds a recording was in, from when to when, and how many ranks each of them had. Pure.

A world is known by two numbers that are the same on all of its ranks: how many times ``rueda.init()`` has formed one,
and the number that ``rueda.recover()`` calls ``epoch``. A process that joined begins with the epoch that it joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rueda.report.recording_format import Kind, Recording

__all__ = ["Presence", "first_steps", "presences", "sizes_at", "world_numbers", "worlds_of"]

World = tuple[int, int]
Times = npt.NDArray[np.int64]
_SIZE = 0xFFFFFFFF


@dataclass(frozen=True)
class Presence:
    """When a process joined and left, in seconds since the first world was formed.

    ``joined``: None if it was in the first world. ``left``: None if no world was formed after its last one.
    """

    joined: float | None = None
    left: float | None = None


def worlds_of(recording: Recording) -> list[World]:
    """The worlds of its WORLD rows, in their order."""
    epochs = (recording.of(Kind.WORLD)["bytes"] >> 32).tolist()
    found = []
    formed = 0
    for epoch in epochs:
        formed += epoch == 0
        found.append((max(1, formed), epoch))
    return found


def world_numbers(recordings: Sequence[Recording]) -> list[Times]:
    """Of each recording, the world of each of its rows: the same number for the same world; 0 before the first."""
    worlds = [worlds_of(recording) for recording in recordings]
    numbers = {world: n for n, world in enumerate(sorted({w for own in worlds for w in own}), 1)}
    return [
        np.array([0, *(numbers[world] for world in own)])[
            np.cumsum(recording.rows["kind"] == Kind.WORLD)
        ]
        for recording, own in zip(recordings, worlds, strict=True)
    ]


def sizes_at(recording: Recording, times: Times) -> Times:
    """How many ranks its world had at these times, on its own clock."""
    rows = recording.of(Kind.WORLD)
    sizes = rows["bytes"] & _SIZE
    sizes = np.where(sizes > 0, sizes, recording.header.size)
    if not len(rows):
        return np.full(len(times), recording.header.size)
    return np.asarray(sizes[np.maximum(np.searchsorted(rows["end"], times, "right") - 1, 0)])


def first_steps(recordings: Sequence[Recording], ends: Sequence[Times]) -> list[int]:
    """How many steps had ended in the job before the first one of each recording: 0 if it was in the first world.

    ``ends``: of each recording, when its steps ended, in order. Those that joined are expected in the order in which
    they did, after the others. Of a rank that recorded no world from then on, such as one that was lost before, all
    steps count: if the others' recordings are missing, there may have been more.
    """
    found: list[int] = []
    for number, recording in enumerate(recordings):
        epoch = recording.header.epoch
        before = [0]
        for other in range(number) if epoch else ():
            rows = recordings[other].of(Kind.WORLD)
            # One that joined at the same time has had none by its first world.
            met = rows["begin"][rows["bytes"] >> 32 >= epoch]
            ended = np.searchsorted(ends[other], met[0], "right") if len(met) else len(ends[other])
            before.append(found[other] + int(ended))
        found.append(max(before))
    return found


def presences(recordings: Sequence[Recording]) -> list[Presence]:
    """Of each recording, by the hosts' real-time clocks, since those of different hosts have nothing else in common."""
    worlds = [worlds_of(recording) for recording in recordings]
    zero = min(recording.header.began for recording in recordings)
    found = []
    for recording, own in zip(recordings, worlds, strict=True):
        joined = recording.header.began - zero if recording.header.epoch else None
        last = own[-1] if own else (1, recording.header.epoch)
        # One that joined cannot tell how often init() had formed a world before.
        is_first = not recording.header.epoch
        later = [
            _began(other, place) - zero
            for other, theirs in zip(recordings, worlds, strict=True)
            for place, world in enumerate(theirs)
            if (world > last if is_first else world[0] == last[0] and world[1] > last[1])
        ]
        found.append(Presence(joined, max(0.0, min(later)) if later else None))
    return found


def _began(recording: Recording, place: int) -> float:
    """Seconds since 1970: when a rank began to form the world of its WORLD row with this number."""
    rows = recording.of(Kind.WORLD)
    return recording.header.began + int(rows["begin"][place] - rows["end"][0]) * 1e-9
