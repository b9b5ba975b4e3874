"""Calls Rueda from TensorFlow, eagerly and within ``tf.function``, and converts its errors."""

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


# Set when a collective fails on this rank within a tf.function, whose error does not say so.
_failed = threading.Event()


class _Internal(HorovodInternalError, tf.errors.UnknownError):  # type: ignore[misc]
    """A failed collective, also as the error that Horovod's TensorFlow operations raise when ranks are lost."""

    def __init__(self, message: str) -> None:
        tf.errors.UnknownError.__init__(self, None, None, message)


# A ValueError: tf.function converts it to InvalidArgumentError, which recovered() passes through.
class _Mismatch(HorovodInternalError, tf.errors.FailedPreconditionError, ValueError):  # type: ignore[misc]
    """A mismatch between ranks."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class _Invalid(HorovodInvalidArgumentError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """A call that can never work."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def in_place_of_tensorflow(error: RuedaError) -> Exception:
    """Returns Horovod's error for a Rueda error; for failed or invalid calls it is also a ``tf.errors.OpError``."""
    found = translation_of(error)
    if isinstance(found, HorovodInvalidArgumentError):
        return _Invalid(str(found))
    if isinstance(error, MismatchError):
        return _Mismatch(str(found))
    return _Internal(str(found)) if type(found) is HorovodInternalError else found


def in_graph(error: RuedaError) -> Exception:
    """Like :func:`in_place_of_tensorflow`, and records a failure in a ``tf.function`` for :func:`recovered`."""
    found = in_place_of_tensorflow(error)
    if isinstance(found, _Internal):
        _failed.set()
    return found


def translated(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that converts Rueda's errors to those of Horovod's TensorFlow API."""
    return translated_by(in_place_of_tensorflow)(function)


def recovered(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that raises HorovodInternalError for failed collectives, even if a ``tf.function`` has hidden them."""

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
    """Returns the results of ``function`` as tensors; it gets read-only NumPy arrays and returns NumPy arrays.

    In eager mode it is called at once. In ``tf.function`` it becomes one stateful operation, which TensorFlow runs in
    program order. ``shapes``: the results' shapes, if known.

    Raises NotImplementedError in TensorFlow 1 graphs, which guarantee no order: ranks would deadlock.
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
