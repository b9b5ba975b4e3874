"""Calls of Rueda out of TensorFlow, eagerly and within ``tf.function``, and the errors that come of them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from rueda.errors import MismatchError, RuedaError
from rueda.horovod.exceptions import (
    HorovodInternalError,
    HorovodInvalidArgumentError,
    translated_by,
    translation_of,
)

__all__ = ["call", "in_graph", "in_place_of_tensorflow", "recovered", "translated"]

P = ParamSpec("P")
T = TypeVar("T")


# A collective has failed on this rank within a tf.function, whose error does not say so.
_failed = threading.Event()


class _Internal(HorovodInternalError, tf.errors.UnknownError):  # type: ignore[misc]
    """What Horovod's operations of TensorFlow raise when ranks are lost, and what is raised elsewhere."""

    def __init__(self, message: str) -> None:
        tf.errors.UnknownError.__init__(self, None, None, message)


# A ValueError: in tf.function TensorFlow makes its InvalidArgumentError of it, which recovered() leaves alone.
class _Mismatch(HorovodInternalError, tf.errors.FailedPreconditionError, ValueError):  # type: ignore[misc]
    """What ranks disagree on."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class _Invalid(HorovodInvalidArgumentError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """What can never work."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def in_place_of_tensorflow(error: RuedaError) -> Exception:
    """The error of Horovod's API that TensorFlow's users catch, too: a ``tf.errors.OpError`` of the fitting kind."""
    found = translation_of(error)
    if isinstance(found, HorovodInvalidArgumentError):
        return _Invalid(str(found))
    if isinstance(error, MismatchError):
        return _Mismatch(str(found))
    return _Internal(str(found)) if type(found) is HorovodInternalError else found


def in_graph(error: RuedaError) -> Exception:
    """The same for a failure in a ``tf.function``, of which :func:`recovered` is to know."""
    found = in_place_of_tensorflow(error)
    if isinstance(found, _Internal):
        _failed.set()
    return found


def translated(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose errors are those of Horovod's API for TensorFlow."""
    return translated_by(in_place_of_tensorflow)(function)


def recovered(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose failed collectives are HorovodInternalError, also where a ``tf.function`` has hidden them."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        _failed.clear()
        try:
            return function(*args, **kwargs)
        except tf.errors.UnknownError as error:
            if isinstance(error, HorovodInternalError) or not _failed.is_set():
                raise
            raise HorovodInternalError(str(error)) from error

    return wrapper


def call(
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    dtypes: Sequence[Any],
    shapes: Sequence[Any] | None = None,
) -> list[Any]:
    """The results of ``function`` as tensors; it gets arrays of NumPy, which it must not write, and returns such.

    Eagerly it is called at once. In ``tf.function`` it becomes one operation, which TensorFlow runs in the order of
    the program, as it has effects. ``shapes``: of the results, where they are known.

    Raises NotImplementedError for graphs of TensorFlow 1, which have no such order: ranks would wait for each other.
    """
    if tf.executing_eagerly():
        arrays = translated(function)(*[np.asarray(tensor.numpy()) for tensor in tensors])
        return [tf.convert_to_tensor(a, dtype) for a, dtype in zip(arrays, dtypes, strict=True)]
    if not isinstance(tf.compat.v1.get_default_graph(), FuncGraph):
        raise NotImplementedError(
            "Rueda's operations run eagerly and in tf.function, not in graphs and sessions of TensorFlow 1: "
            "put the step into a tf.function"
        )

    def on_host(*arrays: Any) -> list[Any]:
        try:
            return list(function(*arrays))
        except RuedaError as error:
            raise in_graph(error) from error

    results = tf.nest.flatten(tf.numpy_function(on_host, list(tensors), list(dtypes)))
    for result, shape in zip(results, shapes or (), strict=False):
        result.set_shape(shape)
    return list(results)
