"""The order in which (fake) GPU streams see the results of a group's operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")

from rueda.adapter import Refusal, View  # noqa: E402
from rueda.torch.c10d.arguments import Target, result_memory, target_of  # noqa: E402
from rueda.torch.c10d.barrier import BarrierWork  # noqa: E402
from rueda.torch.c10d.placement import (  # noqa: E402
    ON_HOST,
    InPlaceOnGpu,
    OnGpu,
    placement_of,
    together,
)
from rueda.torch.c10d.work import RuedaWork  # noqa: E402

DEVICE = torch.device("cuda", 0)


class Stream:
    """Records what it is ordered after, and what is enqueued on it."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.seen: set[str] = set()

    def wait_event(self, event: Event) -> None:
        assert event.seen is not None, "an event that was never recorded orders nothing"
        self.seen |= event.seen


class Event:
    over = False

    def __init__(self) -> None:
        self.seen: set[str] | None = None

    def record(self, stream: Stream) -> None:
        self.seen = set(stream.seen)

    def query(self) -> bool:
        return self.over


@contextmanager
def gpu_is_done() -> Iterator[None]:
    """With all that was enqueued."""
    Event.over = True
    try:
        yield
    finally:
        Event.over = False


class Cuda:
    """Replaces torch.cuda."""

    Event = Event

    def __init__(self) -> None:
        self.streams = {0: Stream(0)}
        self.current = self.streams[0]
        self.made_current: list[Any] = []

    def Stream(self, device: Any, priority: int) -> Stream:  # noqa: N802 - torch's name
        assert device == DEVICE
        assert priority < 0, "others wait for what is done there"
        return self.new_stream()

    def new_stream(self) -> Stream:
        stream = Stream(len(self.streams))
        self.streams[stream.cuda_stream] = stream
        return stream

    def current_stream(self, device: Any) -> Stream:
        assert device == DEVICE
        return self.current

    def raw(self, device: int) -> int:
        assert device == DEVICE.index
        return self.current.cuda_stream

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        self.made_current.append(device)
        yield

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Native:
    """Replaces a handle whose work is enqueued."""

    def __init__(self, cuda: Cuda, error: Exception | None = None) -> None:
        self._cuda = cuda
        self._error = error

    def done(self) -> bool:
        return True

    def finished(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def wait_on(self, stream: int) -> None:
        self._cuda.streams[stream].seen.add("reduced")

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class Tensor:
    is_cuda = True

    def __init__(self) -> None:
        self.kept_for: list[Stream] = []

    def record_stream(self, stream: Stream) -> None:
        self.kept_for.append(stream)


def settle(cuda: Cuda, placement: OnGpu, tensor: Tensor, aside: bool = False) -> None:
    with placement.settling([Native(cuda)], [tensor], aside):
        assert "reduced" in cuda.current.seen, "the result is used before it is there"
        cuda.current.seen.add("copied")


def test_whoever_waits_first_brings_the_results_to_their_places() -> None:
    cuda, tensor = Cuda(), Tensor()
    placement = OnGpu(DEVICE, cuda=cuda)
    settle(cuda, placement, tensor)
    placement.join()
    assert cuda.current.seen == {"reduced", "copied"}
    assert tensor.kept_for == [], "the stream that submitted comes after by itself"
    assert len(cuda.streams) == 1, "no other stream is needed"


def test_later_waiters_come_after_the_first() -> None:
    cuda, tensor = Cuda(), Tensor()
    placement = OnGpu(DEVICE, cuda=cuda)
    first, second = cuda.new_stream(), cuda.new_stream()
    with cuda.stream(first):
        settle(cuda, placement, tensor)
    assert tensor.kept_for == [first]
    assert cuda.streams[0].seen == set(), "nobody waits on the stream that submitted"
    with cuda.stream(second):
        placement.join()
    assert second.seen == {"reduced", "copied"}
    placement.join()
    assert cuda.streams[0].seen == {"reduced", "copied"}


def test_while_nobody_waits_no_stream_of_the_application_is_held_up() -> None:
    cuda, tensor = Cuda(), Tensor()
    placement = OnGpu(DEVICE, cuda=cuda)
    settle(cuda, placement, tensor, aside=True)
    assert cuda.current is cuda.streams[0]
    assert cuda.current.seen == set()
    side = tensor.kept_for[0]
    assert side.seen == {"reduced", "copied"}
    assert cuda.made_current == [DEVICE], "the thread's device is left as it was found"
    placement.join()
    assert "copied" in cuda.current.seen
    again = OnGpu(DEVICE, cuda=cuda)
    settle(cuda, again, tensor, aside=True)
    assert tensor.kept_for == [side, side], "one side stream for all"


def test_a_message_comes_after_what_was_enqueued_before_its_receive() -> None:
    cuda, tensor = Cuda(), Tensor()
    cuda.current.seen.add("read before")
    placement = OnGpu(DEVICE, after_submission=True, cuda=cuda)
    cuda.current.seen.add("enqueued later")
    with placement.settling([Native(cuda)], [tensor], aside=True):
        assert "read before" in cuda.current.seen
        assert "enqueued later" not in cuda.current.seen


def test_an_error_leaves_the_streams_in_order() -> None:
    cuda, tensor = Cuda(), Tensor()
    placement = OnGpu(DEVICE, cuda=cuda)

    def fail_half_way() -> None:
        with placement.settling([Native(cuda)], [tensor], True):
            cuda.current.seen.add("half")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        fail_half_way()
    assert len(tensor.kept_for) == 1
    placement.join()
    assert "half" in cuda.current.seen


def in_place(cuda: Cuda) -> InPlaceOnGpu:
    return InPlaceOnGpu(DEVICE, cuda, cuda.raw)


def test_what_is_written_in_place_makes_those_streams_wait_that_ask() -> None:
    cuda, tensor = Cuda(), Tensor()
    placement = in_place(cuda)
    first, second = cuda.new_stream(), cuda.new_stream()
    with cuda.stream(first), placement.settling([Native(cuda)], [tensor], False):
        pass
    assert first.seen == {"reduced"}
    assert tensor.kept_for == [first]
    assert cuda.streams[0].seen == set(), "nobody waits on the stream that submitted"
    with cuda.stream(second):
        placement.join()
    assert second.seen == {"reduced"}
    placement.join()
    assert cuda.streams[0].seen == {"reduced"}
    again = in_place(cuda)
    with again.settling([Native(cuda)], [tensor], False):
        pass
    assert tensor.kept_for == [first], "the stream that submitted comes after by itself"


def test_what_is_written_in_place_is_kept_while_nobody_waits() -> None:
    cuda, tensor = Cuda(), Tensor()
    placement = in_place(cuda)
    with placement.settling([Native(cuda)], [tensor], True):
        pass
    assert cuda.current.seen == set(), "no stream of the application is held up"
    assert [stream.seen for stream in tensor.kept_for] == [{"reduced"}]
    assert cuda.made_current == [], "nothing is enqueued that needs the device"
    placement.join()
    assert cuda.current.seen == {"reduced"}


def test_what_is_written_in_place_is_over_when_the_gpu_has_been_at_work_on_it() -> None:
    cuda = Cuda()
    placement, native = in_place(cuda), Native(cuda)
    with placement.settling([native], [], True):
        pass
    assert placement.is_over()
    native.finished = lambda: False  # type: ignore[method-assign]
    assert not placement.is_over()


def work_of(cuda: Cuda, tensor: Any, native: Native) -> tuple[RuedaWork, OnGpu]:
    placement = OnGpu(DEVICE, cuda=cuda)

    def finish(_: object) -> list[Any]:
        cuda.current.seen.add("copied")
        return [tensor]

    work = RuedaWork("allreduce", lambda: [native], finish, [tensor], 60.0, placement=placement)  # type: ignore[list-item,return-value]
    return work, placement


def test_work_is_completed_once_the_gpu_has_been_at_work_on_it() -> None:
    cuda = Cuda()
    work, _ = work_of(cuda, torch.ones(1), Native(cuda))
    assert not work.is_completed()
    assert work.exception() is None
    assert cuda.current.seen == set(), "asking makes no stream wait"
    assert work.wait()
    assert cuda.current.seen == {"reduced", "copied"}
    with gpu_is_done():
        assert work.is_completed()
        assert work.is_success()


def test_work_that_waits_on_two_streams() -> None:
    cuda = Cuda()
    work, _ = work_of(cuda, torch.ones(1), Native(cuda))
    other = cuda.new_stream()
    with cuda.stream(other):
        work.wait()
    assert other.seen == {"reduced", "copied"}
    work.wait()
    assert cuda.current.seen == {"reduced", "copied"}


def test_the_stream_on_which_a_future_is_asked_waits_for_the_results() -> None:
    cuda, tensor = Cuda(), torch.ones(1)
    work, _ = work_of(cuda, tensor, Native(cuda))
    work.on_done()
    of_torch = cuda.new_stream()
    with cuda.stream(of_torch):
        assert work._outcome(None) == [tensor]
    assert of_torch.seen == {"reduced", "copied"}
    assert cuda.current.seen == set()


def test_work_raises_its_error() -> None:
    cuda = Cuda()
    work, _ = work_of(cuda, torch.ones(1), Native(cuda, ValueError("no such thing")))
    with pytest.raises(ValueError, match="no such thing"):
        work.wait()
    assert "copied" not in cuda.current.seen
    assert isinstance(work.exception(), ValueError)


def barrier_after(*earlier: RuedaWork) -> BarrierWork:
    native = Native(Cuda())
    return BarrierWork(earlier, "barrier", lambda: [native], lambda _: [], None, 60.0)  # type: ignore[arg-type,list-item,return-value]


def test_a_barrier_makes_the_stream_of_its_waiter_wait_for_earlier_results() -> None:
    cuda = Cuda()
    work, _ = work_of(cuda, torch.ones(1), Native(cuda))
    barrier = barrier_after(work)
    first, second = cuda.new_stream(), cuda.new_stream()
    with cuda.stream(first):
        assert barrier.wait()
    assert first.seen == {"reduced", "copied"}
    assert cuda.current.seen == set(), "nobody waits on the stream that submitted"
    with cuda.stream(second):
        assert barrier.wait()
    assert second.seen == {"reduced", "copied"}


def test_a_barrier_is_completed_once_the_gpu_has_been_at_work_on_earlier_results() -> None:
    cuda = Cuda()
    in_place_work = RuedaWork(
        "allreduce",
        lambda: [Native(cuda)],  # type: ignore[list-item]
        lambda _: [],
        None,
        60.0,
        placement=in_place(cuda),
    )
    work, _ = work_of(cuda, torch.ones(1), Native(cuda))
    barrier = barrier_after(in_place_work, work)
    assert barrier.devices() == [DEVICE]
    assert not barrier.is_completed()
    assert cuda.current.seen == set(), "asking makes no stream wait"
    with gpu_is_done():
        assert barrier.is_completed()
        assert barrier.is_success()


def test_the_stream_on_which_a_barriers_future_is_asked_waits_for_earlier_results() -> None:
    cuda = Cuda()
    work, _ = work_of(cuda, torch.ones(1), Native(cuda))
    barrier = barrier_after(work)
    barrier.on_done()
    of_torch = cuda.new_stream()
    with cuda.stream(of_torch):
        assert barrier._outcome(None) == []
    assert of_torch.seen == {"reduced", "copied"}
    assert cuda.current.seen == set()


def test_a_barrier_leaves_an_earlier_operation_its_error() -> None:
    cuda = Cuda()
    work, _ = work_of(cuda, torch.ones(1), Native(cuda, ValueError("no such thing")))
    later, _ = work_of(cuda, torch.ones(1), Native(cuda))
    barrier = barrier_after(work, later)
    barrier.wait()
    assert barrier.exception() is None
    assert isinstance(work.exception(), ValueError)
    assert "copied" in cuda.current.seen, "the others have their results"


def test_a_barrier_after_operations_on_the_host_concerns_no_stream() -> None:
    assert together([]) is ON_HOST
    assert together([ON_HOST, ON_HOST]) is ON_HOST


def test_tensors_of_one_operation_are_in_one_place() -> None:
    on_host = View(0, (1,), 2)
    on_gpu = on_host._replace(device=0)
    assert placement_of(on_host, on_host) is ON_HOST
    assert placement_of() is ON_HOST
    with pytest.raises(Refusal, match="different devices: cpu and cuda:0"):
        placement_of(on_host, on_gpu)
    with pytest.raises(Refusal, match="different devices: cuda:0 and cuda:1"):
        placement_of(on_gpu, on_gpu._replace(device=1))


def on_gpu(pointer: int, count: int) -> Target:
    """A collective's target as on a GPU, at an address."""
    target = target_of(torch.zeros(count))
    target.view = target.view._replace(device=0, pointer=pointer)
    return target


def source_at(pointer: int, count: int) -> View:
    """A collective's source, of the same type."""
    return on_gpu(pointer, count).view


def test_a_result_is_written_where_it_belongs() -> None:
    target = on_gpu(0x10000, 100)
    assert result_memory([target], source_at(0x20000, 50)) == (0x10000, 400)
    # Directly before and directly after the target.
    assert result_memory([target], source_at(0x10000 - 200, 50)) == (0x10000, 400)
    assert result_memory([target], source_at(0x10000 + 400, 50)) == (0x10000, 400)


def test_a_result_on_the_cpu_is_written_where_it_belongs() -> None:
    whole = torch.zeros(8)
    target = target_of(whole)
    address = whole.data_ptr()
    assert result_memory([target], target_of(torch.zeros(4)).view) == (address, 32)
    assert result_memory([target], target_of(whole[4:]).view, 16) == (address, 32)
    assert result_memory([target], target_of(whole[4:]).view) == (0, 0)
    # A non-contiguous target gets its elements from contiguous memory.
    columns = target_of(torch.zeros(4, 2).t())
    assert result_memory([columns], target.view) == (columns.memory.data_ptr(), 32)


def test_a_result_for_several_targets_is_copied() -> None:
    target = on_gpu(0x10000, 100)
    assert result_memory([target, target], source_at(0x20000, 50)) == (0, 0)
    assert result_memory([], source_at(0x20000, 50)) == (0, 0)


def test_a_result_that_would_overwrite_its_source_is_copied_unless_it_is_in_place() -> None:
    target = on_gpu(0x10000, 100)
    for offset in (-4, 0, 4, 396):
        assert result_memory([target], source_at(0x10000 + offset, 50)) == (0, 0)
    # Rank 1's part of an all-gather of two, and rank 1's part of a reduce-scatter's result.
    assert result_memory([target], source_at(0x10000 + 200, 50), 200) == (0x10000, 400)
    assert result_memory([target], source_at(0x10000 - 400, 200), -400) == (0x10000, 400)
    assert result_memory([target], source_at(0x10000 + 204, 50), 200) == (0, 0)
