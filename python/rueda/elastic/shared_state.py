"""The state that the ranks of an elastic job share: the same on each, whoever has come or gone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rueda.errors import InvalidArgumentError
from rueda.lifecycle import rank
from rueda.objects import allgather_object, broadcast_object
from rueda.trial_step import STATE_FUNCTIONS, is_trial_step

if TYPE_CHECKING:
    from rueda.torch.replay import Shadow
    from rueda.torch.state_pieces import TensorState

__all__ = ["SharedState", "misfits", "strays_of", "uncovered"]


class SharedState:
    """Models, optimizers and other objects with ``state_dict()`` and ``load_state_dict()``.

    Raises :class:`rueda.InvalidArgumentError` for other objects, and for more than one optimizer: when a rank is lost,
    some of them may have taken a step that others have not, and then only an earlier state helps.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        for number, part in enumerate(parts):
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise InvalidArgumentError(
                    f"state {number} of an elastic job, {type(part).__name__}, has no state_dict() and "
                    "load_state_dict()"
                )
            if hasattr(part, "_rueda_strategy"):
                raise InvalidArgumentError(
                    "an optimizer of rueda.torch.wrap(): an elastic job takes one of DistributedOptimizer()"
                )
        optimizers = [part for part in parts if _is_optimizer(part)]
        if len(optimizers) > 1:
            raise InvalidArgumentError(
                f"{len(optimizers)} optimizers: steps() takes one; for several use rueda.elastic.run"
            )
        self._optimizer: Any = optimizers[0] if optimizers else None
        self._modules = [part for part in parts if _is_module(part)]
        # Whether the optimizer is one of DistributedOptimizer(reproducible=True).
        self.has_leaves = hasattr(self._optimizer, "divide_anew")
        # Of DistributedOptimizer() without leaves.
        self._reducer: Any = getattr(self._optimizer, "_rueda", None)
        if self._reducer is not None and self._reducer.options.overlap_forward:
            raise InvalidArgumentError(
                "overlap_forward=True: a step may be taken in part when a rank is lost"
            )
        self._stepped = False
        self._before_step: Callable[[], None] | None = None
        self._hooks: list[Any] = []
        if self._optimizer is not None:
            self._hooks = [
                self._optimizer.register_step_pre_hook(self._begin_to_step),
                self._optimizer.register_step_post_hook(self._note_step),
            ]

    def close(self) -> None:
        """Lets go of the optimizer, which lives on."""
        self._before_step = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has taken a step since begin_step()."""
        return self._stepped

    def begin_step(self, before_step: Callable[[], None] | None = None) -> None:
        """Called when another step begins. ``before_step`` is called when the optimizer begins to take it."""
        self._stepped = False
        self._before_step = before_step

    def end_step(self) -> None:
        """Called when a step is over, which is not repeated. Only for optimizers with leaves."""
        self._optimizer.end_step()

    def _begin_to_step(self, *_: object) -> None:
        if self._before_step is not None and not (
            STATE_FUNCTIONS in sys.modules and is_trial_step()
        ):
            self._before_step()

    def _note_step(self, *_: object) -> None:
        self._stepped = self._stepped or not (STATE_FUNCTIONS in sys.modules and is_trial_step())

    def give_up_step(self) -> None:
        """Discards gradients in flight, and changes that leaves have made to buffers."""
        for _, part in self._objects():
            _begin_anew(part)
        optimizer = self._optimizer
        if self.has_leaves:
            optimizer.give_up_step()
        elif self._reducer is not None:
            self._reducer.forget_skipped()
            self._reducer.give_up()
        elif optimizer is not None:  # for others, loading a state is what makes a step begin anew
            from rueda.torch.optimizer_state import load_as_given

            load_as_given(optimizer, optimizer.state_dict())

    def take_world(self) -> None:
        """Called when the world has changed: leaves are divided anew, and so are, by loading their state, samples."""
        if self.has_leaves:
            self._optimizer.divide_anew()
        for _, part in self._objects():
            part.load_state_dict(part.state_dict())
            _begin_anew(part)

    def _objects(self) -> list[tuple[int, Any]]:
        """The parts that are neither a model nor an optimizer, such as samplers and schedulers, with their numbers."""
        return [
            (number, part)
            for number, part in enumerate(self._parts)
            if not (_is_optimizer(part) or _is_module(part))
        ]

    def computed_leaves(self) -> list[int]:
        """The leaves of the step that was given up whose results this rank still has."""
        if self._stepped or not self.has_leaves:
            return []
        leaves: list[int] = self._optimizer.computed_leaves()
        return leaves

    def resume_step(self, computed: Sequence[Sequence[int]]) -> None:
        """Continues that step; ``computed``: by rank, its computed_leaves(). If no rank has any, it begins anew."""
        if self.has_leaves:
            self._optimizer.resume_step(computed)

    @property
    def optimizer(self) -> Any:
        """The optimizer, or ``None``."""
        return self._optimizer

    def tensors(self) -> TensorState | None:
        """The current tensors; ``None`` without any torch object."""
        if self._optimizer is None and not self._modules:
            return None
        from rueda.torch.state_pieces import TensorState

        return TensorState(self._modules, self._optimizer)

    def copy_from(self, sources: Sequence[int], received: Shadow | None = None) -> None:
        """Gives every rank the state of the ranks ``sources``, which are the same; collective.

        All ranks that :func:`misfits` names must be gone. ``received``: what this rank has received of it before. If it
        fails because a rank is lost, a rank has all of it or nothing.

        Raises :class:`rueda.TransportError` if what arrives differs from what was sent.
        """
        objects = [
            (part, broadcast_object(part.state_dict(), sources[0], f"elastic.state.{number}"))
            for number, part in self._objects()
        ]
        if self._optimizer is not None or self._modules:
            from rueda.torch.state_exchange import exchange_state, give_caches, received_caches

            if received is not None:
                received.give(self._modules, self._optimizer)
            caches = received_caches(self._modules, sources)
            exchange_state(self._modules, self._optimizer, sources)
            give_caches(caches)
        if rank() not in sources[:1]:
            for part, state in objects:
                part.load_state_dict(state)
                _begin_anew(part)

    def outlines(self) -> list[dict[str, str]]:
        """For each part, what must be the same everywhere before values can be."""
        return [_outline(part) for part in self._parts]


def _begin_anew(part: Any) -> None:
    """Makes a torch.amp.GradScaler forget what it has done for a step that is not completed.

    It notes for which optimizers it has unscaled gradients and taken the step since its last update(), and raises if
    that is to happen again. This is no part of its state_dict().
    """
    stages = getattr(part, "_per_optimizer_states", None)
    if isinstance(stages, dict):
        stages.clear()


def uncovered(before: Iterable[Any], now: Sequence[Any]) -> list[Any]:
    """What of an earlier loop's state is not shared by the state ``now``; a ``None`` is something that is gone.

    A module is shared if its tensors are. Optimizers and schedulers belong to the loop to which they are given.
    """
    shared = {id(each) for part in now for each in _tensors_in(part)}
    return [
        part
        for part in before
        if part is not None
        and not any(part is each for each in now)
        and not (_is_optimizer(part) or _is_scheduler(part))
        and not (_is_module(part) and all(id(each) in shared for each in _tensors_in(part)))
    ]


def _tensors_in(part: Any) -> Iterable[Any]:
    if _is_module(part):
        return [*part.parameters(), *part.buffers()]
    if _is_optimizer(part):
        return [each for group in part.param_groups for each in group["params"]]
    return []


def strays_of(parts: Iterable[Any]) -> list[Any]:
    """The optimizers' parameters that belong to none of the modules, such as those of a loss."""
    parts = list(parts)
    owned = {id(each) for part in parts if _is_module(part) for each in part.parameters()}
    optimized = [
        each
        for part in parts
        if _is_optimizer(part)
        for group in part.param_groups
        for each in group["params"]
    ]
    return [each for each in optimized if id(each) not in owned]


def misfits(states: Iterable[SharedState], source: int) -> dict[int, str]:
    """The ranks whose states do not match those of rank ``source``, and what differs; collective.

    A newcomer may have been started with another program.
    """
    own = [outline for state in states for outline in state.outlines()]
    outlines = allgather_object(own, "elastic.outline")
    differences = {
        other: _difference(other, its, source, outlines[source])
        for other, its in enumerate(outlines)
    }
    return {other: what for other, what in differences.items() if what}


def _difference(
    other: int, its: list[dict[str, str]], source: int, right: list[dict[str, str]]
) -> str:
    if len(its) != len(right):
        return f"rank {other} has {len(its)} states, and rank {source} has {len(right)}"
    for number, (one, two) in enumerate(zip(its, right, strict=True)):
        for key in [*two, *one]:
            if one.get(key) != two.get(key):
                return (
                    f"state {number}: {key} is {one.get(key, 'missing')} on rank {other}, and "
                    f"{two.get(key, 'missing')} on rank {source}"
                )
    return ""


def _outline(part: Any) -> dict[str, str]:
    outline = {"its type": type(part).__name__}
    if _is_module(part):
        from rueda.torch.model_tensors import tensors_of

        for name, value in {**tensors_of(part), **part.state_dict()}.items():
            outline[f"'{name}'"] = _kind(value)
    elif _is_optimizer(part):
        for number, group in enumerate(part.param_groups):
            outline[f"the number of parameters in group {number}"] = str(len(group["params"]))
            for place, each in enumerate(group["params"]):
                outline[f"parameter {place} of group {number}"] = _kind(each)
        if hasattr(part, "_rueda_leaves"):  # of DistributedOptimizer(reproducible=True)
            outline["the number of leaves"] = str(part._rueda_leaves.count)
    return outline


def _kind(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if _is_tensor(value) else "no tensor"


def _is_module(part: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(part, torch.nn.Module)


def _is_optimizer(part: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(part, torch.optim.Optimizer)


def _is_scheduler(part: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(part, torch.optim.lr_scheduler.LRScheduler)


def _is_tensor(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def _torch() -> Any:
    return sys.modules.get("torch")  # before its import, nothing can be of its classes
