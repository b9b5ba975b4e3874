"""Checks that ranks make before they reduce: the gradients' shapes, and which rank has which gradient."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from rueda.errors import MismatchError
from rueda.lifecycle import rank
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet

__all__ = ["Entry", "agree_on_layout", "agree_on_presence"]


class Entry(NamedTuple):
    """One gradient or variable; ``path`` is only for messages, since it differs if a rank built other models before."""

    path: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.path}' {self.dtype}{list(self.shape)}"


def agree_on_layout(label: str, layout: Sequence[Entry], process_set: ProcessSet) -> None:
    """Raises the same :class:`rueda.MismatchError` on every rank if the counts, shapes or dtypes differ."""
    digests = allgather_object(_digest(layout), f"{label}.layout", process_set)
    if len(set(digests)) > 1:
        _raise_difference(label, layout, process_set)


def agree_on_presence(
    label: str,
    layout: Sequence[Entry],
    present: Sequence[bool],
    possible: Sequence[bool],
    process_set: ProcessSet,
) -> list[bool]:
    """Returns which gradients any rank has; these are reduced, and a rank that lacks one contributes zeros.

    ``possible``: the gradients for which this rank can accept a result. A gradient that any rank has must be possible
    on every rank. Raises the same :class:`rueda.MismatchError` on every rank if it is not, or if the models differ.
    """
    mine = (rank(), _digest(layout), bytes(present), bytes(possible))
    everyone = allgather_object(mine, f"{label}.presence", process_set)
    if len({digest for _, digest, _, _ in everyone}) > 1:
        _raise_difference(label, layout, process_set)
    union = [any(there) for there in zip(*(has for _, _, has, _ in everyone), strict=True)]
    for index, wanted in enumerate(union):
        unable = [each[0] for each in everyone if not each[3][index]]
        if wanted and unable:
            owners = [each[0] for each in everyone if each[2][index]]
            _fail(
                label,
                f"gradient {index} ({layout[index]}) exists on {_ranks(owners)} and was None on {_ranks(unable)} "
                f"when the step was compiled: compute it there too, or train with run_eagerly=True",
            )
    return union


def _digest(layout: Sequence[Entry]) -> bytes:
    content = repr([(entry.shape, entry.dtype) for entry in layout])
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def _raise_difference(label: str, layout: Sequence[Entry], process_set: ProcessSet) -> None:
    mine = (rank(), [tuple(entry) for entry in layout])
    layouts = allgather_object(mine, f"{label}.entries", process_set)
    first = [Entry(*entry) for entry in layouts[0][1]]
    for number, entries in layouts:
        other = [Entry(*entry) for entry in entries]
        here, there = _ranks([layouts[0][0]]), _ranks([number])
        what = ""
        for index, (one, two) in enumerate(zip(first, other, strict=False)):
            if one[1:] != two[1:]:
                what = f"variable {index} is {one} on {here} and {two} on {there}"
                break
        if not what and len(first) != len(other):
            what = f"there are {len(first)} variables on {here} and {len(other)} on {there}"
        if what:
            _fail(label, f"the models differ: {what}; every rank must build and train the same")


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _fail(label: str, why: str) -> None:
    raise MismatchError(f"'{label}': {why}", tensor=label)
