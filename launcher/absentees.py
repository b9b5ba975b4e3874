"""Notices, under mpirun, that a rank has exited with 0 before it called `rueda.init()`.

mpirun believes that such a rank does not use MPI, and lets the other ranks wait in MPI_Init forever.
"""

from __future__ import annotations

from .arrivals import Arrivals
from .processes import children, environment_of, is_alive

# A rank must be missing in this many consecutive looks, during which no other rank is started.
_LOOKS = 5
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK")


class AbsenteeWatch:
    """Watches mpirun's children, the ranks of this host."""

    def __init__(self, mpirun: int, ranks: int, arrivals: Arrivals) -> None:
        """`ranks`: the number of ranks, all on this host."""
        self._mpirun = mpirun
        self._ranks = ranks
        self._arrivals = arrivals
        self._rank_of: dict[int, int] = {}  # by process
        self._looks = 0

    def look(self) -> None:
        """Call about once per second."""
        if not self._arrivals.somebody_waits:
            return
        alive = {process for process in children(self._mpirun) if is_alive(process)}
        new = alive - self._rank_of.keys()
        for process in new:
            rank = _rank_of(process)
            if rank is not None:  # else it has not executed the program yet
                self._rank_of[process] = rank
        present = {self._rank_of[process] for process in alive & self._rank_of.keys()}
        if not any(map(self._arrivals.has_come, present)):
            self._looks = 0  # a waiting rank is alive, so mpirun's children are not visible
            return
        absent = {
            rank for rank in set(range(self._ranks)) - present if not self._arrivals.has_come(rank)
        }
        self._looks = self._looks + 1 if absent and not new else 0
        if self._looks >= _LOOKS:
            for rank in absent:
                self._arrivals.leave(rank)


def _rank_of(process: int) -> int | None:
    variables = environment_of(process)
    for name in _RANK_VARIABLES:
        if name in variables:
            return int(variables[name])
    return None
