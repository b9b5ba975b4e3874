"""Common to all ranks in Python: joins the group, then sleeps, runs blocks of calls and answers.

Does the same as benchmarks/worker/timed_block.cpp.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..values import element_size
from ..wire import Message, connect_to_driver, receive, send

Bytes = npt.NDArray[np.uint8]
_LINE = 512  # bytes between the flags of two ranks
_PATIENT_SPINS = 1 << 16  # a few ms, after which a waiting rank yields the processor


class UnsupportedCall(Exception):
    """The contender does not support a call. All its ranks raise this alike."""


@dataclass(frozen=True)
class Work:
    """The calls of one block, as the driver requests them."""

    collective: str
    dtype: str
    op: str
    memory: str
    root: int
    input_count: int
    output_count: int
    in_place: bool

    @property
    def element(self) -> int:
        return element_size(self.dtype)


@dataclass(frozen=True)
class Call:
    """One collective with its own buffers."""

    run: Callable[[], object]  # the timed part
    input: Bytes
    output: Callable[[], Bytes]  # the result of the last run


class PythonContender(ABC):
    """A library with collectives."""

    rank: int
    size: int

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Versions and the like."""

    @abstractmethod
    def prepare(self, work: Work) -> Call:
        """Allocates buffers for a call. Raises UnsupportedCall."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group."""


class FlagBarrier:
    """A barrier over flags in shared memory; see benchmarks/worker/shared_area.h."""

    def __init__(self, area: mmap.mmap, rank: int, ranks: int, yields: bool) -> None:
        self._words = memoryview(area).cast("Q")
        self.rank, self.size = rank, ranks
        self._own = rank * _LINE // 8
        self._peers = [peer * _LINE // 8 for peer in range(ranks) if peer != rank]
        self._max_spins = 0 if yields else _PATIENT_SPINS
        self._sequence = 0

    def wait(self) -> None:
        words, sequence = self._words, self._sequence + 1
        self._sequence = sequence
        words[self._own] = sequence
        for peer in self._peers:
            spins = 0
            while words[peer] < sequence:
                spins += 1
                if spins > self._max_spins:
                    os.sched_yield()


class Values:
    """Writes values to a buffer and checks results; see benchmarks/worker/work.h."""

    def __init__(self, message: Message, element: int) -> None:
        self._element = element
        self._period = message.number("period")
        self._tables = np.frombuffer(message.payload, np.uint8).reshape(-1, self._period * element)
        self._blocks = [
            tuple(map(int, block.split(","))) for block in message.values["expected"].split()
        ]

    def _pieces(self, buffer: Bytes, table: int, phase: int) -> list[tuple[Bytes, Bytes]]:
        start = phase % self._period * self._element
        values = np.roll(self._tables[table], -start)
        whole = len(buffer) // len(values) * len(values)
        rest = buffer[whole:]
        return [(buffer[:whole].reshape(-1, len(values)), values), (rest, values[: len(rest)])]

    def write(self, buffer: Bytes, iteration: int) -> None:
        for piece, values in self._pieces(buffer, 0, iteration * 37):
            piece[...] = values

    def count_wrong(self, buffer: Bytes, iteration: int) -> int:
        wrong = 0
        at = 0
        for table, phase, count in self._blocks:
            part = buffer[at : at + count * self._element]
            at += count * self._element
            for piece, values in self._pieces(part, table, phase + iteration * 37):
                differs = piece != values
                wrong += int(differs.reshape(-1, self._element).any(axis=1).sum())
        return wrong


class _Prepared:
    """Keeps the last call. As in training, its buffers stay as long as the same work is requested."""

    def __init__(self, contender: PythonContender) -> None:
        self._contender = contender
        self._work: Work | None = None
        self._call: Call | None = None

    def call_of(self, work: Work) -> Call:
        if self._call is None or self._work != work:
            self._call = None  # frees its memory before the next call allocates
            self._call, self._work = self._contender.prepare(work), work
        return self._call


def _run_block(
    prepared: _Prepared, message: Message, barrier: FlagBarrier
) -> tuple[dict[str, object], bytes]:
    values = message.values
    work = Work(
        values["collective"], values["dtype"], values["op"], values["memory"],
        message.number("root"), message.number("input_count"), message.number("output_count"),
        message.number("in_place") != 0,
    )  # fmt: skip
    warmup, iterations = message.number("warmup"), message.number("iterations")
    late = message.number("late") / 1e9
    layout = Values(message, work.element)
    call = prepared.call_of(work)
    entered = np.zeros(iterations, np.int64)
    left = np.zeros(iterations, np.int64)
    wrong = 0
    clock = time.perf_counter_ns  # the monotonic clock, which all ranks of a host share
    run = call.run
    for i in range(-warmup, iterations):
        layout.write(call.input, i + warmup)
        barrier.wait()
        if late and (i + warmup) % barrier.size == barrier.rank:
            time.sleep(late)
        before = clock()
        run()
        after = clock()
        if i >= 0:
            entered[i], left[i] = before, after
        barrier.wait()
        if i in (0, iterations - 1):
            wrong += layout.count_wrong(call.output(), i + warmup)
    answer: dict[str, object] = {"took_part": 1, "steps": 1, "wrong": wrong}
    return answer, entered.tobytes() + left.tobytes()


def _place(rank: int, ranks: int, processors: list[int]) -> None:
    """Like the C++ ranks, binds this thread only, to its own processor if there are enough."""
    os.sched_setaffinity(0, {processors[rank]} if len(processors) >= ranks else processors)


def serve(contender: PythonContender, address: str, token: str) -> None:
    """Connects to the driver and runs the requested blocks until the driver closes the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as driver:
        connect_to_driver(driver, address)
        facts = {f"fact.{name}": value for name, value in contender.facts().items()}
        send(driver, {**facts, "group": token, "rank": contender.rank, "pid": os.getpid()})
        _, descriptors, _, _ = socket.recv_fds(driver, 1, 1)
        area = mmap.mmap(descriptors[0], 0)
        os.close(descriptors[0])
        try:
            processors = [int(number) for number in receive(driver).values["processors"].split(",")]
            _place(contender.rank, contender.size, processors)
            yields = contender.size > len(processors)
            barrier = FlagBarrier(area, contender.rank, contender.size, yields)
            prepared = _Prepared(contender)
            while True:
                message = receive(driver)
                try:
                    answer, payload = _run_block(prepared, message, barrier)
                except UnsupportedCall as error:
                    why = " ".join(str(error).split())
                    answer, payload = {"unsupported": why}, b""
                send(driver, answer, payload)
        except EOFError:
            pass
    contender.close()
    sys.stdout.flush()
    os._exit(0)  # the libraries' exit handlers may wait for ranks that are already gone
