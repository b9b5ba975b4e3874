"""Every rank: allreduce and reducescatter for every dtype and operation, against NumPy."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import parallel
import rueda
from reference import DTYPES, assert_reduced, is_defined, values

RANK_ORDER = "each rank submits in an order of its own"
SHAPES = [(0,), (1,), (3,), (2, 5, 3), (1021,)]


def shuffled(items: list[tuple[object, ...]], salt: int) -> list[tuple[object, ...]]:
    """A different order on each rank, the same in each run."""
    random = np.random.default_rng([salt, rueda.rank()])
    return [items[i] for i in random.permutation(len(items))]


def cases() -> list[tuple[object, ...]]:
    """All defined combinations."""
    return [
        (f"{op.name}/{dtype.name}/{shape}", op, dtype, shape)
        for op, dtype, shape in itertools.product(rueda.ReduceOp, DTYPES, SHAPES)
        if is_defined(op, dtype)
    ]


def inputs(name, shape, dtype):
    """The inputs of all ranks."""
    return [values(name, rank, shape, dtype) for rank in range(rueda.size())]


def check_allreduce_of_everything() -> None:
    handles = {}
    for name, op, dtype, shape in shuffled(cases(), 1):
        mine = values(name, rueda.rank(), shape, dtype)
        handles[name] = rueda.allreduce_async(mine, name=name, op=op)
    digest = hashlib.sha256()
    for name, op, dtype, shape in cases():
        result = rueda.synchronize(handles[name])
        assert_reduced(name, result, op, inputs(name, shape, dtype))
        digest.update(result.tobytes())
    digests = rueda.allgather_object(digest.hexdigest())
    assert len(set(digests)) == 1, "ranks hold different bits"


def check_allreduce_in_place() -> None:
    arrays = {}
    handles = []
    for name, op, dtype, shape in shuffled(cases(), 2):
        arrays[name] = values(name, rueda.rank(), shape, dtype)
        handles.append((name, rueda.allreduce_async_(arrays[name], name=name, op=op)))
    for name, handle in handles:
        assert handle.result() is arrays[name]
    for name, op, dtype, shape in cases():
        assert_reduced(name, arrays[name], op, inputs(name, shape, dtype))


def check_repeated_names_come_from_the_cache() -> None:
    for step in range(5):
        names = [f"layer{i}" for i in np.random.default_rng([step, rueda.rank()]).permutation(20)]
        handles = {
            n: rueda.allreduce_async(np.full(11, step + rueda.rank()), n, rueda.Sum) for n in names
        }
        total = sum(step + rank for rank in range(rueda.size()))
        for handle in handles.values():
            np.testing.assert_array_equal(handle.result(), np.full(11, total))


def check_unnamed_operations_match_by_number() -> None:
    for i in range(4):
        total = rueda.allreduce(np.array([i, rueda.rank()]), op=rueda.Sum)
        expected = [i * rueda.size(), sum(range(rueda.size()))]
        np.testing.assert_array_equal(total, expected)


def check_undefined_operations_are_refused_everywhere() -> None:
    for op, dtype in itertools.product(rueda.ReduceOp, DTYPES):
        if is_defined(op, dtype):
            continue
        name = f"undefined {op.name} of {dtype.name}"
        with parallel.raises(rueda.UnsupportedError, name, dtype.name):
            rueda.allreduce(np.ones(3).astype(dtype), name=name, op=op)
        with parallel.raises(rueda.UnsupportedError, name):
            rueda.reducescatter(np.ones(3).astype(dtype), name=name, op=op)
    parallel.still_works()


def check_scalars_lists_and_layouts() -> None:
    n = rueda.size()
    total = rueda.allreduce(2.5, name="scalar", op=rueda.Sum)
    assert total.shape == ()
    assert float(total) == 2.5 * n
    np.testing.assert_array_equal(rueda.allreduce([1, 2], name="list", op=rueda.Sum), [n, 2 * n])
    matrix = np.arange(12.0).reshape(3, 4)
    transposed = rueda.allreduce(matrix.T, name="transposed", op=rueda.Sum)
    np.testing.assert_array_equal(transposed, matrix.T * n)
    strided = rueda.allreduce(matrix[:, ::2], name="strided", op=rueda.Sum)
    np.testing.assert_array_equal(strided, matrix[:, ::2] * n)


def check_scale_factors() -> None:
    n = rueda.size()
    x = np.full(5, float(rueda.rank() + 1))
    total = n * (n + 1) / 2
    scaled = rueda.allreduce(x, "scaled", rueda.Sum, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_allclose(scaled, np.full(5, 2 * total), rtol=1e-15)
    average = rueda.allreduce(x, "scaled average", prescale_factor=0.25, postscale_factor=8.0)
    np.testing.assert_allclose(average, np.full(5, 2 * total / n), rtol=1e-15)
    rows = rueda.reducescatter(np.ones((n, 2)), "scaled rows", rueda.Sum, 3.0, 0.5)
    np.testing.assert_allclose(rows, np.full((1, 2), 1.5 * n), rtol=1e-15)


def check_nan_is_propagated() -> None:
    x = np.full(3, float(rueda.rank()))
    if rueda.rank() == rueda.size() - 1:
        x[1] = np.nan
    for op in (rueda.Min, rueda.Max, rueda.Sum):
        result = rueda.allreduce(x, name=f"nan {op.name}", op=op)
        np.testing.assert_array_equal(np.isnan(result), [False, True, False])


def check_groups() -> None:
    shapes = [(3,), (0,), (4, 5), (1,)]
    dtypes = ["float32", "int64", "float64", "float32"]

    def group(step, rank):
        return [
            values(f"g{step}.{i}", rank, shape, np.dtype(dtype))
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ]

    for step in range(3):
        handle = rueda.grouped_allreduce_async(group(step, rueda.rank()), f"group{step}", rueda.Sum)
        in_place = group(step, rueda.rank())
        assert (
            rueda.grouped_allreduce_(in_place, name=f"in place {step}", op=rueda.Sum)[0]
            is in_place[0]
        )
        for results in (handle.result(), in_place):
            for i, result in enumerate(results):
                every = [group(step, rank)[i] for rank in range(rueda.size())]
                assert_reduced(f"group {i}", result, rueda.Sum, every)


def check_reducescatter_of_everything() -> None:
    n, me = rueda.size(), rueda.rank()
    handles = {}
    items = [(f"rs/{name}", op, dtype, shape) for name, op, dtype, shape in cases()]
    for name, op, dtype, shape in shuffled(items, 3):
        handles[name] = rueda.reducescatter_async(values(name, me, shape, dtype), name, op)
    for name, op, dtype, shape in items:
        parts = [np.array_split(x, n)[me] for x in inputs(name, shape, dtype)]
        assert_reduced(name, handles[name].result(), op, parts)


def check_reducescatter_with_splits() -> None:
    n, me = rueda.size(), rueda.rank()
    for case, splits in enumerate(
        ([5] + [0] * (n - 1), list(range(n)), [2 * r + 1 for r in range(n)])
    ):
        name = f"splits{case}"
        every = inputs(name, (sum(splits), 3), np.dtype("float32"))
        result = rueda.reducescatter(every[me], name, rueda.Sum, splits=splits)
        start = sum(splits[:me])
        assert_reduced(name, result, rueda.Sum, [x[start : start + splits[me]] for x in every])


if __name__ == "__main__":
    parallel.run(globals())
