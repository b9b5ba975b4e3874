"""Two ranks of JAX: rueda run -np 2 python check_jax.py PAGE."""

import contextlib
import ctypes
import os
import re
import resource
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rueda
import rueda.jax
from digits import TRAINED, require_as_good, right, samples
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from rueda.heap import is_user_tuned

rueda.init()
RANK, SIZE = rueda.rank(), rueda.size()
assert SIZE == 2
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "parallel" / "python")]
from parallel import raises, still_works  # noqa: E402


def of_rank(function):
    """Returns the function's results, one per rank."""
    return [function(rank) for rank in range(SIZE)]


def in_both_ways(function, *arguments):
    """Returns the eager and compiled results, which must be equal."""
    now = function(*arguments)
    compiled = jax.jit(function)(*arguments)
    jax.tree.map(np.testing.assert_array_equal, now, compiled)
    assert jax.tree.map(lambda leaf: leaf.dtype, now) == jax.tree.map(lambda x: x.dtype, compiled)
    return compiled


def check_a_tree_is_reduced():
    def tree(rank):
        return {
            "weights": [jnp.full((3, 5), rank + 1.5), jnp.arange(7, dtype=jnp.int32) * (rank + 1)],
            "half": jnp.full((9,), rank + 0.5, jnp.bfloat16),
            "flag": jnp.asarray([rank == 0, False]),
            "scalar": jnp.float32(rank),
            "nothing": jnp.zeros((0, 3)),
            "none": None,
        }

    found = in_both_ways(lambda t: rueda.jax.allreduce(t, "tree", rueda.Sum), tree(RANK))
    expected = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *of_rank(tree))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    mean = in_both_ways(lambda x: rueda.jax.allreduce(x, "mean"), jnp.full(4, 2.0 * RANK))
    np.testing.assert_array_equal(mean, np.full(4, 1.0))
    largest = in_both_ways(
        lambda x: rueda.jax.allreduce(x, "most", rueda.Max), jnp.arange(3) * RANK
    )
    np.testing.assert_array_equal(largest, np.arange(3))
    assert rueda.jax.allreduce({}) == {}


def check_memory_of_results_stays_in_the_process():
    if is_user_tuned(os.environ) or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return
    given = jnp.ones(40 << 18)  # 40 MiB, which glibc would map anew in each call
    reduce = jax.jit(lambda x: rueda.jax.allreduce(x, "large"))
    faults = []
    for _ in range(63):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        jax.block_until_ready(reduce(given))
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    pages = given.nbytes // os.sysconf("SC_PAGESIZE")
    # XLA's threads have their own heap arenas, each of which is new once; on busy cores XLA
    # switches between them. Sometimes a small allocation lies where the result was.
    assert statistics.median(faults[3:]) < pages // 4, faults


def check_24_operations_in_another_order_on_each_rank():
    # Separate the operations by steps, whose memory XLA reuses for what follows.
    for count, extent in ((24, 1000), (24, 2), (2, 2), (3, 100_000)):
        order = np.random.default_rng(RANK).permutation(count).tolist()

        @jax.jit
        def function(x, order=order, extent=extent):
            totals = []
            for i in order:
                y = jnp.sin(x) * (i + 1) if i % 2 else x * (i + 1)
                total = rueda.jax.allreduce(y, f"order.{extent}.{i}", rueda.Sum)
                totals.append(jnp.exp(total * 1e-3).sum() if i % 3 else total * 2)
            return totals

        x = np.arange(SIZE, dtype=np.float32) + 1
        for _ in range(10):
            for i, found in zip(order, function(jnp.full(extent, RANK + 1.0)), strict=True):
                total = (np.sin(x) if i % 2 else x).sum() * (i + 1)
                expected = np.exp(total * 1e-3) * extent if i % 3 else np.full(extent, total * 2)
                np.testing.assert_allclose(found, expected, rtol=1e-4)


def check_other_collectives():
    x = jnp.arange(12.0).reshape(4, 3) + 100 * RANK
    whole = np.concatenate(of_rank(lambda rank: np.arange(12.0).reshape(4, 3) + 100 * rank))
    found = in_both_ways(lambda x: rueda.jax.allgather({"x": x, "s": x[0, 0]}, "gather"), x)
    np.testing.assert_array_equal(found["x"], whole)
    np.testing.assert_array_equal(found["s"], [0, 100])
    found = in_both_ways(lambda x: rueda.jax.broadcast({"x": x, "n": x[0]}, 1, "root"), x)
    np.testing.assert_array_equal(found["x"], whole[4:])
    found = in_both_ways(lambda x: rueda.jax.reduce_scatter([x, x[:2]], "scatter", rueda.Sum), x)
    total = whole[:4] + whole[4:]
    np.testing.assert_array_equal(found[0], total[2 * RANK : 2 * RANK + 2])
    np.testing.assert_array_equal(found[1], total[RANK : RANK + 1])
    found = in_both_ways(lambda x: rueda.jax.alltoall((x, x * 2), "exchange"), x)
    expected = np.concatenate([whole[2 * RANK : 2 * RANK + 2], whole[4 + 2 * RANK : 6 + 2 * RANK]])
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected * 2)


def check_numbered_where_there_is_no_name():
    total = jax.jit(lambda x: rueda.jax.allreduce(rueda.jax.allreduce(x, op=rueda.Sum)))(1.0)
    assert total == 2.0
    assert rueda.jax.allreduce(1.0, op=rueda.Sum) == 2.0
    closed_over = jnp.ones(2)
    traced = jax.make_jaxpr(lambda: rueda.jax.allreduce(closed_over))()
    assert "name='jax.allreduce." in str(traced), traced


def check_a_mismatch_is_told_on_every_rank():
    shape = (3 + RANK,)

    def function(x):
        return rueda.jax.allreduce({"a": jnp.ones(2), "b": x}, "grads")

    expected = ("'grads.1'", "shape differs between ranks", "[3] on rank 0", "[4] on rank 1")
    for _ in range(2):
        with raises(jax.errors.JaxRuntimeError, *expected, "['b']"):
            jax.block_until_ready(jax.jit(function)(jnp.ones(shape)))
        with raises(rueda.MismatchError, *expected, "['b']"):
            function(jnp.ones(shape))
    for collective in (rueda.jax.allgather, rueda.jax.alltoall, rueda.jax.reduce_scatter):
        with raises(jax.errors.JaxRuntimeError, "'blocks'", "shape differs between ranks"):
            call = jax.jit(lambda x, collective=collective: collective(x, name="blocks"))
            jax.block_until_ready(call(jnp.ones(2 + 2 * RANK)))
    still_works()
    assert jax.jit(lambda x: rueda.jax.allreduce(x, "grads"))(1.0 + RANK) == 1.5


def check_trees_that_differ_are_told_on_every_rank():
    x = jnp.ones(4)
    trees = [
        ({"enc": x, "dec": x}, {"enc": x, "head": x}),
        ([x], [x, x]),
        ([x, x, x], [x, x]),
    ]
    jaxes = rueda.jax
    for collective in (
        jaxes.allreduce,
        jaxes.allgather,
        jaxes.broadcast,
        jaxes.reduce_scatter,
        jaxes.alltoall,
    ):

        def call(tree, collective=collective):
            return collective(tree, name="trees")

        for tree in (of_both[RANK] for of_both in trees):
            paths, _ = jax.tree_util.tree_flatten_with_path(tree)
            leaves = ", ".join(jax.tree_util.keystr(path) for path, _ in paths)
            expected = ("'trees': the tree of rank 1 differs", f"has the leaves {leaves}")
            with raises(rueda.MismatchError, *expected):
                call(tree)
            with raises(jax.errors.JaxRuntimeError, *expected):
                jax.block_until_ready(jax.jit(call)(tree))
        with raises(rueda.MismatchError, "'trees"):
            call([x] if RANK else [])
        jax.tree.map(np.testing.assert_array_equal, call([x, x]), jax.jit(call)([x, x]))
    still_works()


def check_what_one_rank_cannot_do_is_told_on_every_rank():
    x = jnp.ones(4)
    with raises(rueda.InvalidArgumentError, "rank 1 cannot take part in 'parts'", "[3]"):
        rueda.jax.reduce_scatter(x[: 4 - RANK], "parts")
    eights = x.astype(jnp.float8_e5m2) if RANK else x
    for collective in (rueda.jax.allreduce, rueda.jax.allgather):
        for tree in (eights, [eights], [x, eights]):
            with raises(
                rueda.UnsupportedError, "rank 1 cannot take part in 'eights", "float8_e5m2"
            ):
                collective(tree, name="eights")
    without = np.zeros(4, jax.dtypes.float0) if RANK else x
    with raises(rueda.UnsupportedError, "rank 1 cannot take part", "float0"):
        rueda.jax.allreduce({"w": x, "n": without}, "without")
    still_works()


def check_an_array_that_one_rank_cannot_use_is_told_on_every_rank():
    jaxes = rueda.jax
    for collective in (jaxes.allreduce, jaxes.allgather, jaxes.broadcast):
        for is_tree in (False, True):
            deleted = jnp.ones(4)
            if RANK == 1:
                deleted.delete()
            tree = {"a": jnp.ones(4), "b": deleted} if is_tree else deleted
            expected = ("rank 1 cannot take part in 'deleted", "RuntimeError", "deleted")
            with raises(rueda.InvalidArgumentError, *expected):
                collective(tree, name="deleted")
            count = 2**31 if RANK == 1 else 5  # more than JAX's int32 holds
            tree = {"a": jnp.ones(4), "n": count} if is_tree else count
            expected = ("rank 1 cannot take part in 'count", "OverflowError", "int32")
            with raises(rueda.InvalidArgumentError, *expected):
                collective(tree, name="count")
    still_works()


def check_what_cannot_work_is_told():
    x = jnp.ones((3, 2))
    with raises(rueda.InvalidArgumentError, "alltoall", "[3, 2]", "multiple of the 2 ranks"):
        jax.jit(lambda x: rueda.jax.alltoall(x, "uneven"))(x)
    with raises(rueda.UnsupportedError, "float8_e5m2"):
        rueda.jax.allreduce(x.astype(jnp.float8_e5m2))
    with raises(rueda.UnsupportedError, "vmap"):
        jax.vmap(lambda x: rueda.jax.allreduce(x, "batched"))(x)
    with raises(rueda.InvalidArgumentError, "op='mean'"):
        rueda.jax.allreduce(x, op="mean")
    with raises(rueda.InvalidArgumentError, "root_rank=2"):
        rueda.jax.broadcast(x, 2)
    with raises(rueda.UnsupportedError, "'largest'", "MAX has no derivative"):
        jax.grad(lambda x: rueda.jax.allreduce(x, "largest", rueda.Max).sum())(x)
    with raises(rueda.UnsupportedError, "2 devices of one process"):
        spec = jax.sharding.PartitionSpec("i")
        mesh = jax.sharding.AbstractMesh((2,), ("i",))
        parts = {"in_specs": spec, "out_specs": spec, "check_vma": False}
        shards = jax.shard_map(lambda x: rueda.jax.allreduce(x, "shards"), mesh=mesh, **parts)
        jax.jit(shards).trace(jnp.ones(4)).lower(lowering_platforms=("cpu",))
    with raises(rueda.InvalidArgumentError, "not a float"):
        rueda.jax.DistributedOptimizer(0.1)
    with raises(jax.errors.JaxRuntimeError, "average", "bool"):
        jax.block_until_ready(jax.jit(lambda x: rueda.jax.allreduce(x, "mean of bools"))(x > 0))
    still_works()


def transposed_everywhere(function, shape_in):
    """Checks <y, f(x)> = <fT(y), x>, summed over all ranks, and that f is its own derivative."""
    rng = np.random.default_rng(RANK)
    x = jnp.asarray(rng.normal(size=shape_in))
    for transform in (lambda f: f, jax.jit):
        result, back = jax.vjp(transform(function), x)
        y = jnp.asarray(rng.normal(size=result.shape))
        (gradient,) = back(y)
        assert gradient.shape == x.shape
        mine = np.array([jnp.vdot(y, result), jnp.vdot(gradient, x)])
        left, right = rueda.allreduce(mine, op=rueda.Sum)
        np.testing.assert_allclose(left, right, rtol=1e-5)
        _, change = jax.jvp(transform(function), (x,), (2 * x,))
        np.testing.assert_allclose(change, 2 * result, rtol=1e-5)


def check_derivatives():
    jaxes = rueda.jax
    transposed_everywhere(lambda x: jaxes.allreduce(x, "d.sum", rueda.Sum), (4, 3))
    transposed_everywhere(lambda x: jaxes.allreduce({"a": x}, "d.mean")["a"], (4, 3))
    transposed_everywhere(lambda x: jaxes.allgather(x, "d.gather"), (4, 3))
    transposed_everywhere(lambda x: jaxes.allgather(x, "d.gather0"), ())
    transposed_everywhere(lambda x: jaxes.broadcast(x, 1, "d.root"), (4, 3))
    transposed_everywhere(lambda x: jaxes.reduce_scatter(x, "d.scatter"), (4, 3))
    transposed_everywhere(lambda x: jaxes.reduce_scatter(x, "d.scatter1", rueda.Sum), (4, 3))
    transposed_everywhere(lambda x: jaxes.alltoall(x, "d.exchange"), (4, 3))

    # Higher order, with integers: the sum s = x0 + x1 gives s^3 on each rank, so the 2 ranks'
    # losses are 2 s^3.
    def loss(x):
        parts = jaxes.allreduce({"x": x, "n": jnp.int32(1)}, "d.both", rueda.Sum)
        return parts["x"] ** 3 * (parts["n"] / 2)

    x = jnp.float32(1.0 + RANK)  # s = 3
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 2 * 3 * 3.0**2)
    np.testing.assert_allclose(jax.grad(jax.grad(loss))(x), 2 * 2 * 6 * 3.0)


def check_within_control_flow():
    def step(total, x):
        return total + rueda.jax.allreduce(x, "scanned", rueda.Sum), total

    xs = jnp.arange(5.0) + RANK
    total, _ = jax.jit(lambda xs: jax.lax.scan(step, 0.0, xs))(xs)
    assert total == 2 * 10 + 5
    gradient = jax.jit(jax.grad(lambda xs: jax.lax.scan(step, 0.0, xs)[0] ** 2))(xs)
    np.testing.assert_allclose(gradient, np.full(5, 4 * total))
    sized = jax.jit(lambda x: rueda.jax.allreduce(x, "donated", rueda.Sum), donate_argnums=0)
    np.testing.assert_array_equal(sized(jnp.full(1000, 1.0 + RANK)), np.full(1000, 3.0))


def check_a_name_that_comes_again_in_a_function():
    def layer(x):
        return jnp.tanh(rueda.jax.allreduce(x, "layer"))

    # What checkpoint recomputes for the gradient does not depend on the first operation of that
    # name.
    x = jnp.full(100_000, 0.1 * (RANK + 1))
    plain = jax.jit(jax.grad(lambda x: (layer(x) ** 2).sum()))
    again = jax.jit(jax.grad(lambda x: (jax.checkpoint(layer)(x) ** 2).sum()))
    # And two optimizers in one function, both without a name.
    parts = [rueda.jax.DistributedOptimizer(optax.sgd(rate)) for rate in (1.0, 2.0)]
    both = optax.multi_transform(
        dict(zip("ab", parts, strict=True)), dict(zip("pq", "ab", strict=True))
    )
    gradients = {"p": x, "q": -x}
    update = jax.jit(lambda state: both.update(gradients, state)[0])
    state = both.init(gradients)
    for _ in range(10):
        np.testing.assert_allclose(again(x), plain(x), rtol=1e-5)
        found = update(state)
        np.testing.assert_allclose(found["p"], np.full(100_000, -0.15), rtol=1e-5)
        np.testing.assert_allclose(found["q"], np.full(100_000, 0.3), rtol=1e-5)


def check_ranks_may_be_in_different_branches():
    def reduced(x):
        return rueda.jax.allreduce(x, "branches", rueda.Sum)

    @jax.jit
    def step(has_data, x):
        first = jax.lax.cond(has_data, reduced, lambda x: reduced(0 * x), x)
        return jax.lax.cond(has_data, lambda x: reduced(x) + 1, lambda x: reduced(0 * x) + 1, first)

    x = jnp.full(1000, 3.0)
    np.testing.assert_array_equal(step(RANK == 0, x), np.full(1000, 4.0))


def check_branches_of_two_conds_do_not_exclude_each_other():
    """Of two operations with one name that both run, each has its own."""

    @jax.jit
    def both(one, other, x):
        def reduced(x):
            return rueda.jax.allreduce(x, "of conds", rueda.Sum)

        return (
            jax.lax.cond(one, reduced, lambda x: x, x),
            jax.lax.cond(other, lambda x: x, lambda x: reduced(100 * x), x),
        )

    x = jnp.arange(4.0) + RANK
    text = both.lower(True, False, x).as_text()
    assert sorted(re.findall('name = "(of conds.*?)"', text)) == ["of conds", "of conds@2"], text
    first, second = both(True, False, x)
    np.testing.assert_array_equal(first, 2 * np.arange(4.0) + 1)
    np.testing.assert_array_equal(second, 100 * (2 * np.arange(4.0) + 1))
    first, second = both(False, True, x)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x)


def check_two_functions_in_flight():
    first = jax.jit(lambda x: rueda.jax.allreduce(x @ x, "flight.1", rueda.Sum))
    second = jax.jit(lambda x: rueda.jax.allreduce(x, "flight.2", rueda.Sum))
    x = jnp.eye(400) * (1.0 + RANK)
    for _ in range(5):
        results = [first(x), second(x), first(2 * x)]
        now = rueda.allreduce(np.ones(3), name="between", op=rueda.Sum)
        np.testing.assert_array_equal(now, np.full(3, 2.0))
        for result, expected in zip(results, (5.0, 3.0, 20.0), strict=True):
            np.testing.assert_array_equal(result, expected * np.eye(400))


def check_ranks_with_fewer_steps_join():
    total = jax.jit(lambda x: rueda.jax.allreduce(x, "uneven", rueda.Sum))
    found = [float(total(jnp.float32(step + RANK))) for step in range(2 + 2 * RANK)]
    assert rueda.join() == 1
    assert found == [1.0, 3.0, 3.0, 4.0][: 2 + 2 * RANK]


def check_what_a_joined_rank_would_have_to_send_is_told():
    x = jnp.ones(4)
    gather = jax.jit(lambda x: rueda.jax.allgather(x, "all"))
    gather(x)
    if RANK == 1:
        with raises(rueda.InvalidArgumentError, "'all'", "joined"):
            rueda.jax.allgather(x, "all")
        with raises(jax.errors.JaxRuntimeError, "'all'", "a rank has joined"):
            jax.block_until_ready(jax.jit(lambda x: rueda.jax.allgather(x, "all"))(x))
    rueda.join()
    np.testing.assert_array_equal(gather(x), np.ones(8))


def check_sets_of_ranks():
    alone = rueda.add_process_set([RANK] if RANK == 0 else [0])
    if alone.included():
        found = in_both_ways(lambda x: rueda.jax.allgather(x, "alone", alone), jnp.ones(3))
        np.testing.assert_array_equal(found, np.ones(3))
    rueda.remove_process_set(alone)


def parameters_of(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "hidden": {"w": jax.random.normal(keys[0], (64, 32)) / 8, "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(keys[1], (32, 10)) / 6, "b": jnp.zeros(10)},
    }


def logits_of(parameters, images):
    hidden = jnp.tanh(images @ parameters["hidden"]["w"] + parameters["hidden"]["b"])
    return hidden @ parameters["out"]["w"] + parameters["out"]["b"]


def loss_of(parameters, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits_of(parameters, batch[0]), batch[1]
    )
    return losses.mean()


def trained(parameters, optimizer, images, labels, batch, epochs=5):
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters, state, batch):
        gradients = jax.grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    for _ in range(epochs):
        for begin in range(0, len(images) - batch + 1, batch):
            part = slice(begin, begin + batch)
            parameters, state = step(parameters, state, (images[part], labels[part]))
    return parameters


def check_digits_are_trained_as_by_one_process():
    images, labels = samples()
    images = images.astype(np.float32)
    train = slice(0, TRAINED)

    def accuracy(parameters):
        return right(np.asarray(logits_of(parameters, images[TRAINED:])).argmax(1))

    plain = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(5e-3))
    one = trained(parameters_of(0), plain, images[train], labels[train], 32)
    parameters = rueda.jax.broadcast(parameters_of(RANK), name="parameters")
    mine = slice(RANK, TRAINED, SIZE)
    ours = rueda.jax.DistributedOptimizer(plain)
    two = trained(parameters, ours, images[mine], labels[mine], 16)
    require_as_good(accuracy(two), accuracy(one))
    everyone = rueda.jax.allgather(jax.tree.map(lambda x: x[None], two))
    jax.tree.map(lambda x: np.testing.assert_array_equal(x[0], x[1]), everyone)


def check_value_and_grad():
    def loss(x, scale):
        return (scale * x**2).sum(), "kept"

    function = rueda.jax.value_and_grad(loss, has_aux=True)
    assert function.__name__ == "loss"
    x = jnp.arange(3.0)
    (value, kept), gradient = function(x, 1.0 + RANK)
    assert (value, kept) == (5.0 * (1 + RANK), "kept")
    np.testing.assert_array_equal(gradient, 2 * x * 1.5)


def check_arrays_of_dlpack_are_taken():
    class Lent:
        """Has nothing but the two methods of DLPack."""

        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **options):
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    for array in (np.full(3, 1.0 + RANK), jnp.full(3, 1.0 + RANK)):
        for given in (array, Lent(array)):
            found = rueda.allreduce(given, name="lent", op=rueda.Sum)
            np.testing.assert_array_equal(found, np.full(3, 3.0))
    with raises(rueda.InvalidArgumentError, "'lent'", "from_dlpack() of a Lent failed"):
        rueda.allreduce(Lent(jnp.ones(3, jnp.bfloat16)), name="lent")


def check_the_example_of_the_page():
    code = re.findall(r"^```python\n(.*?)^```", Path(sys.argv[1]).read_text(), re.S | re.M)[0]
    rueda.shutdown()
    written = []
    with contextlib.redirect_stdout(None):
        exec(compile(code, sys.argv[1], "exec"), {"print": lambda *text: written.append(text)})
    rueda.init()
    if RANK == 0:
        assert re.fullmatch(r"loss [\d.e-]+", " ".join(map(str, written[-1]))), written
        assert float(str(written[-1][0]).split()[-1]) < 1e-3


def check_an_exception_of_one_rank_reaches_the_other():
    """The error has its text and its rank, and comes from a block of rueda.world()."""
    address = rueda.broadcast_object(rueda.rendezvous.open(SIZE) if RANK == 0 else None)
    rueda.shutdown()
    reduced = jax.jit(lambda x: rueda.jax.allreduce(x, "gradient"))

    def train():
        with rueda.world(RANK, SIZE, address):
            assert reduced(1.0 + 2.0 * RANK) == 2.0
            if RANK == 1:
                raise ValueError("a bad row in the data")
            reduced(1.0).block_until_ready()

    told = ""
    try:
        train()
    except (
        ValueError,
        jax.errors.JaxRuntimeError,
    ) as error:  # JAX raises either, as it computes at once or later
        told = f"{error}"
    if RANK == 1:
        assert told == "a bad row in the data"
    else:
        assert re.search(r"rank 1 \(.*failed: ValueError: a bad row in the data", told), told
    rueda.init()
    assert reduced(1.0 + 2.0 * RANK) == 2.0


def check_gradients_of_a_broadcast_follow_the_rank():
    """Traced in one world, and run in another that numbers the processes the other way round."""

    def loss(x):
        found = rueda.jax.broadcast({"x": x, "n": jnp.int32(1)}, 0, "follows")
        return jnp.sum(found["x"] ** 2)

    def squared(x):
        return jnp.sum(jax.grad(loss)(x) ** 2)

    # Both ranks' losses are x0^2, so that the root's gradient is 4 x0. Its square has 32 x0.
    functions = {4.0: jax.grad(loss), 32.0: jax.grad(squared)}
    compiled = {factor: jax.jit(function) for factor, function in functions.items()}
    x = jnp.full(3, 1.0 + RANK)
    for own in (RANK, 1 - RANK):
        opened = rueda.rendezvous.open(SIZE) if own == 0 else None
        address = next(filter(None, rueda.allgather_object(opened)))
        rueda.shutdown()
        with rueda.world(own, SIZE, address):
            for factor, function in functions.items():
                expected = x * factor if own == 0 else np.zeros(3)
                np.testing.assert_array_equal(function(x), expected)
                np.testing.assert_array_equal(compiled[factor](x), expected)
        rueda.init()


def check_a_set_of_a_world_that_was_left_is_refused():
    """Its number may be that of another set in the next world."""
    both = rueda.add_process_set([0, 1])
    x = jnp.ones(3)

    def reduced(x):
        return rueda.jax.allreduce(x, "of a set", rueda.Sum, both)

    compiled = jax.jit(reduced)
    np.testing.assert_array_equal(compiled(x), np.full(3, 2.0))
    _, back = jax.vjp(reduced, x)
    number = both.process_set_id
    rueda.shutdown()
    rueda.init()
    others = [rueda.add_process_set([rank]) for rank in range(SIZE)]
    assert number in [each.process_set_id for each in others]
    rueda.jax.allreduce(x, "of another", process_set=others[RANK])
    jax.jit(lambda x: rueda.jax.allreduce(x, "of another", process_set=others[RANK]))(x)
    text = "traced for a process set of a world that has been left since"
    told = ""
    try:
        compiled(x).block_until_ready()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        told = str(error)
    assert "'of a set'" in told, told
    assert f"{text}; call jax.clear_caches()" in told, told
    with raises(rueda.InvalidArgumentError, "'of a set.", text):
        back(x)
    rueda.add_process_set(both)
    jax.clear_caches()
    np.testing.assert_array_equal(compiled(x), np.full(3, 2.0))
    for each in (*others, both):
        rueda.remove_process_set(each)


def check_a_serialized_function_can_be_loaded_again():
    both = rueda.add_process_set([0, 1])

    def reduced(x):
        total = rueda.jax.allreduce(x, "serialized", rueda.Sum)
        return {"all": total, "set": rueda.jax.allreduce(x, "serialized.set", process_set=both)}

    x = jnp.arange(4.0) + RANK
    compiled = jax.jit(reduced).lower(x).compile()
    loaded = deserialize_and_load(*serialize(compiled))
    again = deserialize_and_load(*serialize(loaded))
    for each in (compiled, loaded, again):
        found = each(x)
        np.testing.assert_array_equal(found["all"], 2 * np.arange(4) + 1)
        np.testing.assert_array_equal(found["set"], np.arange(4) + 0.5)
    rueda.remove_process_set(both)


def check_what_is_under_way_ends_before_shutdown():
    """Runs last, because it ends the world."""
    slow = jax.jit(
        lambda x: rueda.jax.allreduce(jax.lax.fori_loop(0, 300, lambda _, y: y @ y, x), "late")
    )
    x = jnp.eye(300) * (1.0 if RANK else -1.0)
    slow(x).block_until_ready()
    time.sleep(0.1 * RANK)
    slow(x)
    result = slow(x)
    rueda.shutdown()
    np.testing.assert_array_equal(result, np.eye(300))
    with raises(jax.errors.JaxRuntimeError, "rueda.init()"):
        slow(x).block_until_ready()
    rueda.init()
    np.testing.assert_array_equal(slow(x), np.eye(300))


if __name__ == "__main__":
    for name, act in list(globals().items()):
        if name.startswith("check_"):
            began = time.monotonic()
            act()
            print("ok", name, f"{time.monotonic() - began:.1f} s", flush=True)
    rueda.shutdown()
