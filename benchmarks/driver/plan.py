"""What to measure."""

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
    calls: int  # per block; 0: as many as fit into `seconds`
    seconds: float  # per block
    late: float  # seconds by which one rank, a different one in each call, enters after the others
    processors: tuple[int, ...]

    @property
    def oversubscribed(self) -> bool:
        return self.ranks > len(self.processors)

    def count(self, size: int) -> int:
        """Elements of a rank's larger buffer."""
        return size // element_size(self.dtype)


@dataclass(frozen=True)
class Entry:
    """A column of the report: a contender with a kind of memory, and its group."""

    label: str
    contender: Contender
    memory: str
    group: Group
    # Sizes at which it takes part; empty: all.
    sizes: frozenset[int] = frozenset()

    def takes_part(self, collective: Collective, size: int) -> bool:
        known = self.contender.collectives
        return (not known or collective.name in known) and (not self.sizes or size in self.sizes)
