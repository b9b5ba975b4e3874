"""Every rank: operations wait for a stream's earlier writes, precede later ones, and keep memory.

Kernels that only take time precede the writes and follow the submissions, so a missing order shows.
"""

from __future__ import annotations

import time

import device  # finds what the checks on CPUs share
import parallel
import rueda
import rueda.torch as rt
import torch
from device import DEVICE, ON_GPU, ROAD, needs_gpu, ranks

COUNT = 1 << 20
# About 20 ms at 2 GHz.
DELAY = 40_000_000


def total() -> float:
    """The sum over ranks of rank + 1."""
    return float(sum(rank + 1 for rank in ranks()))


def delayed_fill(tensor: torch.Tensor, value: float) -> None:
    """Fills the tensor on the current stream after a delay."""
    torch.cuda._sleep(DELAY)
    tensor.fill_(value)


@needs_gpu
def check_submission_does_not_wait_for_the_gpu() -> None:
    tensor = torch.zeros(COUNT, device=DEVICE)
    rt.allreduce_(tensor, name="asynchronous", op=rt.Sum)  # connects
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(20):  # 400 ms of the GPU's time
        torch.cuda._sleep(DELAY)
    tensor.fill_(rueda.rank() + 1.0)
    handle = rt.allreduce_async_(tensor, name="asynchronous", op=rt.Sum)
    submitted = time.monotonic() - began
    busy = not torch.cuda.current_stream().query()
    if ROAD == "nccl":
        handle.result()
        busy = not torch.cuda.current_stream().query()
    returned = time.monotonic() - began
    result = handle.result()
    assert busy, "the delay was too short to show anything"
    assert submitted < 0.2, f"the submission took {submitted} s"
    if ROAD == "nccl":
        assert returned < 0.2, f"synchronize() took {returned} s"
    torch.testing.assert_close(result.cpu(), torch.full((COUNT,), total()))


@needs_gpu
def check_written_on_one_stream_and_read_on_another() -> None:
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    tensor = torch.zeros(COUNT, device=DEVICE)
    torch.cuda.synchronize()
    for step in range(6):
        with torch.cuda.stream(producer):
            delayed_fill(tensor, rueda.rank() + 1.0 + step)
            handle = rt.allreduce_async_(tensor, name="two streams", op=rt.Sum)
        with torch.cuda.stream(consumer):
            copy = handle.result() * 1.0
            read = torch.cuda.Event()
            read.record()
        producer.wait_event(read)  # before the next step writes
        consumer.synchronize()
        expected = torch.full((COUNT,), total() + rueda.size() * step)
        torch.testing.assert_close(copy.cpu(), expected)


@needs_gpu
def check_the_submitting_stream_comes_after_too() -> None:
    """What the submitting stream writes next must not appear in a result read on another stream."""
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    tensor = torch.zeros(COUNT, device=DEVICE)
    torch.cuda.synchronize()
    for _ in range(6):
        with torch.cuda.stream(producer):
            delayed_fill(tensor, 1.0)
            handle = rt.allreduce_async(tensor, name="overwritten", op=rt.Sum)
        with torch.cuda.stream(consumer):
            result = handle.result()
        with torch.cuda.stream(producer):
            tensor.fill_(-1000.0)
        with torch.cuda.stream(consumer):
            copy = result * 1.0
        torch.cuda.synchronize()
        torch.testing.assert_close(copy.cpu(), torch.full((COUNT,), float(rueda.size())))


@needs_gpu
def check_several_streams_at_once() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    tensors = [torch.zeros(COUNT + i, device=DEVICE) for i in range(4)]
    torch.cuda.synchronize()
    for step in range(4):
        handles = []
        for i, (stream, tensor) in enumerate(zip(streams, tensors, strict=True)):
            with torch.cuda.stream(stream):
                if (i + step) % 2:
                    torch.cuda._sleep(DELAY)
                tensor.fill_(rueda.rank() + 1.0 + i)
                handles.append(rt.allreduce_async_(tensor, name=f"stream {i}", op=rt.Sum))
        results = [handle.result() for handle in handles]
        for i, result in enumerate(results):
            expected = torch.full((COUNT + i,), total() + rueda.size() * i)
            torch.testing.assert_close(result.cpu(), expected)
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())


@needs_gpu
def check_memory_freed_after_the_result_is_not_reused_early() -> None:
    """The allocator gives the block at once to the next allocation on the same stream."""
    side = torch.cuda.Stream()
    sums = []
    for step in range(150):
        stream = side if step % 3 == 0 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            source = torch.full((COUNT // 4,), rueda.rank() + 1.0, device=DEVICE)
            result = rt.allreduce_async(source, name=f"freed {step % 7}", op=rt.Sum).result()
            sums.append(result.double().mean())
            del source, result
            spoiled = torch.full((COUNT // 4,), float("nan"), device=DEVICE)
            del spoiled
    torch.cuda.synchronize()
    assert [float(value) for value in sums] == [total()] * len(sums)


@needs_gpu
def check_memory_freed_in_flight_is_kept() -> None:
    """Nobody waits for the operation: its memory must not be reused while it is written."""
    for step in range(30):
        dropped = torch.full((COUNT,), rueda.rank() + 1.0, device=DEVICE)
        torch.cuda._sleep(DELAY // 10)
        handle = rt.allreduce_async_(dropped, name=f"dropped {step}", op=rt.Sum)
        del dropped, handle
        fresh = [torch.full((COUNT,), -5.0, device=DEVICE) for _ in range(3)]
        rueda.barrier()
        torch.cuda.synchronize()
        assert all(bool((tensor == -5.0).all()) for tensor in fresh), step


@needs_gpu
def check_results_of_their_own_memory_outlive_their_handles() -> None:
    kept = []
    for step in range(10):
        rows = torch.full((rueda.rank() + 1, 1000), float(step), device=DEVICE)
        kept.append(rt.allgather_async(rows, name="gathered").result())
    rows = sum(rank + 1 for rank in ranks())
    for step, gathered in enumerate(kept):
        device.equal(gathered, torch.full((rows, 1000), float(step)))


# Last: a spoiled capture leaves the process unusable.
@needs_gpu
def check_capture_is_refused() -> None:
    """In torch's default mode, where any thread's unsafe call spoils a capture, and in another."""
    for mode in ("thread_local", "global"):
        tensor = torch.ones(64, device=DEVICE)
        rt.allreduce_(tensor, name="captured", op=rt.Average)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            tensor.mul_(2)
            with parallel.raises(
                rueda.UnsupportedError, "'captured'", "captured into a CUDA graph"
            ):
                rt.allreduce_(tensor, name="captured", op=rt.Average)
        graph.replay()
        torch.testing.assert_close(tensor.cpu(), torch.full((64,), 2.0))
        parallel.still_works()
        # Outside a capture everything is allowed.
        for _ in range(3):
            tensor.fill_(rueda.rank() + 1.0)
            graph.replay()
            rt.allreduce_(tensor, name="captured", op=rt.Sum)
            torch.testing.assert_close(tensor.cpu(), torch.full((64,), 2 * total()))


@needs_gpu
def check_capture_is_not_spoiled_by_the_engine() -> None:
    """The engine polls earlier operations from time to time."""
    tensor = torch.ones(64, device=DEVICE)
    for _ in range(5):
        rt.allreduce_(tensor, name="before", op=rt.Average)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.mul_(1)
            time.sleep(0.1)
        graph.replay()
    torch.testing.assert_close(tensor.cpu(), torch.ones(64))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    parallel.run(globals())
