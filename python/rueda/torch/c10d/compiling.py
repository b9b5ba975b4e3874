"""Keeps torch.compile out of the functions of a process group."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

import torch

__all__ = ["never_compiled"]

C = TypeVar("C", bound=type)


def never_compiled(kind: C) -> C:
    """A class whose functions torch.compile leaves alone, with all that they call, where compiled code calls them.

    They hand out addresses and wait for other processes, of which a graph can know nothing. Collectives become part of
    a graph by torch's functional collectives, before they get here.
    """
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("__"):
            _skip(kind, name, member)
    return kind


def _skip(kind: type, name: str, function: FunctionType) -> None:
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
            return
    setattr(kind, name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
