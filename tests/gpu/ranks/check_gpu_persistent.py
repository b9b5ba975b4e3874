"""Every rank: persistent allreduces on the GPU; with NCCL, a training step in a CUDA graph."""

from __future__ import annotations

import device  # noqa: F401  # finds what the checks on CPUs share
import parallel
import rueda
import rueda.torch as rt
import torch
from device import DEVICE, ON_GPU, ROAD, counted, equal, must_have_taken_its_road, needs_gpu, ranks

COUNT = 100_003


def total() -> float:
    """The sum over ranks of rank + 1."""
    return float(sum(rank + 1 for rank in ranks()))


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def check_sums_averages_and_factors() -> None:
    tensor = torch.empty(COUNT, device=DEVICE)
    output = torch.empty_like(tensor)
    in_place = rt.PersistentAllreduce(tensor, op=rt.Sum, name="in place")
    average = rt.PersistentAllreduce(tensor, output, prescale_factor=0.5, postscale_factor=4)
    with counted() as grown:
        for step in range(5):
            tensor.fill_((rueda.rank() + 1.0) * (step + 1))
            average.start()
            average.wait()
            in_place.start()
            in_place.wait()
            equal(output, torch.full((COUNT,), total() * (step + 1) / rueda.size() * 2))
            equal(tensor, torch.full((COUNT,), total() * (step + 1)))
    must_have_taken_its_road(grown)
    synchronize()


@needs_gpu
def check_elements_that_travel_with_16_bits() -> None:
    tensor = torch.empty(COUNT, device=DEVICE)
    for compression in (rt.Compression.fp16, rt.Compression.bf16):
        narrow = rt.PersistentAllreduce(tensor, op=rt.Sum, compression=compression)
        for step in range(3):
            tensor.fill_(rueda.rank() + 1.0 + step)
            narrow.start()
            narrow.wait()
            equal(tensor, torch.full((COUNT,), total() + step * rueda.size()))


@needs_gpu
def check_what_the_stream_writes_before_and_after() -> None:
    tensor = torch.zeros(COUNT, device=DEVICE)
    operation = rt.PersistentAllreduce(tensor, op=rt.Sum)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for step in range(4):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # about 10 ms
            tensor.fill_(rueda.rank() + 1.0 + step)
            operation.start()
            operation.wait()
            result = tensor.clone()
            tensor.fill_(-1000.0)
        side.synchronize()
        equal(result, torch.full((COUNT,), total() + step * rueda.size()))


@needs_gpu
def check_a_captured_training_step() -> None:
    """Gives the same weights as without a graph, over several steps with changing inputs."""
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 8).to(DEVICE)
    twin = torch.nn.Linear(64, 8).to(DEVICE)
    twin.load_state_dict(model.state_dict())
    inputs = torch.randn(32, 64, device=DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    operations = [rt.PersistentAllreduce(p.grad, op=rt.Average) for p in model.parameters()]

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad.zero_()
        model(inputs).square().mean().backward()
        for operation in operations:
            operation.start()
            operation.wait()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    # Operations that need the host cannot be captured.
    if ROAD != "nccl":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            inputs.mul_(1)
            with parallel.raises(rueda.UnsupportedError, "cannot be captured into a CUDA graph"):
                operations[0].start()
        parallel.still_works()
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # connects and warms up
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    model.load_state_dict(twin.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    model.load_state_dict(twin.state_dict())
    for seed in range(5):
        torch.manual_seed(seed)
        inputs.copy_(torch.randn(32, 64))
        graph.replay()
        twin.zero_grad()
        twin(inputs).square().mean().backward()
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter -= 0.1 * parameter.grad
    torch.cuda.synchronize()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    # Delete the graph before the operations it uses.
    del graph


if __name__ == "__main__":
    parallel.run(globals())
