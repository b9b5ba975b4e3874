"""What strategies have in common that average the ranks' parameters at the end of a period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy

__all__ = ["Averaged"]

# A state of an earlier version does not tell.
_UNKNOWN = -1


@dataclass
class Averaged(Strategy):
    """Remembers in which step the parameters of all ranks were averaged.

    That a period ends with a step does not tell: the average fails if a rank is lost, and the step counts nevertheless.
    """

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._averaged_at = replica.steps

    def _forget_exchanges(self) -> None:
        self._averaged_at = _UNKNOWN

    def exchanged_at(self) -> tuple[int, ...]:
        return (self._averaged_at,)

    def average_parameters(self, what: str = "parameters") -> None:
        """As :meth:`Replica.average_parameters`."""
        self.replica.average_parameters(what)
        self._averaged_at = self.replica.steps

    def consolidate(self) -> None:
        if self._averaged_at != self.replica.steps:
            self.average_parameters("consolidated parameters")

    def state_dict(self) -> dict[str, Any]:
        return {"averaged_at": self._averaged_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averaged_at = int(state.get("averaged_at", _UNKNOWN))
