"""Ends while JAX works: rueda run -np 2 python leave_early.py end|die."""

import os
import signal
import sys

import jax
import jax.numpy as jnp
import rueda
import rueda.jax

rueda.init()


@jax.jit
def slow(x):
    for i in range(4):
        x = rueda.jax.allreduce(jax.lax.fori_loop(0, 100, lambda _, y: y @ y, x), f"late.{i}")
    return x


x = jnp.eye(300)
slow(x).block_until_ready()
if sys.argv[1] == "end":
    slow(x)  # nobody waits for the result
    print("the end", flush=True)
else:
    result = slow(x)
    if rueda.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(1000):
            result = slow(result).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        print("told:", error, flush=True)
