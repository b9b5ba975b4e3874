"""Every rank: DistributedOptimizer on a GPU against one process that trains on the whole batch."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import device  # finds what the checks on CPUs share
import parallel
import rueda
import rueda.torch as rt
import torch
from device import DEVICE, ON_GPU, counted, needs_gpu
from torch import nn
from torch.nn import functional as F

BATCH = 24  # divides by 1, 2, 3 and 4
# Double precision: only the order of the ranks' sums differs.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}

Optimizer = torch.optim.Optimizer
Make = Callable[[Iterable[torch.Tensor]], Optimizer]


def sgd(parameters: Iterable[torch.Tensor]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adam(parameters: Iterable[torch.Tensor]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def model(dtype: torch.dtype = torch.float64, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 3))
    return layers.to(DEVICE, dtype)


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + step)
    x, y = torch.randn(BATCH, 6, dtype=dtype), torch.randint(0, 3, (BATCH,))
    return x.to(DEVICE), y.to(DEVICE)


def share(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a batch."""
    return tensor.chunk(rueda.size())[rueda.rank()]


def same_bits(tensors: Iterable[torch.Tensor]) -> None:
    """All ranks hold the same bits."""
    content = b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)
    digests = rueda.allgather_object(hashlib.sha256(content).hexdigest())
    assert len(set(digests)) == 1, "ranks hold different bits"


def close(left: nn.Module, right: nn.Module, **tolerance: float) -> None:
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(a, b, **(tolerance or CLOSE))


def pair(make: Make, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, ...]:
    """Returns a model trained by all ranks, and a copy that each rank trains alone."""
    shared = model(dtype)
    alone = copy.deepcopy(shared)
    distributed = rt.DistributedOptimizer(
        make(shared.parameters()), shared.named_parameters(), **options
    )
    return shared, distributed, alone, make(alone.parameters())


def train(shared: Any, distributed: Any, alone: Any, single: Any, steps: int = 4) -> None:
    for step in range(steps):
        x, y = batch(step)
        distributed.zero_grad()
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()


def check_equals_training_on_the_whole_batch() -> None:
    for make in (sgd, adam):
        # Whether gradients may be views of buckets, if this device has buckets.
        for views in (None, True, False):
            together = pair(make, gradient_as_bucket_view=views)
            with counted() as grown:
                train(*together)
            close(together[0], together[2])
            same_bits(together[0].parameters())
            device.must_have_taken_its_road(grown)


@needs_gpu
def check_gradients_lie_in_buckets() -> None:
    """Even with one rank, which saves host time; buckets have 25 MiB by default."""
    layers = nn.Sequential(*(nn.Linear(1 << 10, 1 << 10, device=DEVICE) for _ in range(9)))
    distributed = rt.DistributedOptimizer(sgd(layers.parameters()), layers.named_parameters())
    for _ in range(2):
        distributed.zero_grad()
        layers(torch.ones(1, 1 << 10, device=DEVICE)).sum().backward()
        distributed.step()
    # Each layer has 4 MiB and 4 KiB: the first bucket closes at 1 MiB, the second after 7 layers.
    sizes = distributed.gradient_buckets().sizes
    assert [round(size / (4 << 20)) for size in sizes] == [1, 7, 1], sizes


def check_accumulation_and_groups() -> None:
    shared, distributed, alone, single = pair(sgd, backward_passes_per_step=2, groups=2)
    for step in range(3):
        x, y = batch(step)
        distributed.zero_grad()
        for half_x, half_y in zip(share(x).chunk(2), share(y).chunk(2), strict=True):
            (F.cross_entropy(shared(half_x), half_y) / 2).backward()
        distributed.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(shared, alone)
    same_bits(shared.parameters())


def check_compression() -> None:
    for compression, epsilon in ((rt.Compression.fp16, 2.0**-10), (rt.Compression.bf16, 2.0**-7)):
        shared, distributed, alone, _ = pair(sgd, compression=compression)
        x, y = batch(0)
        with counted() as grown:
            F.cross_entropy(shared(share(x)), share(y)).backward()
            distributed.synchronize()
        device.must_have_taken_its_road(grown)
        F.cross_entropy(alone(x), y).backward()
        for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
            assert a.grad.dtype == torch.float64
            assert not torch.equal(a.grad, b.grad), "nothing was compressed"
            bound = (rueda.size() + 2) * epsilon
            torch.testing.assert_close(a.grad, b.grad, rtol=bound, atol=bound * 0.5)
        same_bits(p.grad for p in shared.parameters())
        distributed.step()


def check_clipping_after_synchronize() -> None:
    shared, distributed, alone, single = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.synchronize()
    F.cross_entropy(alone(x), y).backward()
    for module in (shared, alone):
        assert nn.utils.clip_grad_norm_(module.parameters(), 0.05) > 0.05, "nothing was clipped"
    with distributed.skip_synchronize():
        distributed.step()
    single.step()
    close(shared, alone)


def check_backward_on_a_side_stream() -> None:
    shared, distributed, alone, single = pair(sgd)
    stream = torch.cuda.Stream() if ON_GPU else None
    for step in range(3):
        x, y = batch(step)
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            distributed.zero_grad()
            if ON_GPU:
                torch.cuda._sleep(10_000_000)
            F.cross_entropy(shared(share(x)), share(y)).backward()
            distributed.step()
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(shared, alone)


@needs_gpu
def check_layers_on_streams_of_their_own() -> None:
    """Autograd runs on the forward's streams, so a bucket's gradients come from several streams."""
    main = torch.cuda.current_stream()
    # The last layer's gradients come first: on their own stream, or on the main one.
    for streams in ([torch.cuda.Stream(), torch.cuda.Stream()], [torch.cuda.Stream(), main]):
        shared, distributed, alone, single = pair(sgd)
        parts = tuple(zip(streams, (shared[:1], shared[1:]), strict=True))

        def forward(x: torch.Tensor, parts: Any = parts) -> torch.Tensor:
            for stream, layers in parts:
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    x = Late.apply(layers(x))
                main.wait_stream(stream)
            return x

        train(forward, distributed, alone, single)
        close(shared, alone)
        same_bits(shared.parameters())


class Late(torch.autograd.Function):
    """Only delays the stream of the backward pass."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(5_000_000)
        return gradient


def scaled_step(scaler: Any, optimizer: Any, loss: torch.Tensor, distributed: bool) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if not distributed:
        scaler.step(optimizer)
    else:
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
    scaler.update()


@needs_gpu
def check_grad_scaler() -> None:
    shared, distributed, alone, single = pair(sgd, torch.float32)
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**12) for _ in range(2)]
    for step in range(4):
        x, y = batch(step, torch.float32)
        with torch.autocast("cuda", torch.float16):
            mine = F.cross_entropy(shared(share(x)), share(y))
            whole = F.cross_entropy(alone(x), y)
        scaled_step(scalers[0], distributed, mine, distributed=True)
        scaled_step(scalers[1], single, whole, distributed=False)
    close(shared, alone, rtol=2e-2, atol=2e-3)
    same_bits(shared.parameters())
    # One rank's overflow affects all: all skip the step and halve their scale.
    before = [parameter.detach().clone() for parameter in shared.parameters()]
    x, y = batch(9, torch.float32)
    loss = F.cross_entropy(shared(share(x)), share(y))
    if rueda.rank() == rueda.size() - 1:
        loss = loss * float("inf")
    scaled_step(scalers[0], distributed, loss, distributed=True)
    assert scalers[0].get_scale() == 2.0**11
    for parameter, old in zip(shared.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def check_broadcast_of_parameters_and_state() -> None:
    for make in (sgd, adam):
        own = model(seed=10 + rueda.rank())
        optimizer = make(own.parameters())
        if rueda.rank() == rueda.size() - 1:  # only the root has taken steps
            for step in range(2):
                optimizer.zero_grad()
                x, y = batch(step)
                F.cross_entropy(own(x), y).backward()
                optimizer.step()
        root = rueda.size() - 1
        rt.broadcast_parameters(own.state_dict(), root_rank=root)
        rt.broadcast_optimizer_state(optimizer, root_rank=root)
        same_bits(own.parameters())
        state = [
            value
            for parameter in own.parameters()
            for _, value in sorted(optimizer.state[parameter].items())
            if isinstance(value, torch.Tensor)
        ]
        assert state, "the optimizer has no state"
        same_bits(state)
        assert all(t.device == DEVICE for t in state if t.dim() > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    parallel.run(globals())
