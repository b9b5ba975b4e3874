"""What a recorder keeps of a tensor: its bits as a hash, and a sketch for distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rueda.equivalence.record_files import Layout, is_missing, read_rank, recorded_size  # noqa: E402
from rueda.equivalence.run_settings import RunSettings  # noqa: E402
from rueda.errors import InvalidArgumentError  # noqa: E402
from rueda.torch.equiv.recorder import Recorder  # noqa: E402
from rueda.torch.equiv.sketch import (  # noqa: E402
    SKETCH,
    Signs,
    hash_of,
    norm_of,
    perturb,
    values_of,
)

few = settings(max_examples=20, deadline=None)


def estimate(one: torch.Tensor, other: torch.Tensor, name: str = "weight") -> float:
    signs = Signs(name, one.numel())
    apart = signs.sketch(values_of(one)) - signs.sketch(values_of(other))
    return float((apart**2).sum().sqrt())


@few
@given(st.integers(0, SKETCH), st.integers(0, 1000))
def test_small_tensors_are_their_own_sketch(numel: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    one, other = torch.randn(2, numel, generator=rng)
    assert estimate(one, other) == pytest.approx(float((one.double() - other.double()).norm()))


@pytest.mark.parametrize("numel", [33, 100, 2048, 30_000])
@pytest.mark.parametrize("scale", [1.0, 1e-7])
def test_distances_are_right_in_the_mean(numel: int, scale: float) -> None:
    """Squares are unbiased, with a spread of about sqrt(2/k), also for nearly equal tensors."""
    rng = torch.Generator().manual_seed(numel)
    found = []
    for number in range(200):
        one = torch.randn(numel, generator=rng, dtype=torch.float64)
        other = one + scale * torch.randn(numel, generator=rng, dtype=torch.float64)
        true = float((one - other).norm())
        found.append((estimate(one, other, f"tensor{number}") / true) ** 2)
    spread = np.sqrt(2 / SKETCH)
    assert np.mean(found) == pytest.approx(1, abs=4 * spread / np.sqrt(len(found)))
    assert np.std(found) < 1.4 * spread


@few
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    st.integers(1, 300),
    st.data(),
)
def test_one_changed_bit_changes_the_hash_and_the_distance(dtype, numel, draw) -> None:  # type: ignore[no-untyped-def]
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)
    other = tensor.clone()
    assert hash_of(other) == hash_of(tensor)
    element = draw.draw(st.integers(0, numel - 1))
    other[element] = torch.nextafter(other[element].float(), torch.tensor(9.0)) if (
        dtype == torch.float32
    ) else other[element] * 2 + 1  # fmt: skip
    if other[element] == tensor[element]:
        return
    assert hash_of(other) != hash_of(tensor)
    assert estimate(tensor, other) > 0


@few
@given(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.integers(0, 10_000))
def test_a_twin_is_moved_by_units_in_the_last_place(dtype: torch.dtype, seed: int) -> None:
    """By two ulps at most: eps is one to two ulps, rounded to an integer. Equal on all ranks."""
    tensor = torch.randn(500, generator=torch.Generator().manual_seed(seed)).to(dtype)
    moved, again, later = tensor.clone(), tensor.clone(), tensor.clone()
    perturb(moved, seed, 3, "weight")
    perturb(again, seed, 3, "weight")
    perturb(later, seed, 4, "weight")
    assert torch.equal(moved, again)
    assert not torch.equal(moved, tensor)
    assert not torch.equal(moved, later)
    apart = (moved.double() - tensor.double()).abs()
    assert (apart <= 1.34 * torch.finfo(dtype).eps * tensor.double().abs()).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_both_parts_of_complex_numbers_are_moved(dtype: torch.dtype) -> None:
    start = torch.randn(500, dtype=dtype, generator=torch.Generator().manual_seed(0))
    weight = torch.nn.Parameter(start.clone())
    perturb(weight, 0, 1, "weight")
    conjugate = start.clone().conj()
    perturb(conjugate, 0, 1, "weight")
    for moved, before in ((weight, start), (conjugate, start.conj())):
        for part in (torch.real, torch.imag):
            apart = (part(moved.detach()) - part(before)).abs()
            assert 0.5 < (apart > 0).double().mean() < 0.8
            assert (apart <= 1.34 * torch.finfo(dtype).eps * part(before).abs()).all()
        assert hash_of(moved.detach().resolve_conj()) != hash_of(before.resolve_conj())
        assert (values_of(moved) != values_of(before)).any()


def test_whole_numbers_are_not_moved() -> None:
    counts = torch.arange(10)
    perturb(counts, 1)
    assert torch.equal(counts, torch.arange(10))


def test_a_mask_stays_as_it_is() -> None:
    """A mask has no magnitude against which a rounding would be negligible."""
    mask = torch.full((8, 8), -torch.inf).triu(1)
    moved = mask.clone()
    perturb(moved, 1)
    assert torch.equal(moved, mask)
    assert norm_of(values_of(mask)) == 0
    assert norm_of(torch.tensor([3.0, torch.inf, 4.0])) == 5


def test_runs_perturb_the_model_even_if_its_state_dict_has_copies(tmp_path: Path) -> None:
    model = torch.nn.Linear(20, 10)
    model.register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update(
            {n: each.clone() for n, each in state.items()}
        )
    )
    before = model.weight.detach().clone()
    recorder = Recorder(tmp_path, RunSettings(1, "sync", 0, ("true",), perturbation=True))
    recorder.watch(model)
    assert not torch.equal(model.weight, before)
    torch.testing.assert_close(model.weight.detach(), before)
    recorder.end()


def test_a_recorder_tells_the_size_of_the_world_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a world of Rueda's, that which the launcher tells, if it does."""

    def recorded(folder: Path) -> int | None:
        recorder = Recorder(folder, RunSettings(3, "sync", 0, ("true",)))
        recorder.watch(torch.nn.Linear(2, 1))
        monkeypatch.setattr("rueda.size", lambda: 2)  # a rank was lost later
        recorder.record(None, {})
        recorder.end()
        monkeypatch.undo()
        return recorded_size(folder, 0)

    monkeypatch.delenv("RUEDA_SIZE", raising=False)
    assert recorded(tmp_path) is None
    monkeypatch.setenv("RUEDA_SIZE", "5")
    assert recorded(tmp_path) == 5
    monkeypatch.setattr("rueda.size", lambda: 3)
    assert recorded(tmp_path) == 3


def test_a_loss_of_nan_is_told_from_none(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, RunSettings(1, "sync", 0, ("true",)))
    wrong: Any = torch.ones(2)
    for call in (lambda: recorder.watch(wrong), lambda: recorder.watch(5)):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="neither a model nor a mapping"):
            call()
    recorder.watch(torch.nn.Linear(2, 1))
    told = (1.0, None, float("nan"), torch.tensor(float("nan")), np.float32(np.nan), np.inf, None)
    for loss in told:
        recorder.record(loss, {})
    with pytest.raises(InvalidArgumentError, match=r"loss=tensor.* is not one number"):
        recorder.record(wrong, {})
    recorder.end()
    found = read_rank(tmp_path, 0).steps[1:, Layout.LOSS]
    assert is_missing(found).tolist() == [loss is None for loss in told] + [True]
    assert np.isnan(found).tolist() == [False, True, True, True, True, False, True, True]
