"""Gradients that are reduced over the ranks, for training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rueda.errors import InvalidArgumentError
from rueda.jax.collectives import allreduce
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer", "value_and_grad"]


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., Any]:
    """``jax.value_and_grad`` with gradients that are reduced over the ranks; the value is this rank's own.

    ``fun``, ``argnums`` and ``has_aux`` are JAX's. ``name``: of the operation, the same on every rank; by default the
    function's name and ".gradient". ``op``: the average by default. Raises as :func:`allreduce`.

    Example::

        >>> step = jax.jit(rueda.jax.value_and_grad(loss_of))  # doctest: +SKIP
        >>> loss, gradients = step(parameters, batch)  # doctest: +SKIP
    """
    plain = jax.value_and_grad(fun, argnums, has_aux)
    label = name or f"{getattr(fun, '__name__', type(fun).__name__)}.gradient"

    @functools.wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = plain(*args, **kwargs)
        return value, allreduce(gradients, label, op, process_set)

    return reduced


def DistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
    optimizer: Any,
    name: str = "optimizer",
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optax optimizer that reduces gradients over the ranks before it does anything else with them.

    ``optimizer``: any ``optax.GradientTransformation``. Its state is what it was, so it can be saved and loaded
    with and without this. ``name``: of the operation, the same on every rank. ``op``: the average by default. Raises
    :class:`rueda.InvalidArgumentError` for what is no optimizer of optax, and as :func:`allreduce` in ``update()``.

    Example::

        >>> optimizer = rueda.jax.DistributedOptimizer(optax.adam(1e-3))  # doctest: +SKIP
        >>> state = optimizer.init(parameters)  # doctest: +SKIP
        >>> updates, state = optimizer.update(gradients, state, parameters)  # doctest: +SKIP
    """
    import optax

    if not isinstance(optimizer, optax.GradientTransformation):
        raise InvalidArgumentError(
            f"DistributedOptimizer takes an optax.GradientTransformation, not a {type(optimizer).__name__}"
        )
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return inner.update(allreduce(updates, name, op, process_set), state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)
