"""The collectives as one primitive of JAX's: what it computes, at once and compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching, mlir

import rueda
from rueda import _native, dtypes
from rueda.adapter import Refusal
from rueda.error_texts import describe
from rueda.errors import InvalidArgumentError, MismatchError, RuedaError, UnsupportedError
from rueda.jax.in_place import Kind, Spec, in_place_p, register_lowering
from rueda.lifecycle import first_world_number
from rueda.operations import ReduceOp
from rueda.process_sets import ProcessSet, global_process_set, number_of
from rueda.submission import part_name, refuse

__all__ = ["collective_p", "refused", "run"]

# How many leaves of a tree an error lists; it counts the rest.
_LISTED = 24

collective_p = jax.extend.core.Primitive("rueda_collective")
collective_p.multiple_results = True


def run(spec: Spec, tensors: Sequence[Any]) -> list[Any]:
    """The collective of all tensors, which are arrays of JAX's or traced."""
    results: list[Any] = collective_p.bind(*tensors, spec=spec)
    return results


def _shape_of_result(spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    if spec.is_allreduce or spec.kind == Kind.BROADCAST:
        return shape
    if spec.kind == Kind.ALLGATHER:
        return (spec.size * shape[0], *shape[1:]) if shape else (spec.size,)
    if not shape or shape[0] % spec.size:
        raise InvalidArgumentError(
            f"{spec.kind} of shape {list(shape)}: under JAX the first extent must be a multiple of the "
            f"{spec.size} ranks, since shapes are known before ranks talk to each other"
        )
    return shape if spec.kind == Kind.ALLTOALL else (shape[0] // spec.size, *shape[1:])


def _abstract(*avals: Any, spec: Spec) -> list[Any]:
    for aval in avals:
        if dtypes.code_of(str(aval.dtype)) is None:
            raise UnsupportedError(
                f"the dtype {aval.dtype} is not supported; there are {', '.join(dtypes.names())}"
            )
    return [jax.core.ShapedArray(_shape_of_result(spec, aval.shape), aval.dtype) for aval in avals]


def _now(*tensors: Any, spec: Spec) -> list[Any]:
    """Outside of compiled functions: through memory that NumPy sees, at once, without compiling anything."""
    try:
        results = _abstract(*(jax.typeof(tensor) for tensor in tensors), spec=spec)
    except (InvalidArgumentError, UnsupportedError) as error:
        unsupported = isinstance(error, UnsupportedError)
        raise refused(spec, len(tensors), Refusal(str(error), unsupported)) from None
    try:
        arrays = [np.asarray(tensor) for tensor in tensors]
    # Such as of arrays that were deleted or donated, or whose computation has failed.
    except Exception as error:
        refusal = Refusal(f"an array cannot be used: {describe(type(error), error)}")
        raise refused(spec, len(tensors), refusal) from error
    process_set = _set_of(spec)
    found = _tree_now if spec.is_tree else _array_now
    computed = found(spec, arrays, process_set)
    if spec.kind == Kind.REDUCE and spec.root not in process_set.ranks:
        raise InvalidArgumentError(
            f"'{spec.name}': root rank {spec.root} is not in the process set now: it was when this was traced"
        )
    if spec.kind == Kind.REDUCE and process_set.ranks[process_set.rank()] != spec.root:
        computed = [np.zeros_like(array) for array in computed]
    return [
        jnp.asarray(_of_shape(spec, array, result.shape))
        for array, result in zip(computed, results, strict=True)
    ]


def _of_shape(spec: Spec, array: Any, shape: tuple[int, ...]) -> Any:
    if array.size != math.prod(shape):
        raise InvalidArgumentError(
            f"'{spec.name}': {spec.kind} has a result of shape {list(shape)} under JAX, which needs the arrays of all "
            f"{spec.size} ranks, but some have joined and sent nothing"
        )
    return array.reshape(shape)


def _array_now(spec: Spec, arrays: Sequence[Any], process_set: ProcessSet) -> list[Any]:
    (array,) = arrays
    return [_one_now(spec, array, spec.name or None, process_set)]


def _tree_now(spec: Spec, arrays: Sequence[Any], process_set: ProcessSet) -> list[Any]:
    """Ranks compare shapes, and with that of an array without elements their trees."""
    name, op = spec.name or None, ReduceOp(spec.op)
    tree = np.empty((0, spec.tree), np.uint8)
    if spec.is_allreduce:
        try:
            group = [*arrays, tree]
            return rueda.grouped_allreduce(group, name, op, process_set=process_set)[:-1]
        except MismatchError as error:
            raise _told(spec, error) from None
    try:
        rueda.allreduce(tree, name and f"{name}.tree", rueda.Sum, process_set=process_set)
    except MismatchError as error:
        raise _trees_differ(spec, error) from None
    parts = [part_name(name, number) for number in range(len(arrays))]
    try:
        return [
            _one_now(spec, array, part, process_set)
            for array, part in zip(arrays, parts, strict=True)
        ]
    except MismatchError as error:
        raise (_told(spec, error) if name else error) from None


def _told(spec: Spec, error: MismatchError) -> MismatchError:
    """The error with the path of the array that it is about. The last of an allreduce's group stands for the tree."""
    paths = spec.leaves
    tensor = error.tensor or ""
    if error.field == "group" or tensor.endswith(f".{len(paths)}"):
        return _trees_differ(spec, error)
    path = next((path for i, path in enumerate(paths) if tensor.endswith(f".{i}")), "")
    return MismatchError(
        f"{error} ({path})",
        error.peer,
        tensor=error.tensor,
        field=error.field,
        values=error.values,
    )


def _trees_differ(spec: Spec, error: MismatchError) -> MismatchError:
    paths = spec.leaves
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    leaves = f"the leaves {', '.join(paths[:_LISTED])}{more}" if paths else "no leaves"
    name = spec.name or error.tensor
    return MismatchError(
        f"'{name}': the tree of rank {error.peer} differs from that of other ranks; on this rank it has {leaves}",
        error.peer,
        tensor=name,
        field="tree",
    )


def refused(spec: Spec, count: int, refusal: Refusal) -> Exception:
    """The error of a collective of ``count`` arrays in which this rank cannot take part, which all ranks get."""
    is_group = spec.is_tree and spec.is_allreduce
    name = spec.name or None
    if spec.is_tree and not is_group:
        name = name and f"{name}.tree"
    try:
        refuse(name, _set_of(spec), refusal, count + 1 if is_group else 0).result()
    except RuedaError as error:
        return error
    return InvalidArgumentError(str(refusal))


def _one_now(spec: Spec, array: Any, name: str | None, process_set: ProcessSet) -> Any:
    """As it is compiled: with the number of blocks as a dimension, so that ranks compare all others."""
    if spec.is_allreduce:
        return rueda.allreduce(array, name, ReduceOp(spec.op), process_set=process_set)
    if spec.kind == Kind.BROADCAST:
        return rueda.broadcast(array, spec.root, name, process_set)
    if spec.kind == Kind.ALLGATHER:
        return rueda.allgather(array.reshape(1, *array.shape), name, process_set)
    blocks = array.reshape(spec.size, array.shape[0] // spec.size, *array.shape[1:])
    if spec.kind == Kind.ALLTOALL:
        return rueda.alltoall(blocks, None, name, process_set)
    return rueda.reducescatter(blocks, name, ReduceOp(spec.op), process_set=process_set)


def _set_of(spec: Spec) -> ProcessSet:
    if spec.process_set == number_of(global_process_set):
        return global_process_set
    if spec.world != first_world_number():
        raise InvalidArgumentError(
            f"'{spec.name}': the function was traced for a process set of a world that has been left since; trace it "
            "again, with a set of the present one"
        )
    process_set = ProcessSet(_native.ranks_of(spec.process_set))
    process_set.process_set_id = spec.process_set
    return process_set


def _compiled(*tensors: Any, spec: Spec) -> list[Any]:
    """As it is compiled: each tensor becomes the memory in which its result will lie."""
    memory = [_memory_of(spec, tensor) for tensor in tensors]
    results = in_place_p.bind(*memory, spec=spec)
    shapes = [_shape_of_result(spec, tensor.shape) for tensor in tensors]
    if spec.kind == Kind.REDUCE_SCATTER:
        results = [each[0] for each in results]
    return [each.reshape(shape) for each, shape in zip(results, shapes, strict=True)]


def _memory_of(spec: Spec, tensor: Any) -> Any:
    """With a block for each rank where there are blocks; what is gathered lies in the first."""
    if spec.is_allreduce or spec.kind == Kind.BROADCAST:
        return tensor
    if spec.kind == Kind.ALLGATHER:
        others = [(0, spec.size - 1), *((0, 0) for _ in tensor.shape)]
        return jnp.pad(tensor[None], others)
    return tensor.reshape(spec.size, tensor.shape[0] // spec.size, *tensor.shape[1:])


def _refuse(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "rueda.jax works on arrays of the CPU: jax.config.update('jax_platforms', 'cpu') before anything else"
    )


collective_p.def_abstract_eval(_abstract)
collective_p.def_impl(_now)
register_lowering(collective_p, _refuse)
register_lowering(collective_p, mlir.lower_fun(_compiled, multiple_results=True), platform="cpu")


def _refuse_batching(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "vmap of a collective of Rueda's is not supported: call the collective on the whole batch, outside of vmap"
    )


batching.primitive_batchers[collective_p] = _refuse_batching
