"""``sys.exit()`` and the like in a function that an engine's worker calls, whose process serves others afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rueda.error_texts import describe
from rueda.errors import RuedaError

__all__ = ["as_exception", "without_exit"]


def without_exit(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What ``fn`` returns; ``None`` where it exits in good order. Raises :class:`rueda.RuedaError` for another exit.

    The same for ``KeyboardInterrupt`` and all else that is no ``Exception``: engines do not pass it on as a task's
    error, but end the worker, or try the task again.

    Example::

        >>> import sys
        >>> without_exit(sys.exit, 0)
        >>> without_exit(sys.exit, "no data")
        Traceback (most recent call last):
        rueda.errors.RuedaError: sys.exit('no data')
    """
    try:
        return fn(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return None
        raise as_exception(error) from error


def as_exception(error: BaseException) -> Exception:
    """The error itself, or a :class:`rueda.RuedaError` that tells it where it is no ``Exception``.

    Example::

        >>> as_exception(KeyboardInterrupt("in the loader"))
        RuedaError('KeyboardInterrupt: in the loader')
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit):
        told = RuedaError(f"sys.exit({error.code!r})")
    else:
        told = RuedaError(describe(type(error), error))
    told.__cause__ = error
    return told
