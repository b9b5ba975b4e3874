"""An optimizer whose ranks take their own steps, which Adasum combines."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from rueda.errors import InvalidArgumentError
from rueda.horovod.exceptions import HorovodUsageError, translating
from rueda.horovod.process_sets import ProcessSet
from rueda.horovod.torch.adasum import adasum_async
from rueda.process_sets import takes_part
from rueda.torch.compression import require_compressor
from rueda.torch.layered import laid_over, load_in_place, note_step, require_known
from rueda.torch.optimizer import names_of
from rueda.trial_step import is_trial_step

__all__ = ["distribute_by_adasum"]


class _Adasum(torch.optim.Optimizer):
    """The methods mixed into the optimizer's class."""

    _adasum_names: dict[torch.Tensor, str]
    _adasum_compression: Any
    _adasum_process_set: ProcessSet
    _adasum_passes: int
    _adasum_counts: dict[torch.Tensor, int]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes this rank's own step, then replaces its changes with the Adasum of all ranks' changes.

        Returns the loss of ``closure`` on this rank.
        """
        if is_trial_step():
            return super().step()
        note_step(self)
        remedy = "use add_param_group() of the distributed optimizer, or make another"
        require_known(self.param_groups, self._adasum_names, remedy)
        self._adasum_counts.clear()
        if not takes_part(self._adasum_process_set):
            return self._own_step(closure)
        wanted = [p for p in self._adasum_names if p.requires_grad]
        before = [p.detach().clone(memory_format=torch.contiguous_format) for p in wanted]
        loss = self._own_step(closure)
        handles = []
        for parameter, start in zip(wanted, before, strict=True):
            sent, context = self._adasum_compression.compress(parameter.detach() - start)
            name = f"adasum/{self._adasum_names[parameter]}"
            handle = adasum_async(sent.contiguous(), name, 1.0, 1.0, self._adasum_process_set)
            handles.append((handle, context))
        with translating(), torch.no_grad():
            for parameter, start, (handle, context) in zip(wanted, before, handles, strict=True):
                delta = self._adasum_compression.decompress(handle.result(), context)
                parameter.copy_(start + delta)
        return loss

    def _own_step(self, closure: Callable[[], Any] | None) -> Any:
        loss = super().step(closure)
        self._adasum_counts.clear()  # drop the closure's counts
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state and resets the count of backward passes, for example after a failed step."""
        self._adasum_counts.clear()
        load_in_place(self, partial(super().load_state_dict, state_dict))

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            "op=hvd.Adasum: the optimizer cannot be copied: make another, and load its state_dict()"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients, none of which is in flight, and resets the count of backward passes."""
        self._adasum_counts.clear()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and names its parameters by position."""
        super().add_param_group(param_group)
        positions = names_of(self, None)
        for parameter in self.param_groups[-1]["params"]:
            self._adasum_names[parameter] = positions[parameter]
            self._watch(parameter)

    def synchronize(self) -> None:
        """Does nothing: the changes to combine exist only after the step."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Is not supported: raises HorovodUsageError, an AssertionError."""
        raise HorovodUsageError("skip_synchronize() does not work with op=hvd.Adasum")
        yield

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes per step; setting it calls set_backward_passes_per_step()."""
        return self._adasum_passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes per step."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes} is less than 1")
        self._adasum_passes = passes

    def _watch(self, parameter: torch.Tensor) -> None:
        """Counts the parameter's gradients. The model may outlive its optimizers, so its hooks hold weak references."""
        if not parameter.requires_grad:
            return
        reference = weakref.ref(self)

        def on_gradient(parameter: torch.Tensor) -> None:
            watching = reference()
            if watching is not None:
                watching._on_gradient(parameter)

        parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        count = self._adasum_counts.get(parameter, 0) + 1
        if count > self._adasum_passes:
            raise HorovodUsageError(
                f"the gradient of '{self._adasum_names[parameter]}' was computed more often than "
                f"backward_passes_per_step={self._adasum_passes} before step()"
            )
        self._adasum_counts[parameter] = count


# torch wraps each class's step() to run the application's hooks; the optimizer's own class is wrapped already.
_Adasum.step.hooked = True  # type: ignore[attr-defined]


def distribute_by_adasum(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    compression: Any,
    passes: int,
    process_set: ProcessSet,
) -> Any:
    """Returns ``optimizer`` with Adasum applied to its steps; they share state and param_groups.

    Unlike Horovod's, it works for any number of ranks, any process set and any optimizer, since each rank takes its
    whole step at once.
    """
    if passes < 1:
        raise ValueError(f"backward_passes_per_step={passes} is less than 1")
    require_compressor(compression)
    distributed = laid_over(_Adasum, optimizer)
    distributed._adasum_names = names_of(optimizer, named_parameters)
    distributed._adasum_compression = compression
    distributed._adasum_process_set = process_set
    distributed._adasum_passes = passes
    distributed._adasum_counts = {}
    for parameter in distributed._adasum_names:
        distributed._watch(parameter)
    return distributed
