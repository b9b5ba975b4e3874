"""What the collectives of a process group are called, so that repeated ones are recognised."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

__all__ = ["Names"]

# So many preceding collectives tell where in its loop a program is.
CONTEXT = 32
# Collectives of one place that may be on their way at once.
IN_FLIGHT = 4
# When so many contexts are known, all are forgotten.
MAX_CONTEXTS = 8192


class Names:
    """Names the collectives of a group by what came before.

    torch.distributed matches collectives by their order, Rueda by their names, and Rueda is fastest where an operation
    comes again under the name it had. So the name of the next collective is a function of the preceding ones: in a
    training loop each gets the name that it had in the last step. The collective itself has no influence on its name.
    So ranks that disagree about it use the same name, and are told what differs.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._round = 0
        self._forget()

    def next(self, signature: Hashable) -> str:
        """The name for a collective that ``signature`` describes: what all ranks must agree on, and nothing else.

        Ranks go through the same contexts only if two collectives have one signature on all of them or on none.
        """
        context = tuple(self._recent)
        place = self._places.get(context)
        if place is None:
            if len(self._places) >= MAX_CONTEXTS:
                self._forget()
                context = ()
                self._round += 1
            place = self._places[context] = len(self._places)
            self._uses.append(0)
        uses = self._uses[place]
        self._uses[place] = uses + 1
        self._recent.append(hash(signature))
        return f"{self._prefix}.{self._round}.{place}.{uses % IN_FLIGHT}"

    def restart(self) -> None:
        """Begins anew after an error that every rank has seen, since each may have submitted something else."""
        self._round += 1
        self._forget()

    def _forget(self) -> None:
        self._recent: deque[int] = deque(maxlen=CONTEXT)
        self._places: dict[tuple[int, ...], int] = {}
        self._uses: list[int] = []
