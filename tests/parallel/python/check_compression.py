"""Compressed allreduces of NumPy arrays."""

from __future__ import annotations

import hashlib

import numpy as np
import rueda
from parallel import raises, run, still_works
from rueda.compression import Int8, RandomK, TopK

CODECS = ["fp16", "bf16", "int8", "topk:0.1", "randomk:0.1"]
# For a sum of Student-t noise with 3 degrees of freedom: mean squared error over mean square.
ERRORS = {"fp16": 1e-6, "bf16": 2e-5, "int8": 6e-4}


def noise(rank: int, size: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_t(3, size).astype(np.float32)


def exact_sum(size: int) -> np.ndarray:
    return sum(noise(rank, size).astype(np.float64) for rank in range(rueda.size()))


def same_bits(array: np.ndarray) -> None:
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    assert len(set(rueda.allgather_object(digest))) == 1, "ranks hold different bits"


def check_sums_are_near_and_the_same_everywhere() -> None:
    for codec in CODECS:
        for size in (0, 1, 3, 1000, 300_001):
            result = rueda.allreduce(
                noise(rueda.rank(), size), name=f"{codec}.{size}", op=rueda.Sum, compression=codec
            )
            same_bits(result)
            assert result.shape == (size,), result.shape
            if size >= 1000 and codec in ERRORS:
                exact = exact_sum(size)
                error = ((result - exact) ** 2).sum() / (exact**2).sum()
                assert error < ERRORS[codec], (codec, error)


def check_every_function_takes_a_codec() -> None:
    ones = np.full(200, rueda.rank() + 1.0, np.float32)
    mean = (rueda.size() + 1) / 2
    results = [
        rueda.allreduce(ones, compression="int8"),
        rueda.allreduce_async(ones, compression=Int8()).result(),
        rueda.allreduce_(ones.copy(), compression="int8"),
        rueda.allreduce_async_(ones.copy(), compression="int8").result(),
        *rueda.grouped_allreduce([ones, ones], compression="int8"),
        *rueda.grouped_allreduce_async([ones], compression="int8").result(),
        *rueda.grouped_allreduce_([ones.copy()], compression="int8"),
        *rueda.grouped_allreduce_async_([ones.copy()], compression="int8").result(),
    ]
    for result in results:
        np.testing.assert_allclose(result, mean, rtol=0.01)


def check_factors() -> None:
    ones = np.ones(100, np.float32)
    result = rueda.allreduce(
        ones, op=rueda.Sum, prescale_factor=0.5, postscale_factor=3.0, compression="int8"
    )
    np.testing.assert_allclose(result, 1.5 * rueda.size(), rtol=0.01)


def check_other_dtypes() -> None:
    for dtype in (np.float16, np.float64):
        result = rueda.allreduce(np.full(50, 2, dtype), compression="int8")
        assert result.dtype == dtype
        np.testing.assert_allclose(result, 2, rtol=0.01)
    for dtype in (np.int32, np.bool_, np.complex64):  # sent uncompressed
        array = np.ones(5, dtype)
        np.testing.assert_array_equal(
            rueda.allreduce(array, op=rueda.Sum, compression="int8"),
            rueda.allreduce(array, op=rueda.Sum),
        )


def check_sparse_codecs_send_what_they_should() -> None:
    size = 10_000
    array = np.zeros(size, np.float32)
    array[::200] = np.arange(1, 51)  # as many in each rank's segment
    result = rueda.allreduce(array, compression=TopK(0.02))
    np.testing.assert_array_equal(result, array)
    ones = np.ones(size, np.float32)
    for seed in (1, 2):
        result = rueda.allreduce(ones, compression=RandomK(0.01, seed=seed))
        assert 90 <= result.sum() <= 110, result.sum()


def check_what_is_not_finite_is_named_and_the_world_goes_on() -> None:
    last = rueda.size() - 1
    for codec in CODECS:
        for bad in (np.nan, np.inf, -np.inf):
            array = np.ones(500, np.float32)
            if rueda.rank() == last:
                array[321] = bad
            with raises(rueda.InvalidArgumentError, "'layer3.weight'", "NaN", f"on rank {last}"):
                rueda.allreduce(array, name="layer3.weight", compression=codec)
    reasons = []
    try:
        rueda.allreduce(np.full(3, np.nan), name="loss", compression="int8")
    except rueda.InvalidArgumentError as error:
        reasons = [error.reason, error.tensor]
    assert reasons == ["not_finite", "loss"], reasons
    still_works()


def check_of_tensors_that_share_a_batch_the_one_is_named() -> None:
    last = rueda.size() - 1
    for codec in CODECS:
        arrays = [np.ones(1000, np.float32) for _ in range(20)]
        if rueda.rank() == last:
            arrays[13][77] = np.nan
        handles = [
            rueda.allreduce_async_(array, name=f"fused.{number}", compression=codec)
            for number, array in enumerate(arrays)
        ]
        for number, handle in enumerate(handles):
            if number == 13:
                with raises(rueda.InvalidArgumentError, "'fused.13'", f"on rank {last}"):
                    handle.result()
            else:
                handle.result()
                assert np.count_nonzero(arrays[number]) >= 100
        arrays[13] = np.full(1000, np.nan if rueda.rank() == last else 1, np.float32)
        with raises(rueda.InvalidArgumentError, ".13'", f"on rank {last}"):
            rueda.grouped_allreduce(arrays, name="group", compression=codec)
    still_works()


def check_what_a_codec_cannot_hold_is_an_error_in_any_segment() -> None:
    last = rueda.size() - 1
    for place in (0, 150, 299):
        array = np.ones(300, np.float32)
        if rueda.rank() == last:
            array[place] = 70_000  # the average of two ranks is only 35,000.5
        with raises(rueda.InvalidArgumentError, f"on rank {last}"):
            rueda.allreduce(array, name="x", compression="fp16")
    still_works()


def check_a_sum_beyond_a_codec_is_no_ranks_fault() -> None:
    if rueda.size() == 1:
        return
    with raises(rueda.InvalidArgumentError, "in the sum over all ranks"):
        rueda.allreduce(np.full(100, 60_000.0), name="x", op=rueda.Sum, compression="fp16")
    still_works()


def check_ranks_must_agree() -> None:
    if rueda.size() == 1:
        return
    mine = "int8" if rueda.rank() == 0 else "bf16"
    with raises(rueda.MismatchError, "'t'", "compression", "int8", "bf16"):
        rueda.allreduce(np.ones(3, np.float32), name="t", compression=mine)
    still_works()


def check_what_cannot_be_is_refused_everywhere() -> None:
    ones = np.ones(3, np.float32)
    with raises(rueda.UnsupportedError, "'t'", "int8", "max"):
        rueda.allreduce(ones, name="t", op=rueda.Max, compression="int8")
    for wrong in ("int9", "topk:0", "topk:2", "topk:x", "int8:0.5", TopK(-1.0), 5):
        with raises(rueda.InvalidArgumentError, "compression="):
            rueda.allreduce(ones, name="t", compression=wrong)  # type: ignore[arg-type]
    last = rueda.size() - 1
    for wrong, told in (
        (TopK("0.1"), "fraction"),  # type: ignore[arg-type]
        (RandomK(None), "fraction"),  # type: ignore[arg-type]
        (RandomK(0.1, seed=1.5), "seed"),  # type: ignore[arg-type]
    ):
        mine = wrong if rueda.rank() == last else RandomK(0.1)
        with raises(rueda.InvalidArgumentError, f"rank {last}", "compression=", told):
            rueda.allreduce(ones, name="t", compression=mine)
    still_works()


def check_numbers_of_numpy_are_numbers() -> None:
    ones = np.ones(1000, np.float32)
    for fraction, seed in ((np.float32(0.1), np.int64(7)), (np.float64(0.1), np.uint8(7))):
        codec = RandomK(fraction, seed)  # type: ignore[arg-type]
        assert 90 <= rueda.allreduce(ones, name="t", compression=codec).sum() <= 110


def check_fewer_bytes_travel() -> None:
    if rueda.size() == 1:
        return
    size = 1 << 20
    before = rueda.metrics()["allreduce_payload_bytes_sent"]
    rueda.allreduce(noise(rueda.rank(), size), name="bytes", compression="int8")
    sent = rueda.metrics()["allreduce_payload_bytes_sent"] - before
    # If there are several hosts, the ranks of a host share its link.
    host = rueda.rank() - rueda.local_rank()
    places = rueda.allgather(np.array([[sent, host]]))
    hosts = len(set(places[:, 1]))
    senders = hosts if hosts > 1 else rueda.size()
    here = places[places[:, 1] == host, 0].sum() if hosts > 1 else sent
    bits = 8 * here / (2 * (senders - 1) / senders * size)
    assert 8 < bits <= 8.25, bits


if __name__ == "__main__":
    run(globals())
