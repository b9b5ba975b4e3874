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


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class _Config(ctypes.Structure):
    """ncclConfig_t as of 2.18: NCCL reads as much of it as ``size`` and ``version`` tell."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    ]


_UNDEFINED = -(2**31)


class RawNccl:
    """A communicator of one rank, and nothing between the caller and NCCL.

    Of the libnccl.so.2 that torch has loaded. Raises ``RuntimeError`` with NCCL's own text where a call fails.
    """

    def __init__(self) -> None:
        torch.cuda.init()
        self._library = nccl = ctypes.CDLL(loaded_nccl())
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        nccl.ncclAllReduce.argtypes = [address, address, size, number, number, address, address]
        nccl.ncclSend.argtypes = [address, size, number, number, address, address]
        nccl.ncclRecv.argtypes = [address, size, number, number, address, address]
        identity = _UniqueId()
        self._check(nccl.ncclGetUniqueId(ctypes.byref(identity)))
        config = _Config(ctypes.sizeof(_Config), 0xCAFEBEEF, 21800, 1, *[_UNDEFINED] * 3)
        config.split_share = _UNDEFINED
        communicator = ctypes.c_void_p()
        self._check(
            nccl.ncclCommInitRankConfig(
                ctypes.byref(communicator), number(1), identity, number(0), ctypes.byref(config)
            )
        )
        self._communicator = communicator.value

    def allreduce_(self, tensor: torch.Tensor) -> None:
        """Sums a float32 tensor in place on the current stream."""
        pointer = tensor.data_ptr()
        stream = torch.cuda.current_stream().cuda_stream
        self._check(
            self._library.ncclAllReduce(
                pointer, pointer, tensor.numel(), FLOAT32, SUM, self._communicator, stream
            )
        )

    def alltoall(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Sends all of a float32 tensor to the one rank there is, on the current stream."""
        nccl, communicator = self._library, self._communicator
        stream = torch.cuda.current_stream().cuda_stream
        self._check(nccl.ncclGroupStart())
        self._check(
            nccl.ncclSend(source.data_ptr(), source.numel(), FLOAT32, 0, communicator, stream)
        )
        self._check(
            nccl.ncclRecv(target.data_ptr(), target.numel(), FLOAT32, 0, communicator, stream)
        )
        self._check(nccl.ncclGroupEnd())

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NCCL: {self._library.ncclGetErrorString(code).decode()}")


def loaded_nccl() -> str:
    """The path of the libnccl.so.2 that this process has loaded; its name where it has none."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"(/\S*libnccl\.so\S*)", maps)
    return found[1] if found else "libnccl.so.2"
