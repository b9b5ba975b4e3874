"""Every rank of four: two data-parallel replicas of a model, each sharded over two ranks.

Each is compared with the same strategy on whole models, to 1e-5; parameters are float32, about 0.1
to 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import rueda
import rueda.torch as rt
import torch
import torch.distributed as dist
from c10d import DEVICE, raises, run, still_works
from rueda.torch.parallel import Grid, require_memory
from rueda.torch.shards import is_cut, local_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

Optimizer = torch.optim.Optimizer
Make = Callable[[Iterator[nn.Parameter]], Optimizer]
STEPS = 8
GRIDS: list[Grid] = []


def grid() -> Grid:
    if not GRIDS:
        GRIDS.append(Grid(DEVICE.type, replicate=2, shard=-1))
    return GRIDS[0]


def make_model(seed: int = 3) -> nn.Sequential:
    """A model whose rows cannot be divided evenly among two ranks."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7), nn.LayerNorm(7))


def by_fsdp(model: nn.Sequential) -> nn.Module:
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=grid().mesh["shard"])
    return fully_shard(model, mesh=grid().mesh["shard"])


def by_tensors(model: nn.Sequential) -> nn.Module:
    """The last layer is whole and used for rows of the batch: its gradients are partial sums."""
    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(output_layouts=_rows(), use_local_output=False),
        "3": SequenceParallel(sequence_dim=0, use_local_output=True),
    }
    return parallelize_module(model, grid().mesh["shard"], plan)


def _rows() -> object:
    from torch.distributed.tensor import Shard

    return Shard(0)


WAYS = {"fsdp": by_fsdp, "tensors": by_tensors}


def sgd(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def adam(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of all ranks of one replica."""
    generator = torch.Generator("cpu").manual_seed(1000 * grid().coordinate("replicate") + step)
    x = torch.randn(8, 6, generator=generator, device="cpu")
    y = F.layer_norm(torch.cat([x, x[:, :1]], 1), (7,))
    return x.to(DEVICE), y.to(DEVICE)


def train(model: nn.Module, optimizer: Optimizer, first: int, steps: int) -> float:
    """Trains and returns the sum of this rank's losses."""
    total = 0.0
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        out = model(x)
        if len(out) != len(y):  # this rank's rows
            half = len(y) // 2
            mine = slice(0, half) if grid().coordinate("shard") == 0 else slice(half, len(y))
            loss = F.mse_loss(out, y[mine], reduction="sum") / y.numel()
        else:
            loss = F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def wholes(model: nn.Module) -> list[torch.Tensor]:
    return [
        (each.full_tensor() if isinstance(each, DTensor) else each).detach()
        for each in model.parameters()
    ]


def require_close(cut: nn.Module, whole: nn.Module, what: str) -> None:
    for mine, (name, theirs) in zip(wholes(cut), whole.named_parameters(), strict=True):
        torch.testing.assert_close(
            mine, theirs.detach(), rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{what}, {n}: {m}"
        )


def require_same_bits(model: nn.Module) -> None:
    parts = [local_of(each).detach().cpu().numpy().tobytes() for each in model.parameters()]
    found = rueda.allgather_object(parts, "parts", grid().process_set("replicate"))
    assert found[0] == found[1], "those that hold the same part have other bits"


def pair(way: str, make: Make, strategy: str) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    """A sharded model and a whole one, trained by the same strategy."""
    cut, whole = WAYS[way](make_model()), make_model()
    together = grid().process_set("replicate")
    return (
        cut,
        rt.wrap(cut, make(cut.parameters()), strategy, process_set=together),
        whole,
        rt.wrap(whole, make(whole.parameters()), strategy, process_set=together),
    )


def check_strategies_train_what_is_cut_as_what_is_whole() -> None:
    texts = {
        "sync": sgd,
        "accumulate:2": adam,
        "local:3": adam,
        "diloco:2": sgd,
        "diloco:4,fragments=2,delay=1": adam,
        "desloc:2,4,4": adam,
        "easgd:2": sgd,
        "adpsgd:1": sgd,
        "noloco:2": adam,
    }
    for way, which in (("fsdp", texts), ("tensors", ("sync", "accumulate:2", "desloc:2,4,4"))):
        for text in which:
            make = texts[text]
            cut, optimizer, whole, other = pair(way, make, text)
            assert any(map(is_cut, cut.parameters()))
            train(cut, optimizer, 0, STEPS)
            train(whole, other, 0, STEPS)
            require_close(cut, whole, f"{way}, {text}")
            for each in (optimizer, other):
                each.consolidate()
            require_close(cut, whole, f"{way}, {text}, at the end")
            require_same_bits(cut)
            for each in (optimizer, other):
                each.close()


def check_strategies_whose_parts_differ_come_to_one_model() -> None:
    """What is sent for a part differs from the whole's, or depends on the order of arrival."""
    texts = ("sync:int8", "diloco:2,codec=int8", "sparseloco:2", "downpour:2", "eamsgd:2")
    for way, which in (("fsdp", texts), ("tensors", ("eamsgd:2",))):
        for text in which:
            cut = WAYS[way](make_model())
            together = grid().process_set("replicate")
            optimizer = rt.wrap(cut, sgd(cut.parameters()), text, process_set=together)
            before, after = (train(cut, optimizer, 0, STEPS) for _ in range(2))
            optimizer.consolidate()
            require_same_bits(cut)
            assert after < before, f"{way}, {text}: {before} to {after}"
            optimizer.close()


def check_switching_and_states() -> None:
    for way in WAYS:
        cut, optimizer, whole, other = pair(way, adam, "local:3")
        for each, model in ((optimizer, cut), (other, whole)):
            train(model, each, 0, 4)
            each.switch("diloco:2")
            train(model, each, 4, 3)
        require_close(cut, whole, f"{way}, switched")
        kept = copy.deepcopy([optimizer.state_dict(), [local_of(p) for p in cut.parameters()]])
        train(cut, optimizer, 7, 3)
        expected = [each.clone() for each in wholes(cut)]
        optimizer.load_state_dict(kept[0])
        with torch.no_grad():
            for parameter, value in zip(cut.parameters(), kept[1], strict=True):
                local_of(parameter).copy_(value)
        train(cut, optimizer, 7, 3)
        for mine, theirs in zip(wholes(cut), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        for each in (optimizer, other):
            each.close()


def check_ranks_begin_with_what_the_first_holds() -> None:
    """Parameters and the state of an optimizer that has taken a step on the first rank only."""
    replica = grid().coordinate("replicate")
    together = grid().process_set("replicate")
    for way in WAYS:
        cut, whole = WAYS[way](make_model(seed=3 + replica)), make_model()
        optimizer, other = adam(cut.parameters()), adam(whole.parameters())
        x, y = torch.ones(8, 6, device=DEVICE), torch.ones(8, 7, device=DEVICE)
        F.mse_loss(whole(x), y).backward()
        other.step()
        other.zero_grad()
        if replica == 0:
            rows = 4 if way == "tensors" else 8
            (F.mse_loss(cut(x), y[:rows], reduction="sum") / y.numel()).backward()
            optimizer.step()
            optimizer.zero_grad()
        wrapped = rt.wrap(cut, optimizer, "sync", process_set=together)
        reference = rt.wrap(whole, other, "sync", process_set=together)
        require_close(cut, whole, f"{way}, at the beginning")
        train(cut, wrapped, 0, 3)
        train(whole, reference, 0, 3)
        require_close(cut, whole, f"{way}, after it")
        require_same_bits(cut)


def check_distributed_optimizer() -> None:
    """With clipped gradients, groups, an unused layer, and comparisons of parts."""
    together = grid().process_set("replicate")
    for way in WAYS:
        models = [WAYS[way](make_model()), make_model()]
        optimizers = []
        for model in models:
            model.register_parameter("unused", nn.Parameter(torch.ones(3, device=DEVICE)))
            optimizers.append(
                rt.DistributedOptimizer(
                    sgd(model.parameters()),
                    model.named_parameters(),
                    process_set=together,
                    groups=2,
                    check_every=2,
                )
            )
        for step in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                x, y = batch(step)
                optimizer.zero_grad()
                out = model(x)
                half = slice(0, 4) if grid().coordinate("shard") == 0 else slice(4, 8)
                (F.mse_loss(out, y[half] if len(out) == 4 else y, reduction="sum")).backward()
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(
                    [p for p in model.parameters() if p is not model.unused], 1.0
                )
                optimizer.step()
        require_close(*models, way)
        require_same_bits(models[0])
        rt.check_agreement(models[0], optimizers[0], process_set=together)


def check_other_parts_are_refused() -> None:
    for way in WAYS:
        cut = WAYS[way](make_model())
        with raises(rueda.MismatchError, "rank 0 holds part 1 of 2", "rueda.torch.parallel.Grid"):
            rt.wrap(cut, sgd(cut.parameters()), "local:2")
        with raises(rueda.MismatchError, "holds part 1 of 2"):
            rt.DistributedOptimizer(sgd(cut.parameters()), cut.named_parameters())
        with raises(
            rueda.MismatchError, "(part 1 of 2 of dimension 0)", "the ranks compare different"
        ):
            rt.check_agreement(cut)
        together = grid().process_set("replicate")
        for option in ({"overlap_forward": True}, {"reproducible": True, "leaves": 4}):
            with raises(rueda.UnsupportedError, "is sharded over ranks (DTensor)"):
                rt.DistributedOptimizer(sgd(cut.parameters()), process_set=together, **option)
    still_works()


def check_grids() -> None:
    mine = grid()
    rank = dist.get_rank()
    assert (mine.size("replicate"), mine.size("shard")) == (2, 2)
    assert (mine.coordinate("replicate"), mine.coordinate("shard")) == (rank // 2, rank % 2)
    assert mine.process_set("replicate").ranks == [rank % 2, rank % 2 + 2]
    assert mine.process_set("shard").ranks == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert mine.process_set("shard") is mine.process_set("shard")
    assert repr(mine) == "Grid(replicate=2, shard=2)"
    assert Grid(DEVICE.type, all=-1).process_set("all") is rueda.global_process_set
    for sizes, why in (
        ({}, "is not a grid"),
        ({"a": 0}, "is not a grid"),
        ({"a": -1, "b": -1}, "is not a grid"),
        ({"a": 3}, "does not make up the 4 ranks"),
        ({"a": 3, "b": -1}, "which 3 does not divide"),
        ({"a": 2.0, "b": -1}, "a=2.0 is not a whole number"),
        ({"a": "2", "b": -1}, "a='2' is not a whole number"),
        ({"a": -2, "b": -1}, "a=-2 is less than -1"),
    ):
        with raises(rueda.InvalidArgumentError, why):
            Grid(DEVICE.type, **sizes)
    assert repr(Grid(DEVICE.type, a=True, b=-1)) == "Grid(a=1, b=4)"
    for device in (2, "xyz", None):
        with raises(rueda.InvalidArgumentError, f"device={device!r} is neither 'cpu' nor 'cuda'"):
            Grid(device, a=-1)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "rank 1: a=4.5 is not a whole number"):
        Grid(DEVICE.type, a=4.5 if rank == 1 else 4)
    with raises(rueda.MismatchError, "the grid differs between ranks", "rank 1: a=1, b=4"):
        Grid(DEVICE.type, a=1 if rank == 1 else 2, b=-1)
    still_works()
    with raises(rueda.InvalidArgumentError, "there is no dimension 'tensor'"):
        mine.process_set("tensor")


def check_a_model_that_is_too_large() -> None:
    with torch.device("meta"):
        model = nn.Linear(1000, 1000, bias=False)
    assert require_memory(model, 2, shards=4) == 4_000_000
    # Only rank 2 has less: all learn that, and how many parts are needed.
    limit = 3_000_000 if dist.get_rank() == 2 else 10_000_000
    text = "rank 2 lacks 4.000 MB and has 3.000 MB: 6 parts would fit"
    with raises(rueda.InvalidArgumentError, text):
        require_memory(model, 2, shards=4, limit=limit)
    # Memory already allocated is not counted again.
    cut = by_fsdp(nn.Sequential(nn.Linear(1000, 1000, bias=False)))
    assert require_memory(cut, 0, shards=2, limit=2_100_000) == 4_000_000
    with raises(rueda.InvalidArgumentError, "too large"):
        require_memory(cut, 0, shards=2, limit=1_900_000)
    for arguments, text in (
        ({"shards": 0}, "shards=0 is less than 1"),
        ({"shards": 2.5}, "shards=2.5 is not a whole number"),
        ({"optimizer_values": float("nan")}, "optimizer_values=nan is not a finite number"),
        ({"optimizer_values": -1}, "optimizer_values=-1 is not a finite number of at least 0"),
        ({"limit": float("nan")}, "limit=nan is not a finite number"),
        ({"limit": "5GB"}, "limit='5GB' is not a finite number"),
    ):
        given = {"optimizer_values": 0, **arguments}
        with raises(rueda.InvalidArgumentError, text):
            require_memory(cut, **given)
        if dist.get_rank() == 1:
            given = {"optimizer_values": 0}
        with raises(rueda.InvalidArgumentError, f"ranks 0, 2, 3: {text}"):
            require_memory(cut, **given)
    with raises(rueda.MismatchError, "number of shards differs between ranks"):
        require_memory(cut, 0, shards=4 if dist.get_rank() == 1 else 2)
    small = nn.Linear(3, 5, device="meta")
    with raises(rueda.InvalidArgumentError, "have 320 bytes", "320 bytes and has 1 byte:"):
        require_memory(small, 2, limit=1)
    still_works()


if __name__ == "__main__":
    run(globals())
