"""The tensors of a model themselves.

A model's ``state_dict()`` may have copies of them, made by hooks, or lack some: buffers that are not persistent, and
what an overridden ``state_dict()`` leaves out, such as a frozen backbone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet
from rueda.torch.tensors import code_of, is_without_memory

__all__ = ["caches_in_common", "caches_of", "tensors_of"]


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and the persistent buffers by name, module by module; parameters that are tied once.

    Example::

        >>> from rueda.torch.model_tensors import tensors_of
        >>> list(tensors_of(torch.nn.BatchNorm1d(3)))
        ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in nn.Module.named_parameters(module, prefix, recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[name] = parameter
        found.update(_buffers(prefix, module, is_persistent=True))
    return found


def caches_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that are not persistent by name, but for those that ranks cannot send, such as sparse ones.

    Of an expanded one, the part that is in memory.
    """
    return {
        name: _not_repeated(each)
        for prefix, module in model.named_modules()
        for name, each in _buffers(prefix, module, is_persistent=False)
        if _can_be_sent(each)
    }


def caches_in_common(
    caches: Mapping[str, torch.Tensor], name: str, process_set: ProcessSet
) -> dict[str, torch.Tensor]:
    """Those that have the same shape and dtype on all ranks. Collective; ``name``: the operation's.

    A model may fill them while it runs: then they differ, and belong to each rank.
    """
    mine = {label: (tuple(each.shape), str(each.dtype)) for label, each in caches.items()}
    told: list[dict[str, tuple[tuple[int, ...], str]]] = allgather_object(mine, name, process_set)
    return {
        label: each
        for label, each in caches.items()
        if all(its.get(label) == mine[label] for its in told)
    }


def _buffers(
    prefix: str, module: nn.Module, is_persistent: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    others = module._non_persistent_buffers_set
    buffers = nn.Module.named_buffers(module, prefix, recurse=False, remove_duplicate=False)
    for name, buffer in buffers:
        if (name.rpartition(".")[2] not in others) == is_persistent:
            yield name, buffer


def _not_repeated(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without repetitions of the same memory, into which nothing can be copied."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _can_be_sent(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_nested
        and not torch.nn.parameter.is_lazy(tensor)
        and (tensor.is_cpu or tensor.is_cuda)
        and code_of(tensor.dtype) is not None
        and not is_without_memory(tensor)
    )
