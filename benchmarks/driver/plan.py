"""What is to be measured."""

from __future__ import annotations

from dataclasses import dataclass

from .collectives import Collective
from .contenders import Contender
from .group import Group
from .values import element_size


@dataclass(frozen=True)
class Plan:
    """The command line, checked."""

    collective: Collective
    ranks: int
    sizes: tuple[int, ...]  # bytes
    dtype: str
    op: str
    root: int
    rounds: int
    calls: int  # in each block; 0: as many as `seconds` allow
    seconds: float  # for one block
    late: float  # seconds that one rank, another in each call, enters after the others
    processors: tuple[int, ...]

    @property
    def oversubscribed(self) -> bool:
        return self.ranks > len(self.processors)

    def count(self, size: int) -> int:
        """Elements of the larger side."""
        return size // element_size(self.dtype)


@dataclass(frozen=True)
class Entry:
    """A column: a contender with a kind of memory, and the group that runs it."""

    label: str
    contender: Contender
    memory: str
    group: Group
    # Sizes at which it takes part; all where empty.
    sizes: frozenset[int] = frozenset()

    def takes_part(self, collective: Collective, size: int) -> bool:
        known = self.contender.collectives
        return (not known or collective.name in known) and (not self.sizes or size in self.sizes)
