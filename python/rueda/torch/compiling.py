"""Keeps torch.compile away from functions that wait for other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["leave_alone", "never_compiled", "never_traced"]

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def never_compiled(kind: C) -> C:
    """Makes torch.compile leave a class's methods, and all that they call, uncompiled when compiled code calls them.

    They pass addresses and wait for other processes, which a graph cannot represent. Collectives of torch.distributed
    become part of a graph through torch's functional collectives, before they get here.
    """
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("__"):
            setattr(kind, name, never_traced(member))
    return kind


def leave_alone(found: Iterable[object]) -> None:
    """Does the same for those of ``found`` that are Rueda's functions."""
    for each in found:
        if isinstance(each, FunctionType) and each.__module__.partition(".")[0] == "rueda":
            never_traced(each)


def never_traced(function: F) -> F:
    """Makes compiled code call a function without compiling it."""
    # The compiler checks this before it inlines a function into its caller.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        pass
    else:
        if hasattr(eval_frame, "set_code_exec_strategy"):
            # Adds no cost per call, and does not import the compiler.
            skip = eval_frame._FrameAction.SKIP
            strategy = eval_frame._FrameExecStrategy(skip, skip)
            eval_frame.set_code_exec_strategy(function.__code__, strategy)
            return function
    return torch.compiler.disable(function)  # type: ignore[no-untyped-call,no-any-return]
