"""Sends Python objects between ranks with pickle. Ranks must trust each other, as pickle requires.

Objects that pickle refuses, such as lambdas and local classes, are sent with cloudpickle if it is installed, on the
receiving ranks as well. It is not used for everything: cloudpickle gives the receiver a copy of a class from the main
script, and the receiver's own objects are not instances of that copy.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

import numpy as np

from rueda.adapter import Refusal
from rueda.error_texts import describe
from rueda.errors import UnsupportedError
from rueda.exchanges import allgather, broadcast_
from rueda.handles import synchronize
from rueda.lifecycle import rank
from rueda.pickling import dumps, dumps_by_cloudpickle
from rueda.process_sets import ProcessSet, global_process_set
from rueda.submission import refuse

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the ``obj`` of rank ``root_rank`` (a world rank) on every rank of the set; ignores the others'.

    ``obj`` is anything that pickle can handle, or cloudpickle if it is installed; if both refuse it, every rank raises
    :class:`rueda.InvalidArgumentError` with the reason, also if a rank has no memory to receive it. A rank without the
    cloudpickle that the object needs raises :class:`rueda.UnsupportedError`, on that rank only. Raises as
    :func:`rueda.broadcast` otherwise.

    Example::

        >>> rueda.broadcast_object({"epoch": 3} if rueda.rank() == 0 else None)
        {'epoch': 3}
    """
    label = name or "object"
    content = np.empty(0, np.uint8)
    if rank() == root_rank:
        content = _pickled(obj, f"{label}.size", process_set)
    size = np.array([content.size], np.int64)
    broadcast_(size, root_rank, f"{label}.size", process_set)
    if rank() != root_rank:
        try:
            content = np.empty(int(size[0]), np.uint8)
        except MemoryError as error:
            why = f"there is no memory for the object: {describe(type(error), error)}"
            _fail_everywhere(f"{label}.content", process_set, why, error)
    broadcast_(content, root_rank, f"{label}.content", process_set)
    return obj if rank() == root_rank else _unpickled(io.BytesIO(content.tobytes()))


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the list of every rank's ``obj``, in rank order. Ranks that have joined contribute none.

    ``obj`` is anything that pickle can handle, or cloudpickle if it is installed; if both refuse it, every rank raises
    :class:`rueda.InvalidArgumentError` with the reason. A rank without the cloudpickle that an object needs raises
    :class:`rueda.UnsupportedError`, on that rank only. Raises as :func:`rueda.allgather` otherwise.

    Example::

        >>> rueda.allgather_object("rank {}".format(rueda.rank()))
        ['rank 0']
    """
    label = f"{name or 'object'}.gathered"
    content = _pickled(obj, label, process_set)
    gathered = allgather(content, label, process_set)
    # Each pickle marks its own end, so the sizes need not be sent.
    stream = io.BytesIO(gathered.tobytes())
    objects = []
    while stream.tell() < gathered.size:
        objects.append(_unpickled(stream))
    return objects


def _pickled(obj: Any, name: str, process_set: ProcessSet) -> Any:
    try:
        content = bytearray(dumps(obj))
    except MemoryError as error:
        _fail_everywhere(name, process_set, _unpicklable(error), error)
    except Exception as error:  # whatever the object's own __reduce__ raises
        content = _pickled_by_cloudpickle(obj, name, process_set, error)
    return np.frombuffer(content, np.uint8)


def _pickled_by_cloudpickle(
    obj: Any, name: str, process_set: ProcessSet, refusal: Exception
) -> bytearray:
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        hint = "; cloudpickle takes more, lambdas and local classes too: pip install cloudpickle"
        _fail_everywhere(name, process_set, _unpicklable(refusal) + hint, refusal)
    try:
        return bytearray(dumps_by_cloudpickle(obj))
    except Exception as error:
        _fail_everywhere(name, process_set, _unpicklable(error), error)


def _unpickled(stream: io.BytesIO) -> Any:
    try:
        return pickle.load(stream)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "cloudpickle":
            raise
        raise UnsupportedError(
            "the object could only be sent by cloudpickle, which is not installed on this rank: "
            "pip install cloudpickle"
        ) from error


def _unpicklable(error: Exception) -> str:
    return f"the object cannot be pickled: {describe(type(error), error)}"


def _fail_everywhere(name: str, process_set: ProcessSet, why: str, error: Exception) -> NoReturn:
    synchronize(refuse(name, process_set, Refusal(why)))
    raise AssertionError("a refused operation completed") from error
