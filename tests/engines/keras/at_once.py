"""One of two jobs at once: rueda run -np 2 python at_once.py FOLDER OWN OTHER."""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import rueda
import rueda.jax
import rueda.keras

folder, own, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
rueda.init()
MINE = slice(rueda.rank(), None, rueda.size())


def trained(optimizer, batch, part):
    """Trains on this job's samples; returns the weight that a linear model reaches."""
    x = np.random.default_rng(ord(own)).normal(size=(32, 1)).astype("float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((1, 1))])
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(x[part], x[part] * 3, batch_size=batch, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()[0]


(folder / f"{own}-{rueda.rank()}").touch()
deadline = time.monotonic() + 100
while len(list(folder.glob(f"{other}-?"))) < 2:
    assert time.monotonic() < deadline, "the other job has not come"
    time.sleep(0.01)
total = jax.jit(lambda x: rueda.jax.allreduce(x, "total", rueda.Sum))
for step in range(100):
    np.testing.assert_array_equal(total(jnp.full(3, 1.0 + step)), np.full(3, 2.0 + 2 * step))
    np.testing.assert_array_equal(total(jnp.full(3, ord(own))), np.full(3, 2 * ord(own)))
together = trained(rueda.keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), 4, MINE)
alone = trained(keras.optimizers.SGD(0.1), 8, slice(None))
np.testing.assert_allclose(together, alone, atol=1e-6)
print("trained", own, rueda.rank(), float(together[0, 0]), flush=True)
rueda.shutdown()
