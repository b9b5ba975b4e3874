"""This rank's part of a sharded tensor: of a ``DTensor``, as created by FSDP2 and tensor parallelism.

Ranks that hold the same part of the same tensor reduce and broadcast that part like any other tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rueda.errors import MismatchError
from rueda.lifecycle import rank
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet

__all__ = ["are_whole", "as_placed", "is_cut", "like", "local_of", "part_of", "require_same_parts"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_cut(tensor: torch.Tensor) -> bool:
    """Whether it is a ``DTensor``, including one that every rank holds completely."""
    if type(tensor) in _PLAIN:
        return False
    # Without the module there are none. torch 2.4 has it under the older name.
    modules = map(sys.modules.get, ("torch.distributed.tensor", "torch.distributed._tensor"))
    classes = [getattr(module, "DTensor", None) for module in modules]
    return any(isinstance(tensor, each) for each in classes if each is not None)


def are_whole(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether certainly none is sharded, with a single check."""
    return set(map(type, tensors)).issubset(_PLAIN)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this rank holds, in its own memory; the tensor itself if it is not sharded."""
    if not is_cut(tensor):
        return tensor
    with torch.no_grad():  # gives the part itself, not a view that autograd tracks
        local = tensor.to_local()  # type: ignore[attr-defined]
    wait = getattr(local, "wait", None)  # of the pending result of a functional collective
    return local if wait is None else wait()  # type: ignore[no-any-return]


def like(local: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    """A tensor sharded like ``cut``, of which this rank holds ``local``; ``local`` itself if that is not sharded."""
    if not is_cut(cut):
        return local
    whole: Any = cut
    return type(whole.data).from_local(  # type: ignore[no-any-return]
        local,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def as_placed(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient placed like its parameter. Collective over the parameter's mesh if it is not.

    If ranks use a parameter that they all hold for different parts of the data, as with sequence parallelism, autograd
    leaves each with its part of the gradient's sum. All of these ranks must then use the parameter.
    """
    if not (is_cut(gradient) and is_cut(parameter)):
        return gradient
    given, wanted = gradient.placements, parameter.placements  # type: ignore[attr-defined]
    if given == wanted:
        return gradient
    with torch.no_grad():
        return gradient.detach().redistribute(placements=wanted)  # type: ignore[attr-defined,no-any-return]


def part_of(tensor: torch.Tensor) -> str:
    """Which part of it this rank holds: "part 1 of 2 of dimension 0"; "all" if it is not sharded."""
    if not is_cut(tensor):
        return "all"
    whole: Any = tensor
    places = whole.device_mesh.get_coordinate()
    if places is None:  # this rank is not in its mesh
        return "no part"
    parts = [
        f"part {place + 1} of {size} of dimension {getattr(placement, 'dim', '?')}"
        for placement, place, size in zip(
            whole.placements, places, whole.device_mesh.shape, strict=True
        )
        if not placement.is_replicate()
    ]
    return ", ".join(parts) or "all"


def require_same_parts(
    tensors: Iterable[tuple[str, torch.Tensor]], name: str, process_set: ProcessSet
) -> None:
    """Raises :class:`rueda.MismatchError` on every rank of the set if they hold different parts of a tensor.

    Collective if any tensor is sharded. ``name``: of the operation.
    """
    mine = [(label, part_of(each)) for label, each in tensors if is_cut(each)]
    if not mine:
        return
    every: list[list[tuple[str, str]]] = allgather_object(mine, name, process_set)
    members = process_set.ranks
    for member, theirs in zip(members, every, strict=True):
        for (label, part), (_, first) in zip(theirs, every[0], strict=False):
            if part != first:
                raise MismatchError(
                    f"rank {members[0]} holds {first} of '{label}' and rank {member} {part}: ranks that train together "
                    f"must hold the same part, as in process_set=grid.process_set('replicate') of "
                    f"rueda.torch.parallel.Grid",
                    member if member != rank() else members[0],
                    tensor=label,
                    field="part",
                    values=(first, part),
                )
