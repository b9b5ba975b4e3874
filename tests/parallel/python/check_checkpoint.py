"""Every rank: checkpoints are written together, loaded all or nothing, and damage is found."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import logging
import os
import random
import resource
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parallel
import rueda
import rueda.checkpoint as ck
import rueda.torch as rt
import torch
import torch.distributed.checkpoint as dcp
from parallel import folder
from rueda.checkpoint.files import MANIFEST, read_manifest
from rueda.checkpoint.folder import remove
from rueda.checkpoint.reading import Reading
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training import adam, batch, model, sgd, share

logging.getLogger("rueda").setLevel(logging.ERROR)  # results tell of failed saves here


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        inputs, targets = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(share(inputs)), share(targets)).backward()
        optimizer.step()


def distributed(net: nn.Module, make: Any = adam, **options: Any) -> Any:
    return rt.DistributedOptimizer(make(list(net.parameters())), net.named_parameters(), **options)


def bits(tensors: Any) -> list[bytes]:
    return [
        bytes(each.detach().contiguous().view(-1).view(torch.uint8).tolist()) for each in tensors
    ]


class Holder:
    """A part with the state it was given."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def odd_state() -> dict[Any, Any]:
    """Many dtypes, layouts, sizes and structures, the same on all ranks."""
    torch.manual_seed(5)
    dtypes = [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.complex64,
    ]
    return {
        **{str(dtype): torch.randn(37, 5).to(dtype) for dtype in [*dtypes, torch.bool]},
        "large": torch.randn(700, 333),
        "long rows": torch.randn(2, 3, 90_001),
        "transposed": torch.randn(50, 60).t(),
        "strided": torch.randn(40, 6)[:, ::2],
        "one": torch.tensor(1.5),
        "none": torch.zeros(0, 4),
        7: {"nested": [torch.arange(3), {"deep": torch.ones(2)}]},
        "tuple": (torch.arange(4), "text"),
        "plain": [1, None, {"set": {3, 4}}],
        "special": torch.tensor([float("nan"), -0.0, float("inf")]),
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and bits([left]) == bits([right])
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def check_any_state_comes_back_to_the_bit() -> None:
    with folder() as path:
        own = {"rank": rueda.rank(), "tensor": torch.full((rueda.rank(),), 2.0)}
        pending = ck.save(path, 3, odd=Holder(odd_state()), extra={"epoch": 4}, each_rank=own)
        complete = pending.result(60)
        assert pending.done()
        assert (complete.step, complete.number) == (3, 1)
        assert ck.latest(path) == complete
        odd = Holder()
        loaded = ck.load(path, odd=odd)
        assert loaded is not None
        assert (loaded.step, loaded.extra, loaded.path) == (3, {"epoch": 4}, complete.path)
        assert same(odd.state, odd_state()), odd.state
        assert [each["rank"] for each in loaded.each_rank] == list(range(rueda.size()))
        assert [len(each["tensor"]) for each in loaded.each_rank] == list(range(rueda.size()))


def check_any_dtype_comes_back_from_any_place() -> None:
    """Also those that pickle itself loses."""
    dtypes = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e8m0fnu]
    tensors = [torch.arange(16, dtype=torch.uint8).view(each) for each in [*dtypes, torch.int16]]
    part = Holder({"inside": (tensors, {"a set": {1}})})
    with folder() as path:
        own = tuple(tensors)
        ck.save(path, 1, part=part, extra={"all": tensors}, each_rank=own).result(60)
        again = Holder()
        loaded = ck.load(path, part=again)
        assert loaded is not None
        assert same(again.state, part.state), again.state
        assert same(loaded.extra, {"all": tensors}), loaded.extra
        assert same(loaded.each_rank, [own] * rueda.size()), loaded.each_rank


@contextlib.contextmanager
def module_of_the_training() -> Iterator[Any]:
    """A class that can be imported only within the block."""
    name = "a_module_of_the_training"
    made = types.ModuleType(name)
    exec("class Settings:\n    pass", vars(made))
    sys.modules[name] = made
    try:
        yield made.Settings
    finally:
        del sys.modules[name]


def check_only_what_is_asked_for_is_unpickled() -> None:
    missing = "ModuleNotFoundError: No module named 'a_module_of_the_training'"
    with folder() as path:
        net = model()
        with module_of_the_training() as settings:
            part = Holder({"settings": settings()})
            own = {"of": settings(), "tensor": torch.ones(2)}
            ck.save(path, 1, model=net, part=part, extra=settings(), each_rank=own).result(60)
            assert isinstance(ck.load(path).extra, settings)
        again = model(seed=9)
        loaded = ck.load(path, model=again)
        assert loaded is not None
        assert "step=1" in repr(loaded)
        assert bits(again.parameters()) == bits(net.parameters())
        with parallel.raises(ck.CheckpointError, "extra cannot be unpickled", missing):
            _ = loaded.extra
        with parallel.raises(ck.CheckpointError, "each_rank of rank 0 cannot be", missing):
            _ = loaded.each_rank
        with parallel.raises(ck.CheckpointError, "the state 'part' cannot be", missing):
            ck.load(path, model=again, part=Holder())
        with parallel.raises(rueda.InvalidArgumentError, "no such state, but model, part"):
            ck.load(path, sampler=Holder())
        with module_of_the_training() as settings:
            assert isinstance(loaded.extra, settings)
            assert loaded.each_rank[-1]["tensor"].tolist() == [1, 1]


def check_training_goes_on_as_if_nothing_had_happened() -> None:
    """During a save and after a load, the bits are those of an undisturbed run."""
    for make in (adam, sgd):
        with folder() as path:
            net = model()
            optimizer = distributed(net, make)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
            train(net, optimizer, range(3))
            scheduler.step()
            parts = {"model": net, "optimizer": optimizer, "scheduler": scheduler}
            pending = ck.save(path, 3, **parts, each_rank=ck.random_states())
            drawn = torch.rand(3), random.random()
            train(net, optimizer, range(3, 6))
            pending.result(60)
            again = model(seed=9)
            other = distributed(again, make)
            schedule = torch.optim.lr_scheduler.StepLR(other, 1, gamma=0.1)
            loaded = ck.load(path, model=again, optimizer=other, scheduler=schedule)
            assert loaded is not None
            assert loaded.step == 3
            assert schedule.state_dict() == scheduler.state_dict()
            # As saved on a machine with a GPU; this one may have none.
            states = {"cuda": torch.zeros(16, dtype=torch.uint8), **loaded.each_rank[rueda.rank()]}
            ck.set_random_states(states)
            assert torch.equal(torch.rand(3), drawn[0])
            assert random.random() == drawn[1]
            train(again, other, range(3, 6))
            assert bits(again.parameters()) == bits(net.parameters())


def check_what_compression_has_lost_is_each_ranks() -> None:
    def make(seed: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        net = nn.Linear(300, 100)
        options = rt.CompressionPolicy({"*": "topk:0.1"}, min_elements=0, error_feedback=True)
        return net, distributed(net, sgd, compression=options)

    def take_steps(net: nn.Module, optimizer: Any, steps: range) -> None:
        for step in steps:
            torch.manual_seed(100 * step + rueda.rank())
            optimizer.zero_grad()
            net(torch.randn(4, 300)).square().mean().backward()
            optimizer.step()

    with folder() as path:
        net, optimizer = make(1)
        take_steps(net, optimizer, range(3))
        ck.save(path, 3, model=net, optimizer=optimizer).result(60)
        take_steps(net, optimizer, range(3, 5))
        again, other = make(2)
        ck.load(path, model=again, optimizer=other)
        kept = other.state_dict()["rueda_compression"]
        assert any(bool(each.any()) for each in kept["residuals"].values())
        take_steps(again, other, range(3, 5))
        assert bits(again.parameters()) == bits(net.parameters())


class Table(nn.Module):
    """A layer with dense gradients beside two with sparse ones; no module tells of the second one's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dense = nn.Linear(3, 2)
        self.rows = nn.Embedding(40, 3, sparse=True)
        self.untold = nn.Parameter(torch.randn(30, 3))

    def forward(self, chosen: torch.Tensor) -> torch.Tensor:
        untold = nn.functional.embedding(chosen, self.untold, sparse=True)
        return self.dense(self.rows(chosen) * untold).square().sum()


def accumulate(net: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        torch.manual_seed(100 * step + rueda.rank())
        optimizer.zero_grad()
        net(torch.randint(0, 30, (4,))).backward()
        optimizer.step()


def check_what_a_step_has_accumulated_is_each_ranks() -> None:
    """Dense or sparse, wherever in the step it is saved; as long as there is nothing, nothing is written."""

    def make(seed: int) -> tuple[nn.Module, Any]:
        net = Table(seed)
        return net, rt.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), "accumulate:3")

    for at in (3, 4, 5):
        with folder() as path:
            net, optimizer = make(1)
            accumulate(net, optimizer, range(at))
            complete = ck.save(path, at, model=net, optimizer=optimizer).result(60)
            names = dcp.FileSystemReader(complete.path).read_metadata().state_dict_metadata
            own = [name for name in names if ".accumulated." in name and "dense" in name]
            assert len(own) == (2 * rueda.size() if at > 3 else 0), own
            assert not [name for name in names if "kept.sums" in name], list(names)
            accumulate(net, optimizer, range(at, 9))
            again, other = make(2)
            ck.load(path, model=again, optimizer=other)
            accumulate(again, other, range(at, 9))
            assert bits(again.parameters()) == bits(net.parameters()), at


def check_rows_that_were_accumulated_as_zeros_stay() -> None:
    """An optimizer for sparse gradients changes the state of every row that a gradient has."""
    ends = []
    for resumes in (False, True):
        with folder() as path:
            net = nn.Embedding(20, 3, sparse=True)
            nn.init.ones_(net.weight)
            optimizer = rt.wrap(net, torch.optim.SparseAdam(net.parameters()), "accumulate:2")
            for step in range(4):
                if resumes and step == 3:
                    ck.save(path, 3, model=net, optimizer=optimizer).result(60)
                    net = nn.Embedding(20, 3, sparse=True)
                    optimizer = rt.wrap(
                        net, torch.optim.SparseAdam(net.parameters()), "accumulate:2"
                    )
                    ck.load(path, model=net, optimizer=optimizer)
                optimizer.zero_grad()
                (net(torch.tensor([0, 1 if step == 3 else 2])) * float(step < 2)).sum().backward()
                optimizer.step()
            ends.append(net.weight)
    assert bits(ends[:1]) == bits(ends[1:])


def check_buffers_are_those_of_rank_0() -> None:
    with folder() as path:
        layer = nn.BatchNorm1d(3)
        net = nn.Sequential(layer, layer)  # whose buffers have two names each
        layer.running_mean.fill_(float(rueda.rank() + 1))
        layer.running_var.fill_(float(rueda.rank() + 1))
        ck.save(path, 0, model=net).result(60)
        ck.load(path, model=net)
        assert layer.running_mean.tolist() == [1.0] * 3
        assert layer.running_var.tolist() == [1.0] * 3


def check_extra_state_is_that_of_rank_0_and_of_any_size() -> None:
    class Extra(nn.Linear):
        extra: object = torch.zeros(0, dtype=torch.uint8)

        def get_extra_state(self) -> object:
            return self.extra

        def set_extra_state(self, state: object) -> None:
            self.extra = state

    own = rueda.rank()
    values = torch.full((200_000 + own,), own, dtype=torch.uint8)
    for extra in (values, {"values": [values], "of": own, f"only {own}": own}):
        with folder() as path:
            net, again = nn.Sequential(Extra(2, 2)), nn.Sequential(Extra(2, 2))
            net[0].extra = extra
            ck.save(path, 0, model=net).result(60)
            ck.load(path, model=again)
            found = again[0].extra
            if isinstance(found, dict):
                assert found.keys() == {"values", "of", "only 0"}, found
                assert found["of"] == 0
                (found,) = found["values"]
            assert found.tolist() == [0] * 200_000


def check_each_rank_writes_about_as_much() -> None:
    with folder() as path:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(400, 400), *(nn.Linear(9, 40) for _ in range(20)))
        net.append(nn.Embedding(5000, 100))
        complete = ck.save(path, 0, model=net).result(60)
        total = sum(each.nbytes for each in net.state_dict().values())
        for rank in range(rueda.size()):
            written = (complete.path / f"__{rank}_0.distcp").stat().st_size
            assert abs(written - total / rueda.size()) < 0.12 * total / rueda.size(), (
                rank,
                written,
            )
        assert not [each for each in os.listdir(path) if each.startswith(".")]


def check_torch_reads_it_without_rueda() -> None:
    with folder() as path:
        net = model()
        optimizer = adam(list(net.parameters()))
        train(net, distributed(net, adam), range(1))
        net.zero_grad()
        net(batch(0)[0]).sum().backward()
        optimizer.step()
        complete = ck.save(path, 1, model=net, optimizer=optimizer).result(60)
        again = model(seed=4)
        other = adam(list(again.parameters()))
        again(batch(0)[0]).sum().backward()
        other.step()  # so that there is state to load into
        states = {"model": again.state_dict(), "optimizer": other.state_dict()}
        states["optimizer"]["param_groups"][0]["lr"] = 5.0
        dcp.load(states, checkpoint_id=complete.path, no_dist=True)
        again.load_state_dict(states["model"])
        assert bits(again.parameters()) == bits(net.parameters())
        assert same(states["optimizer"], optimizer.state_dict()), states["optimizer"]
        single = path / f"single-{rueda.rank()}"
        dcp_to_torch_save(complete.path, single)
        converted = torch.load(single, weights_only=False)
        assert same(dict(converted["model"]), dict(net.state_dict()))


def check_only_the_newest_are_kept() -> None:
    with folder() as path:
        for step in (5, 9, 2):
            pending = ck.save(path, step, extra=step, keep=2)
        pending.result(60)
        rueda.barrier()
        assert [(each.number, each.step) for each in ck.available(path)] == [(2, 9), (3, 2)]
        newest = ck.latest(path)
        assert newest is not None
        assert newest.step == 2
        assert ck.load(path).extra == 2
        assert ck.load(path, step=9).extra == 9
        with parallel.raises(ck.CheckpointError, "no checkpoint of step 5", "9, 2"):
            ck.load(path, step=5)
        ck.save(path, 9, extra="again").result(60)
        assert ck.load(path, step=9).extra == "again"


def check_an_old_one_that_was_moved_away_is_left_there() -> None:
    with folder() as path:
        for step in (1, 2):
            ck.save(path, step).result(60)
        away = path / "elsewhere"
        if rueda.rank() == 0:
            old = ck.available(path)[0].path
            old.rename(away)
            old.symlink_to(away)
        rueda.barrier()
        for step in (3, 4):
            ck.save(path, step, keep=1).result(60)
        rueda.barrier()
        assert sorted(os.listdir(path)) == ["000004-step-4", "elsewhere"]
        assert (away / "rueda.json").exists()


def check_what_only_has_a_checkpoints_name_is_none() -> None:
    """A file or a dangling link with a checkpoint's name is ignored: the latest is unchanged."""
    with folder() as path:
        ck.save(path, 1, extra="first").result()
        if rueda.rank() == 0:
            (path / "000002-step-9").write_text("a file")
            (path / "000007-step-3").symlink_to(path / "gone")
        rueda.barrier()
        assert [each.step for each in ck.available(path)] == [1]
        loaded = ck.load(path)
        assert loaded is not None
        assert loaded.extra == "first"
        made = ck.save(path, 9, extra="next", keep=2).result()
        assert made.path.name == "000008-step-9", made
        assert [each.step for each in ck.available(path)] == [1, 9]
        assert (path / "000002-step-9").is_file()


def check_the_folder_of_a_checkpoint() -> None:
    """It loads as what it is, also where it was moved, and nothing is saved into it."""
    with folder() as path:
        net = model()
        complete = ck.save(path, 5, model=net, extra="five").result(60)
        loaded = ck.load(complete.path, model=model())
        assert loaded is not None
        assert (loaded.step, loaded.extra, loaded.path) == (5, "five", complete.path)
        assert ck.load(complete.path, step=5).extra == "five"
        with parallel.raises(ck.CheckpointError, "no checkpoint of step 4", "there are: 5"):
            ck.load(complete.path, step=4)
        with parallel.raises(rueda.InvalidArgumentError, "rank 0", f"{complete.path} is a checkpo"):
            ck.save(complete.path, 6, model=net)
        rueda.barrier()
        if rueda.rank() == 0:
            complete.path.rename(path / "best")
        rueda.barrier()
        assert ck.load(path / "best").step == 5


def check_a_checkpoint_that_is_removed_while_it_is_read() -> None:
    """As by another job with keep=1: the latest of the others is loaded, unless a step is asked for."""
    verify = Reading.verify
    removed: list[int] = []

    def verify_what_goes(reading: Reading) -> None:
        rueda.barrier(name="before it goes")
        if rueda.rank() == 0 and len(removed) < 2:
            remove(reading._path)
        removed.append(1)
        rueda.barrier(name="after it went")
        verify(reading)

    with folder() as path:
        for step in (1, 2, 3, 4):
            ck.save(path, step, extra=step).result(60)
        Reading.verify = verify_what_goes
        try:
            assert ck.load(path).extra == 2
            removed.clear()
            with parallel.raises(ck.CheckpointError, "step 1 was not loaded: it was removed while"):
                ck.load(path, step=1)
        finally:
            Reading.verify = verify
        assert ck.load(path).extra == 2


@contextlib.contextmanager
def warnings_of_rank_0() -> Iterator[list[str]]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("rueda")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.ERROR)


def check_what_cannot_be_removed_is_told_once() -> None:
    """As a file of another user; the checkpoints that come after it are saved nevertheless."""
    rename, unlink = os.rename, os.unlink

    def refuse_rename(source: Any, *others: Any, **options: Any) -> None:
        if os.path.basename(source) == ".writing-step-3-00":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))
        rename(source, *others, **options)

    def refuse_unlink(name: Any, **options: Any) -> None:
        if str(name) == ".metadata":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(name))
        unlink(name, **options)

    for refused in ("rename", "unlink"):
        with folder() as path, warnings_of_rank_0() as told:
            if rueda.rank() == 0 and refused == "rename":
                (path / ".writing-step-3-00").mkdir(parents=True)
            os.rename, os.unlink = (
                (refuse_rename, unlink) if refused == "rename" else (rename, refuse_unlink)
            )
            try:
                for step in (1, 2, 3):
                    ck.save(path, step, keep=1).result(60)
            finally:
                os.rename, os.unlink = rename, unlink
            assert [each.step for each in ck.available(path)] == [3]
            left = {each for each in os.listdir(path) if each.startswith(".")}
            rueda.barrier()
            if refused == "rename":
                assert left == {".writing-step-3-00"}, left
            else:
                assert left == {f".removing-00000{n}-step-{n}" for n in (1, 2)}, left
            if rueda.rank() == 0:
                (line,) = told
                assert f"{path}: " in line, line
                assert "cannot be removed" in line, line
                assert "Operation not permitted" in line, line


def check_saves_in_and_out_of_inference_mode() -> None:
    with folder() as path:
        net = model()
        with torch.inference_mode():
            ck.save(path, 1, model=net).result(60)
        ck.save(path, 2, model=net).result(60)
        assert [each.step for each in ck.available(path)] == [1, 2]


def check_where_there_is_none() -> None:
    with folder() as path:
        assert ck.latest(path) is None
        assert ck.load(path, model=model()) is None
        with parallel.raises(ck.CheckpointError, "no checkpoint of step 1", "none"):
            ck.load(path, step=1)


def check_a_second_save_waits_for_the_first() -> None:
    with folder() as path, slow_writing() as go_on:
        first = ck.save(path, 1)
        assert not first.done()
        with parallel.raises(rueda.TimeoutError, "step 1", "0.05 seconds"):
            first.result(timeout=0.05)
        assert ck.latest(path) is None
        rueda.barrier()
        threading.Timer(0.1, go_on.set).start()
        second = ck.save(path, 2)
        assert first.done()
        assert first.result().step == 1
        assert second.result(60).number == 2


def check_a_load_waits_for_a_save_that_removes_older_ones() -> None:
    with folder() as path, slow_writing() as go_on:
        go_on.set()
        ck.save(path, 1).result(60)
        rueda.barrier()
        go_on.clear()
        second = ck.save(path, 2, keep=1)
        assert not second.done()
        rueda.barrier()
        threading.Timer(0.1, go_on.set).start()
        loaded = ck.load(path)
        assert loaded is not None
        assert loaded.step == 2
        assert second.done()


@contextlib.contextmanager
def writing(replacement: Any) -> Iterator[None]:
    """The last rank writes its part by calling ``replacement(write, *arguments)``."""
    from rueda.checkpoint import saving

    write = saving.write_share
    if rueda.rank() == rueda.size() - 1:
        saving.write_share = lambda *arguments: replacement(write, *arguments)
    try:
        yield
    finally:
        saving.write_share = write


@contextlib.contextmanager
def slow_writing() -> Iterator[threading.Event]:
    """The last rank does not write until the event is set."""
    go_on = threading.Event()

    def write_later(write: Any, *arguments: Any) -> Any:
        assert go_on.wait(60)
        return write(*arguments)

    with writing(write_later):
        try:
            yield go_on
        finally:
            go_on.set()


def check_what_killed_jobs_have_left_is_removed() -> None:
    with folder() as path:
        if rueda.rank() == 0:
            for name in (".writing-step-3-00", ".removing-000001-step-1"):
                (path / name).mkdir(parents=True)
                (path / name / "__0_0.distcp").write_bytes(b"half")
        rueda.barrier()
        assert ck.latest(path) is None
        ck.save(path, 4).result(60)
        assert os.listdir(path) == ["000001-step-4"]


# --- Bad input


def error_of(pending: ck.PendingSave) -> ck.CheckpointError:
    try:
        pending.result(60)
    except ck.CheckpointError as error:
        return error
    raise AssertionError("the save has succeeded")


def check_ranks_that_save_different_things_are_told() -> None:
    if rueda.size() == 1:
        return
    last = rueda.size() - 1
    mine = int(rueda.rank() == last)
    with folder() as path:
        with parallel.raises(rueda.MismatchError, "step is", f"3 on ranks [{last}]"):
            ck.save(path, 2 + mine)
        with parallel.raises(rueda.MismatchError, "folder is", "other on ranks"):
            ck.save(path / "other" if mine else path, 2)
        with parallel.raises(rueda.MismatchError, "keep is"):
            ck.save(path, 2, keep=5 if mine else None)
        with parallel.raises(
            rueda.MismatchError, "the state 'model'", "float32[1, 3]", "float32[1, 4]"
        ):
            ck.save(path, 2, model=nn.Linear(3 + mine, 1))
        with parallel.raises(rueda.MismatchError, "the state 'sampler' is", "missing"):
            ck.save(path, 2, **({"sampler": Holder({})} if mine else {}))
        with parallel.raises(rueda.MismatchError, "call is", "load on ranks"):
            ck.load(path) if mine else ck.save(path, 2)
        with parallel.raises(rueda.MismatchError, "step is"):
            ck.load(path, step=1 + mine)
        parallel.still_works()
        ck.save(path, 2).result(60)


def check_what_cannot_be_saved_is_refused_by_all() -> None:
    last = rueda.rank() == rueda.size() - 1
    where = f"rank {rueda.size() - 1}"
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    bad: list[tuple[dict[str, Any], list[str]]] = [
        ({"model": "a text"}, ["model: a str has no state_dict()", "extra"]),
        ({"rueda": Holder({})}, ["'rueda' cannot be the name"]),
        ({"model": Holder({"eye": torch.eye(2).to_sparse()})}, ["'model.eye' is sparse"]),
        ({"model": Holder({"part": nested})}, ["'model.part' is nested"]),
        ({"model": Holder({"part": quantized})}, ["'model.part' is quantized"]),
        (
            {"model": Holder({"a": torch.ones(1, device="meta")})},
            ["'model.a' is on the device meta"],
        ),
        ({"model": Holder({"a": {"b": 1}, "a.b": 2})}, ["twice", "model.a.b"]),
        ({"each_rank": lambda: None}, ["each_rank cannot be pickled"]),
        ({"keep": 0}, ["keep=0"]),
        ({"keep": "all"}, ["keep='all'"]),
    ]
    with folder() as path:
        for arguments, parts in bad:
            unsupported = parts[0].startswith("'model.")
            kind = rueda.UnsupportedError if unsupported else rueda.InvalidArgumentError
            with parallel.raises(kind, where, *parts):
                ck.save(path, 1, **(arguments if last else {}))
        for step in (-1, 1.5, None):
            with parallel.raises(rueda.InvalidArgumentError, where, f"step={step}"):
                ck.save(path, step if last else 1)
        with parallel.raises(rueda.InvalidArgumentError, where, "step='5' is not a whole number"):
            ck.load(path, step="5" if last else 1)
        with parallel.raises(rueda.InvalidArgumentError, where, "NoneType"):
            ck.save(None if last else path, 1)
        for act in (lambda name: ck.save(name, 1), ck.load):
            with parallel.raises(rueda.InvalidArgumentError, where, "name is empty"):
                act("" if last else path)
        with parallel.raises(rueda.InvalidArgumentError, "rank 0: extra cannot be pickled"):
            ck.save(path, 1, extra=lambda: None)
        assert not path.exists()
        parallel.still_works()


def check_an_optimizer_whose_ranks_differ_is_refused_by_all() -> None:
    """Until it switches to a strategy that keeps them equal."""
    with folder() as path:
        net = model()
        plain = adam(list(net.parameters()))
        optimizer = rt.wrap(net, plain, strategy="local:3")
        train(net, optimizer, range(2))
        told = "rank 0: optimizer: with the strategy LocalSGD(period=3) each rank's optimizer has its own state"
        with parallel.raises(rueda.UnsupportedError, told, 'switch("sync")', "torch.save()"):
            ck.save(path, 2, model=net, optimizer=optimizer)
        with parallel.raises(rueda.UnsupportedError, told):
            ck.save(path, 2, optimizer=plain)
        assert not path.exists()
        parallel.still_works()
        for strategy in ("sync", "accumulate:2"):
            optimizer.switch(strategy)
            train(net, optimizer, range(2, 4))
            ck.save(path, 4, model=net, optimizer=optimizer).result(60)
            again = model(seed=9)
            other = rt.wrap(again, adam(list(again.parameters())), strategy=strategy)
            ck.load(path, model=again, optimizer=other)
            train(net, optimizer, range(4, 6))
            train(again, other, range(4, 6))
            assert bits(again.parameters()) == bits(net.parameters())


def check_a_model_whose_ranks_differ_is_refused_by_all() -> None:
    """As long as they do; copies of it, and other models, are none of the strategy's business."""
    with folder() as path:
        net = model()
        optimizer = rt.wrap(net, adam(list(net.parameters())), strategy="local:3")
        ck.save(path, 0, model=net).result(60)
        train(net, optimizer, range(2))
        average = copy.deepcopy(net)
        if rueda.size() > 1:
            told = "model: with the strategy LocalSGD(period=3) each rank's parameters are its own"
            with parallel.raises(rueda.UnsupportedError, told, "consolidate()"):
                ck.save(path, 2, model=net)
            with parallel.raises(rueda.UnsupportedError, told):
                ck.save(path, 2, other=model(), model=nn.Sequential(net, nn.Linear(1, 1)))
            assert [each.step for each in ck.available(path)] == [0]
            parallel.still_works()
        ck.save(path, 2, average=average, other=model()).result(60)
        optimizer.consolidate()
        complete = ck.save(path, 2, model=net).result(60)
        train(net, optimizer, range(2, 3))  # to the end of the period
        ck.save(path, 3, model=net).result(60)
        again = model(seed=9)
        assert ck.load(path, model=again).step == 3
        assert bits(again.parameters()) == bits(net.parameters())
        assert ck.load(path, step=2, model=again).path == complete.path
        train(net, optimizer, range(3, 4))
        optimizer.switch("sync")
        ck.save(path, 4, model=net, optimizer=optimizer).result(60)
        known = weakref.ref(optimizer._rueda_replica)
        optimizer.close()
        del optimizer
        gc.collect()
        assert known() is None, "what the application has dropped is kept"


def check_a_folder_that_cannot_be_written() -> None:
    with folder() as path:
        if rueda.rank() == 0:
            path.write_text("a file, not a folder")
        rueda.barrier()
        pending = ck.save(path, 1, model=model())
        with parallel.raises(ck.CheckpointError, "step 1 was not saved", "rank 0", str(path)):
            pending.result(60)
        error = error_of(pending)
        assert (error.peer, error.errno) == (0, errno.ENOTDIR), (error.peer, error.errno)
        with parallel.raises(ck.CheckpointError, "no checkpoint was loaded", "rank 0", str(path)):
            ck.load(path)
        with parallel.raises(ck.CheckpointError, "no checkpoint was loaded", "rank 0", "null byte"):
            ck.load(f"{path}\0", model=model())
        with parallel.raises(ck.CheckpointError, "step 1 was not saved", "rank 0", "null byte"):
            ck.save(f"{path}\0", 1).result(60)
        parallel.still_works()


@contextlib.contextmanager
def before_fsync(act: Callable[[str], None]) -> Iterator[None]:
    """Calls ``act`` with the path before each fsync of this process."""
    fsync = os.fsync

    def act_first(descriptor: int) -> None:
        act(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    os.fsync = act_first
    try:
        yield
    finally:
        os.fsync = fsync


def check_folders_that_are_made_are_put_onto_the_disk() -> None:
    with folder() as path:
        settled: list[str] = []
        with before_fsync(settled.append):
            ck.save(path / "of" / "today", 1).result(60)
        every = {each for theirs in rueda.allgather_object(settled) for each in theirs}
        for each in (path.parent, path, path / "of", path / "of" / "today"):
            assert os.path.realpath(each) in every, (each, every)


def check_a_checkpoint_whose_name_may_not_be_on_the_disk() -> None:
    """All ranks get the error; it and earlier checkpoints are kept."""
    with folder() as path:

        def fail(settled: str) -> None:
            if settled == os.path.realpath(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        ck.save(path, 1).result(60)
        with before_fsync(fail):
            error = error_of(ck.save(path, 2, extra="two", keep=1))
        told = f"{path / '000002-step-2'} is there, but may not survive a power failure: rank 0: {path}: "
        assert str(error).startswith(told), error
        assert (error.peer, error.path, error.errno) == (0, str(path), errno.EIO)
        assert [each.step for each in ck.available(path)] == [1, 2]
        assert ck.load(path).extra == "two"
        assert ck.save(path, 3, keep=1).result(60).number == 3


def check_a_rank_that_can_start_no_thread() -> None:
    """The others do not wait for it, and the next save succeeds."""
    last = rueda.size() - 1
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with folder() as path:
        ck.save(path, 1).result(60)
        if rueda.rank() == last:
            threading.Thread.start = refuse
        try:
            pending = ck.save(path, 2)
        finally:
            threading.Thread.start = start
        error = error_of(pending)
        assert "step 2 was not saved" in str(error), error
        assert f"rank {last}" in str(error), error
        assert str(error).endswith("can't start new thread"), error
        assert error.peer == last
        if rueda.rank() == last:
            assert isinstance(error.__cause__, RuntimeError), repr(error.__cause__)
        parallel.still_works()
        assert ck.save(path, 3).result(60).step == 3
        assert [each.step for each in ck.available(path)] == [1, 3]


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limits this process's files; larger ones fail like on a full disk, with another errno."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_a_rank_that_cannot_write_all() -> None:
    """The previous checkpoint remains the latest, and the next one is complete."""
    last = rueda.size() - 1
    with folder() as path:
        net = nn.Linear(1000, 1000 * rueda.size())
        ck.save(path, 1, model=net).result(60)
        limit = 1 << 20 if rueda.rank() == last else resource.RLIM_INFINITY
        with files_of_at_most(limit):
            pending = ck.save(path, 2, model=net)
            assert pending.wait(60)
        parts = [
            "step 2",
            f"rank {last}: {path}",
            f"__{last}_0.distcp",
            "File too large",
            "errno 27",
        ]
        with parallel.raises(ck.CheckpointError, *parts):
            pending.result()
        error = error_of(pending)
        assert (error.peer, error.errno) == (last, errno.EFBIG)
        assert error.path is not None
        assert error.path.endswith(f"__{last}_0.distcp"), error.path
        assert os.listdir(path) == ["000001-step-1"]
        assert ck.load(path, model=net).step == 1
        parallel.still_works()
        assert ck.save(path, 3, model=net).result(60).number == 2


def check_a_folder_that_is_not_shared() -> None:
    """E.g. folders of the same name on different hosts."""
    last = rueda.size() - 1

    def write_elsewhere(write: Any, snapshot: Any, path: Path, rank: int) -> Any:
        written = write(snapshot, path, rank)
        (path / f"__{rank}_0.distcp").unlink()
        return written

    with folder() as path:
        with writing(write_elsewhere):
            pending = ck.save(path, 1, model=model())
            pending.wait(60)
        told = f"__{last}_0.distcp was written by rank {last}, and rank 0 finds nothing"
        with parallel.raises(ck.CheckpointError, "rank 0", told, "share"):
            pending.result()
        assert os.listdir(path) == []


def check_a_rank_that_does_not_come_to_an_end() -> None:
    """The others learn which rank, after RUEDA_STALL_ERROR; the next save succeeds."""
    if rueda.size() == 1:
        return
    rueda.shutdown()
    rueda.init(stall_warning=1, stall_error=2)
    last = rueda.size() - 1
    with folder() as path:
        with slow_writing() as go_on:
            pending = ck.save(path, 1)
            if rueda.rank() == last:
                others = [path.with_name(f"rank {rank} was told") for rank in range(last)]
                deadline = time.monotonic() + 50
                while not all(each.exists() for each in others):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                go_on.set()
            error = error_of(pending)
            path.with_name(f"rank {rueda.rank()} was told").touch()
        assert "step 1 was not saved" in str(error), error
        if rueda.rank() != last:
            assert isinstance(error.__cause__, rueda.StalledError), repr(error.__cause__)
            assert f"missing on rank {last}" in str(error), error
        assert ck.save(path, 2).result(60).step == 2
        assert ck.available(path)[-1].step == 2
    rueda.shutdown()
    rueda.init()


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 0x10
    elif how == "cut":
        del content[-1:]
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(content)


def check_a_damaged_checkpoint_is_refused_by_all() -> None:
    """The error names the file; nothing changes; the previous checkpoint can be loaded."""
    with folder() as path:
        net = nn.Linear(300, 300)
        ck.save(path, 1, model=net).result(60)
        good = bits(net.parameters())
        complete = ck.save(path, 2, model=net).result(60)
        for name in sorted(read_manifest(complete.path).files):
            for how, told in (("flip", "CRC-32"), ("cut", "bytes"), ("remove", "is missing")):
                file = complete.path / name
                kept = file.read_bytes()
                rueda.barrier()
                if rueda.rank() == 0:
                    damage(file, how)
                rueda.barrier()
                target = nn.Linear(300, 300)
                before = bits(target.parameters())
                with parallel.raises(ck.CheckpointError, "step 2 was not loaded", str(file), told):
                    ck.load(path, model=target)
                assert bits(target.parameters()) == before
                rueda.barrier()
                if rueda.rank() == 0:
                    file.write_bytes(kept)
        if rueda.rank() == 0:
            (complete.path / MANIFEST).write_text('{"version": 1, "files": 3}')
        rueda.barrier()
        with parallel.raises(ck.CheckpointError, f"{MANIFEST} is damaged"):
            ck.load(path, model=net)
        rueda.barrier()
        if rueda.rank() == 0:
            (complete.path / MANIFEST).unlink()
        rueda.barrier()
        with parallel.raises(ck.CheckpointError, f"{MANIFEST} is missing", "incomplete"):
            ck.load(path, model=net)
        parallel.still_works()
        target = nn.Linear(300, 300)
        assert ck.load(path, step=1, model=target).step == 1
        assert bits(target.parameters()) == good


def check_another_model_or_optimizer_is_refused_by_all() -> None:
    with folder() as path:
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        parts = {"model": net, "optimizer": adam(list(net.parameters()))}
        ck.save(path, 1, **parts).result(60)
        wider = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
        longer = nn.Sequential(*net, nn.Linear(2, 1))
        cases = [
            (
                {"model": wider},
                "model: '0.weight' is float32[3, 4] in the checkpoint, and float32[3, 5]",
            ),
            (
                {"model": copy.deepcopy(net).double()},
                "float32[3, 4] in the checkpoint, and float64[3, 4]",
            ),
            ({"model": longer}, "'2.weight' is missing in the checkpoint, and float32[1, 2]"),
            ({"model": nn.Linear(1, 1)}, "more differ"),
            ({"optimizer": sgd(list(net.parameters()))}, "the state of a Adam, but this is a SGD"),
            (
                {"optimizer": adam([net[0].weight])},
                "group 0 has 4 parameters in the checkpoint, and 1",
            ),
            ({"optimizer": adam(list(wider.parameters()))}, "[3, 4] in the checkpoint, and [3, 5]"),
            ({"scheduler": Holder()}, "the checkpoint has no such state, but model, optimizer"),
        ]
        good = bits(net.parameters())
        for part, told in cases:
            modules = [each for each in part.values() if isinstance(each, nn.Module)]
            before = bits(each for module in modules for each in module.parameters())
            with parallel.raises(rueda.InvalidArgumentError, "step 1 was not loaded", told):
                ck.load(path, model=net, **part) if "model" not in part else ck.load(path, **part)
            assert bits(each for module in modules for each in module.parameters()) == before
            assert bits(net.parameters()) == good
        parallel.still_works()
        ck.load(path, **parts)


def check_modules_without_memory() -> None:
    """Those on the device meta are refused; lazy ones take the shapes of what is loaded, as with torch."""
    with folder() as path:
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        ck.save(path, 1, model=net, optimizer=adam(list(net.parameters()))).result(60)
        with torch.device("meta"):
            empty = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        with parallel.raises(rueda.UnsupportedError, "'model.0.weight' is on the device meta"):
            ck.load(path, model=empty)
        told = "optimizer: parameter 0 of group 0 is on the device meta"
        with parallel.raises(rueda.UnsupportedError, told):
            ck.load(path, optimizer=adam(list(empty.parameters())))

        lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
        with parallel.raises(rueda.UnsupportedError, "'model.0.weight' has no shape"):
            ck.save(path, 2, model=lazy)
        with parallel.raises(rueda.InvalidArgumentError, "parameter 0 of group 0 has no shape"):
            ck.load(path, model=lazy, optimizer=sgd(list(lazy.parameters())))
        ck.load(path, model=lazy)
        assert same(dict(lazy.state_dict()), dict(net.state_dict()))
        wide = nn.Sequential(nn.LazyLinear(3).double(), nn.BatchNorm1d(3), nn.LazyLinear(2))
        told = "'0.weight' is float32[3, 4] in the checkpoint, and float64[3, 4] in this model"
        with parallel.raises(rueda.InvalidArgumentError, told, "float32 of any shape"):
            ck.load(path, model=wide)


def check_a_part_that_refuses_its_state_is_told_by_all() -> None:
    class Refusing(Holder):
        def load_state_dict(self, state: Any) -> None:
            if rueda.rank() == rueda.size() - 1:
                raise ValueError("no, thanks")

    with folder() as path:
        ck.save(path, 1, sampler=Refusing({"at": 3})).result(60)
        where = f"rank {rueda.size() - 1}"
        with parallel.raises(rueda.InvalidArgumentError, where, "sampler: ValueError: no, thanks"):
            ck.load(path, sampler=Refusing())
        parallel.still_works()


if __name__ == "__main__":
    parallel.run(globals())
