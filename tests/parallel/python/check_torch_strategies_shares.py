"""Every rank, over TCP: none sends more than the others, negotiation and headers included."""

from __future__ import annotations

import parallel
import rueda
import rueda.torch as rt
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 64
COUNTERS = (
    "allreduce_payload_bytes_sent",
    "allgather_payload_bytes_sent",
    "broadcast_payload_bytes_sent",
    "point_to_point_bytes_sent",
    "table_bytes_sent",
    "control_bytes_sent",
)


def sent(strategy: str, make: type[torch.optim.Optimizer]) -> list[int]:
    """Bytes that each rank sends in these steps."""
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = make(trained.parameters(), lr=0.01)  # type: ignore[call-arg]
    wrapped = rt.wrap(trained, optimizer, strategy=strategy)
    rueda.barrier()
    before = [rueda.metrics()[name] for name in COUNTERS]
    for step in range(STEPS):
        torch.manual_seed(rueda.size() * step + rueda.rank())
        wrapped.zero_grad()
        x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
        F.cross_entropy(trained(x), y).backward()
        wrapped.step()
    rueda.barrier()  # owners answer until all have finished
    own = sum(rueda.metrics()[name] - count for name, count in zip(COUNTERS, before, strict=True))
    of_all = rueda.allgather_object(own)
    wrapped.consolidate()
    stop = getattr(wrapped.strategy, "stop", None)
    if stop is not None:
        stop()
    return of_all


def check_no_rank_sends_more_than_the_others() -> None:
    """In particular not rank 0, which leads the negotiation: 105% of the mean at most."""
    for strategy in (
        "sync",
        "accumulate:4",
        "local:16",
        "diloco:16",
        "diloco:16,codec=int8",
        "diloco:16,fragments=2,delay=4,mixing=0.5",
        "sparseloco:16,0.03",
        "easgd:4",
        "desloc:16,32,64",
        "adpsgd:4",
        "noloco:16",
        "downpour:1",
        "downpour:20",
        "adag:5",
        "dynsgd:5",
        "aeasgd:4",
        "hogwild",
        "ssp:3",
        "ssp:inf",
    ):
        is_moments = strategy.startswith("desloc")
        of_all = sent(strategy, torch.optim.Adam if is_moments else torch.optim.SGD)
        mean = sum(of_all) / len(of_all)
        if rueda.rank() == 0:
            print(strategy, [f"{100 * each / mean:.2f}" for each in of_all], flush=True)
        assert mean > 0, strategy
        assert max(of_all) <= 1.05 * mean, (strategy, of_all)


if __name__ == "__main__":
    parallel.run(globals())
