"""Compiled functions after a rank is lost: RUEDA_RECOVERY=on rueda run -np 3 python lose_a_rank.py."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import rueda
import rueda.jax

rueda.init()
BEFORE = rueda.rank()
those_left = rueda.add_process_set([1, 2])


def loss(x):
    return jnp.sum(rueda.jax.broadcast(x, 0, "root") ** 2)


def sum_of_set(x):
    return rueda.jax.allreduce(x, "set", rueda.Sum, those_left)


def linear(x):
    return jnp.sum(3 * rueda.jax.broadcast(x, 2, "last root"))


gradient = jax.jit(jax.grad(loss))
# Of a root that is no rank any more afterwards; the forward pass is not computed.
of_last_root = jax.jit(jax.grad(linear))
gather = jax.jit(lambda x: rueda.jax.allgather(x, "gather"))
scatter = jax.jit(lambda x: rueda.jax.reduce_scatter(x, "scatter"))
scatter_tree = jax.jit(lambda x: rueda.jax.reduce_scatter([x, x], "scatter tree"))
total = jax.jit(sum_of_set)
x = jnp.arange(1.0, 4.0) * (BEFORE + 1)


def told_by(function):
    try:
        jax.block_until_ready(function(x))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        return str(error)
    return "nothing"


np.testing.assert_array_equal(gradient(x), 6 * x if BEFORE == 0 else np.zeros(3))
np.testing.assert_array_equal(
    gather(x), np.concatenate([np.arange(1.0, 4.0) * i for i in (1, 2, 3)])
)
np.testing.assert_array_equal(scatter(x), [2.0 * (BEFORE + 1)])
jax.block_until_ready(scatter_tree(x))
_, transposed = jax.vjp(linear, x)
np.testing.assert_array_equal(of_last_root(x), np.full(3, 9.0 if BEFORE == 2 else 0.0))
if BEFORE > 0:
    np.testing.assert_array_equal(total(x), np.arange(1.0, 4.0) * 5)
rueda.barrier(name="all have compiled")
if BEFORE == 0:
    os.kill(os.getpid(), signal.SIGKILL)
assert "rank 0" in told_by(gradient)
rueda.recover(timeout=60)
assert (rueda.rank(), rueda.size()) == (BEFORE - 1, 2)

# The root is now the rank that was 1.
np.testing.assert_array_equal(gradient(x), 4 * x if BEFORE == 1 else np.zeros(3))
np.testing.assert_array_equal(total(x), np.arange(1.0, 4.0) * 5)
for function in (gather, scatter, scatter_tree, of_last_root):
    told = told_by(function)
    assert "the function was traced for" in told, told
told = told_by(lambda _: transposed(jnp.float32(1)))
assert "root rank 2 is not in the process set now" in told, told
np.testing.assert_array_equal(rueda.allreduce(np.ones(2), "goes on", rueda.Sum), np.full(2, 2.0))
print("done", flush=True)
rueda.shutdown()
