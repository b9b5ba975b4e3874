"""The machine's limits: which loops measure them, and what the results mean."""

from __future__ import annotations

from dataclasses import dataclass

_FEW = 3
_BIG = 64 << 20  # bytes: far more than a cache has for each core


@dataclass(frozen=True)
class Limit:
    """A loop of benchmarks/worker/limits_contender.cpp that is measured once, at one size."""

    name: str
    what: str
    size: int
    calls: int  # in each round
    bytes_moved: int = 0  # by each rank per call; 0: the result is a time, not a rate
    alone: bool = False  # on one rank only

    def describe(self, seconds: float, ranks: int) -> str:
        """The result as a time or a rate, with its unit."""
        if not self.bytes_moved:
            return f"{seconds * 1e6:.3f} µs"
        return f"{self.rate(seconds, ranks):.1f} GB/s"

    def rate(self, seconds: float, ranks: int) -> float:
        """GB/s, summed over the ranks that take part."""
        return self.bytes_moved * (1 if self.alone else ranks) / seconds / 1e9


FLAG_EXCHANGE = Limit("flag_exchange", "two ranks on two cores exchange a flag", 4, 300)
YIELD_HANDOFF = Limit("yield_handoff", "two ranks on one core hand over by sched_yield", 4, 10)
LIMITS = (
    FLAG_EXCHANGE,
    YIELD_HANDOFF,
    Limit("copy_one", "memcpy on one rank, bytes copied", _BIG, _FEW, _BIG, alone=True),
    Limit("copy_all", "memcpy on all ranks at once, bytes copied", _BIG, _FEW, _BIG),
    Limit("add_one", "a += b on one rank, loads and stores", _BIG, _FEW, 3 * _BIG, alone=True),
    Limit("add_all", "a += b on all ranks at once, loads and stores", _BIG, _FEW, 3 * _BIG),
    Limit("vm_read_one", "process_vm_readv by one rank", _BIG, _FEW, _BIG, alone=True),
    Limit("vm_read_all", "process_vm_readv by all ranks at once", _BIG, _FEW, _BIG),
)

# At each size: the loads and stores of an allreduce in shared memory on huge pages, without
# waiting for other ranks. The limit is the faster of the two.
SHARED_SUMS = ("shared_sum", "shared_sum_streaming")


def room(sizes: tuple[int, ...]) -> int:
    """Bytes each rank needs in the shared area."""
    return max(sizes)
