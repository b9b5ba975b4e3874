"""A Keras optimizer that reduces gradients over the ranks before it uses them."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras

import rueda
from rueda.errors import InvalidArgumentError
from rueda.keras.naming import default_name
from rueda.keras.reduction import Reduction
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer", "distribute", "is_distributed", "warn_if_plain"]

_MARK = "_rueda_reduction"
_warned: weakref.WeakSet[Any] = weakref.WeakSet()  # models


def is_distributed(optimizer: Any) -> bool:
    """Whether this optimizer already reduces its gradients over the ranks."""
    return _MARK in vars(optimizer)


def warn_if_plain(model: Any, process_set: ProcessSet) -> None:
    """Warns, once for each model, that its training on several ranks does not reduce gradients."""
    optimizer = model.optimizer
    if optimizer is None or model in _warned or process_set.size() == 1:
        return
    if any(is_distributed(each) for each in _layers_of(optimizer)):
        return
    _warned.add(model)
    warnings.warn(
        f"the optimizer of the model {model.name!r} is not distributed, so each of the {process_set.size()} ranks "
        "trains a model of its own: compile it with DistributedOptimizer(optimizer). Copies of a distributed "
        "optimizer or of its model, also by pickle, from_config() or load_model(), have a plain one. If the model's "
        "train_step() reduces gradients itself, ignore this",
        RuntimeWarning,
        stacklevel=3,
    )


def DistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
    optimizer: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes a Keras optimizer's ``apply()`` reduce gradients over the ranks first; returns ``optimizer`` itself.

    The optimizer keeps its class, configuration and state. A saved or copied model therefore holds a plain optimizer:
    pass that to this function again. Gradients are reduced before they are unscaled, clipped or accumulated, on any
    Keras 3 backend: torch, JAX or TensorFlow.

    ``optimizer``: with mixed precision, a :class:`keras.optimizers.LossScaleOptimizer` around the actual optimizer, so
    that all ranks skip the same steps; the reverse nesting is refused.
    ``name``: the operations' name, the same on every rank. By default "keras." and the name that the optimizer was
    given, or else its class and how many of that class came to this function before in this world. So ranks must then
    give it optimizers of one class in the same order; others that a rank has do not count.
    ``op``: the average by default. ``process_set``: the ranks that take part, all by default.

    Every rank must take the same number of steps, or use :class:`rueda.keras.JoinCallback`. Raises
    :class:`rueda.InvalidArgumentError` if ``optimizer`` is not a Keras optimizer or is distributed already, and
    :class:`rueda.NotInitializedError`. Steps raise :class:`rueda.MismatchError` on every rank if the models differ,
    and :class:`rueda.UnsupportedError` under TensorFlow's ``jit_compile=True``; in compiled steps JAX and TensorFlow
    raise their own errors with that text.

    Example::

        >>> optimizer = rueda.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))  # doctest: +SKIP
        >>> model.compile(optimizer=optimizer, loss="mse")  # doctest: +SKIP
    """
    rueda.rank()  # raises if there is no world
    require_plain(optimizer)  # before it uses up a name
    label = name or default_name(optimizer, process_set)
    return distribute(optimizer, Reduction(label, op, process_set))


def distribute(optimizer: Any, reduction: Callable[[str, list[Any], list[Any]], list[Any]]) -> Any:
    """Like :func:`DistributedOptimizer`, but reduces by ``reduction(backend name, gradients, variables)``.

    ``optimizer``: one that :func:`require_plain` accepts.
    """
    # Bypass Keras' __setattr__, which would track them as the model's state.
    own = vars(optimizer)
    own[_MARK] = reduction
    own["apply"] = _applying(optimizer, reduction)
    own["build"] = _building(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        own["stateless_apply"] = _applying_stateless(optimizer, reduction)
    return optimizer


def require_plain(optimizer: Any) -> None:
    """Raises :class:`rueda.InvalidArgumentError` for what is no Keras optimizer or is distributed already."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"DistributedOptimizer takes a keras.optimizers.Optimizer, not a {type(optimizer).__name__}"
        )
    for each in _layers_of(optimizer):
        if is_distributed(each):
            raise InvalidArgumentError(
                f"the optimizer {each.name!r} is distributed already: give DistributedOptimizer the plain one, once"
            )


def _layers_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizer and, if it scales losses, the one within."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return (optimizer, optimizer.inner_optimizer) if scales else (optimizer,)


def _applying(optimizer: Any, reduction: Callable[..., list[Any]]) -> Callable[..., Any]:
    plain = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        # Consume them once: iterators are accepted, too.
        given = None if trainable_variables is None else list(trainable_variables)
        variables = list(optimizer._trainable_variables) if given is None else given
        return plain(reduction(keras.backend.backend(), list(grads), variables), given)

    return apply


def _applying_stateless(optimizer: Any, reduction: Callable[..., list[Any]]) -> Callable[..., Any]:
    """JAX's entry point of LossScaleOptimizer, which reads gradients before any ``apply()``."""
    plain = optimizer.stateless_apply

    def stateless_apply(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        variables = list(optimizer._trainable_variables)
        reduced = reduction(keras.backend.backend(), list(grads), variables)
        return plain(optimizer_variables, reduced, trainable_variables)

    return stateless_apply


def _building(optimizer: Any) -> Callable[..., Any]:
    plain = optimizer.build

    def build(variables: Any) -> Any:
        frame = inspect.currentframe()
        caller = (
            None if frame is None or frame.f_back is None else frame.f_back.f_locals.get("self")
        )
        scales = isinstance(caller, keras.optimizers.LossScaleOptimizer)
        if scales and caller is not optimizer:
            raise InvalidArgumentError(
                "a LossScaleOptimizer around DistributedOptimizer looks at each rank's own gradients, so ranks would "
                "diverge: use DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), "
                "with mixed_float16 too"
            )
        return plain(variables)

    return build
