"""Collectives in JAX's compiled functions, matched by name: no tokens, and no order that ranks must keep.

Needs JAX, which ``import rueda`` does not. docs/jax.md has an example and says what is guaranteed.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.jax",
    "JAX",
    "jax",
    (0, 6),  # has jax.ffi and jax.typeof
    "pip install 'jax>=0.6'",
    newest=(0, 10),
)
_needs.require()

with _needs.understood():
    from rueda.jax.library import register as _register

    _register()

    from rueda.jax.collectives import (
        allgather,
        allreduce,
        alltoall,
        broadcast,
        reduce_scatter,
    )
    from rueda.jax.training import DistributedOptimizer, value_and_grad

__all__ = [
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "reduce_scatter",
    "value_and_grad",
]
