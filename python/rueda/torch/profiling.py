"""Marks what Rueda does in the traces of torch.profiler.

torch's own backends appear there as ``gloo:all_reduce`` and the like. Rueda's operations do not pass through torch's
dispatcher, so without a mark a trace would show a gap.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

__all__ = ["marked"]

_UNMARKED = nullcontext()


def marked(what: str) -> AbstractContextManager[Any]:
    """A context that torch.profiler shows as ``rueda:<what>``; one that does nothing while no profiler runs."""
    return record_function(f"rueda:{what}") if _profiler_enabled() else _UNMARKED
