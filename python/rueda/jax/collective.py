"""The collectives as one primitive of JAX's: what it computes, at once and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching, mlir

import rueda
from rueda import _native, dtypes
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.jax.in_place import Kind, Spec, in_place_p, register_lowering
from rueda.operations import ReduceOp
from rueda.process_sets import ProcessSet, global_process_set, identify

__all__ = ["collective_p", "run"]

collective_p = jax.extend.core.Primitive("rueda_collective")
collective_p.multiple_results = True


def run(spec: Spec, tensors: Sequence[Any]) -> list[Any]:
    """The collective of all tensors, which are arrays of JAX's or traced."""
    results: list[Any] = collective_p.bind(*tensors, spec=spec)
    return results


def _shape_of_result(spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    if spec.kind in (Kind.ALLREDUCE, Kind.BROADCAST):
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
    results = _abstract(*(jax.typeof(tensor) for tensor in tensors), spec=spec)
    arrays = [np.asarray(tensor) for tensor in tensors]
    process_set = _set_of(spec)
    name = spec.name or None
    if spec.kind == Kind.ALLREDUCE:
        if len(arrays) == 1:
            found = [rueda.allreduce(arrays[0], name, ReduceOp(spec.op), process_set=process_set)]
        else:
            found = rueda.grouped_allreduce(
                arrays, name, ReduceOp(spec.op), process_set=process_set
            )
    else:
        parts = [name and (name if len(arrays) == 1 else f"{name}.{i}") for i in range(len(arrays))]
        found = [
            _one_now(spec, array, part, process_set)
            for array, part in zip(arrays, parts, strict=True)
        ]
    return [
        jnp.asarray(array.reshape(result.shape))
        for array, result in zip(found, results, strict=True)
    ]


def _one_now(spec: Spec, array: Any, name: str | None, process_set: ProcessSet) -> Any:
    """As it is compiled: with the number of blocks as a dimension, so that ranks compare all others."""
    if spec.kind == Kind.BROADCAST:
        return rueda.broadcast(array, spec.root, name, process_set)
    if spec.kind == Kind.ALLGATHER:
        return rueda.allgather(array.reshape(1, *array.shape), name, process_set)
    blocks = array.reshape(spec.size, array.shape[0] // spec.size, *array.shape[1:])
    if spec.kind == Kind.ALLTOALL:
        return rueda.alltoall(blocks, None, name, process_set)
    return rueda.reducescatter(blocks, name, ReduceOp(spec.op), process_set=process_set)


def _set_of(spec: Spec) -> ProcessSet:
    if spec.process_set == identify(global_process_set):
        return global_process_set
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
    if spec.kind in (Kind.ALLREDUCE, Kind.BROADCAST):
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
