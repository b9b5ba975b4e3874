"""Collectives on trees of arrays, inside and outside of ``jax.jit``."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from rueda.adapter import Refusal
from rueda.arguments import reduction_of, text_of
from rueda.error_texts import describe
from rueda.errors import InvalidArgumentError
from rueda.jax import derivatives as _derivatives  # noqa: F401 - gives the primitive its derivatives
from rueda.jax.collective import refused, run
from rueda.jax.in_place import Kind, Spec
from rueda.lifecycle import first_world_number
from rueda.operations import Average, ReduceOp, Sum
from rueda.process_sets import (
    ProcessSet,
    global_process_set,
    number_of,
    require_process_set,
)

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reduce_scatter"]

# Of traced collectives without a name.
_numbers = itertools.count()

# JAX 0.6 has it in jax.core.
_home = jax.extend.core if hasattr(jax.extend.core, "get_opaque_trace_state") else jax.core
_trace_state = _home.get_opaque_trace_state
# Where nothing is traced.
_outside = _trace_state()


def allreduce(
    tree: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces each array of a tree over the ranks; every rank gets a tree with the same bits.

    ``tree``: any tree of JAX's (a model's gradients, say), with the same structure on every rank. ``name``: by which
    ranks match the operation; within compiled functions it is numbered while the function is traced where it has none,
    so every rank must then trace the same in the same order. ``op``: the average by default.

    Sum and Average have derivatives of all orders. Raises :class:`rueda.NotInitializedError`, and
    :class:`rueda.UnsupportedError` for dtypes and transformations that do not work. What ranks find out together is
    raised on every rank: :class:`rueda.MismatchError` and others as they are outside of compiled functions, within
    as ``jax.errors.JaxRuntimeError`` with their text.

    Example::

        >>> rueda.jax.allreduce({"w": jnp.ones(2)}, name="gradients")  # doctest: +SKIP
        {'w': Array([1., 1.], dtype=float32)}
    """
    return _on_tree(Kind.ALLREDUCE, tree, name, process_set, op=op)


def allgather(
    tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenates each array of a tree along its first axis, in rank order; scalars become an array.

    Shapes must be the same on every rank, the first extent too, since JAX has to know that of the result. Names and
    errors are those of :func:`allreduce`.

    Example::

        >>> rueda.jax.allgather(jnp.float32(1), name="losses")  # doctest: +SKIP
        Array([1.], dtype=float32)
    """
    return _on_tree(Kind.ALLGATHER, tree, name, process_set)


def broadcast(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the arrays of ``root_rank``, the world rank of a member of the set; 0 by default.

    Names and errors are those of :func:`allreduce`; :class:`rueda.InvalidArgumentError` for a root that is no member.

    Example::

        >>> parameters = rueda.jax.broadcast(parameters, name="parameters")  # doctest: +SKIP
    """
    require_process_set(process_set)
    if root_rank not in process_set.ranks:
        raise InvalidArgumentError(
            f"broadcast from root_rank={root_rank!r}, which is not one of the ranks {process_set.ranks}"
        )
    return _on_tree(Kind.BROADCAST, tree, name, process_set, root=root_rank)


def reduce_scatter(
    tree: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces each array of a tree and gives each rank an equal part of the first axis.

    Names and errors are those of :func:`allreduce`; :class:`rueda.InvalidArgumentError` where the first extent is no
    multiple of the number of ranks.

    Example::

        >>> rueda.jax.reduce_scatter(jnp.ones((rueda.size(), 2)), name="shards")  # doctest: +SKIP
        Array([[1., 1.]], dtype=float32)
    """
    return _on_tree(Kind.REDUCE_SCATTER, tree, name, process_set, op=op)


def alltoall(
    tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends each rank an equal part of the first axis, and concatenates what it receives, in rank order.

    Names and errors are those of :func:`reduce_scatter`.

    Example::

        >>> rueda.jax.alltoall(jnp.arange(rueda.size()), name="exchange")  # doctest: +SKIP
        Array([0], dtype=int32)
    """
    return _on_tree(Kind.ALLTOALL, tree, name, process_set)


def _on_tree(
    kind: str,
    tree: Any,
    name: str | None,
    process_set: ProcessSet,
    op: ReduceOp = Sum,
    root: int = 0,
) -> Any:
    require_process_set(process_set)
    size = process_set.size()  # raises where there is no world
    try:
        text, number = text_of(name), reduction_of(op)
    except Refusal as refusal:
        raise InvalidArgumentError(str(refusal)) from None
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    # Not by the leaves: arrays that a function closes over are none of its tracers.
    is_traced = _trace_state() != _outside
    if is_traced and not found:  # there is nothing that JAX would keep in the compiled function
        return tree
    if name is None and is_traced:
        text = f"jax.{kind}.{next(_numbers)}"
    paths = "".join(jax.tree_util.keystr(path).replace("\n", " ") + "\n" for path, _ in found)
    of_set = number_of(process_set)
    world = first_world_number() if of_set else 0
    spec = Spec(kind, text, paths, int(number), root, of_set, size, world)
    try:
        tensors = [jnp.asarray(leaf) for _, leaf in found]
    except Exception as error:  # of any library's arrays, or of a number that no dtype holds
        if is_traced:
            raise
        unsupported = isinstance(error, TypeError | ValueError)
        unusable = Refusal(describe(type(error), error), unsupported)
        raise refused(spec, len(found), unusable) from error
    results = run(spec, tensors)
    return jax.tree_util.tree_unflatten(structure, results)
