"""Every rank: Horovod's DistributedOptimizer, SyncBatchNorm and state, against one process."""

from __future__ import annotations

import copy
import gc
import inspect
import warnings
from functools import partial

import parallel
import rueda.horovod.torch as hvd
import torch
from rueda.errors import InvalidArgumentError
from rueda.horovod.exceptions import HorovodInvalidArgumentError, HorovodUsageError
from rueda.horovod.torch.adasum import combined
from rueda.horovod.torch.compression import Compressor, FP16Compressor, NoneCompressor
from torch import nn
from torch.nn import functional as F
from training import CLOSE, batch, close, model, same_bits, sgd, share, train

Optimizer = torch.optim.Optimizer


def pair(**options: object) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    shared = model()
    alone = copy.deepcopy(shared)
    distributed = hvd.DistributedOptimizer(
        sgd(list(shared.parameters())), named_parameters=shared.named_parameters(), **options
    )
    return shared, distributed, alone, sgd(list(alone.parameters()))


class Whole(Compressor):
    """A custom compressor, as a class."""

    calls = 0

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        Whole.calls += 1
        return tensor.clone(), ("context", tensor.dtype)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        assert ctx == ("context", tensor.dtype)
        return tensor


class Folded(Compressor):
    """Sends a gradient in another shape."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        return F.pad(tensor.flatten(), (0, 3)), tensor.shape

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        return tensor[:-3].view(ctx)


class Scaled(Compressor):
    """Modifies the gradient in place."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        return tensor.mul_(8), 8

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        return tensor.div_(ctx)


def check_each_argument() -> None:
    for options in (
        {},
        {"gradient_predivide_factor": 2.0},
        {"groups": 2},
        {"groups": 3, "compression": Whole},
        {"groups": 2, "compression": Folded},
        {"compression": Folded},
        {"compression": Scaled},
        {"compression": NoneCompressor},
        {"sparse_as_dense": True},
        {"process_set": hvd.global_process_set},
    ):
        shared, distributed, alone, single = pair(**options)
        assert isinstance(distributed, torch.optim.SGD)
        train(shared, distributed, alone, single)
        close(shared, alone)
        same_bits(*shared.parameters())
    assert Whole.calls > 0
    shared, distributed, alone, single = pair(compression=FP16Compressor)
    train(shared, distributed, alone, single)
    close(shared, alone, rtol=1e-2, atol=1e-3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(*pair(num_groups=2))
    assert any("num_groups" in str(w.message) for w in caught)


def check_sum_and_accumulation() -> None:
    n = hvd.size()
    shared, distributed, alone, single = pair(op=hvd.Sum, backward_passes_per_step=2)
    for step in range(3):
        distributed.zero_grad()
        single.zero_grad()
        for part in range(2):
            x, y = batch(2 * step + part)
            (F.cross_entropy(shared(share(x)), share(y)) / n).backward()
            F.cross_entropy(alone(x), y).backward()
        distributed.step()
        single.step()
    close(shared, alone)


def check_attributes() -> None:
    """Horovod's attributes exist; the number of passes can be set."""
    _, distributed, _, _ = pair(op=hvd.Sum, sparse_as_dense=True)
    assert (distributed.op, distributed.gradient_predivide_factor) == (hvd.Sum, 1.0)
    assert (distributed.sparse_as_dense, distributed.process_set) == (True, hvd.global_process_set)
    for op in (hvd.Average, hvd.Adasum):
        shared, distributed, _, _ = pair(op=op)
        assert distributed.backward_passes_per_step == 1
        distributed.backward_passes_per_step = 2
        assert distributed.backward_passes_per_step == 2
        for part in range(2):
            x, y = batch(part)
            F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.step()


def check_a_closure_without_a_result() -> None:
    """The gradients it has computed are reduced."""
    shared, distributed, alone, single = pair()
    for step in range(2):
        x, y = batch(step)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            distributed.zero_grad()
            F.cross_entropy(shared(share(x)), share(y)).backward()

        assert distributed.step(closure) is None
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(shared, alone)


def check_an_own_state_handler() -> None:
    """As with Horovod's, save() may use what the constructor sets after the base class's."""
    handlers = hvd.elastic.state

    class Counter:
        def __init__(self) -> None:
            self.count = 0

    class CounterHandler(handlers.StateHandler):
        def __init__(self, value: Counter) -> None:
            super().__init__(value)
            self.counts = [value.count]

        def save(self) -> None:
            self.counts.append(self.value.count)

        def restore(self) -> None:
            self.value.count = self.counts[-1]

        def sync(self) -> None:
            self.value.count = hvd.broadcast_object(self.value.count)

    before = list(handlers.get_handler_registry())
    handlers.get_handler_registry().append((Counter, CounterHandler))
    counter = Counter()
    state = hvd.elastic.TorchState(counter=counter, layer=nn.Linear(2, 1))
    counter.count = 3 + hvd.rank()
    state.restore()
    assert counter.count == 0
    counter.count = 3 + hvd.rank()
    state.save()
    counter.count = 9
    state.restore()
    state.sync()
    assert counter.count == 3
    handlers.set_handler_registry(before)


def check_clipping() -> None:
    def clip(module: nn.Module, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)

    shared, distributed, alone, single = pair()
    for _ in range(3):
        with distributed.skip_synchronize():
            train(shared, distributed, alone, single, steps=1, clip=clip)
    close(shared, alone)


def all_optimizers() -> dict[str, type[Optimizer]]:
    kinds = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    assert len(kinds) >= 12, sorted(kinds)
    return kinds


def loss_of(module: nn.Module, inputs: torch.Tensor, optimizer: Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    value = (module(inputs) - 1).square().mean()
    value.backward()
    return value


def check_every_optimizer() -> None:
    for name, kind in all_optimizers().items():
        shared = nn.Embedding(9, 2, sparse=True) if name == "SparseAdam" else nn.Linear(3, 2)
        shared = shared.double()
        if name == "Muon":  # matrices only
            shared = nn.Linear(3, 2, bias=False).double()
        hvd.broadcast_parameters(shared.state_dict(), root_rank=0)
        alone = copy.deepcopy(shared)
        distributed = hvd.DistributedOptimizer(
            kind(shared.parameters(), lr=0.01), named_parameters=shared.named_parameters()
        )
        single = kind(alone.parameters(), lr=0.01)
        hvd.broadcast_optimizer_state(distributed, root_rank=0)
        for step in range(2):
            x, _ = batch(step)
            inputs = torch.arange(24) % 9 if name == "SparseAdam" else x[:, :3]
            distributed.step(partial(loss_of, shared, share(inputs), distributed))
            single.step(partial(loss_of, alone, inputs, single))
        for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, msg=lambda text, n=name: f"{n}: {text}", **CLOSE)
        hvd.broadcast_optimizer_state(distributed, root_rank=hvd.size() - 1)
        same_bits(*shared.parameters())


def convolutions() -> nn.Module:
    """With weights in channels_last, and one in another memory order."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2)).double()
    module = module.to(memory_format=torch.channels_last)
    swapped = module[2].weight.detach().transpose(0, 1).contiguous().transpose(0, 1)
    module[2].weight = nn.Parameter(swapped)
    return module


def check_strides() -> None:
    for groups in (None, 1):
        shared, alone = convolutions(), convolutions()
        distributed = hvd.DistributedOptimizer(
            sgd(list(shared.parameters())), shared.named_parameters(), groups=groups
        )
        single = sgd(list(alone.parameters()))
        for step in range(2):
            x = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(step)).double()
            x = x.to(memory_format=torch.channels_last)
            distributed.zero_grad()
            single.zero_grad()
            shared(share(x)).square().mean().backward()
            alone(x).square().mean().backward()
            distributed.step()
            single.step()
        close(shared, alone)


def check_adasum_keeps_to_the_schedulers_that_there_were() -> None:
    shared = model()
    inner = torch.optim.SGD(shared.parameters(), lr=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    distributed = hvd.DistributedOptimizer(inner, shared.named_parameters(), op=hvd.Adasum)
    x, y = batch(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, if it sees no step before the scheduler's
        for renew in (
            lambda: None,
            lambda: distributed.load_state_dict(copy.deepcopy(distributed.state_dict())),
            lambda: hvd.broadcast_optimizer_state(distributed, 0),
        ):
            renew()
            distributed.zero_grad()
            F.cross_entropy(shared(share(x)), share(y)).backward()
            distributed.step()
            scheduler.step()
    assert distributed.param_groups[0]["lr"] == 0.1
    same_bits(*shared.parameters())
    if hvd.size() > 1:  # alone it is an ordinary one, as Horovod's
        with parallel.raises(InvalidArgumentError, "cannot be copied"):
            copy.deepcopy(distributed)


def check_adasum_optimizer() -> None:
    n = hvd.size()
    shared = model()
    start = copy.deepcopy(shared)
    distributed = hvd.DistributedOptimizer(
        torch.optim.SGD(shared.parameters(), lr=0.5), shared.named_parameters(), op=hvd.Adasum
    )
    x, y = batch(0)
    distributed.zero_grad()
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    deltas = []
    for rank in range(n):
        other = copy.deepcopy(start)
        F.cross_entropy(other(x.chunk(n)[rank]), y.chunk(n)[rank]).backward()
        deltas.append([-0.5 * p.grad for p in other.parameters()])
    for before, after, *steps in zip(start.parameters(), shared.parameters(), *deltas, strict=True):
        torch.testing.assert_close(after, before + combined(steps), **CLOSE)
    same_bits(*shared.parameters())
    added = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    distributed.add_param_group({"params": [added]})
    for is_loaded in (False, True):
        if n > 1:  # nothing is in flight before step()
            (added * (hvd.rank() + 1)).sum().backward()
            if is_loaded:
                distributed.load_state_dict(distributed.state_dict())
            else:
                distributed.zero_grad()
        (added * (hvd.rank() + 1)).sum().backward()
        distributed.step()
        assert added.detach().abs().min() > 0
        same_bits(added)
    # A model outlives its optimizers: a deleted one must not count gradients.
    del distributed
    gc.collect()
    for _ in range(2):
        F.cross_entropy(shared(share(x)), share(y)).backward()
    if n > 1:
        with parallel.raises(ValueError, "predivide"):
            pair(op=hvd.Adasum, gradient_predivide_factor=2.0)


def check_process_set() -> None:
    n = hvd.size()
    if n == 1:
        return
    most = hvd.add_process_set(range(n - 1))
    shared, distributed, _, _ = pair(process_set=most)
    for step in range(2):
        x, y = batch(step)
        distributed.zero_grad()
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.synchronize()
        distributed.step()
    x, _ = batch(0)
    distributed.step(partial(loss_of, shared, share(x), distributed))
    digests = hvd.allgather_object([p.detach().numpy().tobytes() for p in shared.parameters()])
    assert all(digest == digests[0] for digest in digests[: n - 1])
    assert digests[n - 1] != digests[0]  # this rank's parameters diverged
    hvd.remove_process_set(most)


def check_sync_batch_norm() -> None:
    n, me = hvd.size(), hvd.rank()
    for momentum, affine, shape in ((0.1, True, (5, 5)), (None, False, ())):
        shared = hvd.SyncBatchNorm(3, momentum=momentum, affine=affine).double()
        plain = (nn.BatchNorm2d if shape else nn.BatchNorm1d)(3, momentum=momentum, affine=affine)
        plain = plain.double()
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            whole = torch.randn(2 * n + 1, 3, *shape, generator=generator, dtype=torch.float64)
            whole += 1000  # where sums of squares would cancel
            weights = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
            mine = slice(0, 3) if me == 0 else slice(2 * me + 1, 2 * me + 3)  # uneven
            part = whole[mine].clone().requires_grad_()
            alone = whole.clone().requires_grad_()
            (shared(part) * weights[mine]).sum().backward()
            (plain(alone) * weights).sum().backward()
            torch.testing.assert_close(part.grad, alone.grad[mine], rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(shared.running_mean, plain.running_mean)
            torch.testing.assert_close(shared.running_var, plain.running_var)
            if affine:
                total = hvd.allreduce(shared.weight.grad, op=hvd.Sum)
                torch.testing.assert_close(total, plain.weight.grad, rtol=1e-6, atol=1e-7)
        shared.eval()
        plain.eval()
        torch.testing.assert_close(shared(whole), plain(whole))
    shared = hvd.SyncBatchNorm(2)
    rows = torch.randn(0 if me == n - 1 and n > 1 else 4, 2)
    assert shared(rows).shape == rows.shape
    assert shared(torch.randn(4, 2).bfloat16()).dtype == torch.bfloat16
    if n > 1:
        rows.requires_grad_()
        (gradient,) = torch.autograd.grad(shared(rows).pow(3).sum(), rows, create_graph=True)
        with parallel.raises(RuntimeError, "once_differentiable"):
            gradient.sum().backward()
    with parallel.raises(ValueError, "2 dimensions"):
        shared(torch.ones(3))


def check_misuse() -> None:
    shared, distributed, _, _ = pair()
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    with parallel.raises(HorovodUsageError, "zero_grad"):
        distributed.zero_grad()
    assert issubclass(HorovodUsageError, AssertionError)  # like Horovod's
    if hvd.size() > 1:
        adasum = hvd.DistributedOptimizer(sgd(list(model().parameters())), op=hvd.Adasum)
        with parallel.raises(HorovodUsageError, "skip_synchronize"), adasum.skip_synchronize():
            pass
    distributed.step()
    named = list(shared.named_parameters())
    with parallel.raises(HorovodInvalidArgumentError, "twice"):
        hvd.DistributedOptimizer(sgd(list(shared.parameters())), [*named, named[0]])
    with parallel.raises(HorovodInvalidArgumentError, "backward_passes_per_step=0"):
        hvd.DistributedOptimizer(sgd(list(shared.parameters())), backward_passes_per_step=0)
    if hvd.size() > 1:
        me = hvd.rank()
        with parallel.raises(HorovodInvalidArgumentError, "differ between ranks"):
            hvd.DistributedOptimizer(sgd(list(shared.parameters())), named, groups=1 + (me == 1))
    parallel.still_works()


def check_a_step_after_synchronize_warns() -> None:
    """Outside of skip_synchronize(), like Horovod's; each time, and only then."""
    shared, distributed, _, _ = pair()
    x, y = batch(0)

    def warned(*calls: str) -> int:
        distributed.zero_grad()
        F.cross_entropy(shared(share(x)), share(y)).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for call in calls:
                if call == "skip":
                    with distributed.skip_synchronize():
                        distributed.step()
                else:
                    getattr(distributed, call)()
        told = [w for w in caught if "optimizer.step() called without" in str(w.message)]
        assert all("skip_synchronize() context after" in str(w.message) for w in told)
        assert all(w.filename == __file__ for w in told)
        return len(told)

    for _ in range(2):
        assert warned("step") == 0
        assert warned("synchronize", "skip") == 0
        assert warned("synchronize", "step") == 1


def check_a_tensor_resized_in_flight() -> None:
    """The memory in flight is kept, and the rank gets an error; the tensor keeps its new shape."""
    tensor = torch.ones(1 << 16)
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="resized")
    if hvd.rank() == 0:
        tensor.data = torch.ones(5)
        with parallel.raises(HorovodInvalidArgumentError, "'resized' was resized", "in flight"):
            hvd.synchronize(handle)
        assert tensor.tolist() == [1.0] * 5
    else:
        assert hvd.synchronize(handle)[-1] == hvd.size()
    parallel.still_works()


def check_a_hook_that_raises() -> None:
    """It raises on its rank, and the step can be restarted on all."""
    shared, distributed, alone, single = pair()
    train(shared, distributed, alone, single, steps=1)
    state = copy.deepcopy(distributed.state_dict())
    x, y = batch(5)

    def fail(_: torch.Tensor) -> None:
        raise OSError("no such gradient")

    hook = shared[0].bias.register_hook(fail)
    with parallel.raises(OSError, "no such gradient"):
        F.cross_entropy(shared(share(x)), share(y)).backward()
    hook.remove()
    distributed.load_state_dict(state)
    train(shared, distributed, alone, single, steps=1)
    close(shared, alone)


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    parallel.run(globals())
    layer = nn.Linear(2, 1)
    with parallel.raises(ValueError, "has not been initialized"):
        hvd.DistributedOptimizer(sgd(list(layer.parameters())), op=hvd.Adasum)
