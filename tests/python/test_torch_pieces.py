"""The parts of rueda.torch that need no world."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rueda.torch.compression import Compression  # noqa: E402
from rueda.torch.layouts import laid_out, strides_of  # noqa: E402
from rueda.torch.state import _outline, allocated, filled  # noqa: E402
from rueda.torch.tensors import TorchAdapter  # noqa: E402

leaves = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=2).map(lambda shape: torch.ones(shape)),
    st.lists(st.integers(0, 3), max_size=3).map(lambda rows: sparse(rows)),
    st.lists(st.integers(0, 3), max_size=3).map(lambda rows: sparse(rows).coalesce()),
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.integers(0, 5), inner, max_size=3),
    ),
)


def sparse(rows: list[int]) -> torch.Tensor:
    """With a value in each of these rows, some of them twice."""
    return torch.sparse_coo_tensor([rows], torch.ones(len(rows), 2), (4, 2), check_invariants=True)


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        if not isinstance(right, torch.Tensor) or left.layout != right.layout:
            return False
        if left.layout == torch.strided:
            return torch.equal(left, right)
        return (
            left.shape == right.shape
            and left.is_coalesced() == right.is_coalesced()
            and torch.equal(left._indices(), right._indices())
            and torch.equal(left._values(), right._values())
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and list(left) == list(right)
            and all(same(left[k], right[k]) for k in left)
        )
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return left == right


@given(states)
def test_states_are_taken_apart_and_put_together(state: object) -> None:
    tensors: list[torch.Tensor] = []
    outline = _outline(state, tensors)
    assert same(filled(outline, tensors), state)
    received = allocated(outline, None)
    assert [(t.shape, t.dtype) for t in received] == [(t.shape, t.dtype) for t in tensors]


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_received_tensors_have_the_strides_of_a_copy(order: list[int], shape: list[int]) -> None:
    whole = torch.arange(math.prod(shape)).view(shape).permute(order)
    for sent in (whole, whole[:, ::2], whole[..., :1]):
        (received,) = allocated(_outline(sent, []), None)
        assert received.stride() == sent.clone().stride() == strides_of(sent)
        put = laid_out(sent.contiguous(), strides_of(sent))
        assert put.stride() == received.stride()
        assert torch.equal(put, sent)
    assert strides_of(torch.ones(2).to_sparse()) is None


@given(st.lists(st.floats(-100, 100, width=16), max_size=5))
def test_compression_keeps_what_fits(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    wire, dtype = Compression.fp16.compress(tensor)
    assert wire.dtype == torch.float16
    assert torch.equal(Compression.fp16.decompress(wire, dtype), tensor)
    assert Compression.none.compress(tensor)[0] is tensor
    assert Compression.bf16.compress(tensor)[0].dtype == torch.bfloat16
    whole = tensor.to(torch.int64)
    assert Compression.bf16.compress(whole)[0] is whole


def test_contiguous_tensors_are_not_copied() -> None:
    tensor = torch.ones(3, 2)
    read, view = TorchAdapter().read(tensor)
    assert view.pointer == tensor.data_ptr() == read.data_ptr()
    assert view.shape == (3, 2)
    written, view = TorchAdapter().write(tensor)
    assert written is tensor
    copied, view = TorchAdapter().read(tensor.T)
    assert view.pointer == copied.data_ptr() != tensor.data_ptr()
