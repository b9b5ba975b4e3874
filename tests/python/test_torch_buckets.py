"""Which gradients share a bucket, without any rank."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rueda import dtypes  # noqa: E402
from rueda.torch.bucket_agreement import _merged  # noqa: E402
from rueda.torch.buckets import (  # noqa: E402
    ALIGNMENT,
    DEFAULT_BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    Description,
    describe,
    plan_buckets,
    row_major,
)

FLOAT32 = dtypes.code_of("float32")
FLOAT64 = dtypes.code_of("float64")

descriptions = st.lists(
    st.builds(
        lambda extent, dtype, why: Description("p", (extent,), (1,), dtype, why),
        st.integers(1, 1 << 20),
        st.sampled_from([FLOAT32, FLOAT64]),
        st.sampled_from(["", "", "", "sparse"]),
    ),
    max_size=12,
)


@given(descriptions, st.integers(1, 1 << 22), st.randoms(use_true_random=False))
def test_plan(described: list[Description], bucket_bytes: int, random: object) -> None:
    order = list(range(len(described)))
    random.shuffle(order)  # type: ignore[attr-defined]
    order = order[: len(order) * 2 // 3]
    plan = plan_buckets(described, order, bucket_bytes)
    fitting = {i for i, d in enumerate(described) if not d.why_not}
    flat = list(chain.from_iterable(plan))
    assert len(flat) == len(set(flat))
    assert set(flat) == fitting
    whole = order + [i for i in reversed(range(len(described))) if i not in order]
    for dtype in (FLOAT32, FLOAT64):
        of_dtype = [members for members in plan if described[members[0]].dtype == dtype]
        assert all(described[i].dtype == dtype for members in of_dtype for i in members)
        expected = [i for i in whole if i in fitting and described[i].dtype == dtype]
        assert list(chain.from_iterable(of_dtype)) == expected
        for number, members in enumerate(of_dtype):
            limit = bucket_bytes if number else min(bucket_bytes, FIRST_BUCKET_BYTES)
            assert sum(described[i].bytes() for i in members[:-1]) < limit
            if number + 1 < len(of_dtype):
                assert sum(described[i].bytes() for i in members) >= limit


def test_plan_with_groups() -> None:
    def described(dtype: int, why: str = "") -> Description:
        return Description("p", (FIRST_BUCKET_BYTES,), (1,), dtype, why)

    whole = [described(FLOAT32), described(FLOAT64), described(FLOAT32), described(FLOAT32, "no")]
    rest = [described(FLOAT32), described(FLOAT32)]
    plan = plan_buckets([*whole, *rest], [5, 2, 0, 1], 1, [[0, 1, 2, 3]])
    # The group has one bucket per dtype, however large; the rest is planned as without groups.
    assert plan == [[5], [2, 0], [1], [4]]
    assert plan_buckets(rest, [], 1 << 40, [[0], [1]]) == [[1], [0]]


def test_buckets_are_larger_on_a_gpu() -> None:
    for device, limit in DEFAULT_BUCKET_BYTES.items():
        mebibyte = Description("w", (1 << 18,), (1,), FLOAT32, "", device)
        described = [mebibyte] * (1 + (limit >> 20) + 1)
        sizes = [len(members) for members in plan_buckets(described, [], None)]
        assert sizes == [1, limit >> 20, 1]
    assert DEFAULT_BUCKET_BYTES["cuda"] > DEFAULT_BUCKET_BYTES["cpu"]


@pytest.mark.parametrize(
    ("tensor", "stride"),
    [
        (torch.ones(2, 3), (3, 1)),
        (torch.ones(2, 3).T, (1, 3)),
        (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), (60, 1, 15, 3)),
        (torch.ones(4, 6)[:, ::2], (3, 1)),  # has gaps
        (torch.ones(1).expand(4), (1,)),  # overlaps
        (torch.ones(()), ()),
    ],
)
def test_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> None:
    described = describe(torch.nn.Parameter(tensor), "p")
    assert described == Description("p", tuple(tensor.shape), stride, FLOAT32, "")
    assert row_major(tensor.shape) == torch.empty(tensor.shape).stride()


def test_what_cannot_lie_in_a_bucket() -> None:
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    sparse = torch.nn.Parameter(torch.ones(2))
    sparse.grad = torch.ones(2).to_sparse()
    foreign = torch.nn.Parameter(torch.ones(2, device="meta"))
    freed = torch.nn.Parameter(torch.ones(2))
    freed.untyped_storage().resize_(0)
    for parameter, why in (
        (frozen, "it needs no gradient"),
        (sparse, "its gradient is sparse"),
        (foreign, "it is on the device 'meta'"),
        (torch.nn.Parameter(torch.ones(0, 3)), "it is empty"),
        (torch.nn.parameter.UninitializedParameter(), "it has no shape yet"),
        (freed, "it has no memory of its own"),
        (torch.nn.Parameter(torch.ones(2).to(torch.float8_e5m2)), "its dtype is torch.float8_e5m2"),
    ):
        found = describe(parameter, "p").why_not
        assert found == why


def test_ranks_that_differ() -> None:
    mine = Description("p", (2, 3), (3, 1), FLOAT32, "")
    assert _merged([mine, mine]) == mine
    columns = mine._replace(stride=(1, 2))
    assert _merged([columns, columns]) == columns
    for ranks in ([columns, mine], [mine, columns]):
        assert _merged(ranks).why_not == "ranks lay it out differently in memory"
    assert _merged([mine, mine._replace(why_not="it is empty")]).why_not == "it is empty"
    for other in (
        mine._replace(shape=(3, 2)),
        mine._replace(dtype=FLOAT64),
        mine._replace(name="q"),
    ):
        assert _merged([mine, mine, other]).why_not == "ranks 0 and 2 of the set differ"


def test_memory_of_a_bucket() -> None:
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (3, 17)]
    bucket = Bucket("b", parameters, [describe(p, str(i)) for i, p in enumerate(parameters)])
    assert bucket.flat.nbytes == ALIGNMENT + 2 * ALIGNMENT
    parameters[0].grad = torch.tensor([1.0, 2.0, 3.0])
    for slot in bucket.slots:
        assert slot.take_in() == ""
        assert slot.pointer % ALIGNMENT == 0
    assert bucket.flat.tolist() == [1.0, 2.0, 3.0] + [0.0] * 45
    bucket.flat[0], bucket.flat[16] = 5.0, 7.0
    assert parameters[0].grad[0] == 5.0
    assert parameters[1].grad[0] == 7.0
    del bucket  # the gradients keep the memory alive
    assert parameters[0].grad.tolist() == [5.0, 2.0, 3.0]
    assert slot.take_in() == ""
    parameters[1].data = torch.ones(4)
    parameters[1].grad = None
    assert "is now torch.float32 of shape [4] on 'cpu'" in slot.take_in()


@pytest.mark.parametrize("has_gradient", [False, True])
def test_gradients_do_not_fit_a_bucket_of_another_layout(has_gradient: bool) -> None:
    """A gradient that is left in the bucket's memory is laid out anew: nothing else would do that."""
    parameter = torch.nn.Parameter(torch.ones(2, 3, 4, 5))
    slot = Bucket("b", [parameter], [describe(parameter, "p")]).slots[0]
    values = torch.arange(120.0).view(2, 3, 4, 5)
    parameter.grad = values.clone()
    assert slot.take_in() == ""
    assert parameter.grad is slot.view()
    parameter.data = parameter.data.to(memory_format=torch.channels_last)
    if not has_gradient:
        parameter.grad = None
    why_not = slot.take_in()
    assert why_not.endswith("the strides [60, 1, 15, 3], and was laid out with [60, 20, 5, 1]")
    if has_gradient:
        assert parameter.grad.stride() == parameter.stride()
        assert torch.equal(parameter.grad, values)
        assert parameter.grad.data_ptr() != slot.pointer
    else:
        assert parameter.grad is None


def test_a_parameter_whose_gradients_stay_the_same_may_change_its_strides() -> None:
    """With gaps, or overlapping: its gradients are row-major."""
    parameter = torch.nn.Parameter(torch.ones(4, 6)[:, ::2])
    slot = Bucket("b", [parameter], [describe(parameter, "p")]).slots[0]
    parameter.data = torch.ones(4, 9)[:, ::3]
    for _ in range(2):
        parameter.grad = torch.ones(4, 3)
        assert slot.take_in() == ""
        assert parameter.grad is slot.view()


def test_memory_is_taken_over_from_a_bucket_of_the_same_gradients() -> None:
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (3, 17)]
    descriptions = [describe(p, str(i)) for i, p in enumerate(parameters)]
    before = Bucket("b", parameters, descriptions)
    for slot, parameter in zip(before.slots, parameters, strict=True):
        parameter.grad = torch.full_like(parameter, 2.0)
        assert slot.take_in() == ""
    after = Bucket("c", parameters, descriptions, [before])
    assert after.flat.data_ptr() == before.flat.data_ptr()
    for slot in after.slots:
        assert slot.take_in() == ""
        slot.adopt()
        # Writes into it are noticed, see give_out().
        assert slot.parameter.grad is slot.view()
        assert slot.parameter.grad.eq(2.0).all()
    renamed = [descriptions[0], descriptions[1]._replace(name="other")]
    for order, other in ((parameters[::-1], descriptions[::-1]), (parameters, renamed)):
        fresh = Bucket("d", order, other, [before, after])
        assert fresh.flat.data_ptr() != before.flat.data_ptr()


def test_autograd_is_told_when_a_gradient_was_reduced() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    bucket = Bucket("b", [parameter], [describe(parameter, "p")])
    parameter.grad = torch.ones(3)
    assert bucket.slots[0].take_in() == ""
    factor = torch.ones(3, requires_grad=True)
    product = (parameter.grad * factor).sum()  # keeps the gradient for its own backward pass
    bucket.note_submitted()
    assert bucket.give_out() == []
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_no_gradient_counts_as_zeros_whatever_the_bucket_holds() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    bucket = Bucket("b", [parameter], [describe(parameter, "p")])
    bucket.flat.fill_(9.0)
    assert bucket.slots[0].take_in() == ""
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [0.0, 0.0, 0.0]
