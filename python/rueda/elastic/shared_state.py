"""What the ranks of an elastic job have in common: the same on each, whoever has come or gone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from rueda.errors import InvalidArgumentError, PeerLostError
from rueda.lifecycle import rank
from rueda.objects import allgather_object, broadcast_object

__all__ = ["SharedState"]


class SharedState:
    """Models, optimizers and other objects with ``state_dict()`` and ``load_state_dict()``.

    Raises :class:`rueda.InvalidArgumentError` for others, and for more than one optimizer: of several, some may have
    taken a step that others have not when a rank is lost, and nothing but an earlier state helps then.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        for number, part in enumerate(parts):
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise InvalidArgumentError(
                    f"state {number} of an elastic job, {type(part).__name__}, has no state_dict() and "
                    "load_state_dict()"
                )
        optimizers = [part for part in parts if _is_optimizer(part)]
        if len(optimizers) > 1:
            raise InvalidArgumentError(
                f"{len(optimizers)} optimizers: steps() takes one; for several use hvd.elastic.run and commit()"
            )
        self._optimizer: Any = optimizers[0] if optimizers else None
        reducer = getattr(self._optimizer, "_rueda", None)
        if reducer is not None and reducer.options.overlap_forward:
            raise InvalidArgumentError(
                "overlap_forward=True: a step may be taken in part when a rank is lost"
            )
        self._stepped = False
        if self._optimizer is not None:
            self._optimizer.register_step_post_hook(self._note_step)

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has taken a step since begin_step()."""
        return self._stepped

    def begin_step(self) -> None:
        """Another step begins."""
        self._stepped = False

    def _note_step(self, *_: object) -> None:
        self._stepped = True

    def give_up_step(self) -> None:
        """Forgets gradients that were being reduced."""
        optimizer = self._optimizer
        if optimizer is not None and not hasattr(optimizer, "divide_anew"):
            optimizer.load_state_dict(optimizer.state_dict())

    def take_world(self) -> None:
        """The world has changed."""
        if hasattr(self._optimizer, "divide_anew"):
            self._optimizer.divide_anew()

    def copy_from(self, source: int) -> None:
        """Makes it on every rank what the rank ``source`` has; collective.

        Where that fails, because a rank is lost, a rank has all of it or nothing.

        Raises :class:`rueda.InvalidArgumentError` on every rank where they have states of different kinds.
        """
        self._compare()
        received = [
            (part, self._received(number, part, source))
            for number, part in enumerate(self._parts)
            if part is not self._optimizer
        ]
        if self._optimizer is not None:
            self._receive_optimizer(source)
        if rank() != source:
            for part, state in received:
                part.load_state_dict(state)

    def _receive_optimizer(self, source: int) -> None:
        before = self._optimizer.state_dict()
        try:
            _torch_state("broadcast_optimizer_state")(self._optimizer, source)
        except PeerLostError:
            self._optimizer.load_state_dict(before)
            raise

    def _received(self, number: int, part: Any, source: int) -> Any:
        if not _is_torch(part, "nn", "Module"):
            return broadcast_object(part.state_dict(), source, f"elastic.state.{number}")
        state = part.state_dict()
        if rank() != source:
            state = {name: tensor.detach().clone() for name, tensor in state.items()}
        _torch_state("broadcast_parameters")(
            {f"{number}.{name}": tensor for name, tensor in state.items()}, source
        )
        return state

    def _compare(self) -> None:
        """A newcomer may have been started with another program."""
        own = [_outline(part) for part in self._parts]
        outlines = allgather_object(own, "elastic.outline")
        for other, outline in enumerate(outlines):
            if len(outline) != len(outlines[0]):
                raise InvalidArgumentError(
                    f"rank {other} has {len(outline)} states, and rank 0 has {len(outlines[0])}"
                )
            for number, (its, first) in enumerate(zip(outline, outlines[0], strict=True)):
                for key in [*first, *its]:
                    if first.get(key) != its.get(key):
                        raise InvalidArgumentError(
                            f"state {number}: {key} is {its.get(key, 'missing')} on rank {other}, and "
                            f"{first.get(key, 'missing')} on rank 0"
                        )


def _outline(part: Any) -> dict[str, str]:
    """What has to be the same everywhere before values can be."""
    outline = {"its type": type(part).__name__}
    if _is_torch(part, "nn", "Module"):
        for name, tensor in part.state_dict().items():
            outline[f"'{name}'"] = f"{tuple(tensor.shape)} of {tensor.dtype}"
    elif _is_optimizer(part):
        for number, group in enumerate(part.param_groups):
            outline[f"the number of parameters in group {number}"] = str(len(group["params"]))
    return outline


def _is_optimizer(part: Any) -> bool:
    return _is_torch(part, "optim", "Optimizer")


def _is_torch(part: Any, module: str, name: str) -> bool:
    torch = sys.modules.get("torch")  # nothing is of its classes before it is imported
    return torch is not None and isinstance(part, getattr(getattr(torch, module), name))


def _torch_state(name: str) -> Callable[..., None]:
    import rueda.torch

    function: Callable[..., None] = getattr(rueda.torch, name)
    return function
