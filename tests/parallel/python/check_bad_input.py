"""Every rank, at least two: one rank's mistake is reported to all, and the world goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import parallel
import rueda


def last() -> bool:
    """The rank that misbehaves."""
    return rueda.rank() == rueda.size() - 1


def others() -> str:
    """The other ranks, as error messages list them."""
    ranks = list(range(rueda.size() - 1))
    return {1: "rank 0", 2: "ranks 0 and 1"}.get(len(ranks), f"ranks 0-{len(ranks) - 1}")


def culprit() -> str:
    return f"rank {rueda.size() - 1}"


def check_dtype_differs() -> None:
    for _ in range(2):  # failures are not remembered
        with parallel.raises(
            rueda.MismatchError, "'bad'", "dtype", "float32", "float64", others(), culprit()
        ):
            rueda.allreduce(np.ones(3, "float64" if last() else "float32"), name="bad")
        parallel.still_works()


def check_dtype_differs_from_what_was_cached() -> None:
    for _ in range(3):
        rueda.allreduce(np.ones(3, "float32"), name="good then bad")
    with parallel.raises(rueda.MismatchError, "'good then bad'", "float32", "float64"):
        rueda.allreduce(np.ones(3, "float64" if last() else "float32"), name="good then bad")
    result = rueda.allreduce(np.ones(3, "float32"), name="good then bad")
    np.testing.assert_array_equal(result, np.ones(3, "float32"))


def check_shape_differs() -> None:
    with parallel.raises(rueda.MismatchError, "'bad'", "shape", "[3]", "[4]", others(), culprit()):
        rueda.allreduce(np.ones(4 if last() else 3), name="bad")
    with parallel.raises(rueda.MismatchError, "'rows'", "shape", "[2, 3]", "[2, 4]"):
        rueda.allgather(np.ones((2, 4 if last() else 3)), name="rows")
    with parallel.raises(rueda.MismatchError, "'all'", "shape"):
        rueda.alltoall(np.ones((rueda.size(), 4 if last() else 3)), name="all")
    with parallel.raises(rueda.MismatchError, "'root'", "shape", "[2]", "[5]"):
        rueda.broadcast(np.ones(5 if last() else 2), 0, name="root")
    parallel.still_works()


class Unreadable:
    """An object that claims to be an array."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise KeyError("no array")


class Unshared:
    """An object whose elements another library should share."""

    def __dlpack__(self, *_: object, **__: object) -> object:
        raise KeyError("not shared")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def check_what_is_no_array() -> None:
    """All ranks get the error that NumPy, or the object itself, raises on one rank."""
    cases = {"inhomogeneous": [[1.0, 2.0], [3.0]], "no array": Unreadable(), "shared": Unshared()}
    for words, bad in cases.items():
        for operation in (
            rueda.allreduce,
            rueda.allgather,
            rueda.alltoall,
            rueda.reducescatter,
            lambda array, name: rueda.broadcast(array, 0, name=name),
            lambda array, name: rueda.allreduce_async(array, name=name).result(),
        ):
            with parallel.raises(
                rueda.InvalidArgumentError, "'bad'", culprit(), type(bad).__name__, words
            ):
                operation(bad if last() else np.ones(rueda.size()), name="bad")
        with parallel.raises(rueda.InvalidArgumentError, "'bad", culprit(), words):
            rueda.grouped_allreduce([bad if last() else np.ones(2), np.ones(2)], name="bad")
    parallel.still_works()


def check_masked_arrays() -> None:
    """Their mask would be lost, and what is under it would count."""
    masked = np.ma.masked_array(np.ones(rueda.size()), np.arange(rueda.size()) == 0)
    for operation in (
        rueda.allreduce,
        rueda.allreduce_,
        rueda.allgather,
        rueda.alltoall,
        rueda.reducescatter,
        lambda array, name: rueda.broadcast(array, 0, name=name),
        lambda array, name: rueda.broadcast_(array, 0, name=name),
        lambda array, name: rueda.allreduce_async(array, name=name).result(),
    ):
        for _ in range(2):  # nor is one used after the same operation on an ordinary array
            with parallel.raises(
                rueda.InvalidArgumentError, "'bad'", culprit(), "mask", "filled(value)"
            ):
                operation(masked if last() else np.ones(rueda.size()), name="bad")
            operation(np.ones(rueda.size()), name="bad")
    for grouped in (rueda.grouped_allreduce, rueda.grouped_allreduce_):
        with parallel.raises(rueda.InvalidArgumentError, "'bad", culprit(), "filled(value)"):
            grouped([masked if last() else np.ones(rueda.size()), np.ones(2)], name="bad")
    parallel.still_works()


def check_what_is_no_process_set_or_group() -> None:
    """Nobody can know what was meant, so that this is an error on one rank, which can then do the right thing."""
    if last():
        array = np.ones(rueda.size())
        for wrong in (None, 0, [0, 1], "global"):
            for call in (
                lambda wrong: rueda.allreduce(array, process_set=wrong),
                lambda wrong: rueda.allreduce_(array, process_set=wrong),
                lambda wrong: rueda.allreduce_async(array, process_set=wrong),
                lambda wrong: rueda.allreduce([[1.0], [2.0, 3.0]], process_set=wrong),
                lambda wrong: rueda.grouped_allreduce([array], process_set=wrong),
                lambda wrong: rueda.allgather(array, process_set=wrong),
                lambda wrong: rueda.broadcast(array, 0, process_set=wrong),
                lambda wrong: rueda.reducescatter(array, process_set=wrong),
                lambda wrong: rueda.alltoall(array, process_set=wrong),
                lambda wrong: rueda.send(array, 0, process_set=wrong),
                lambda wrong: rueda.broadcast_object(1, process_set=wrong),
                rueda.barrier,
                rueda.join,
            ):
                with parallel.raises(
                    rueda.InvalidArgumentError, repr(wrong), "rueda.add_process_set()"
                ):
                    call(wrong)
        for none in (None, 5):
            for grouped in (
                rueda.grouped_allreduce,
                rueda.grouped_allreduce_,
                rueda.grouped_allgather,
            ):
                with parallel.raises(rueda.InvalidArgumentError, repr(none), "list of arrays"):
                    grouped(none)
    parallel.still_works()


def check_priority_differs_or_is_none() -> None:
    for known in (False, True):
        if known:
            rueda.allreduce_async(np.ones(3), name="urgent", priority=2).result()
        with parallel.raises(rueda.MismatchError, "'urgent'", "priority", "2", "-7", culprit()):
            rueda.allreduce_async(np.ones(3), name="urgent", priority=-7 if last() else 2).result()
    for wrong, text in (("high", "'high'"), (1 << 31, "2147483648")):
        with parallel.raises(rueda.InvalidArgumentError, "'urgent'", "priority", text):
            handle = rueda.allreduce_async(
                np.ones(3), name="urgent", priority=wrong if last() else 0
            )
            handle.result()
    parallel.still_works()


def check_the_error_names_a_rank() -> None:
    handle = rueda.allreduce_async(np.ones(4 if last() else 3), name="bad")
    peer = None
    try:
        handle.result()
    except rueda.MismatchError as error:
        peer = error.peer
    assert peer in range(rueda.size()), peer
    assert len(set(rueda.allgather_object(peer))) == 1, "ranks blame different ranks"
    parallel.still_works()


def details_of(call: Callable[[], object]) -> tuple[object, ...]:
    """The details of the RuedaError that this call raises."""
    try:
        call()
    except rueda.RuedaError as error:
        return type(error), error.tensor, error.field, sorted(error.values), error.reason
    raise AssertionError("nothing was raised")


def check_programs_can_decide_by_fields() -> None:
    mine = np.ones(3, "float64" if last() else "float32")
    told = details_of(lambda: rueda.allreduce(mine, name="bad"))
    assert told == (rueda.MismatchError, "bad", "dtype", ["float32", "float64"], None), told
    set_of_mine = [rueda.size() - 1] if last() else [0]
    told = details_of(lambda: rueda.add_process_set(set_of_mine))
    assert told[2:4] == ("ranks", ["[0]", f"[{rueda.size() - 1}]"]), told
    flags = np.ones(2, bool)
    told = details_of(lambda: rueda.allreduce(flags, name="flags", op=rueda.Average))
    assert told == (rueda.UnsupportedError, "flags", None, [], None), told
    parallel.still_works()


def check_a_time_limit_of_the_caller_is_told_apart() -> None:
    if last():
        handle = rueda.allreduce_async(np.ones(3), name="late", op=rueda.Sum)
        told = details_of(lambda: handle.result(0.01))
        assert told == (rueda.TimeoutError, None, None, [], "deadline"), told
        rueda.allgather_object(None, "the others may go on")
    else:
        rueda.allgather_object(None, "the others may go on")
        handle = rueda.allreduce_async(np.ones(3), name="late", op=rueda.Sum)
    np.testing.assert_array_equal(handle.result(), np.full(3, rueda.size()))


def check_op_differs() -> None:
    with parallel.raises(rueda.MismatchError, "'bad'", "op", "sum", "max", others(), culprit()):
        rueda.allreduce(np.ones(3), name="bad", op=rueda.Max if last() else rueda.Sum)
    parallel.still_works()


def check_collective_differs() -> None:
    with parallel.raises(rueda.MismatchError, "'bad'", "allreduce", "allgather", culprit()):
        (rueda.allgather if last() else rueda.allreduce)(np.ones(3), name="bad")
    parallel.still_works()


def check_root_differs() -> None:
    with parallel.raises(rueda.MismatchError, "'bad'", "root", "0", "1", others(), culprit()):
        rueda.broadcast(np.ones(3), root_rank=1 if last() else 0, name="bad")
    parallel.still_works()


def check_scale_differs() -> None:
    with parallel.raises(rueda.MismatchError, "'bad'", "prescale", "0.5", culprit()):
        rueda.allreduce(np.ones(3), name="bad", prescale_factor=0.5 if last() else 1.0)
    with parallel.raises(rueda.MismatchError, "'bad'", "postscale", "0.25", culprit()):
        rueda.allreduce(np.ones(3), name="bad", postscale_factor=0.25 if last() else 1.0)
    parallel.still_works()


def check_splits_differ() -> None:
    n = rueda.size()
    good, bad = [2] + [1] * (n - 1), [1] * (n - 1) + [2]
    with parallel.raises(rueda.MismatchError, "'bad'", "splits", str(good), str(bad)):
        rueda.reducescatter(np.ones((n + 1, 2)), name="bad", splits=bad if last() else good)
    parallel.still_works()


def check_process_set_differs() -> None:
    everyone = rueda.add_process_set(range(rueda.size()))
    process_set = everyone if last() else rueda.global_process_set
    for _ in range(2):
        with parallel.raises(rueda.MismatchError, "'bad'", "process set"):
            rueda.allreduce(np.ones(3), name="bad", process_set=process_set)
        parallel.still_works()
    np.testing.assert_array_equal(rueda.allreduce(np.ones(3), name="bad"), np.ones(3))
    rueda.remove_process_set(everyone)
    parallel.still_works()


def check_ranks_of_a_new_set_differ() -> None:
    with parallel.raises(rueda.MismatchError, "ranks", "[0]", f"[{rueda.size() - 1}]"):
        rueda.add_process_set([rueda.size() - 1] if last() else [0])
    for ranks in ([0, rueda.size()], [-1], [0, 0]):
        with parallel.raises(rueda.InvalidArgumentError):
            rueda.add_process_set(ranks)
    with parallel.raises(rueda.InvalidArgumentError):
        rueda.remove_process_set(rueda.global_process_set)
    with parallel.raises(rueda.InvalidArgumentError, "has not been added"):
        rueda.allreduce([1.0], process_set=rueda.ProcessSet([0]))
    parallel.still_works()


class Unlisted:
    """Ranks that cannot be listed."""

    def __iter__(self) -> Iterator[int]:
        raise KeyError("no ranks")


def check_what_is_no_new_set() -> None:
    """Every rank awaits the others in these calls, so that all get the error of one."""
    wrong = ("ab", None, 5, [0.0, 1], [[0], [1]], np.ones(1), np.zeros((2, 2), int), ["0"], [2**40])
    cases: list[tuple[object, str]] = [(bad, "ranks") for bad in wrong]
    cases += [([10**5000], "ranks"), (Unlisted(), "no ranks")]
    for bad, words in cases:
        with parallel.raises(rueda.InvalidArgumentError, culprit(), "add_process_set()", words):
            rueda.add_process_set(bad if last() else [0])  # type: ignore[arg-type]
        parallel.still_works()
    with parallel.raises(rueda.InvalidArgumentError, "add_process_set()", "'ab'"):
        rueda.add_process_set("ab")  # type: ignore[arg-type]
    for bad_list in ([0, 99], [0, 0], []):
        with parallel.raises(rueda.MismatchError, "ranks", str(bad_list), "[0]"):
            rueda.add_process_set(bad_list if last() else [0])
    for good in (np.array([0, 1]), np.array([1, 0], np.int8), (0, 1), {0, 1}, range(2)):
        both = rueda.add_process_set(good if last() else [0, 1])
        assert both.ranks == [0, 1]
        rueda.remove_process_set(both)
    parallel.still_works()


def check_what_is_no_set_to_remove() -> None:
    first = rueda.add_process_set([0])
    for bad in (None, 0, [0], "global", rueda.ProcessSet([0])):
        with parallel.raises(
            rueda.InvalidArgumentError, culprit(), "remove_process_set()", "rueda.add_process_set()"
        ):
            rueda.remove_process_set(bad if last() else first)  # type: ignore[arg-type]
        parallel.still_works()
    if first.included():
        assert rueda.allreduce([1.0], process_set=first).tolist() == [1.0]
    rueda.remove_process_set(first)
    with parallel.raises(rueda.InvalidArgumentError, "has not been added"):
        rueda.remove_process_set(first)
    parallel.still_works()


def check_splits_that_do_not_add_up() -> None:
    n = rueda.size()
    splits = [1] * n
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "[7"):
        rueda.alltoall(np.ones(n), splits=[7] + [0] * (n - 1) if last() else splits, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'bad'"):
        rueda.reducescatter(np.ones(n + 1), splits=splits, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'uneven'", culprit()):
        rueda.alltoall(np.ones(n + 1 if last() else n), name="uneven")
    with parallel.raises(rueda.InvalidArgumentError, "'words'", "not a sequence of whole numbers"):
        rueda.alltoall(np.ones(n), splits=["a"] * n if last() else splits, name="words")
    parallel.still_works()


def check_not_contiguous() -> None:
    strided = np.arange(12.0).reshape(3, 4)[:, ::2]
    mine = strided if last() else np.ones((3, 2))
    with parallel.raises(
        rueda.InvalidArgumentError, "'bad'", culprit(), "not contiguous", "[3, 2]"
    ):
        rueda.allreduce_(mine, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "not contiguous"):
        rueda.broadcast_(mine, 0, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "group", culprit(), "not contiguous"):
        rueda.grouped_allreduce_([np.ones(3), mine], name="group")
    with parallel.raises(rueda.InvalidArgumentError, culprit(), "not contiguous"):
        rueda.allreduce_(mine)
    with parallel.raises(rueda.InvalidArgumentError, culprit(), "not contiguous"):
        rueda.grouped_allreduce_([np.ones(3), mine])
    np.testing.assert_array_equal(strided, np.arange(12.0).reshape(3, 4)[:, ::2])
    parallel.still_works()


def check_read_only() -> None:
    mine = np.ones(3)
    if last():
        mine.flags.writeable = False
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "read-only"):
        rueda.allreduce_(mine, name="bad")
    parallel.still_works()


def check_unsupported_dtypes() -> None:
    for bad in (np.array(["text"]), np.array([object()]), np.ones(1, ">f8"), np.ones(1, "M8[s]")):
        mine = bad if last() else np.ones(1)
        with parallel.raises(rueda.UnsupportedError, "'bad'", culprit(), "float32"):
            rueda.allreduce(mine, name="bad")
        with parallel.raises(rueda.UnsupportedError, "'bad'", culprit()):
            rueda.allgather(mine, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "list"):
        rueda.allreduce_([1.0] if last() else np.ones(1), name="bad")
    parallel.still_works()


def check_nonsense() -> None:
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "op=99"):
        rueda.allreduce(np.ones(3), name="bad", op=99 if last() else rueda.Sum)
    all_of_them = "ranks 0 and 1" if rueda.size() == 2 else f"ranks 0-{rueda.size() - 1}"
    for infinite in (math.nan, math.inf):
        for factor in ("prescale_factor", "postscale_factor"):
            with parallel.raises(
                rueda.InvalidArgumentError, "'bad'", "scale", str(infinite), f"{all_of_them} cannot"
            ):
                rueda.allreduce(np.ones(3), name="bad", **{factor: infinite})
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "half"):
        rueda.allreduce(np.ones(3), name="bad", prescale_factor="half" if last() else 1.0)
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", "scalar"):
        rueda.allgather(np.float64(1), name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", str(rueda.size())):
        rueda.broadcast(np.ones(3), root_rank=rueda.size(), name="bad")
    parallel.still_works()


def check_numbers_that_are_none() -> None:
    """Non-integers and numbers out of range are errors of the tensor: every rank raises them."""
    n = rueda.size()
    for root in (2**40, -(2**40), 10**5000, 1.5, 1.0, float("nan"), "1", None, np.ones(2)):
        with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "root"):
            rueda.broadcast(np.ones(3), root_rank=root if last() else 0, name="bad")
    for wrong in (1.5, 1.0, float("nan"), 2**63, 2**70, -(2**70), "1", None, [1]):
        splits = [wrong] * n if last() else [1] * n
        with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "splits="):
            rueda.alltoall(np.ones(n), splits=splits, name="bad")
        with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "splits="):
            rueda.reducescatter(np.ones(n), splits=splits, name="bad")
    with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "splits=5"):
        rueda.alltoall(np.ones(n), splits=5 if last() else [1] * n, name="bad")
    for factor in (10**400, 1j, None, [1.0]):
        with parallel.raises(rueda.InvalidArgumentError, "'bad'", culprit(), "scale factor"):
            rueda.allreduce(np.ones(3), name="bad", prescale_factor=factor if last() else 1.0)
    whole = [np.int64(1)] * n  # integers of any type are accepted
    np.testing.assert_array_equal(rueda.alltoall(np.ones(n), splits=whole)[0], np.ones(n))
    np.testing.assert_array_equal(rueda.broadcast([rueda.rank()], np.int8(1)), [1])
    for ranks in ([0.5], ["0"], [2**40], [None], 0):
        with parallel.raises(rueda.InvalidArgumentError, "ranks"):
            rueda.ProcessSet(ranks)
    for wrong in (1.5, 2**40):
        with parallel.raises(rueda.InvalidArgumentError, "target_rank"):
            rueda.send(np.ones(1), wrong)
    with parallel.raises(rueda.InvalidArgumentError, "tag"):
        rueda.send(np.ones(1), 0, tag=2**70)
    parallel.still_works()


def check_names_that_are_no_text() -> None:
    """E.g. os.fsdecode()'s result for file names in another encoding."""
    name = "caf\udce9"
    for call in (
        lambda: rueda.allreduce(np.ones(3), name=name),
        lambda: rueda.allreduce_(np.ones(3), name=name),
        lambda: rueda.grouped_allreduce([np.ones(3), np.ones(2)], name=name),
        lambda: rueda.allgather(np.ones(3), name=name),
        lambda: rueda.broadcast(np.ones(3), 0, name=name),
        lambda: rueda.alltoall(np.ones(rueda.size()), name=name),
        lambda: rueda.reducescatter(np.ones(rueda.size()), name=name),
        lambda: rueda.broadcast_object(1, name=name),
        lambda: rueda.allgather_object(1, name=name),
        lambda: rueda.barrier(name=name),
    ):
        with parallel.raises(rueda.InvalidArgumentError, "caf", "udce9", "surrogate"):
            call()
    np.testing.assert_array_equal(rueda.allreduce(np.ones(3), name="café ✓"), np.ones(3))
    parallel.still_works()


def check_duplicate_name() -> None:
    if rueda.rank() == 0:
        first = rueda.allreduce_async(np.ones(3), name="twice", op=rueda.Sum)
        with parallel.raises(rueda.DuplicateNameError, "'twice'", "rank 0"):
            rueda.allreduce(np.ones(3), name="twice", op=rueda.Sum)
    rueda.barrier()
    if rueda.rank() != 0:
        first = rueda.allreduce_async(np.ones(3), name="twice", op=rueda.Sum)
    # It is unknown which of the two the others mean, so the first fails as well, on all ranks.
    with parallel.raises(rueda.DuplicateNameError, "'twice'", "rank 0"):
        first.result()
    np.testing.assert_array_equal(rueda.allreduce(np.ones(3), name="twice"), np.ones(3))
    parallel.still_works()


def check_missing_name_stalls() -> None:
    limit = float(rueda.options()["stall_error"])
    assert limit < 10, "run this with a short RUEDA_STALL_ERROR"
    start = time.monotonic()
    if not last():
        with parallel.raises(
            rueda.StalledError, "'forgotten'", "allreduce", others(), culprit(), "missing"
        ):
            rueda.allreduce(np.ones(3), name="forgotten")
        assert time.monotonic() - start >= limit / 2
    else:
        time.sleep(1.5 * limit)
    # The late rank gets the error too, or waits for the others' next attempt.
    np.testing.assert_array_equal(rueda.allreduce(np.ones(3), name="remembered"), np.ones(3))
    parallel.still_works()


def check_an_array_that_changes_in_flight() -> None:
    """NumPy refuses to resize it. With another shape it is told on this rank, and the others have their results."""
    for submit in (rueda.allreduce_async, rueda.allreduce_async_, rueda.allgather_async):
        array = np.ones(6)
        handle = submit(array, name="in flight")
        with parallel.raises(ValueError, "cannot resize an array"):
            array.resize(3)
        if rueda.rank() == 0:
            array.resize((2, 3))  # which needs no other memory
            with parallel.raises(
                rueda.InvalidArgumentError,
                "'in flight' was resized from [6] to [2, 3]",
                "in flight",
            ):
                handle.result()
        else:
            np.testing.assert_array_equal(handle.result()[:6], np.ones(6))
    parallel.still_works()


if __name__ == "__main__":
    parallel.run(globals())
