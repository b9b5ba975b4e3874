"""Gradients copied into their bucket together, on fake streams."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rueda.torch import gathering  # noqa: E402
from rueda.torch.buckets import Bucket, describe  # noqa: E402
from rueda.torch.gathering import Gathering  # noqa: E402

DEVICE = torch.device("cuda", 0)


class Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.after: set[int] = set()

    def wait_stream(self, other: Stream) -> None:
        self.after.add(other.handle)


class Cuda:
    """Replaces torch.cuda."""

    def __init__(self) -> None:
        self.streams = {handle: Stream(handle) for handle in (0, 1, 2)}  # 0: the default stream
        self.current = 0

    def current_stream(self, device: Any) -> Stream:
        assert device == DEVICE
        return self.streams[self.current]

    def raw(self, device: int) -> int:
        assert device == 0
        return self.current


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of gradients per launch."""
    launches: list[int] = []
    copy = gathering._copy

    def counted(targets: Any, sources: Any) -> None:
        launches.append(len(targets))
        copy(targets, sources)

    monkeypatch.setattr(gathering, "_copy", counted)
    return launches


def bucket_of(*counts: int) -> tuple[Bucket, list[Any]]:
    parameters = [torch.nn.Parameter(torch.ones(count)) for count in counts]
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    return Bucket(
        "b", parameters, [describe(p, str(i)) for i, p in enumerate(parameters)]
    ), parameters


def never(place: object, why_not: str) -> None:
    pytest.fail(why_not)


def test_all_gradients_of_a_bucket_in_one_launch(copies: list[int]) -> None:
    cuda = Cuda()
    bucket, parameters = bucket_of(3, 17, 1)
    together = Gathering(DEVICE, cuda, cuda.raw)
    for _ in parameters:
        together.note()
    together.take_in(bucket.slots, never)
    assert copies == [3]
    assert cuda.streams[0].after == set(), "it waits for itself in any case"
    for number, (slot, parameter) in enumerate(zip(bucket.slots, parameters, strict=True)):
        assert parameter.grad.data_ptr() == slot.pointer
        assert parameter.grad.tolist() == [number + 1.0] * parameter.numel()
    together.take_in(bucket.slots, never)
    assert copies == [3], "what lies in its place is not copied again"


def test_the_copies_come_after_all_streams_on_which_gradients_became_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda()
    kept: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: kept.append(stream))
    bucket, parameters = bucket_of(3, 4, 5)
    together = Gathering(DEVICE, cuda, cuda.raw)
    for stream in (0, 1, 2):
        cuda.current = stream
        together.note()
    together.take_in(bucket.slots, never)
    assert cuda.streams[2].after == {0, 1}
    assert kept == [cuda.streams[2]] * 3, "memory is given out again while it is being read"
    assert [p.grad.sum().item() for p in parameters] == [3.0, 8.0, 15.0]
    together.start_over()
    cuda.streams[2].after.clear()
    together.note()
    together.take_in(bucket.slots, never)
    assert cuda.streams[2].after == set(), "those of the step before"


def test_gradients_that_lie_in_the_bucket_are_ordered_as_well() -> None:
    cuda = Cuda()
    bucket, _ = bucket_of(3, 4)
    together = Gathering(DEVICE, cuda, cuda.raw)
    together.take_in(bucket.slots, never)
    together.note()
    cuda.current = 2
    together.note()
    together.take_in(bucket.slots, never)
    assert cuda.streams[2].after == {0}


def test_one_that_does_not_fit_leaves_the_others_where_they_belong(copies: list[int]) -> None:
    cuda = Cuda()
    bucket, parameters = bucket_of(3, 4, 5)
    parameters[1].grad = torch.ones(4).to_sparse()
    parameters[2].grad = None
    refused: list[tuple[Any, str]] = []
    Gathering(DEVICE, cuda, cuda.raw).take_in(bucket.slots, lambda *each: refused.append(each))
    assert refused == [(bucket.slots[1], "is sparse")]
    assert copies == [1]
    assert parameters[0].grad.data_ptr() == bucket.slots[0].pointer
    assert parameters[1].grad.is_sparse
    assert parameters[2].grad.tolist() == [0.0] * 5, "what is missing counts as zeros"


def test_a_gradient_that_is_part_of_a_graph_stays() -> None:
    cuda = Cuda()
    bucket, parameters = bucket_of(3)
    factor = torch.ones(3, requires_grad=True)
    parameters[0].grad = gradient = factor * 2.0
    Gathering(DEVICE, cuda, cuda.raw).take_in(bucket.slots, never)
    assert parameters[0].grad is gradient
    assert bucket.flat[:3].tolist() == [2.0] * 3


def test_a_frozen_parameter_gets_no_gradient() -> None:
    cuda = Cuda()
    bucket, parameters = bucket_of(3, 4)
    parameters[1].requires_grad_(False)
    parameters[1].grad = None
    refused: list[tuple[Any, str]] = []
    Gathering(DEVICE, cuda, cuda.raw).take_in(bucket.slots, lambda *each: refused.append(each))
    assert refused == [(bucket.slots[1], "is not wanted any more")]
    assert parameters[1].grad is None, "momentum would move it once more"
