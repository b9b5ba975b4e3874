"""Loads an optimizer's state without a change of its tensors' dtypes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

__all__ = ["load_as_given"]


def load_as_given(optimizer: Any, state: dict[str, Any]) -> None:
    """Calls ``optimizer.load_state_dict(state)``, but leaves tensors in the dtypes that they have there.

    torch casts them to the dtype of their parameter, so that ranks of low-precision parameters would lose what an
    optimizer keeps in float32, such as NAdam's ``mu_product``. Tensors still go to the devices that torch chooses, and
    the optimizer's hooks are called as usual. An optimizer that loads its state without torch's load_state_dict()
    decides for itself.

    Raises what ``load_state_dict()`` raises.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer.load_state_dict(state)
        return
    found: dict[str, Any] = {}

    def note(_: object, given: dict[str, Any]) -> None:
        found.update(given)

    def put_back(loaded: torch.optim.Optimizer) -> None:
        _put_back(loaded, found)

    # What the other hooks have made of the state is what torch casts, and they see what has been loaded as given.
    hooks = (
        optimizer.register_load_state_dict_pre_hook(note),
        optimizer.register_load_state_dict_post_hook(put_back, prepend=True),
    )
    try:
        optimizer.load_state_dict(state)
    finally:
        for hook in hooks:
            hook.remove()


def _put_back(optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> None:
    keys = chain.from_iterable(group["params"] for group in given["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for key, parameter in zip(keys, parameters, strict=False):
        if parameter in optimizer.state:
            of_parameter = given["state"].get(key)
            optimizer.state[parameter] = _in_dtypes_of(of_parameter, optimizer.state[parameter])


def _in_dtypes_of(given: Any, loaded: Any) -> Any:
    """``loaded``, changed where a tensor of ``given`` has lost its dtype."""
    if isinstance(given, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == given.dtype else given.detach().to(loaded.device)
    if isinstance(given, dict) and isinstance(loaded, dict):
        for key in given.keys() & loaded.keys():
            loaded[key] = _in_dtypes_of(given[key], loaded[key])
    elif type(given) in (list, tuple) and type(loaded) is type(given):
        return type(given)(map(_in_dtypes_of, given, loaded))
    return loaded
