"""Pending names: like Horovod, the submitting rank refuses a second submission of a pending name at the call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from rueda import _native
from rueda.errors import DuplicateNameError, InvalidArgumentError
from rueda.handles import Handle
from rueda.process_sets import ProcessSet, identify
from rueda.submission import part_name

__all__ = ["begun", "require_usable"]

H = TypeVar("H", bound=Handle[Any])

# The newest operation that this API has started on this rank for each set and name. Each new operation checks the two
# oldest entries and removes completed ones, so that the table shrinks.
_newest: dict[tuple[int, str], Handle[Any]] = {}


def require_usable(name: str | None, process_set: ProcessSet, parts: int | None = None) -> None:
    """Raises at the call, like Horovod, if this rank is not a member or an operation of that name is pending.

    ``parts``: for a group, the number of tensors submitted under the name. Pending operations are not affected.
    """
    set_id = identify(process_set)
    if set_id and _native.rank_in(set_id) < 0:
        raise InvalidArgumentError(f"rank {_native.rank()} is not a member of {process_set}")
    for key in _keys(name, set_id, parts) if _newest else ():
        pending = _newest.get(key)
        if pending is not None and not pending.done():
            raise DuplicateNameError(
                f"'{key[1]}' was submitted on rank {_native.rank()} before and is still pending: wait for its "
                f"handle, or use another name",
                _native.rank(),
            )


def begun(
    submit: Callable[[], H], name: str | None, process_set: ProcessSet, parts: int | None = None
) -> H:
    """Starts an operation; raises like :func:`require_usable`."""
    require_usable(name, process_set, parts)
    handle = submit()
    for key in _keys(name, identify(process_set), parts):
        _newest.pop(key, None)
        _newest[key] = handle
    _forget_completed(2)
    return handle


def _keys(name: str | None, set_id: int, parts: int | None) -> list[tuple[int, str]]:
    if name is None:
        return []
    if parts is None:
        return [(set_id, name)]
    return [(set_id, str(part_name(name, number))) for number in range(parts)]


def _forget_completed(limit: int) -> None:
    for key in list(islice(_newest, limit)):
        handle = _newest.pop(key, None)
        if handle is not None and not handle.done():
            _newest[key] = handle
