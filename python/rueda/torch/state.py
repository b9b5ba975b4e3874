"""Gives every rank the same model and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.lifecycle import rank
from rueda.objects import allgather_object, broadcast_object
from rueda.process_sets import ProcessSet, global_process_set
from rueda.submission import Collectives, refuse
from rueda.torch.compression_state import COMPRESSION_STATE, shared_by_ranks
from rueda.torch.layouts import (
    Strides,
    fitted,
    laid_out,
    strides_of,
    strides_of_parameters,
    uninitialized,
)
from rueda.torch.left_out import unmarked
from rueda.torch.optimizer_state import load_as_given
from rueda.torch.shards import is_cut, like, local_of
from rueda.torch.tensors import TorchAdapter

__all__ = [
    "allocated",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "filled",
    "laid_out_as",
    "outline_of",
    "require_optimizer",
]

_collectives = Collectives(TorchAdapter(gpus=True))


def broadcast_parameters(
    params: Mapping[str, torch.Tensor]
    | Iterable[tuple[str, torch.Tensor]]
    | Iterable[torch.Tensor],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites the tensors of every rank with those of rank ``root_rank``.

    ``params``: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``. Any shapes and dtypes,
    the same on every rank; they need not be contiguous. For a ``DTensor``, each rank gets the part that it holds, so
    all ranks of the set must hold the same part (:class:`rueda.torch.parallel.Grid`). ``root_rank``: a rank of the
    set, which is to be given for sets without rank 0: ``process_set.ranks[0]``. A state_dict() lacks buffers that are
    not persistent, which ``model.named_buffers()`` has. Where hooks make it of copies, only
    ``model.named_parameters()`` and ``model.named_buffers()`` reach the model.

    Raises as :func:`rueda.torch.broadcast_`, and :class:`rueda.InvalidArgumentError` on every rank for a value that is
    not a tensor, and on this rank only for ``params`` without values, such as the model itself.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> rueda.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    handles = [
        (tensor, _broadcast_async(tensor, f"parameter/{name}", root_rank, process_set))
        for name, tensor in ((name, _held(value)) for name, value in _named(params))
    ]
    _receive(handles)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives the optimizers of all ranks the state and hyperparameters of the one at ``root_rank``.

    Works for every optimizer, even if the root has not taken a step yet; the root's is only read. The ranks' optimizers
    must have param_groups of the same lengths, otherwise every rank raises :class:`rueda.InvalidArgumentError`; so does
    a single rank if its argument is not an optimizer. State that the root keeps in the memory layout of its parameter,
    such as ``channels_last``, gets the layout of the parameter on each rank, as fused optimizers require. Sparse state,
    such as SGD's momentum of sparse gradients, travels as indices and values, and stays sparse.

    Example::

        >>> optimizer = torch.optim.Adam(torch.nn.Linear(3, 1).parameters())
        >>> rueda.torch.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    require_optimizer(optimizer)
    is_root = rank() == root_rank
    outline, tensors = outline_of(optimizer) if is_root else (None, [])
    told = (outline, strides_of_parameters(optimizer)) if is_root else None
    outline, strides = broadcast_object(told, root_rank, "optimizer_state", process_set)
    if not is_root:
        tensors = allocated(outline, optimizer)
    _receive(
        [
            (tensor, _broadcast_async(tensor, f"optimizer_state/{i}", root_rank, process_set))
            for i, tensor in enumerate(map(local_of, tensors))
        ]
    )
    problem = None
    if not is_root:
        try:
            state = filled(outline, _cut_again(outline, tensors, optimizer))
            load_as_given(optimizer, fitted(state, optimizer, strides))
        except Exception as error:  # every rank is told below
            problem = f"rank {rank()}: {type(error).__name__}: {error}"
    problems = [p for p in allgather_object(problem, "optimizer_state", process_set) if p]
    if problems:
        raise InvalidArgumentError(
            f"the optimizer state of rank {root_rank} does not fit on {'; '.join(problems)}"
        )


def outline_of(optimizer: torch.optim.Optimizer) -> tuple[Any, list[torch.Tensor]]:
    """The optimizer's state with its tensors replaced by slots, and those tensors themselves, not copies.

    In place of sparse tensors, such as SGD's momentum of sparse gradients, there are their indices and their values.
    """
    tensors: list[torch.Tensor] = []
    return _outline(_shared_state(optimizer), tensors), tensors


def _shared_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state without what belongs to each rank: what compression has lost of its gradients."""
    state = unmarked(optimizer.state_dict())
    kept = state.get(COMPRESSION_STATE)
    if kept is not None:
        state[COMPRESSION_STATE] = shared_by_ranks(kept)
    return state


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor that is sent separately."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_gpu: bool
    is_cut: bool = False  # if so, shape and strides are those of the rank's part
    strides: Strides | None = None  # None: contiguous


@dataclass(frozen=True)
class _SparseSlot:
    """Stands for a sparse tensor, whose indices and values are sent separately, like other tensors."""

    indices: _Slot
    values: _Slot
    shape: tuple[int, ...]
    is_coalesced: bool

    def filled(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor whose parts are at the slots' places."""
        values = tensors[self.values.number]
        return torch.sparse_coo_tensor(
            tensors[self.indices.number],
            values,
            self.shape,
            device=values.device,
            is_coalesced=self.is_coalesced,
            check_invariants=False,
        )


def _sparse_outline(value: torch.Tensor, tensors: list[torch.Tensor]) -> _SparseSlot:
    whole = value.detach()
    # The public accessors refuse tensors that are not coalesced, such as SGD's momentum.
    indices, values = (_outline(part, tensors) for part in (whole._indices(), whole._values()))
    return _SparseSlot(indices, values, tuple(whole.shape), whole.is_coalesced())


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """``value`` with each tensor moved to ``tensors`` and replaced by a slot; of a sparse one, both of its parts."""
    if isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo:
        return _sparse_outline(value, tensors)
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        part = local_of(value)
        return _Slot(
            len(tensors) - 1,
            tuple(part.shape),
            value.dtype,
            value.is_cuda,
            is_cut(value),
            strides_of(part),
        )
    if isinstance(value, dict):
        return {key: _outline(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outline(item, tensors) for item in value)
    return value


def _slots(outline: Any) -> Iterable[_Slot]:
    if isinstance(outline, _Slot):
        yield outline
    elif isinstance(outline, _SparseSlot):
        yield from (outline.indices, outline.values)
    elif isinstance(outline, dict):
        for item in outline.values():
            yield from _slots(item)
    elif type(outline) in (list, tuple):
        for item in outline:
            yield from _slots(item)


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """The GPU of its parameters; if they are on none, the current one."""
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return next((each.device for each in parameters if each.is_cuda), torch.device("cuda"))


def allocated(outline: Any, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Uninitialized tensors for an outline's slots, with the strides there; without an optimizer, on the CPU."""
    gpu = torch.device("cpu") if optimizer is None else _device_of(optimizer)
    return [
        uninitialized(
            slot.shape, slot.strides, slot.dtype, gpu if slot.on_gpu else torch.device("cpu")
        )
        for slot in _slots(outline)
    ]


def laid_out_as(outline: Any, tensors: list[torch.Tensor]) -> None:
    """Replaces those of an outline's tensors whose strides differ from those there."""
    for slot in _slots(outline):
        tensors[slot.number] = laid_out(tensors[slot.number], slot.strides)


def filled(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of outline_of(): the state with that outline and these tensors."""
    if isinstance(outline, _Slot):
        return tensors[outline.number]
    if isinstance(outline, _SparseSlot):
        return outline.filled(tensors)
    if isinstance(outline, dict):
        return {key: filled(item, tensors) for key, item in outline.items()}
    if type(outline) in (list, tuple):
        return type(outline)(filled(item, tensors) for item in outline)
    return outline


def _cut_again(
    outline: Any, tensors: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer
) -> list[torch.Tensor]:
    """The tensors of an outline; those that were sharded on the root are sharded like their parameters here."""
    found = list(tensors)
    for told, group in zip(outline["param_groups"], optimizer.param_groups, strict=False):
        for number, parameter in zip(told["params"], group["params"], strict=False):
            for slot in _slots(outline["state"].get(number, {})):
                if slot.is_cut:
                    found[slot.number] = like(found[slot.number], parameter)
    return found


def _held(value: Any) -> Any:
    return local_of(value) if isinstance(value, torch.Tensor) else value


def _named(
    params: Mapping[str, torch.Tensor]
    | Iterable[tuple[str, torch.Tensor]]
    | Iterable[torch.Tensor],
) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return list(params.items())
    try:
        items = list(params)
    except TypeError:
        raise InvalidArgumentError(
            f"the parameters are a {type(params).__name__}: give model.state_dict(), model.named_parameters() or "
            "model.parameters()"
        ) from None
    return [
        item if isinstance(item, tuple) else (str(number), item)
        for number, item in enumerate(items)
    ]


def require_optimizer(optimizer: object) -> None:
    """Raises InvalidArgumentError for anything else, such as the model, which comes first in other functions."""
    if not hasattr(optimizer, "param_groups"):
        raise InvalidArgumentError(
            f"a {type(optimizer).__name__} is not an optimizer: give one of torch.optim, as "
            "torch.optim.SGD(model.parameters(), lr=0.1)"
        )


def _broadcast_async(
    tensor: object, name: str, root_rank: int, process_set: ProcessSet
) -> Handle[torch.Tensor] | Handle[None]:
    """In place if the tensor is contiguous, otherwise in a copy, which is then the handle's result."""
    if not isinstance(tensor, torch.Tensor):
        why = f"a {type(tensor).__name__} is not a tensor: use broadcast_object()"
        return refuse(name, process_set, Refusal(why))
    in_place = tensor.is_contiguous()
    return _collectives.broadcast(tensor, root_rank, name, process_set, in_place=in_place)


def _receive(handles: list[tuple[Any, Handle[torch.Tensor] | Handle[None]]]) -> None:
    with torch.no_grad():
        for tensor, handle in handles:
            received = handle.result()
            if received is not None and received is not tensor:
                tensor.copy_(received)
