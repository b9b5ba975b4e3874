"""Lets ranks compare what they do, and communicate while the application does something else."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rueda import _native, lifecycle
from rueda.door import meeting_place
from rueda.errors import (
    InitializationError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    RuedaError,
    ShutdownError,
    UnsupportedError,
)
from rueda.exchanges import allgather
from rueda.objects import allgather_object, broadcast_object
from rueda.observation import options
from rueda.process_sets import ProcessSet
from rueda.recovery import on_recovery

__all__ = ["WorldBeside", "agree"]

# Options of the application's world that also apply to this one.
_TAKEN_OVER = (
    "transport",
    "interface",
    "init_timeout",
    "stall_warning",
    "stall_error",
    "transfer_timeout",
    "log_level",
)


def agree(
    details: Mapping[str, object],
    problem: Exception | None,
    numbers: tuple[int, int, int] = (0, 0, 0),
) -> list[list[int]]:
    """Compares what the ranks are about to do, and returns each one's ``numbers`` of 63 bits; collective.

    Raises on every rank :class:`rueda.InvalidArgumentError` if one has a ``problem``, or
    :class:`rueda.UnsupportedError` if the problem is one, and :class:`rueda.MismatchError` for the first of ``details``
    in which ranks differ.
    """
    texts = {key: str(value) for key, value in details.items()}
    digest = hashlib.blake2b(repr(sorted(texts.items())).encode(), digest_size=8).digest()
    hashed = int.from_bytes(digest, "little", signed=True)
    row = np.array([[hashed, problem is not None, *numbers]], np.int64)
    rows = allgather(row, "checkpoint")
    if rows[:, 1].any():
        told = None if problem is None else (f"{problem}", isinstance(problem, UnsupportedError))
        for rank, its in enumerate(allgather_object(told, "checkpoint.problem")):
            if its is not None:
                text, is_unsupported = its
                kind = UnsupportedError if is_unsupported else InvalidArgumentError
                raise kind(f"rank {rank}: {text}", rank) from problem
    if (rows[:, 0] != rows[0, 0]).any():
        _raise_difference(texts)
    return [[int(number) for number in each[2:]] for each in rows]


def _raise_difference(details: Mapping[str, str]) -> None:
    every = allgather_object(dict(details), "checkpoint.details")
    for key in dict.fromkeys(key for theirs in every for key in theirs):
        found: dict[str, list[int]] = {}
        for rank, theirs in enumerate(every):
            found.setdefault(theirs.get(key, "missing"), []).append(rank)
        if len(found) > 1:
            texts = [_shortened(text, list(found)) for text in found]
            told = ", ".join(
                f"{text} on ranks {ranks}"
                for text, ranks in zip(texts, found.values(), strict=True)
            )
            raise MismatchError(
                f"the ranks disagree about the checkpoint: {key} is {told}",
                field=key,
                values=tuple(texts),
            )
    raise AssertionError("hashes differ, but the hashed values do not")


def _shortened(text: str, others: Sequence[str], length: int = 200) -> str:
    """Shortened to begin a little before the place where the first two differ."""
    place = next(
        (i for i, (a, b) in enumerate(zip(others[0], others[1], strict=False)) if a != b),
        min(len(others[0]), len(others[1])),
    )
    begin = max(0, place - length // 4)
    end = begin + length
    return ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")


class WorldBeside:
    """A second world of the same ranks, with its own sockets and its own thread.

    Its messages neither wait for the application's operations nor mix with them, and it continues after the application
    has left the world. It is formed when it is first needed, and again after the application's world has changed. It
    ends when one of its ranks is lost: immediately if the system reports the loss, otherwise (as when a host no longer
    responds) when the application's world has recovered from it.
    """

    def __init__(self) -> None:
        self._set: ProcessSet | None = None
        self._world, self._size = -1, 0
        self._lost: list[int] = []  # ranks lost since it was formed
        on_recovery(self._has_lost)

    def is_usable(self) -> bool:
        """Whether it has the ranks of the current world, as far as this rank knows."""
        return self._set is not None and self._world == lifecycle.world_number()

    def form(self) -> None:
        """Forms it; collective over the application's world.

        Raises :class:`rueda.InitializationError` if that fails, and what collectives raise.
        """
        self.close("a new world for checkpoints is being formed")
        rank, size = lifecycle.rank(), lifecycle.size()
        number = _open(rank, size)
        self._set = ProcessSet(range(size))
        self._set.process_set_id = number
        self._world, self._size = lifecycle.world_number(), size
        self._lost = []

    def exchange(self, value: object, name: str) -> list[Any]:
        """Returns each rank's ``value``. Any thread may call it.

        Raises what :func:`rueda.allgather` raises; also :class:`rueda.PeerLostError` if the application's world has
        recovered from a loss before this world has noticed it.
        """
        beside = self._set
        try:
            if beside is None:
                raise ShutdownError("the world for checkpoints was closed")
            return allgather_object(value, name, beside)
        except ShutdownError as error:
            for rank in self._lost:
                raise PeerLostError(f"rank {rank} was lost in the meantime", rank) from error
            raise

    def _has_lost(self, previous_ranks: list[int]) -> None:
        if self._set is not None:
            self._lost = sorted(set(range(self._size)) - set(previous_ranks))
        self.close("ranks were lost")

    def close(self, cause: str) -> None:
        """Ends it: operations that others wait for in it fail with this cause."""
        beside, self._set = self._set, None
        if beside is not None and beside.process_set_id is not None:
            _native.close_world(beside.process_set_id, cause)


def _open(rank: int, size: int) -> int:
    if size == 1:
        return _native.open_world(0, 1, "", "", -1, {})
    listener, told = None, {}
    if rank == 0:
        try:
            listener, address = meeting_place(lifecycle.local_size() < size)
            told = {"address": address, "secret": secrets.token_hex(32)}
        except (OSError, RuedaError) as error:
            told = {"error": str(error)}
    told = broadcast_object(told, 0, "checkpoint.door")
    if "error" in told:
        raise InitializationError(
            f"rank 0 cannot be reached by the ranks of other hosts: {told['error']}", 0
        )
    settings = {name: value for name, value in options().items() if name in _TAKEN_OVER}
    if settings["transport"] == "mpi":  # which supports only one world
        settings["transport"] = "auto"
    try:
        return _native.open_world(
            rank,
            size,
            told["address"],
            told["secret"],
            -1 if listener is None else listener.fileno(),
            {**settings, "recovery": "off"},
        )
    finally:
        if listener is not None:
            listener.close()
