"""A rank that calls DeepSpeed's shared-memory allreduce, which sums in place."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

from .frame import Call, PythonContender, UnsupportedCall, Work, serve
from .gloo_rank import bytes_of

_DTYPES = ("float32", "bfloat16", "float16")  # it silently leaves others unchanged


class _DeepSpeed(PythonContender):
    def __init__(self, token: str) -> None:
        self.rank, self.size = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])
        # DeepSpeed builds the names of its segments from these.
        self._mark = f"{token}-{os.getppid()}"
        os.environ |= {"LOCAL_SIZE": str(self.size), "MASTER_ADDR": self._mark, "MASTER_PORT": "0"}
        library = ShareMemCommBuilder().load(verbose=False)  # compiled when first needed
        library.initialize(self.size, self.rank)

    def facts(self) -> dict[str, str]:
        return {"version": f"deepspeed {version('deepspeed')}, torch {torch.__version__}"}

    def prepare(self, work: Work) -> Call:
        if work.op != "sum" or work.dtype not in _DTYPES:
            raise UnsupportedCall(f"DeepSpeed sums {', '.join(_DTYPES)} only")
        tensor = torch.zeros(work.input_count, dtype=getattr(torch, work.dtype))
        memory = bytes_of(tensor)
        reduce = torch.ops.deepspeed.inference_all_reduce_
        return Call(lambda: reduce(tensor), memory, lambda: memory)

    def close(self) -> None:
        for segment in Path("/dev/shm").glob(f"*{self._mark}*"):  # DeepSpeed leaves them behind
            with contextlib.suppress(OSError):
                segment.unlink()


if __name__ == "__main__":
    serve(_DeepSpeed(sys.argv[2]), sys.argv[1], sys.argv[2])
