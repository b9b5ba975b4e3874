"""Which tensors of a process group get huge pages."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")

from rueda.torch.c10d import recurring  # noqa: E402

LARGE = 1 << 18  # elements of float32: 1 MiB


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    monkeypatch.setattr(
        recurring._native,
        "settle_tensor",
        lambda pointer, size, _: places.append((pointer, size)) or 0,
    )
    return places


def test_a_large_tensor_is_settled_once_when_it_comes_for_the_third_time(
    settled: list[tuple[int, int]],
) -> None:
    tensors = recurring.RecurringTensors()
    bucket, small = torch.zeros(LARGE), torch.zeros(LARGE - 1)
    for times in range(1, 7):
        tensors.note(bucket, 0)
        tensors.note(small, 0)
        assert settled == ([(bucket.data_ptr(), 1 << 20)] if times >= 3 else [])


def test_another_size_at_the_same_place_is_another_tensor(settled: list[tuple[int, int]]) -> None:
    tensors = recurring.RecurringTensors()
    memory = torch.zeros(2 * LARGE)
    for _ in range(2):
        tensors.note(memory, 0)
        tensors.note(memory[:LARGE], 0)
    assert not settled
    tensors.note(memory, 0)
    assert settled == [(memory.data_ptr(), 2 << 20)]


def test_gaps_and_an_endless_number_of_tensors_settle_nothing(
    settled: list[tuple[int, int]],
) -> None:
    tensors = recurring.RecurringTensors()
    for _ in range(3):
        tensors.note(torch.zeros(LARGE, 2)[:, 0], 0)
    memory = torch.zeros(LARGE + 3000)
    for _ in range(3):
        for begin in range(0, 3000, 2):
            tensors.note(memory[begin : begin + LARGE], 0)
    assert not settled
    assert len(tensors._seen) <= recurring._MAX_TENSORS
