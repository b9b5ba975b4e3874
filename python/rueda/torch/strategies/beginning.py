"""Notices weights that were loaded between a strategy's start and its first step."""

from __future__ import annotations

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.fingerprints import bits_of
from rueda.torch.strategies.strategy import Strategy

__all__ = ["Beginning"]


class Beginning:
    """The parameters with which a strategy starts, as long as none of its steps has been taken.

    Holds no copy: parameters that nobody has written since are recognized by their version counters, and only others
    are compared with the strategy's own copy. Writes through ``.data`` do not count as such.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.is_over = strategy.kept_parameters() is None
        self._marks = {} if self.is_over else _marks_of(strategy)

    def end(self) -> None:
        """Raises as require(). Once it has not, neither raises any more: the first step is taken."""
        if not self.is_over:
            self.require()
            self.is_over = True

    def require(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError`, on this rank only, if parameters have other values than then."""
        if self.is_over or (
            None not in self._marks.values() and self._marks == _marks_of(self._strategy)
        ):
            return
        parameters = self._strategy.replica.parameters
        for name, kept in (self._strategy.kept_parameters() or {}).items():
            now = parameters[name].detach()
            if not torch.equal(bits_of(now), bits_of(kept.to(now.device, now.dtype))):
                raise InvalidArgumentError(
                    f"'{name}' has changed since {self._strategy.describe()} started, which keeps a copy of the "
                    f"parameters and would mix the two: load weights before wrap() or switch(), or load the "
                    f"optimizer's state after them as well",
                    tensor=name,
                )


def _marks_of(strategy: Strategy) -> dict[str, tuple[int, int] | None]:
    """Where each parameter is and how often it was written; ``None`` if that is not counted."""
    return {
        name: None if each.is_inference() else (each.data_ptr(), each._version)
        for name, each in strategy.replica.parameters.items()
    }
