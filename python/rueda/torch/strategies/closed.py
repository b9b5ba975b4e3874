"""The strategy of a wrapped optimizer that is closed."""

from __future__ import annotations

from typing import Any, NoReturn

from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.strategy import Strategy

__all__ = ["Closed"]


class Closed(Strategy):
    """Raises InvalidArgumentError for every use, and keeps what the strategy before it would save."""

    def __init__(self, before: Strategy, saved: dict[str, Any]) -> None:
        self.saved = saved
        self._described = before.describe()
        self.ranks_stay_equal = before.ranks_stay_equal  # type: ignore[misc]  # of this object only

    def describe(self) -> str:
        return f"{self._described} (closed)"

    def before_step(self) -> NoReturn:
        self.refuse()

    def after_epoch(self) -> NoReturn:
        self.refuse()

    def consolidate(self) -> NoReturn:
        self.refuse()

    def before_switch(self) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raises InvalidArgumentError."""
        raise InvalidArgumentError("the optimizer was closed: wrap() another one to go on")
