"""The groups of gradients that an application wants to be reduced together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch

from rueda.attendance import attendance
from rueda.errors import InvalidArgumentError
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet, takes_part

__all__ = ["agree_on_groups"]

Groups = tuple[tuple[str, ...], ...]


def agree_on_groups(
    groups: int | Iterable[Iterable[torch.Tensor]] | None,
    names: Mapping[torch.Tensor, str],
    process_set: ProcessSet,
) -> Groups:
    """The names in each group, the same on every rank of the set.

    ``groups``: as for DistributedOptimizer(); nothing happens if it is ``None`` or 0. Parameters that need no gradient
    or belong to another optimizer are left out. Raises :class:`rueda.InvalidArgumentError` on every rank if the ranks'
    groups differ, and on a process that has joined a running job and not received its state yet.
    """
    if groups is None or (isinstance(groups, int) and groups == 0):
        return ()
    if attendance().is_newcomer:
        raise InvalidArgumentError(
            "groups= cannot be used by a process that joins a running job: the ranks would have to agree on them, and "
            "the others are in their training"
        )
    mine: Groups = ()
    problem = ""
    try:
        mine = _names_in(groups, names)
    except InvalidArgumentError as error:
        problem = str(error)
    if not takes_part(process_set):
        return mine
    told: list[tuple[Groups, str]] = allgather_object((mine, problem), "groups", process_set)
    problems = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(told) if text]
    if problems:
        raise InvalidArgumentError("; ".join(problems))
    for rank, (other, _) in enumerate(told):
        if other != told[0][0]:
            raise InvalidArgumentError(
                f"the groups of gradients differ between ranks of the set: rank 0 has {_shown(told[0][0])}, "
                f"rank {rank} has {_shown(other)}"
            )
    return mine


def _names_in(
    groups: int | Iterable[Iterable[torch.Tensor]], names: Mapping[torch.Tensor, str]
) -> Groups:
    if isinstance(groups, int):
        if groups < 0:
            raise InvalidArgumentError(f"groups={groups} is negative")
        wanted = [name for parameter, name in names.items() if parameter.requires_grad]
        size, larger = divmod(len(wanted), groups)
        cuts = [number * size + min(number, larger) for number in range(groups + 1)]
        chunks = [tuple(wanted[start:end]) for start, end in pairwise(cuts)]
    else:
        lists = [list(group) for group in groups]
        seen: set[torch.Tensor] = set()
        for parameter in (parameter for group in lists for parameter in group):
            if not isinstance(parameter, torch.Tensor):
                raise InvalidArgumentError(
                    f"groups must be lists of tensors, and one has a {type(parameter).__name__}"
                )
            if parameter in seen:
                raise InvalidArgumentError(
                    f"the parameter '{names.get(parameter, 'of another optimizer')}' is in groups twice"
                )
            seen.add(parameter)
        chunks = [
            tuple(names[each] for each in group if each in names and each.requires_grad)
            for group in lists
        ]
    return tuple(chunk for chunk in chunks if chunk)


def _shown(groups: Groups) -> str:
    return str([list(group) for group in groups])
