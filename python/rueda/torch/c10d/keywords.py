"""The keywords of torch's overloads, each of which is one method here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["also_named"]

F = TypeVar("F", bound=Callable[..., Any])


def also_named(**names: str) -> Callable[[F], F]:
    """Lets callers of a method also use other keywords: ``also_named(other="parameter")``."""

    def decorate(method: F) -> F:
        @wraps(method)
        def call(self: object, *args: Any, **keywords: Any) -> Any:
            if keywords:
                keywords = {names.get(name, name): value for name, value in keywords.items()}
            return method(self, *args, **keywords)

        return cast(F, call)

    return decorate
