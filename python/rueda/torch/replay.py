"""Replays optimizer steps of other ranks, so that a newcomer can follow them while they continue.

A member sends its state once (:class:`Outset`), and then, for each step, the gradients and hyperparameters with which
the optimizer was called (:class:`Taken`). :class:`Shadow` takes these steps with an optimizer of the same class on its
own tensors, which then have the same bits; callers that rely on that compare digests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rueda.torch.layouts import Strides, fitted, laid_out, strides_of, strides_of_parameters
from rueda.torch.optimizer import Distributed
from rueda.torch.optimizer_state import load_as_given
from rueda.torch.reproducible import Reproducible
from rueda.torch.state import filled
from rueda.torch.state_pieces import TensorState

__all__ = ["Outset", "Shadow", "Taken", "outset_of", "taken_by", "why_not"]

Kind = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Outset:
    """A state without its tensors' bytes.

    ``kinds`` and ``strides``: of each tensor of :class:`TensorState`, shape and dtype, and how it is to be laid out, as
    on the member. ``names`` and ``trained``: as there.
    ``optimizer``: the class whose step() is replayed. ``outline``: of its state.
    """

    kinds: list[Kind]
    strides: list[Strides | None]
    names: list[tuple[int, str]]
    trained: list[int]
    optimizer: type[torch.optim.Optimizer]
    defaults: dict[str, Any]
    outline: Any


@dataclass(frozen=True)
class Taken:
    """A step of the optimizer.

    ``has``: which parameters had a gradient. ``strides``: of these gradients, which are sent in row-major order; fused
    optimizers depend on them, and SGD lays out its momentum like them. ``groups``: the hyperparameters.
    """

    has: list[bool]
    strides: list[Strides | None]
    groups: list[dict[str, Any]]


def why_not(state: TensorState, optimizer: torch.optim.Optimizer | None) -> str:
    """Why steps cannot be replayed elsewhere; empty if they can."""
    if optimizer is None:
        return "there is no optimizer"
    if state.strays:
        return "parameters are in no module's state_dict()"
    if not all(tensor.is_cpu and tensor.layout == torch.strided for tensor in state.tensors):
        return "tensors are not in memory of the CPU"
    if getattr(_base_of(optimizer), "__module__", "__main__") == "__main__":
        return "the optimizer's class is defined in the main program"
    return ""


def outset_of(state: TensorState, optimizer: torch.optim.Optimizer) -> Outset:
    """The outset of a state for which :func:`why_not` is empty."""
    return Outset(
        [(tuple(tensor.shape), tensor.dtype) for tensor in state.tensors],
        [strides_of(tensor) for tensor in state.tensors],
        state.names,
        state.trained,
        _base_of(optimizer),
        _as_now(optimizer.defaults),
        {name: _as_now(state.outline[name]) for name in ("state", "param_groups")},
    )


def _as_now(value: Any) -> Any:
    """The value without what may change before it is sent: schedulers write to learning rates that are tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_as_now, value))
    if type(value) is dict:
        return {key: _as_now(each) for key, each in value.items()}
    return value


def taken_by(optimizer: torch.optim.Optimizer) -> tuple[Taken, list[torch.Tensor]]:
    """The step that the optimizer is about to take, and the gradients that exist.

    Raises ``ValueError`` for a gradient whose layout or dtype differs from its parameter's.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    gradients = []
    for each in parameters:
        gradient = each.grad
        if gradient is None:
            continue
        if gradient.layout != torch.strided or gradient.dtype != each.dtype:
            raise ValueError("a gradient has another layout or dtype than its parameter")
        gradients.append(gradient.detach())
    groups = [
        {name: _as_now(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    has = [each.grad is not None for each in parameters]
    return Taken(has, [strides_of(each) for each in gradients], groups), gradients


class Shadow:
    """State and optimizer without a model. ``tensors``: the state's tensors, which it owns from now on."""

    def __init__(self, outset: Outset, tensors: Sequence[torch.Tensor]) -> None:
        self._outset = outset
        self._tensors = list(tensors)
        self._parameters = [torch.nn.Parameter(tensors[number]) for number in outset.trained]
        state = filled(outset.outline, self._tensors[len(outset.names) :])
        optimizer: torch.optim.Optimizer = outset.optimizer.__new__(outset.optimizer)
        kept: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state["state"].items():
            kept[self._parameters[key] if isinstance(key, int) else key] = value
        groups = [
            {**group, "params": [self._parameters[number] for number in group["params"]]}
            for group in state["param_groups"]
        ]
        optimizer.__setstate__({"defaults": outset.defaults, "state": kept, "param_groups": groups})
        self._optimizer = optimizer

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The trained parameters, in the optimizer's order."""
        return self._parameters

    def take(self, step: Taken, gradients: Sequence[torch.Tensor]) -> None:
        """Takes a step with these gradients, one for each parameter that has one, of any strides."""
        left = map(laid_out, gradients, step.strides)
        for parameter, has in zip(self._parameters, step.has, strict=True):
            parameter.grad = next(left) if has else None
        for group, now in zip(self._optimizer.param_groups, step.groups, strict=True):
            group.update(now)
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None

    def give(
        self, modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None
    ) -> bool:
        """Loads the state into these; false, without any change, if they do not match it."""
        state = TensorState(modules, optimizer)
        count = len(self._outset.names)
        if (
            optimizer is None
            or state.names != self._outset.names
            or state.trained != self._outset.trained
            or [(tuple(t.shape), t.dtype) for t in state.tensors[:count]]
            != self._outset.kinds[:count]
        ):
            return False
        for number, module in enumerate(modules):
            values: Mapping[str, torch.Tensor] = {
                name: tensor
                for (owner, name), tensor in zip(self._outset.names, self._tensors, strict=False)
                if owner == number
            }
            module.load_state_dict(values, strict=False)  # non-tensors come with the rest
        own = self._optimizer.state_dict()
        whole = {**optimizer.state_dict(), **own}
        strides = strides_of_parameters(self._optimizer)
        load_as_given(optimizer, fitted(whole, optimizer, strides))
        return True


def _base_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Its class without Rueda's layer."""
    kind = type(optimizer)
    if isinstance(optimizer, Distributed | Reproducible):
        _, kind = kind.__bases__
    return kind
