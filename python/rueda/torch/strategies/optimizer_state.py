"""What an optimizer keeps for its parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import torch

from rueda.errors import MismatchError
from rueda.objects import allgather_object, broadcast_object
from rueda.torch.strategies.named import assign
from rueda.torch.strategies.replica import Replica

__all__ = ["average_state", "entries", "entry_names", "take_rest_of_first"]


def entry_names(replica: Replica) -> set[str]:
    """Under which names the optimizer keeps something for a parameter.

    Optimizers make their state with their first step, so this lets a copy of it take one, on a parameter of one
    element, and looks.
    """
    optimizer, kind = replica.optimizer, replica.optimizer_class
    if optimizer.state:
        return {name for kept in optimizer.state.values() for name in kept}
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    group = {**optimizer.param_groups[0], "params": [parameter], "fused": None, "capturable": False}
    copy = kind.__new__(kind)
    defaults = {"defaults": optimizer.defaults, "state": defaultdict(dict), "param_groups": [group]}
    copy.__setstate__(defaults)
    copy.step()
    return set(copy.state[parameter])


def entries(replica: Replica, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """The optimizer's tensors of floating-point numbers, of all names or of these; numbers by themselves are left out.

    By parameter and name, as ``"fc.weight.exp_avg"``.
    """
    found = {}
    for parameter_name, parameter in replica.parameters.items():
        for name, kept in sorted(replica.optimizer.state.get(parameter, {}).items()):
            wanted = names is None or name in names
            if (
                wanted
                and isinstance(kept, torch.Tensor)
                and kept.is_floating_point()
                and (kept.dim() or not parameter.dim())
            ):
                found[f"{parameter_name}.{name}"] = kept
    return found


def average_state(replica: Replica) -> None:
    """Gives all ranks the mean of their optimizers' state.

    Raises :class:`rueda.MismatchError` on every rank where they do not keep the same.
    """
    mine = entries(replica)
    told: list[list[str]] = allgather_object(
        list(mine), f"{replica.prefix}/state", replica.process_set
    )
    members = replica.process_set.ranks
    for member, names in zip(members, told, strict=True):
        differing = sorted(set(names) ^ set(told[0]))
        if differing:
            raise MismatchError(
                f"the optimizers keep different state: '{differing[0]}' is on only one of the ranks {members[0]} and "
                f"{member}, as where a parameter had a gradient on some ranks only",
                tensor=differing[0],
                field="state",
            )
    assign(mine, replica.average(mine, "state"))


def take_rest_of_first(replica: Replica) -> None:
    """Gives all ranks what the first of them has besides: numbers by themselves, such as counts of steps, and options.

    After average_state(), so that all keep the same entries.
    """
    optimizer = replica.optimizer
    averaged = {id(each) for each in entries(replica).values()}
    rest = {
        name: {key: v for key, v in optimizer.state.get(each, {}).items() if id(v) not in averaged}
        for name, each in replica.parameters.items()
    }
    options = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    rest, options = broadcast_object(
        (rest, options), replica.process_set.ranks[0], f"{replica.prefix}/rest", replica.process_set
    )
    for name, entries_of_first in rest.items():
        optimizer.state[replica.parameters[name]].update(entries_of_first)
    for group, given in zip(optimizer.param_groups, options, strict=True):
        group.update(given)
