"""What the measuring ranks share: timing and how results travel to measure.py."""

from __future__ import annotations

import ctypes
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

RESULT = "RESULT "
FLOAT32, SUM = 7, 0  # of ncclDataType_t and ncclRedOp_t


def report(**values: object) -> None:
    """Hands one result to measure.py, through standard output."""
    print(RESULT + json.dumps(values), flush=True)


def synchronize(device: torch.device) -> None:
    """Waits for the GPU; the CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(
    run: Callable[[], None],
    finish: Callable[[], None],
    repeat: int,
    rounds: int,
    warm_up: int = 3,
) -> float:
    """Median over rounds of a call's time on the host; ``finish`` is not part of it."""
    seconds = []
    for number in range(rounds + warm_up):
        finish()
        began = time.perf_counter()
        for _ in range(repeat):
            run()
        taken = time.perf_counter() - began
        if number >= warm_up:
            seconds.append(taken / repeat)
    finish()
    return statistics.median(seconds)


def stream_seconds(run: Callable[[], None], repeat: int, rounds: int, warm_up: int = 3) -> float:
    """Median over rounds of a call's time on the current stream.

    A kernel that only takes time comes first, so that the stream never waits for the host.
    """
    seconds = []
    for number in range(rounds + warm_up):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(40_000_000)  # about 20 ms
        begin.record()
        for _ in range(repeat):
            run()
        end.record()
        if begin.query():
            raise RuntimeError("the host was slower than the delay: the stream waited for it")
        end.synchronize()
        if number >= warm_up:
            seconds.append(begin.elapsed_time(end) / 1e3 / repeat)
    return statistics.median(seconds)


class RawNccl:
    """A communicator of one rank, and nothing between the caller and NCCL.

    Of the libnccl.so.2 that torch has loaded. Raises ``RuntimeError`` with NCCL's own text where a call fails.
    """

    class _UniqueId(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_char * 128)]

    def __init__(self) -> None:
        torch.cuda.init()
        self._library = ctypes.CDLL(_loaded_nccl())
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._library.ncclAllReduce.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        identity = self._UniqueId()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(identity)))
        communicator = ctypes.c_void_p()
        self._check(
            self._library.ncclCommInitRank(
                ctypes.byref(communicator), ctypes.c_int(1), identity, ctypes.c_int(0)
            )
        )
        self._communicator = communicator.value

    def allreduce_(self, tensor: torch.Tensor) -> None:
        """Sums a float32 tensor in place on the current stream."""
        pointer = tensor.data_ptr()
        stream = torch.cuda.current_stream().cuda_stream
        code = self._library.ncclAllReduce(
            pointer, pointer, tensor.numel(), FLOAT32, SUM, self._communicator, stream
        )
        self._check(code)

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NCCL: {self._library.ncclGetErrorString(code).decode()}")


def _loaded_nccl() -> str:
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"(/\S*libnccl\.so\S*)", maps)
    return found[1] if found else "libnccl.so.2"
