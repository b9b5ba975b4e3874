"""Parameters' names in the states of strategies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import torch

from rueda.errors import InvalidArgumentError

__all__ = ["listed", "trained_in", "uncompiled", "with_known_names"]

T = TypeVar("T")

# The module in which torch.compile() puts the model that it compiles.
_COMPILED = "_orig_mod"
_MAX_LISTED = 8


def uncompiled(names: Mapping[torch.Tensor, str]) -> dict[torch.Tensor, str]:
    """The names that parameters have in the model before torch.compile(), so that states can move between both.

    The given names, if two parameters would then have the same one.
    """
    plain = {parameter: _uncompiled(name) for parameter, name in names.items()}
    return plain if len(set(plain.values())) == len(plain) else dict(names)


def _uncompiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def with_known_names(state: T, known: Collection[str]) -> T:
    """A state with uncompiled() names as keys where it has others than ``known``, as older versions saved them."""
    changed: Any = state
    if isinstance(state, dict):
        changed = {
            _uncompiled(key)
            if isinstance(key, str) and key not in known
            else key: with_known_names(each, known)
            for key, each in state.items()
        }
    elif isinstance(state, list):
        changed = [with_known_names(each, known) for each in state]
    return changed  # type: ignore[no-any-return]


def trained_in(kept: Mapping[str, Any], known: Collection[str]) -> list[str] | None:
    """The parameters that a strategy trained when its state was saved; ``None`` if an older version saved it.

    Raises :class:`rueda.InvalidArgumentError` if the optimizer does not have all of them, ``known`` being those that it
    has.
    """
    trained = kept.get("trained")
    if trained is None:
        return None
    missing = [name for name in trained if name not in known]
    if missing:
        raise InvalidArgumentError(
            f"the state belongs to other parameters: the optimizer lacks {listed(missing)}"
        )
    return list(trained)


def listed(names: Iterable[str]) -> str:
    """The names in quotes; only the first ones, if there are many."""
    every = [f"'{name}'" for name in names]
    more = len(every) - _MAX_LISTED
    return ", ".join(every[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
