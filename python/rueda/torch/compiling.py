"""Keeps torch.compile out of functions that wait for other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["leave_alone", "never_compiled", "never_traced"]

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def never_compiled(kind: C) -> C:
    """A class whose functions torch.compile leaves alone, with all that they call, where compiled code calls them.

    They hand out addresses and wait for other processes, of which a graph can know nothing. Collectives of
    torch.distributed become part of a graph by torch's functional collectives, before they get here.
    """
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("__"):
            setattr(kind, name, never_traced(member))
    return kind


def leave_alone(found: Iterable[object]) -> None:
    """Does so with those of Rueda's functions that are among these."""
    for each in found:
        if isinstance(each, FunctionType) and each.__module__.partition(".")[0] == "rueda":
            never_traced(each)


def never_traced(function: F) -> F:
    """A function that compiled code calls as it is."""
    # What the compiler asks before it takes a function for a part of its caller.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        pass
    else:
        if hasattr(eval_frame, "set_code_exec_strategy"):
            # Costs nothing with a call, and does not import the compiler.
            skip = eval_frame._FrameAction.SKIP
            strategy = eval_frame._FrameExecStrategy(skip, skip)
            eval_frame.set_code_exec_strategy(function.__code__, strategy)
            return function
    return torch.compiler.disable(function)  # type: ignore[no-untyped-call,no-any-return]
