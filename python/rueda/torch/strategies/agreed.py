"""Checks that all ranks have the same settings before they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from rueda.errors import InvalidArgumentError, MismatchError, UnsupportedError
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet

__all__ = ["agree", "layout_of", "require_same"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Told:
    """What a rank tells the others."""

    settings: tuple[tuple[str, str], ...] = ()  # what must agree, with this rank's value
    problem: str = ""
    unsupported: bool = False


def agree(
    name: str,
    process_set: ProcessSet,
    prepare: Callable[[], tuple[T, Mapping[str, str]]],
) -> T:
    """Returns the first result of ``prepare``, if it succeeds on all ranks and its settings are the same there.

    Collective. If ``prepare`` raises on one rank, all raise :class:`rueda.InvalidArgumentError` or
    :class:`rueda.UnsupportedError`, with the ranks concerned; if settings differ, :class:`rueda.MismatchError`.
    """
    result: T | None = None
    cause: Exception | None = None
    try:
        result, settings = prepare()
        told = _Told(tuple(settings.items()))
    except Exception as error:  # reported to every rank
        cause = error
        known = isinstance(error, InvalidArgumentError | UnsupportedError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        told = _Told((), text, isinstance(error, UnsupportedError))
    every: list[_Told] = allgather_object(told, name, process_set)
    members = process_set.ranks
    problems = [each.problem for each in every]
    if any(problems):
        kind = UnsupportedError if any(each.unsupported for each in every) else InvalidArgumentError
        raise kind(
            _by_rank([(m, p) for m, p in zip(members, problems, strict=True) if p])
        ) from cause
    for number, (what, _) in enumerate(every[0].settings):
        require_same(what, members, [each.settings[number][1] for each in every])
    return result  # type: ignore[return-value]  # no rank has a problem


def layout_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Settings for agree(): the number of tensors, and each one's name, dtype and shape."""
    count = {"number of tensors of the model": str(len(tensors))}
    return count | {
        f"tensor {number} of the model": f"'{name}', {each.dtype} {list(each.shape)}"
        for number, (name, each) in enumerate(tensors.items())
    }


def require_same(
    what: str, members: Sequence[int], values: Sequence[str], advice: str = ""
) -> None:
    """Raises :class:`rueda.MismatchError` if these values, one of each member, differ. ``advice``: ends its text."""
    if len(set(values)) > 1:
        raise MismatchError(
            f"the {what} differs between ranks: {_by_rank(list(zip(members, values, strict=True)))}{advice}",
            field=what,
            values=tuple(sorted(set(values), key=values.count, reverse=True)),
        )


def _by_rank(told: Sequence[tuple[int, str]]) -> str:
    """Lists each text once, with the ranks that reported it."""
    ranks: dict[str, list[int]] = {}
    for rank, text in told:
        ranks.setdefault(text, []).append(rank)
    return "; ".join(
        f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {text}"
        for text, who in ranks.items()
    )
