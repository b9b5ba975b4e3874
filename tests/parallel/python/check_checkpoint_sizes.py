"""Every rank: saves or loads checkpoints in the folder argv[1], at any world size."""

from __future__ import annotations

import hashlib
import sys

import parallel
import rueda
import rueda.checkpoint as ck
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


if __name__ == "__main__":
    parallel.run(globals())
