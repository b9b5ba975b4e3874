"""The memory layout of tensors that come from other ranks or from files.

On the wire and in files, elements are in row-major order, whatever the tensor's strides: ranks may lay out the same
tensor differently, as if only some convert their model to ``channels_last``. The receiver gives a tensor its strides.

For an optimizer's state these matter: torch's fused optimizers on the CPU pass through the memory of parameter,
gradient and state without looking at strides, and on a GPU they refuse tensors whose strides differ. What a step
creates, it lays out like the parameter. So state that is laid out like its parameter at its source is laid out like
the parameter here, even if that has other strides than there; see :func:`fitted`. All else keeps its source's strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from rueda.torch.shards import like, local_of

__all__ = [
    "Strides",
    "fitted",
    "is_dense",
    "laid_out",
    "laid_out_like",
    "strides_of",
    "strides_of_parameters",
    "uninitialized",
]

Strides = tuple[int, ...]


def strides_of(tensor: torch.Tensor) -> Strides | None:
    """The strides that torch gives a copy: the tensor's own unless these leave gaps.

    ``None`` for tensors without strides: sparse, nested and lazy ones.

    Example::

        >>> from rueda.torch.layouts import strides_of
        >>> strides_of(torch.zeros(2, 3).T), strides_of(torch.zeros(4, 6)[:, ::2])
        ((1, 3), (3, 1))
    """
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested:
        return None
    return _without_gaps(tuple(tensor.shape), tuple(tensor.stride()))


@lru_cache(maxsize=4096)
def _without_gaps(shape: tuple[int, ...], strides: Strides) -> Strides:
    if is_dense(shape, strides):
        return strides  # on the device meta, those of extents of 1 can change
    described = torch.empty_strided(shape, strides, device="meta")
    return tuple(torch.empty_like(described).stride())


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent <= 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True


def uninitialized(
    shape: Sequence[int], strides: Strides | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor with these strides; ``None``: contiguous."""
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def laid_out(tensor: torch.Tensor, strides: Strides | None) -> torch.Tensor:
    """The tensor itself if it has these strides, or if they are ``None``; otherwise a copy that has them.

    Example::

        >>> from rueda.torch.layouts import laid_out
        >>> laid_out(torch.zeros(2, 3), (1, 2)).stride()
        (1, 2)
    """
    if strides is None or tuple(tensor.stride()) == strides:
        return tensor
    made = uninitialized(tensor.shape, strides, tensor.dtype, tensor.device)
    with torch.no_grad():
        return made.copy_(tensor)


def laid_out_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient, or state of the parameter's shape, with its strides; of a ``DTensor``, those of this rank's part.

    Autograd and optimizers lay these out so, and fused optimizers depend on it. Sparse tensors stay as they are.
    """
    if tensor.layout != torch.strided:
        return tensor
    return laid_out(tensor, strides_of(local_of(parameter)))


def strides_of_parameters(optimizer: torch.optim.Optimizer) -> list[Strides | None]:
    """:func:`strides_of` for each parameter, in the order of the groups; for a ``DTensor``, of this rank's part."""
    return [strides_of(local_of(each)) for each in _parameters_of(optimizer)]


def fitted(
    state: Any, optimizer: torch.optim.Optimizer, sources: Sequence[Strides | None] | None
) -> Any:
    """An optimizer's ``state_dict()``, with the tensors laid out for the parameters of this one.

    ``sources``: where the state comes from, :func:`strides_of_parameters`. Tensors that have the shape and the strides
    of their parameter there get the strides of the parameter here. If ``sources`` is ``None``, nobody has recorded the
    strides, and all tensors of their parameter's shape get them. Others stay as they are; ``state`` is not changed.
    """
    if not (isinstance(state, Mapping) and {"state", "param_groups"} <= state.keys()):
        return state
    keys = list(chain.from_iterable(group["params"] for group in state["param_groups"]))
    kept = dict(state["state"])
    at_source = [None] * len(keys) if sources is None else sources
    for key, there, parameter in zip(keys, at_source, _parameters_of(optimizer), strict=False):
        part = local_of(parameter)
        here = strides_of(part)
        if here is not None and here != there and key in kept:
            kept[key] = _fitted(kept[key], tuple(part.shape), there, here)
    return {**state, "state": kept}


def _fitted(value: Any, shape: tuple[int, ...], there: Strides | None, here: Strides) -> Any:
    if isinstance(value, torch.Tensor):
        part = local_of(value)
        own = strides_of(part)
        if tuple(part.shape) != shape or own is None or (there is not None and own != there):
            return value
        return like(laid_out(part, here), value)
    if type(value) is dict:
        return {key: _fitted(each, shape, there, here) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_fitted(each, shape, there, here) for each in value)
    return value


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]
