"""Recordings of torch training loops without calls to report, and the prefetching loader."""

from __future__ import annotations

import json
import math
import pickle
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rueda.errors import InvalidArgumentError
from rueda.torch import PrefetchLoader
from rueda_command import run_rueda
from torch.utils.data import DataLoader, Dataset, IterableDataset

# Two training loops in a row, whose backward passes hand over gradients in different ways.
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
    # In each step rank 0 waits for rank 1 to sleep, and the report says so.
    assert quick["training"]["straggler"] > 20 * 0.02
    assert quick["waited_for"][1] > 20 * 0.02
    assert slow["training"]["compute"] > 20 * 0.03
    # Ten batches of 6 ms; there is hardly any wait if the loader prefetches while the rank sleeps.
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
    """Reports torch's modes at the time of access."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[bool, bool, str]:
        device = torch.get_default_device().type
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), device


def without_gradients() -> Iterator[bool]:
    """Keeps its own grad mode across items."""
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
    )  # alone: a thread iterates the DataLoader, which draws a seed
    with torch.inference_mode(), torch.device(device):
        assert {tuple(each) for each in loading} == {(False, True, device)}


class Products(Dataset):
    """Reports what autocast and NumPy do at the time of access."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> str:
        return f"{(torch.ones(2, 2) @ torch.ones(2, 2)).dtype}, {np.geterr()['divide']}"


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_are_cast_and_fail_as_where_the_loader_is_iterated_over(threads: int) -> None:
    loading = PrefetchLoader(DataLoader(Products(), batch_size=None), threads=threads)
    usual = f"torch.float32, {np.geterr()['divide']}"
    assert list(loading) == [usual] * 4
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype), np.errstate(divide="call"):
            assert list(loading) == [f"{dtype}, call"] * 4
            with torch.autocast("cpu", enabled=False):
                assert list(loading) == ["torch.float32, call"] * 4
    assert list(loading) == [usual] * 4


class Short(Numbers):
    """Ends before its length."""

    def __getitem__(self, index: int) -> int:
        if index >= 5:
            raise StopIteration
        return index


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_dataset_that_stops_ends_the_epoch_as_of_a_dataloader(batch_size, threads) -> None:
    loader = DataLoader(Short(9), batch_size=batch_size)
    loading = PrefetchLoader(loader, threads=threads)
    for _ in range(2):
        assert [torch.as_tensor(x).tolist() for x in loading] == [
            torch.as_tensor(x).tolist() for x in loader
        ]
        assert loading.last is not None
    assert prefetching() == []


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


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("has_generator", [False, True])
def test_shuffled_batches_come_in_the_order_of_the_loader(has_generator, threads) -> None:
    def order(wrapped) -> list[list[int]]:
        torch.manual_seed(0)
        own = torch.Generator().manual_seed(1) if has_generator else None
        loader = wrapped(DataLoader(Numbers(40), batch_size=4, shuffle=True, generator=own))
        return [batch.tolist() for _ in range(2) for batch in loader] + [torch.rand(2).tolist()]

    assert order(lambda loader: PrefetchLoader(loader, threads=threads)) == order(lambda x: x)


class Resumable:
    """Like torchdata's StatefulDataLoader."""

    def __init__(self) -> None:
        self.at = {"batch": 0}

    def __iter__(self) -> Iterator[int]:
        for number in range(self.at["batch"], 10):
            self.at["batch"] = number + 1
            yield number
        self.at["batch"] = 0

    def state_dict(self) -> dict[str, dict[str, int]]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, dict[str, int]]) -> None:
        self.at = dict(state["at"])


def test_the_state_is_that_after_the_last_batch_that_was_handed_out() -> None:
    loading = PrefetchLoader(Resumable(), depth=4)
    assert loading.state_dict() == {"at": {"batch": 0}}
    seen = []
    for batch in loading:
        seen.append(batch)
        assert loading.state_dict() == {"at": {"batch": len(seen)}}
        if len(seen) == 3:
            break
    state = pickle.loads(pickle.dumps(loading.state_dict()))
    assert pickle.loads(pickle.dumps(loading)).state_dict() == state
    resumed = PrefetchLoader(Resumable(), depth=4)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert [*seen, *resumed] == [*range(10)]
    assert resumed.state_dict() == {"at": {"batch": 0}}
    loading.load_state_dict(state)
    assert list(loading) == [*range(3, 10)]


def test_there_is_no_state_where_the_loader_has_none_or_is_not_iterated_over() -> None:
    assert not hasattr(PrefetchLoader(DataLoader(Numbers(4))), "state_dict")
    loader = DataLoader(Numbers(4))
    loader.state_dict = loader.load_state_dict = dict  # type: ignore[attr-defined]
    shared = PrefetchLoader(loader, threads=2)
    for ask in (shared.state_dict, lambda: shared.load_state_dict({})):
        with pytest.raises(InvalidArgumentError, match="use threads=1"):
            ask()


def test_a_loader_whose_state_cannot_be_had_is_read_all_the_same() -> None:
    """Like Accelerate's loader over torch's DataLoader."""

    def none() -> None:
        raise AttributeError("no attribute 'dl_state_dict'")

    loader = DataLoader(Numbers(4))
    loader.state_dict = none  # type: ignore[attr-defined]
    assert len(list(PrefetchLoader(loader))) == 4


def test_a_stream_that_is_left_is_not_waited_for() -> None:
    """Nor lost: the next iterator continues it once it is free."""
    goes_on = threading.Event()

    def stream() -> Iterator[int]:
        yield 0
        yield 1
        goes_on.wait()
        yield from (2, 3, 4)

    loading = PrefetchLoader(stream(), depth=1)
    for number in loading:
        if number == 1:
            break
    again = iter(loading)
    threading.Timer(0.05, goes_on.set).start()
    assert list(again) == [3, 4]  # 2 was being loaded
    for _ in range(500):
        if prefetching() == []:
            break
        time.sleep(0.01)
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


class Scaled(DataLoader):
    """Yields other batches than a DataLoader, like Accelerate's."""

    def __iter__(self):
        return (batch * 100 for batch in super().__iter__())


class Transformed(DataLoader):
    """The same in the way of PyG's loaders."""

    def _get_iterator(self):
        return iter([batch * 100 for batch in super()._get_iterator()])


class Named(DataLoader):
    """Iterates like a DataLoader."""

    name = "numbers"


@pytest.mark.parametrize("kind", [Scaled, Transformed])
def test_one_thread_alone_reads_a_loader_that_iterates_in_its_own_way(kind) -> None:
    loader = kind(Numbers(4), batch_size=2)
    assert [batch.tolist() for batch in PrefetchLoader(loader)] == [[0, 100], [200, 300]]
    with pytest.raises(InvalidArgumentError, match=f"{kind.__name__} iterates in its own way"):
        PrefetchLoader(loader, threads=2)
    named = PrefetchLoader(Named(Numbers(4), batch_size=2), threads=2)
    assert [batch.tolist() for batch in named] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, math.inf, "2", None])
@pytest.mark.parametrize("name", ["depth", "threads"])
def test_depth_and_threads_are_whole_numbers(name, value) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"PrefetchLoader\(\): {name}="):
        PrefetchLoader(DataLoader(Numbers(4)), **{name: value})
    assert len(list(PrefetchLoader(DataLoader(Numbers(4)), **{name: np.int64(2)}))) == 4


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
