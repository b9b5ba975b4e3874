"""Names for the collectives of a process group, so that Rueda recognizes repeated ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

__all__ = ["Names"]

# How many preceding collectives identify the program's place in its loop.
CONTEXT = 32
# How many names the collectives of one place have in turn. Of several with one name that are in flight at once, the
# engine lets all but the first wait (is_reused_in_turn() in csrc/coordinator/submission.h): no caller does.
IN_FLIGHT = 4
# All contexts are forgotten when there are this many.
MAX_CONTEXTS = 8192


class Names:
    """Names the collectives of a group by the collectives that preceded them.

    torch.distributed matches collectives by order, Rueda by name, and Rueda is fastest if an operation recurs under the
    same name. So the name of the next collective is a function of the preceding ones: in a training loop each gets the
    name that it had in the last step. The collective itself does not influence its own name, so ranks that disagree
    about it use the same name and get an error that says what differs.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._round = 0
        self._uses: list[int] = []
        self._forgotten = 0  # the sum of the uses that have been forgotten
        self._forget()

    @property
    def begun(self) -> int:
        """How many collectives have been given a name."""
        return self._forgotten + sum(self._uses)

    def next(self, signature: Hashable) -> str:
        """The name of a collective. ``signature``: exactly what all ranks must agree on.

        Contexts stay the same on all ranks only if any two collectives have equal signatures on all ranks or on none.
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
        """Starts over after an error that every rank has seen, as ranks may have submitted different collectives."""
        self._round += 1
        self._forget()

    def _forget(self) -> None:
        self._forgotten = self.begun
        self._recent: deque[int] = deque(maxlen=CONTEXT)
        self._places: dict[tuple[int, ...], int] = {}
        self._uses = []
