"""The values that ranks put while they form one world, and which ranks wait. Knows no clock and no connection."""

from __future__ import annotations

from collections.abc import Mapping

from ..arrivals import names_of
from .words import Verb, Words, joined

# The limit on their values in bytes.
_MAX_STORED = 1 << 28


class World:
    """One attempt of the ranks to meet. The next one starts empty."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[bytes, bytes] = {}
        self._fresh = bytearray()  # keys and values put since the last barrier
        self._stored = 0
        self.arrived: set[int] = set()
        self.present: set[int] = set()
        self.at_barrier: set[int] = set()
        self.is_broken = False  # a rank was told that the world cannot form

    def enter(self, rank: int) -> None:
        """The rank has entered."""
        self.arrived.add(rank)
        self.present.add(rank)

    def leave(self, rank: int) -> None:
        """The rank has left."""
        self.present.discard(rank)
        self.at_barrier.discard(rank)

    @property
    def left(self) -> set[int]:
        """The ranks that have left."""
        return self.arrived - self.present

    @property
    def has_formed(self) -> bool:
        """Whether all ranks have entered, and those that have left had what they needed."""
        return len(self.arrived) == self._size and not self.is_broken

    def answer(self, rank: int, question: Words) -> Words | None:
        """The immediate answer to the rank; None if it waits for the others."""
        if question.verb == Verb.PUT:
            return self._put(question)
        if question.verb == Verb.GET:
            value = self._entries.get(question.key)
            if value is None:
                return error(f"no rank has put key '{_shown(question.key)}'")
            return Words(Verb.OK, value=value)
        if question.verb == Verb.BARRIER:
            self.at_barrier.add(rank)
            return None
        if question.verb == Verb.MISSING:
            missing = set(range(self._size)) - self.at_barrier
            return Words(Verb.MISSING, value=(names_of(missing) if missing else "no rank").encode())
        return error("not a question")

    def end_of_wait(self, lost: Mapping[int, str]) -> Words | None:
        """The answer for all waiting ranks, or None. `lost`: how ranks have ended, in order of time."""
        if len(self.at_barrier) == self._size:
            everything = bytes(self._fresh)
            self._fresh.clear()
            return Words(Verb.OK, value=everything)
        rank = next((each for each in lost if each not in self.present), None)
        if rank is None:
            return None
        self.is_broken = True
        why = f"rank {rank} ended before the world was formed: {lost[rank]}"
        return Words(Verb.LOST, rank=rank, value=why.encode())

    def give_up(self) -> Words:
        """The answer for all waiting ranks because others have left."""
        self.is_broken = True
        return error(f"{names_of(self.left)} left while the world was formed")

    def _put(self, question: Words) -> Words:
        if question.key in self._entries:
            return error(f"key '{_shown(question.key)}' was put twice")
        packed = joined(question.key, question.value)
        if self._stored + len(packed) > _MAX_STORED:
            return error("the rendezvous store is full")
        self._stored += len(packed)
        self._fresh += packed
        self._entries[question.key] = question.value
        return Words(Verb.OK)


def error(text: str) -> Words:
    """An error message."""
    return Words(Verb.ERROR, value=text.encode())


def _shown(key: bytes) -> str:
    return key.decode(errors="replace")
