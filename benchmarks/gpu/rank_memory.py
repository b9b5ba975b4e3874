"""One rank: memory of the GPU that is neither torch's nor was there before, after each thing that Rueda does."""

from __future__ import annotations

from collections.abc import Callable

import rueda
import rueda.torch as rt
import torch
from rank_timing import RawNccl, report


def beyond_torch() -> int:
    """Bytes of the GPU that are in use by whomever, but for those that torch's allocator holds."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def main() -> None:
    rueda.init()
    torch.cuda.set_device(0)
    tensor = torch.ones(1 << 20, device="cuda")
    many = [torch.ones(100_000, device="cuda") for _ in range(161)]
    before = beyond_torch()

    def tell(what: str, run: Callable[[], object]) -> None:
        nonlocal before
        run()
        now = beyond_torch()
        report(what=what, bytes=now - before)
        before = now

    raw = RawNccl()
    tell("a communicator of NCCL's, and an allreduce", lambda: raw.allreduce_(tensor))
    tell("the first allreduce of Rueda's", lambda: rt.allreduce_(tensor, name="t", op=rt.Sum))
    tell("the same again", lambda: rt.allreduce_(tensor, name="t", op=rt.Sum))
    tell(
        "161 tensors of 400 kB, packed",
        lambda: rt.grouped_allreduce_(many, name="many", op=rt.Sum),
    )
    tell("an allgather of 4 MiB", lambda: rt.allgather(tensor, name="gather"))
    rueda.shutdown()
    tell("shutdown()", lambda: None)


if __name__ == "__main__":
    main()
