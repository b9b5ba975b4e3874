"""A rank that calls `torch.distributed` with gloo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .frame import Bytes, Call, PythonContender, UnsupportedCall, Work, serve

_OPS = {
    "sum": dist.ReduceOp.SUM, "average": dist.ReduceOp.AVG, "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX, "product": dist.ReduceOp.PRODUCT, "bit_and": dist.ReduceOp.BAND,
    "bit_or": dist.ReduceOp.BOR, "bit_xor": dist.ReduceOp.BXOR,
}  # fmt: skip


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """The tensor's memory as bytes, because NumPy does not have all of torch's types."""
    view: Bytes = tensor.view(torch.uint8).numpy()
    return view


def _prepare(work: Work) -> Call:
    dtype = getattr(torch, work.dtype, None)
    if dtype is None:
        raise UnsupportedCall(f"torch has no {work.dtype}")
    given = torch.zeros(work.input_count, dtype=dtype)
    got = given if work.in_place else torch.zeros(work.output_count, dtype=dtype)
    op: Any = _OPS[work.op]
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: dist.all_reduce(given, op),
        "broadcast": lambda: dist.broadcast(given, work.root),
        "allgather": lambda: dist.all_gather_into_tensor(got, given),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(got, given, op),
        "alltoall": lambda: dist.all_to_all_single(got, given),
    }
    call = calls[work.collective]
    try:
        call()  # gloo rejects unsupported calls before it sends anything
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise UnsupportedCall(str(error).splitlines()[0]) from error
    result = bytes_of(got)
    return Call(call, bytes_of(given), lambda: result)


class _Gloo(PythonContender):
    def __init__(self, folder: str) -> None:
        self.rank, self.size = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", f"file://{folder}/gloo-store", rank=self.rank, world_size=self.size
        )

    def facts(self) -> dict[str, str]:
        return {"version": f"torch {torch.__version__}, numpy {np.__version__}"}

    def prepare(self, work: Work) -> Call:
        return _prepare(work)

    def close(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    serve(_Gloo(sys.argv[3]), sys.argv[1], sys.argv[2])
