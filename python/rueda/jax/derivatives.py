"""Derivatives of the collectives: of the function that all ranks compute together.

Seen as one function of all ranks' inputs to all ranks' results, a sum, an average, a gathering or an exchange is
linear. Its transpose takes the gradients that all ranks have of their results to those of the inputs, for a loss that
is the sum of all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import ad

from rueda.errors import UnsupportedError
from rueda.jax.collective import collective_p, run
from rueda.jax.in_place import Kind, Spec
from rueda.operations import ReduceOp

_LINEAR = (ReduceOp.SUM, ReduceOp.AVERAGE)


def _named(spec: Spec, suffix: str) -> Spec:
    return spec._replace(name=f"{spec.name}.{suffix}" if spec.name else "")


def _paths_of(spec: Spec, chosen: Sequence[int]) -> str:
    paths = spec.paths.split("\n")
    return "".join(f"{paths[index]}\n" for index in chosen)


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, spec: Spec
) -> tuple[list[Any], list[Any]]:
    results = run(spec, primals)
    changing = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    if changing and spec.op not in _LINEAR:
        raise UnsupportedError(
            f"'{spec.name}': {spec.kind} with {ReduceOp(spec.op).name} has no derivative here; Sum and Average have"
        )
    changes: list[Any] = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if changing:
        tangent_spec = _named(spec, "tangent")._replace(paths=_paths_of(spec, changing))
        found = run(tangent_spec, [tangents[index] for index in changing])
        for index, change in zip(changing, found, strict=True):
            changes[index] = change
    return results, changes


def _transpose(cotangents: Sequence[Any], *inputs: Any, spec: Spec) -> list[Any]:
    given = [ad.instantiate_zeros(each) for each in cotangents]
    back = _named(spec, "gradient")
    if spec.kind == Kind.ALLGATHER:
        found = run(back._replace(kind=Kind.REDUCE_SCATTER, op=int(ReduceOp.SUM)), given)
        shapes = [each.aval.shape for each in inputs]
        return [each.reshape(shape) for each, shape in zip(found, shapes, strict=True)]
    if spec.kind == Kind.REDUCE_SCATTER:
        found = run(back._replace(kind=Kind.ALLGATHER, op=int(ReduceOp.SUM)), given)
        return [each / spec.size for each in found] if spec.op == ReduceOp.AVERAGE else found
    if spec.kind == Kind.BROADCAST:
        # Every rank takes part, also those that get zeros. Which one is the root, they learn when it runs.
        return run(back._replace(kind=Kind.REDUCE, op=int(ReduceOp.SUM)), given)
    if spec.kind == Kind.REDUCE:
        return run(back._replace(kind=Kind.BROADCAST), given)
    return run(back, given)


ad.primitive_jvps[collective_p] = _differentiate
ad.primitive_transposes[collective_p] = _transpose
