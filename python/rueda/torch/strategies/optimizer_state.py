"""The state that an optimizer keeps for its parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rueda.errors import MismatchError, UnsupportedError
from rueda.objects import allgather_object, broadcast_object
from rueda.torch.layouts import laid_out_like
from rueda.torch.shards import local_of
from rueda.torch.sparse import no_rows
from rueda.torch.strategies.named import assign
from rueda.torch.strategies.replica import Replica

__all__ = [
    "Sources",
    "average_state",
    "entries",
    "entries_or_zeros",
    "entry_names",
    "take_rest",
]

# What torch's optimizers keep as one number for a parameter of any shape: for a zero-dimensional one, it has its shape.
_SCALARS = ("step", "mu_product", "mu", "eta", "H_diag")


def entry_names(replica: Replica) -> set[str]:
    """The names of the state entries that the optimizer keeps for a parameter.

    Optimizers create their state in their first step. Before it, this inspects a copy after one step on a parameter of
    one element. Raises :class:`rueda.UnsupportedError` if no copy can take it.
    """
    optimizer = replica.optimizer
    if optimizer.state:
        return {name for kept in optimizer.state.values() for name in kept}
    return {name for group in optimizer.param_groups for name in _kept_after_a_step(replica, group)}


def _kept_after_a_step(replica: Replica, options: Mapping[str, Any]) -> set[str]:
    """The names of the state entries that the optimizer keeps for a parameter of a group with these options.

    An optimizer that the application has derived from one of torch's may refuse such a step, and then counts as the
    latter. Raises :class:`rueda.UnsupportedError` if nothing else helps.
    """
    kind = replica.optimizer_class
    torchs = next((each for each in kind.__mro__ if _is_of_torch(each)), kind)
    refused: Exception | None = None
    kept: set[str] = set()
    for each in dict.fromkeys((kind, torchs)):
        for is_sparse in (False, True):  # SparseAdam takes no dense gradients
            try:
                kept = kept or _kept_by(each, replica, options, is_sparse)
            except Exception as error:  # of the application's own code, too
                refused = refused or error
            else:
                break
    if not kept and refused is not None:
        raise UnsupportedError(
            f"cannot tell which state {kind.__name__} keeps for a parameter: a trial step raised "
            f"{type(refused).__name__}: {refused}; take a step with it on every rank before wrap(), or use another "
            f"optimizer, such as torch.optim.AdamW"
        ) from refused
    return kept


def _is_of_torch(kind: type) -> bool:
    return (
        issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
        and kind.__module__.startswith("torch.optim.")
    )


def _kept_by(
    kind: type[torch.optim.Optimizer], replica: Replica, options: Mapping[str, Any], is_sparse: bool
) -> set[str]:
    """The names of the state entries that a copy of the optimizer, of class ``kind``, has after one step."""
    optimizer = replica.optimizer
    device = next(iter(replica.parameters.values())).device  # some optimizers support no other
    dimensions = next((each.dim() for each in options["params"]), 1)  # Muon takes matrices only
    parameter = torch.zeros([1] * dimensions, device=device, requires_grad=True)
    gradient = torch.zeros_like(parameter)
    parameter.grad = gradient.to_sparse(1) if is_sparse else gradient
    group = {**options, "params": [parameter], "fused": None, "capturable": False}
    # Copies, as a step may change what the application's optimizer has besides.
    own = {} if _is_of_torch(kind) else copy.deepcopy(_attributes(optimizer))
    trial = kind.__new__(kind)
    trial.__setstate__(
        own
        | {
            "defaults": optimizer.defaults,
            "state": defaultdict(dict),
            "param_groups": [group],
        }
    )
    trial.step()
    return set(trial.state[parameter])


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer has besides what all of torch's have, and what Rueda and schedulers have added."""
    usual = {*vars(torch.optim.SGD([torch.zeros(1, device="cpu")])), "step"}
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in usual and not name.startswith("_rueda_")
    }


def entries(replica: Replica, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """The optimizer's floating-point or complex state tensors, of all names or of these.

    Without scalars, unless the parameter is one, and without step counts and the like in any case. Keys are parameter
    and name, such as ``"fc.weight.exp_avg"``.
    """
    found = {}
    for parameter_name, parameter in replica.parameters.items():
        for name, kept in sorted(replica.optimizer_state(parameter_name).items()):
            wanted = names is None or name in names
            if (
                wanted
                and isinstance(kept, torch.Tensor)
                and (kept.is_floating_point() or kept.is_complex())
                and (kept.dim() or (not parameter.dim() and name not in _SCALARS))
            ):
                found[f"{parameter_name}.{name}"] = kept
    return found


def entries_or_zeros(replica: Replica, names: Collection[str]) -> dict[str, torch.Tensor]:
    """entries() of these names for every parameter that requires gradients; the same entries on all ranks.

    If this rank has no state for a parameter, as it has had no gradient of it so far, the entry is a tensor of zeros,
    of the parameter's shape, that is not part of the optimizer's state.
    """
    found, parameters, made = entries(replica, names), replica.parameters, {}
    for group in replica.optimizer.param_groups:
        members = set(map(id, group["params"]))
        labels = [label for label, each in replica.originals.items() if id(each) in members]
        kept = {name for label in labels for name in names if f"{label}.{name}" in found}
        kept = kept or _kept_after_a_step(replica, group).intersection(names)
        for label in labels:
            if not replica.originals[label].requires_grad:
                continue
            for name in sorted(kept):
                key = f"{label}.{name}"
                made[key] = found[key] if key in found else torch.zeros_like(parameters[label])
    return made


@dataclass(frozen=True)
class _Kind:
    """Of a state entry on some rank. ``sparse_dimensions``: 0 for a dense one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sparse_dimensions: int

    @classmethod
    def of(cls, kept: torch.Tensor) -> _Kind:
        is_sparse = kept.layout == torch.sparse_coo
        return cls(tuple(kept.shape), kept.dtype, kept.sparse_dim() if is_sparse else 0)


@dataclass(frozen=True)
class Sources:
    """The ranks whose state is taken where there is no mean. ``first``: for options that belong to no parameter."""

    first: int
    of_parameters: dict[str, int]


_Kinds = dict[str, dict[str, _Kind]]  # by parameter and name


def average_state(replica: Replica) -> Sources:
    """Gives all ranks the mean of their optimizers' state; returns where the rest is to come from, see take_rest().

    A rank without state of a parameter, of which it has had no gradient, counts as zeros, and has state then. An entry
    that is sparse on some ranks and dense on others becomes dense. Raises :class:`rueda.MismatchError` on every rank if
    ranks keep different entries of the same parameter.
    """
    mine = entries(replica)
    own: _Kinds = {name: {} for name in replica.parameters if replica.optimizer_state(name)}
    for name, kept in mine.items():
        parameter_name, _, key = name.rpartition(".")
        own[parameter_name][key] = _Kind.of(kept)
    told: list[_Kinds] = allgather_object(own, f"{replica.prefix}/state", replica.process_set)
    members = replica.process_set.ranks
    kinds, sources = _merged(told, members)
    alike = {
        f"{parameter}.{key}": _as_everywhere(
            replica, parameter, key, kind, mine.get(f"{parameter}.{key}")
        )
        for parameter, kept_there in kinds.items()
        for key, kind in kept_there.items()
    }
    assign(alike, replica.average(alike, "state"))
    with_state = (member for member, its in zip(members, told, strict=True) if any(its.values()))
    return Sources(next(with_state, members[0]), sources)


def _merged(told: Sequence[_Kinds], members: Sequence[int]) -> tuple[_Kinds, dict[str, int]]:
    """The entries that all ranks are to have, and for each parameter the first rank with state of it."""
    kinds: _Kinds = {}
    sources: dict[str, int] = {}
    for member, its in zip(members, told, strict=True):
        for parameter, kept in its.items():
            known = kinds.get(parameter)
            if not known:
                if known is None or kept:
                    kinds[parameter], sources[parameter] = dict(kept), member
                continue
            if kept and kept.keys() != known.keys():
                raise _different(parameter, sources[parameter], known, member, kept)
            for key, kind in kept.items():
                if not kind.sparse_dimensions:
                    known[key] = kind
    return kinds, sources


def _different(
    parameter: str, one: int, kept: Collection[str], other: int, kept_there: Collection[str]
) -> MismatchError:
    entry = f"{parameter}.{min(set(kept) ^ set(kept_there))}"
    return MismatchError(
        f"the optimizers keep different state: '{entry}' is on only one of the ranks {one} and {other}",
        tensor=entry,
        field="state",
    )


def _as_everywhere(
    replica: Replica, parameter_name: str, key: str, kind: _Kind, kept: torch.Tensor | None
) -> torch.Tensor:
    """The optimizer's entry, of that kind from now on; zeros if there has been none."""
    if kept is not None and _Kind.of(kept).sparse_dimensions == kind.sparse_dimensions:
        return kept
    made = _zeros(replica, parameter_name, kind) if kept is None else kept.to_dense()
    replica.set_optimizer_state(parameter_name, {key: made})
    return made


def _zeros(replica: Replica, parameter_name: str, kind: _Kind) -> torch.Tensor:
    parameter = local_of(replica.originals[parameter_name])
    is_like_it = tuple(parameter.shape) == kind.shape
    zeros = torch.zeros(kind.shape, dtype=kind.dtype, device=parameter.device)
    if kind.sparse_dimensions:
        return no_rows(zeros, kind.sparse_dimensions)
    return laid_out_like(zeros, parameter) if is_like_it else zeros


def take_rest(replica: Replica, sources: Sources) -> None:
    """Gives all ranks the rest of the state: scalars, such as step counts, and the groups' options.

    Call it after average_state(), which returns ``sources`` and gives all ranks the same entries.
    """
    optimizer = replica.optimizer
    averaged = {id(each) for each in entries(replica).values()}
    options = [
        {key: _portable(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    # Mostly one. The first comes first, with the options.
    roots = dict.fromkeys([sources.first, *sources.of_parameters.values()])
    for root in roots:
        rest = {
            name: {
                key: _portable(value)
                for key, value in replica.optimizer_state(name).items()
                if id(value) not in averaged
            }
            for name, source in sources.of_parameters.items()
            if source == root
        }
        rest, options = broadcast_object(
            (rest, options), root, f"{replica.prefix}/rest", replica.process_set
        )
        for name, entries_of_root in rest.items():
            device = replica.originals[name].device
            replica.set_optimizer_state(name, _brought(entries_of_root, device))
    device = next(iter(replica.parameters.values())).device
    for group, given in zip(optimizer.param_groups, options, strict=True):
        group.update(_brought(given, device))


@dataclass(frozen=True)
class _OfGpu:
    """A GPU tensor in transit to another rank, whose GPU may have another number."""

    value: torch.Tensor  # on the CPU


def _portable(value: Any) -> Any:
    return _OfGpu(value.cpu()) if isinstance(value, torch.Tensor) and value.is_cuda else value


def _brought(given: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        key: value.value.to(device) if isinstance(value, _OfGpu) else value
        for key, value in given.items()
    }
