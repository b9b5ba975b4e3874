"""Every rank: saves or loads checkpoints in the folder argv[1], at any world size."""

from __future__ import annotations

import hashlib
import sys

import parallel
import rueda
import rueda.checkpoint as ck
import rueda.torch as rt
import torch

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Linear(300, 40)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
parts = {"model": model, "optimizer": optimizer}


def take_step(step: int) -> None:
    """A training step, the same on any number of ranks."""
    torch.manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(8, 40).double()).square().mean().backward()
    optimizer.step()


def digest() -> str:
    state = list(model.state_dict().values())
    state += [t for each in optimizer.state_dict()["state"].values() for t in each.values()]
    bits = b"".join(t.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for t in state)
    return hashlib.sha256(bits).hexdigest()[:16]


def check_saving() -> None:
    for step in range(3):
        take_step(step)
    saved = ck.save(sys.argv[1], 3, **parts, extra=digest(), each_rank=rueda.rank())
    take_step(3)
    saved.result(60)


def check_loading() -> None:
    """Loads all available checkpoints, then saves again."""
    complete = ck.available(sys.argv[1])
    assert complete
    for each in complete:
        loaded = ck.load(sys.argv[1], step=each.step, **parts)
        assert loaded is not None
        assert digest() == loaded.extra
        ranks = len(loaded.each_rank)
        assert loaded.each_rank in ([None] * ranks, list(range(ranks))), loaded
    again = f"{sys.argv[1]}/again-{rueda.size()}"
    ck.save(again, 4, **parts, extra=digest()).result(60)
    take_step(4)
    assert ck.load(again, **parts).extra == digest()


def accumulating() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model whose step is the mean gradient of two batches, with dense and sparse gradients."""
    net = torch.nn.ModuleDict({"rows": torch.nn.Embedding(12, 2, sparse=True)})
    net["dense"] = torch.nn.Linear(2, 1)
    for each in net.parameters():
        torch.nn.init.ones_(each)
    return net, rt.wrap(net, torch.optim.SGD(net.parameters(), lr=1.0), "accumulate:2")


def check_saving_within_a_step() -> None:
    """Each rank has another gradient: of row r, r + 1 times."""
    net, optimizer = accumulating()
    chosen = torch.tensor([rueda.rank()] * (rueda.rank() + 1))
    net["dense"](net["rows"](chosen)).sum().backward()
    optimizer.step()
    ck.save(f"{sys.argv[1]}/within", 1, model=net, optimizer=optimizer).result(60)


def check_loading_within_a_step() -> None:
    """The step has the mean of what the ranks had summed, however many they were."""
    net, optimizer = accumulating()
    loaded = ck.load(f"{sys.argv[1]}/within", model=net, optimizer=optimizer)
    assert loaded is not None
    ranks = len(loaded.each_rank)
    optimizer.zero_grad()
    (net["dense"](net["rows"](torch.tensor([0]))).sum() * 0.0).backward()
    optimizer.step()  # which is that of two batches
    counts = torch.zeros(12)
    counts[:ranks] = torch.arange(1.0, ranks + 1)
    mean = counts / ranks / 2
    torch.testing.assert_close(net["rows"].weight, (1 - mean)[:, None].expand(12, 2))
    torch.testing.assert_close(net["dense"].weight, (1 - mean.sum()).expand(1, 2))
    assert net["rows"].weight.grad.layout == torch.sparse_coo


if __name__ == "__main__":
    parallel.run(globals())
