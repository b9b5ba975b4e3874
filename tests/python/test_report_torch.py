"""What is recorded of trainings with torch, whose loops say nothing; and the loader that prefetches."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rueda.errors import InvalidArgumentError
from rueda.torch import PrefetchLoader
from rueda_command import run_rueda
from torch.utils.data import DataLoader, Dataset, IterableDataset

# Two trainings one after the other: their backward passes hand over gradients in different ways.
TRAIN = """
import time
import torch
import torch.distributed as dist
import rueda.torch as rt
import rueda.torch.c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
dist.init_process_group("rueda")
rank = dist.get_rank()

class Slow(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.ones(64)

def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        time.sleep(0.03 * rank)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x in batches:
            model(x)

def new_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 8))

def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)

model = DistributedDataParallel(new_model())
train(model, sgd(model), DataLoader(Slow(), batch_size=2))
model = new_model()
optimizer = rt.DistributedOptimizer(sgd(model), model.named_parameters())
train(model, optimizer, rt.PrefetchLoader(DataLoader(Slow(), batch_size=2)))
dist.destroy_process_group()
"""


def test_loops_that_say_nothing_are_divided(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ["--launch=--no-mpi --grace 0.5", "-np", "2", "--json", "--predict", "0"]
    ran = run_rueda(tmp_path, ["report", *flags, "python3", "train.py"], {}, timeout=120)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    quick, slow = found["per_rank"]
    assert quick["steps"] == slow["steps"] == 20
    # In each step rank 0 waits for the other one to sleep, and it says so.
    assert quick["training"]["straggler"] > 20 * 0.02
    assert quick["waited_for"][1] > 20 * 0.02
    assert slow["training"]["compute"] > 20 * 0.03
    # Ten batches of 6 ms; and while the loader prefetches and the rank sleeps, hardly any wait.
    assert slow["training"]["input"] > 10 * 0.006
    assert slow["training"]["other"] > 10 * 0.006  # the first evaluation lies between steps
    (named,) = (one for one in found["stragglers"] if one["kind"] == "permanent")
    assert named["rank"] == 1


class Numbers(Dataset):
    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.count = count
        self.fails_at = fails_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.fails_at:
            raise ValueError(f"sample {index} is broken")
        if index >= self.count:
            raise IndexError(index)
        return index


class Many(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index * 10 for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def prefetching() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("rueda-prefetch")]


class Modes(Dataset):
    """In what modes of torch's it is asked."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[bool, bool, str]:
        device = torch.get_default_device().type
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), device


def without_gradients() -> Iterator[bool]:
    """Keeps a mode of its own from one to the next."""
    with torch.no_grad():
        for _ in range(3):
            yield torch.is_grad_enabled()


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_loaded_in_the_modes_of_who_iterates(threads: int) -> None:
    loading = PrefetchLoader(DataLoader(Modes(), batch_size=None), threads=threads)
    assert {tuple(each) for each in loading} == {(True, False, "cpu")}
    with torch.no_grad():
        assert {tuple(each) for each in loading} == {(False, False, "cpu")}
    if threads == 1:
        assert list(PrefetchLoader(without_gradients())) == [False, False, False]
        assert torch.is_grad_enabled()
    device = (
        "meta" if threads > 1 else "cpu"
    )  # alone a thread iterates the DataLoader, which draws a seed
    with torch.inference_mode(), torch.device(device):
        assert {tuple(each) for each in loading} == {(False, True, device)}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("dataset", [Numbers(18), Many(18)])
def test_batches_are_those_of_the_loader_in_its_order(dataset, batch_size, depth, threads) -> None:
    loader = DataLoader(dataset, batch_size=batch_size)
    fetching = PrefetchLoader(loader, depth, threads)
    assert len(fetching) == len(loader)
    assert fetching.dataset is dataset
    for _ in range(2):
        assert [torch.as_tensor(x).tolist() for x in fetching] == [
            torch.as_tensor(x).tolist() for x in loader
        ]
        assert fetching.last is not None
        assert fetching.last.batches == len(loader)
    assert prefetching() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_what_loading_raises_comes_where_the_batch_is_asked_for(threads) -> None:
    batches = iter(
        PrefetchLoader(DataLoader(Numbers(9, fails_at=5), batch_size=2), threads=threads)
    )
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="sample 5 is broken"):
        next(batches)
    assert prefetching() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_an_epoch_that_is_left_leaves_no_thread(threads) -> None:
    batches = iter(PrefetchLoader(DataLoader(Numbers(1000)), threads=threads))
    next(batches)
    assert prefetching() != []
    batches.close()
    assert prefetching() == []


def test_anything_can_be_prefetched_by_one_thread() -> None:
    assert list(PrefetchLoader([1, 2, 3])) == [1, 2, 3]
    assert list(PrefetchLoader(DataLoader(Stream(), batch_size=None))) == [*range(5)]


@pytest.mark.parametrize(
    "loader", [[1, 2], DataLoader(Stream()), DataLoader(Numbers(4), num_workers=1)]
)
def test_threads_need_a_loader_that_can_be_shared(loader) -> None:
    with pytest.raises(InvalidArgumentError, match="num_workers=0"):
        PrefetchLoader(loader, threads=2)
    with pytest.raises(InvalidArgumentError, match="1 or more"):
        PrefetchLoader(loader, depth=0)


def test_a_source_that_cannot_keep_up_is_told() -> None:
    def slow():
        for number in range(60):
            time.sleep(0.01)
            yield number

    with pytest.warns(RuntimeWarning, match="The source cannot keep up"):
        assert list(PrefetchLoader(slow())) == [*range(60)]


def test_a_source_that_keeps_up_is_not() -> None:
    fetching = PrefetchLoader(range(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in fetching:
            time.sleep(0.03)
    assert fetching.last is not None
    assert fetching.last.seconds > fetching.last.waited
