"""The strategy of a wrapped optimizer that is closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.strategy import Strategy

__all__ = ["Closed"]


@dataclass
class Closed(Strategy):
    """Raises InvalidArgumentError for every use."""

    def before_step(self) -> NoReturn:
        self._refuse()

    def after_epoch(self) -> NoReturn:
        self._refuse()

    def consolidate(self) -> NoReturn:
        self._refuse()

    def before_switch(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidArgumentError("the optimizer was closed: wrap() another one to go on")
