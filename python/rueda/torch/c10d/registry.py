"""torch's registry of works by tensor, in which ``wait_tensor()`` looks up what it waits for.

torch registers the works of functional collectives. In a block ``allow_inflight_collective_as_graph_input_ctx()`` it
registers all others too, but not those of a process group written in Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.distributed import Work

from rueda.torch.compiling import never_compiled

__all__ = ["Registration", "is_registering", "register"]

_add: Callable[[torch.Tensor, Work], None] | None = getattr(
    _distributed_c10d, "_register_work", None
)
is_registering: Callable[[], bool] = getattr(
    _distributed_c10d,
    "_allow_inflight_collective_as_graph_input",
    lambda: False,  # torch before 2.6 has no such blocks
)
"""Whether the program is in such a block."""

_taking_out = threading.local()
"""Its ``found`` lists the registrations that :meth:`Registration.end` finds on this thread."""


def register(tensor: torch.Tensor, work: Work) -> None:
    """Makes ``wait_tensor(tensor)`` wait for ``work``; waits here if torch has no registry for Python works."""
    if _add is not None:
        _add(tensor, work)
    else:
        work.wait()


@never_compiled
class Registration(Work):
    """Stands for ``work`` in the registry until it ends, because torch cannot take a Python work out again.

    A registered work that nobody waits for keeps its tensors, as in torch's own backends.
    """

    def __init__(self, work: Work, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._work: Work | None = work
        # The registry is by storage. A sparse tensor has none.
        self._tensors = {
            tensor.untyped_storage()._cdata: tensor
            for tensor in tensors
            if tensor.layout is torch.strided
        }
        for tensor in self._tensors.values():
            register(tensor, self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Called by ``wait_tensor()``, which takes this registration out first."""
        found: list[Registration] | None = getattr(_taking_out, "found", None)
        if found is not None:
            found.append(self)
        elif self._work is not None:
            self._work.wait(timeout)
        return True

    def end(self) -> None:
        """Takes this registration out. Others of the same memory stay."""
        self._work = None
        tensors, self._tensors = self._tensors, {}
        for tensor in tensors.values():
            for other in _taken_out(tensor):
                if other._work is not None:
                    register(tensor, other)


def _taken_out(tensor: torch.Tensor) -> list[Registration]:
    """Takes all registrations of a tensor out of the registry without waiting for their works."""
    wait_tensor: Any = torch.ops._c10d_functional.wait_tensor.default
    outer = getattr(_taking_out, "found", None)
    found: list[Registration] = []
    _taking_out.found = found
    try:
        # Past the dispatcher, so that no mode that observes operators sees it.
        wait_tensor._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, tensor)
    finally:
        _taking_out.found = outer
    return found
