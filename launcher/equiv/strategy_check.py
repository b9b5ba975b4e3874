"""A process that says whether strategies, given as texts, have valid parameters: exit code 1 and a sentence if not.

Without torch it says nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["problem_of"]


class _UnknownError(Exception):
    """What cannot be told without the model and its optimizer."""


class _Parameters(dict[str, Any]):
    """None of them is wrong, and there is no telling how many there are."""

    def __len__(self) -> int:
        raise _UnknownError


class _NoReplica:
    """Stands for the model and its optimizer, which only the script has."""

    def __init__(self) -> None:
        self.parameters = _Parameters()

    def __getattr__(self, name: str) -> Any:
        raise _UnknownError(name)


def problem_of(texts: Sequence[str]) -> str:
    """A sentence on the first invalid strategy; "" if none is, as far as can be told without a model."""
    try:
        from rueda.torch.strategies import parse_strategy
    except (ImportError, OSError):
        return ""
    from rueda.errors import RuedaError

    replica: Any = _NoReplica()
    for text in texts:
        try:
            parse_strategy(text).validate(replica)
        except RuedaError as error:
            return f"--strategy {text}: {error}"
        except _UnknownError:
            continue
    return ""


if __name__ == "__main__":
    problem = problem_of(sys.argv[1:])
    if problem:
        print(problem)
        sys.exit(1)
