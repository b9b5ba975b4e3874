"""Every rank: the bytes that strategies send; needs RUEDA_ALGORITHM=ring to send any."""

from __future__ import annotations

import math

import parallel
import rueda
import rueda.torch as rt
import torch
from rueda.torch.strategies import Strategy
from torch import nn

STEPS = 16
COUNTERS = (
    "allreduce_payload_bytes_sent",
    "allgather_payload_bytes_sent",
    "point_to_point_bytes_sent",
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


ELEMENTS = [each.numel() for each in network().parameters()]


def sent(strategy: Strategy | str, steps: int = STEPS) -> int:
    """Bytes that all ranks together send in the run."""
    trained = network()
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    wrapped = rt.wrap(trained, optimizer, strategy=strategy)
    before = [rueda.metrics()[name] for name in COUNTERS]
    for _ in range(steps):
        wrapped.zero_grad()
        trained(torch.randn(4, 64)).square().mean().backward()
        wrapped.step()
    own = sum(rueda.metrics()[name] - count for name, count in zip(COUNTERS, before, strict=True))
    return sum(rueda.allgather_object(own))


def around(times: int, bytes_: int) -> int:
    """Bytes of ring allreduces: each rank sends 2(P-1)/P of the data per allreduce."""
    return times * 2 * (rueda.size() - 1) * bytes_


def check_dense_strategies() -> None:
    whole = 4 * sum(ELEMENTS)
    for strategy, times in (
        ("accumulate:4", 4),
        ("local:8", 2),  # an eighth
        ("diloco:8", 2),
        ("diloco:8,fragments=2", 2),
        ("oneshot", 0),
        ("easgd:4", 4),
        ("desloc:4,8,16", 4 + 2 + 1),
    ):
        assert sent(strategy) == around(times, whole), strategy
    # In buckets, which align gradients.
    for strategy, times in (("sync", 16), ("postlocal:4,after=8", 8 + 2)):
        assert around(times, whole) <= sent(strategy) < 1.01 * around(times, whole), strategy


def check_codecs() -> None:
    """A byte per element, and two per block of 128; a segment ends a block."""
    blocks = sum(-(-each // 128) for each in ELEMENTS)
    for strategy, times in (("diloco:8,codec=int8", 2), ("diloco:4,fragments=2,codec=int8", 4)):
        least = around(times, sum(ELEMENTS) + 2 * blocks)
        most = around(times, sum(ELEMENTS) + 2 * (blocks + len(ELEMENTS) * rueda.size()))
        assert least <= sent(strategy) <= most, (strategy, least, sent(strategy), most)
    assert sent("diloco:8,codec=fp16") == around(2, 2 * sum(ELEMENTS))


def check_pairs() -> None:
    """Each sends once, whatever the world size; with odd sizes one rank is left per round."""
    paired = rueda.size() // 2 * 2
    assert sent("adpsgd:4") == 4 * paired * 4 * sum(ELEMENTS)
    assert sent("noloco:8") == 2 * paired * 2 * 4 * sum(ELEMENTS)


def check_largest_elements() -> None:
    """2.25 bytes per selected element, and 8 per parameter, to all other ranks."""
    chosen = [math.ceil(0.05 * each) for each in ELEMENTS]
    message = sum(2 * each + math.ceil(each / 4) + 8 for each in chosen)
    assert sent("sparseloco:8,0.05") == 2 * rueda.size() * (rueda.size() - 1) * message


if __name__ == "__main__":
    parallel.run(globals())
