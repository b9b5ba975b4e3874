"""Compiled functions that one job saves for another: rueda run -np 2 python save_and_load.py save|load FOLDER."""

import pickle
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import rueda
import rueda.jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

rueda.init()
RANK = rueda.rank()
both = rueda.add_process_set([0, 1])
FOLDER = Path(sys.argv[2])


def save():
    def sums(x):
        return rueda.jax.allreduce({"x": x, "doubled": x * 2}, "tree", rueda.Sum)

    def gathered(x):
        return rueda.jax.allgather(x)

    def slow(x):
        return rueda.jax.allreduce(jax.lax.fori_loop(0, 300, lambda _, y: y @ y, x), "late")

    def of_set(x):
        return rueda.jax.allreduce(x, "of a set", rueda.Sum, both)

    x = jnp.arange(3.0)
    arguments = {sums: x, gathered: x, slow: jnp.eye(300), of_set: x}
    for function, argument in arguments.items():
        compiled = jax.jit(function).lower(argument).compile()
        path = FOLDER / f"{function.__name__}.{RANK}"
        path.write_bytes(pickle.dumps(serialize(compiled)))


def loaded(name):
    return deserialize_and_load(*pickle.loads((FOLDER / f"{name}.{RANK}").read_bytes()))


def load():
    x = jnp.arange(3.0) + RANK
    sums = loaded("sums")
    for _ in range(3):
        found = sums(x)
        np.testing.assert_array_equal(found["x"], [1, 3, 5])
        np.testing.assert_array_equal(found["doubled"], [2, 6, 10])
    np.testing.assert_array_equal(loaded("gathered")(x), [0, 1, 2, 1, 2, 3])
    told = ""
    try:
        loaded("of_set")
    except rueda.InvalidArgumentError as error:
        told = str(error)
    assert "compile the function here" in told, told
    slow = loaded("slow")
    slow(jnp.eye(300)).block_until_ready()
    time.sleep(0.1 * RANK)
    result = slow(jnp.eye(300))
    rueda.shutdown()  # ends what is under way first
    np.testing.assert_array_equal(result, np.eye(300))


{"save": save, "load": load}[sys.argv[1]]()
print("done", flush=True)
rueda.shutdown()
