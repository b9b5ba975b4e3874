"""Every rank: gradients in buckets, and everything that can happen to a ``.grad``."""

from __future__ import annotations

import copy
import pickle
import warnings

import parallel
import rueda
import rueda.torch as rt
import torch
from rueda import _native
from torch import nn
from torch.nn import functional as F
from training import (
    BATCH,
    CLOSE,
    DEVICE,
    Make,
    Optimizer,
    batch,
    close,
    model,
    pair,
    same_bits,
    sgd,
    share,
    train,
)

ON = {"gradient_as_bucket_view": True}
Pair = tuple[nn.Module, Optimizer, nn.Module, Optimizer]


def backward(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    F.cross_entropy(module(x), y).backward()


def in_buckets(distributed: Optimizer, module: nn.Module) -> None:
    """Requires that every gradient is in shared memory of its own size."""
    buckets = distributed.gradient_buckets()
    named = dict(module.named_parameters())
    assert sorted(sum(buckets.names, ())) == sorted(named), buckets
    for bucket in distributed._rueda._bucketed._buckets:
        start = bucket.flat.data_ptr()
        for slot in bucket.slots:
            gradient = slot.parameter.grad
            assert gradient is not None
            assert gradient.data_ptr() == slot.pointer
            assert start <= slot.pointer < start + bucket.flat.nbytes
            assert gradient.untyped_storage().nbytes() == gradient.nbytes


def settled(make: Make = sgd, **options: object) -> Pair:
    """A pair after its first step."""
    shared, distributed, alone, single = pair(make, **{**ON, **options})
    train(shared, distributed, alone, single, steps=1)
    in_buckets(distributed, shared)
    return shared, distributed, alone, single


def metrics_of(action: object) -> dict[str, int]:
    before = rueda.metrics()
    action()  # type: ignore[operator]
    return {k: v - before.get(k, 0) for k, v in rueda.metrics().items()}


def check_one_allreduce_per_bucket() -> None:
    for bucket_bytes, buckets in ((1 << 20, 1), (1, 4), (300, 2)):
        shared, distributed, alone, single = pair(sgd, **ON, bucket_bytes=bucket_bytes)
        assert distributed.gradient_buckets().why_not == "the first step is not over"
        train(shared, distributed, alone, single, steps=1)
        in_buckets(distributed, shared)
        described = distributed.gradient_buckets()
        assert len(described.names) == len(described.sizes) == buckets, described
        assert (described.left_out, described.why_not) == ({}, "")
        # In backward order; within a layer, either may come first.
        order = [name.split(".")[0] for name in sum(described.names, ())]
        assert order == ["2", "2", "0", "0"], described
        moved = metrics_of(lambda: train(shared, distributed, alone, single, steps=3))  # noqa: B023
        assert moved["allreduce_tensors"] == 3 * buckets, moved
        assert moved["allreduce_tensor_bytes"] == 3 * sum(described.sizes), moved
        assert moved["allgather_tensors"] == 0, moved
        # A single rank shares memory with nobody; small messages between hosts are packed.
        if 1 < rueda.size() == rueda.local_size():
            # Reduced in place.
            assert moved["bytes_packed"] == moved["allreduce_bytes_through_kernel"] == 0, moved
        close(shared, alone)


def check_every_optimizer() -> None:
    for name, options in (
        ("SGD", {"lr": 0.1, "nesterov": True, "momentum": 0.9}),
        ("Adam", {"lr": 0.01, "amsgrad": True}),
        ("AdamW", {"lr": 0.01}),
        ("Adagrad", {"lr": 0.05}),
        ("RMSprop", {"lr": 0.01, "centered": True}),
        ("Adadelta", {"lr": 0.5}),
        ("Adamax", {"lr": 0.01}),
        ("NAdam", {"lr": 0.01}),
        ("RAdam", {"lr": 0.01}),
        ("Rprop", {"lr": 0.01}),
        ("ASGD", {"lr": 0.05}),
    ):
        for foreach in (False, True):
            kind = getattr(torch.optim, name)
            shared, distributed, alone, single = settled(
                lambda parameters: kind(parameters, foreach=foreach, **options)  # noqa: B023
            )
            train(shared, distributed, alone, single, steps=4)
            in_buckets(distributed, shared)
            close(shared, alone, rtol=1e-6, atol=1e-8)
            same_bits(*shared.parameters())


def check_every_way_to_clear_gradients() -> None:
    shared, distributed, alone, single = settled()
    ways = [
        lambda o, m: o.zero_grad(set_to_none=True),
        lambda o, m: o.zero_grad(set_to_none=False),
        lambda o, m: m.zero_grad(),
        lambda o, m: m.zero_grad(set_to_none=False),
        lambda o, m: [setattr(p, "grad", None) for p in m.parameters()],
        lambda o, m: [setattr(p, "grad", torch.zeros_like(p)) for p in m.parameters()],
        lambda o, m: [p.grad.zero_() for p in m.parameters()],
    ]
    for step, clear in enumerate(ways * 2):
        x, y = batch(step)
        clear(distributed, shared)
        if step % len(ways) == 0:
            assert all(p.grad is None for p in shared.parameters())
        backward(shared, share(x), share(y))
        distributed.step()
        in_buckets(distributed, shared)
        single.zero_grad()
        backward(alone, x, y)
        single.step()
        close(shared, alone)
    # Not cleared at all: this step's gradients add to the last step's average.
    x, y = batch(50)
    backward(shared, share(x), share(y))
    distributed.step()
    backward(alone, x, y)
    single.step()
    close(shared, alone)


def check_accumulation_lies_in_buckets() -> None:
    shared, distributed, alone, single = settled(backward_passes_per_step=3)
    for step in range(3):
        x, y = batch(step)
        distributed.zero_grad()
        for pass_number in range(3):
            backward(shared, share(x), share(y))
            if pass_number < 2:
                assert distributed._rueda.in_flight() == []
        assert len(distributed._rueda.in_flight()) == 4
        distributed.step()
        in_buckets(distributed, shared)
        single.zero_grad()
        for _ in range(3):
            backward(alone, x, y)
        single.step()
    close(shared, alone)


def check_sum_predivide_and_clipping() -> None:
    for options, factor in (
        ({"op": rt.Sum}, rueda.size()),
        ({"gradient_predivide_factor": 4.0}, 1),
    ):
        shared, distributed, alone, _ = settled(**options)
        alone.load_state_dict(shared.state_dict())
        x, y = batch(0)
        distributed.zero_grad()
        backward(shared, share(x), share(y))
        distributed.synchronize()
        alone.zero_grad()
        backward(alone, x, y)
        for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a.grad, factor * b.grad, **CLOSE)
        before = nn.utils.clip_grad_norm_(shared.parameters(), 1e-3)
        assert before > 1e-3
        clipped = [p.grad.clone() for p in shared.parameters()]
        distributed.step()
        assert all(map(torch.equal, clipped, [p.grad for p in shared.parameters()]))
        in_buckets(distributed, shared)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ParameterList(torch.ones(3 + i).double() for i in range(4))


def check_graphs_that_differ_between_ranks() -> None:
    n, me = rueda.size(), rueda.rank()
    for bucket_bytes in (1, 100, 1 << 20):
        module = Branches()
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.5),
            module.named_parameters(),
            bucket_bytes=bucket_bytes,
            **ON,
        )
        for step in range(6):
            used = [(step + rank) % 3 for rank in range(n)]  # the fourth is never used
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            module.branches[used[me]].sum().backward()
            optimizer.synchronize()
            for number, parameter in enumerate(module.branches):
                expected = torch.full_like(parameter, used.count(number) / n)
                torch.testing.assert_close(parameter.grad, expected, **CLOSE)
            optimizer.step()
            in_buckets(optimizer, module)
        same_bits(*module.parameters())


def check_dtypes_have_buckets_of_their_own() -> None:
    torch.manual_seed(5)
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.complex64]
    parameters = [nn.Parameter(torch.randn(7).to(dtype)) for dtype in dtypes]
    optimizer = rt.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5), op=rt.Sum, **ON)
    for _ in range(3):
        optimizer.zero_grad()
        sum((p * (rueda.rank() + 1)).abs().sum().double() for p in parameters).backward()
        optimizer.synchronize()
        total = rueda.size() * (rueda.size() + 1) / 2
        for parameter in parameters:
            expected = total * parameter.detach().sgn()
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=1e-5)
    assert len(optimizer.gradient_buckets().names) == 4
    same_bits(*[p.grad.view(torch.uint8) for p in parameters])


def check_memory_formats() -> None:
    """Gradients have their parameters' strides, also if ranks differ: then they are not reduced in a bucket."""
    for mixed in (False, True):
        torch.manual_seed(3)
        layer = nn.Conv2d(3, 4, 2).double()
        if not mixed or rueda.rank() == 0:
            layer = layer.to(memory_format=torch.channels_last)
        alone = copy.deepcopy(layer)
        optimizer = rt.DistributedOptimizer(sgd(list(layer.parameters())), **ON)
        single = sgd(list(alone.parameters()))
        for step in range(3):
            torch.manual_seed(step)
            x = torch.randn(BATCH, 3, 4, 4, dtype=torch.float64)
            optimizer.zero_grad()
            layer(share(x)).pow(2).mean().backward()
            optimizer.step()
            single.zero_grad()
            alone(x).pow(2).mean().backward()
            single.step()
            close(layer, alone)
        strides = layer.weight.grad.stride()
        assert strides == layer.weight.stride(), strides
        left_out = optimizer.gradient_buckets().left_out
        if not mixed or rueda.size() == 1:
            assert strides == (12, 1, 6, 3), strides
            assert not left_out, left_out
        else:
            assert "differently in memory" in " ".join(left_out.values()), left_out


def check_gradients_that_the_application_exchanges() -> None:
    shared, distributed, alone, single = settled()
    x, y = batch(1)
    single.zero_grad()
    backward(alone, x, y)
    # Before the reduction: synchronize() reduces the current .grad ...
    distributed.zero_grad()
    for parameter, whole in zip(shared.parameters(), alone.parameters(), strict=True):
        parameter.grad = whole.grad.clone()
    distributed.synchronize()
    in_buckets(distributed, shared)
    for parameter, whole in zip(shared.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, whole.grad, **CLOSE)
    distributed.step()
    single.step()
    close(shared, alone)
    # ... and after submission, what an exchange means cannot be known.
    for exchange in (torch.zeros_like, lambda _: None):
        distributed.zero_grad()
        backward(shared, share(x), share(y))
        for parameter in shared.parameters():
            parameter.grad = exchange(parameter)
        with parallel.raises(rueda.InvalidArgumentError, "was replaced"):
            distributed.step()
    close(shared, alone)


def check_gradients_of_gradients() -> None:
    shared, distributed, alone, _ = settled()
    alone.load_state_dict(shared.state_dict())
    x, y = batch(2)
    distributed.zero_grad()
    alone.zero_grad()
    with warnings.catch_warnings():  # torch warns of the reference cycle
        warnings.simplefilter("ignore")
        F.cross_entropy(shared(share(x)), share(y)).backward(create_graph=True)
    graphs = [p.grad for p in shared.parameters()]
    assert all(g.grad_fn is not None for g in graphs)
    distributed.synchronize()
    backward(alone, x, y)
    for parameter, graph, whole in zip(
        shared.parameters(), graphs, alone.parameters(), strict=True
    ):
        assert parameter.grad is graph
        torch.testing.assert_close(graph.detach(), whole.grad, **CLOSE)
    distributed.zero_grad()


def check_models_that_change() -> None:
    def widen(module: nn.Module) -> None:
        module[2].bias.data = torch.cat([module[2].bias.data] * 2)[:3].clone()
        module[0].weight.data = torch.randn(5, 6, generator=torch.manual_seed(1)).double()
        module[0].bias.data = torch.zeros(5).double()
        module[2].weight.data = torch.ones(3, 5).double()

    def freeze(module: nn.Module) -> None:
        module[0].bias.requires_grad_(False)
        module[0].bias.grad = None

    for change in (nn.Module.float, widen, freeze, nn.Module.share_memory):
        shared, distributed, alone, single = settled(lambda p: torch.optim.SGD(p, lr=0.1))
        for module in (shared, alone):
            module.zero_grad()
            change(module)
        for step in range(4):
            x, y = batch(step)
            x = x.to(shared[0].weight.dtype)
            distributed.zero_grad()
            backward(shared, share(x), share(y))
            distributed.step()
            single.zero_grad()
            backward(alone, x, y)
            single.step()
        close(shared, alone, rtol=1e-4, atol=1e-6)
        described = distributed.gradient_buckets()
        frozen = {"0.bias": "it needs no gradient"} if change is freeze else {}
        assert described.left_out == frozen, described
        assert len(sum(described.names, ())) == 4 - len(frozen)


def check_moves_with_gradients() -> None:
    """Module.to() replaces the memory of the tensors that serve as gradients."""
    shared, distributed, alone, single = settled(lambda p: torch.optim.SGD(p, lr=0.1))
    train(shared, distributed, alone, single, steps=1)
    for module in (shared, alone):
        module.float().double()
    close(shared, alone)
    train(shared, distributed, alone, single, steps=2)
    in_buckets(distributed, shared)
    close(shared, alone)


def check_a_change_on_one_rank() -> None:
    n, me = rueda.size(), rueda.rank()
    shared, distributed, alone, single = settled()
    if n > 1:
        if me == n - 1:
            shared[2].bias.data = torch.zeros(1).double()
            shared[2].bias.grad = None
        backward(shared, *map(share, batch(0)))
        with parallel.raises(rueda.MismatchError, "2.bias'", f"rank {n - 1}", "[1]", "[3]"):
            distributed.step()
        distributed.zero_grad()
        shared[2].bias.data = torch.zeros(3).double()
        alone.load_state_dict(shared.state_dict())
        distributed.state.clear()
        single.state.clear()
    for module in (shared, alone):
        rt.broadcast_parameters(module.state_dict())
    train(shared, distributed, alone, single, steps=3)
    in_buckets(distributed, shared)
    close(shared, alone)


def check_a_model_that_never_rests() -> None:
    shared, distributed, alone, single = settled(lambda p: torch.optim.SGD(p, lr=0.1))
    for step in range(24):
        for module in (shared, alone):
            module[0].bias.requires_grad_(step % 2 == 0)
            module[2].bias.requires_grad_(step % 2 == 1)
            module.zero_grad()
        x, y = batch(step)
        backward(shared, share(x), share(y))
        distributed.step()
        backward(alone, x, y)
        single.step()
    close(shared, alone)
    assert "has changed 8 times" in distributed.gradient_buckets().why_not


def check_groups_added_later() -> None:
    shared, alone = model(), model()
    first = rt.DistributedOptimizer(
        torch.optim.SGD(shared[0].parameters(), lr=0.1), shared[0].named_parameters(), **ON
    )
    single = torch.optim.SGD(alone[0].parameters(), lr=0.1)
    train(shared, first, alone, single, steps=2)
    for optimizer, module in ((first, shared), (single, alone)):
        module.zero_grad()
        optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.05})
    train(shared, first, alone, single, steps=3)
    close(shared, alone)
    assert len(sum(first.gradient_buckets().names, ())) == 4


def check_sparse_gradients() -> None:
    """The bucket is unusable, so the error names the parameter; then training continues."""
    me, last = rueda.rank(), rueda.size() - 1
    torch.manual_seed(0)
    table = nn.Embedding(5, 2)
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters(), **ON
    )
    for sparse in (False, True, False, False):
        optimizer.zero_grad()
        table.sparse = sparse and me == last
        table(torch.tensor([1, 2])).sum().backward()
        if sparse and last > 0:
            with parallel.raises(rueda.MismatchError, "weight'", f"rank {last}", "sparse_as_dense"):
                optimizer.step()
        else:
            optimizer.step()
    if last > 0:  # a single rank accepts it, and continues without buckets
        in_buckets(optimizer, table)
    same_bits(table.weight)


def check_uneven_data() -> None:
    """Rank r takes r steps in the first epoch and r + 1 in the others, then joins."""
    shared, distributed, _, _ = pair(sgd, **ON)
    for epoch in range(3):
        for step in range(rueda.rank() + (epoch > 0)):
            x, y = batch(step)
            distributed.zero_grad()
            backward(shared, share(x), share(y))
            distributed.step()
        rueda.join()
        rt.broadcast_parameters(shared.state_dict(), root_rank=rueda.size() - 1)
        rt.broadcast_optimizer_state(distributed, root_rank=rueda.size() - 1)
    in_buckets(distributed, shared)
    same_bits(*shared.parameters())


def check_copies() -> None:
    """A deep copy and a pickle are distributed optimizers with the same state."""
    shared, distributed, alone, single = settled()
    copied, copied_optimizer = copy.deepcopy((shared, distributed))
    loaded, loaded_optimizer = pickle.loads(pickle.dumps((shared, distributed)))
    assert type(loaded_optimizer).__name__ == "SGD"
    train(shared, distributed, alone, single, steps=3)
    for module, optimizer in ((copied, copied_optimizer), (loaded, loaded_optimizer)):
        train(module, optimizer, copy.deepcopy(alone), sgd([nn.Parameter(torch.ones(1))]), 0)
        for step in range(3):
            optimizer.zero_grad()
            backward(module, *map(share, batch(step)))
            optimizer.step()
        in_buckets(optimizer, module)
        close(module, shared)
    state = copy.deepcopy(distributed.state_dict())
    distributed.load_state_dict(state)
    train(shared, distributed, alone, single, steps=1)
    close(shared, alone)
    with parallel.raises(rueda.InvalidArgumentError, "shallow copy", "deepcopy"):
        copy.copy(distributed)
    train(shared, distributed, alone, single, steps=1)
    close(shared, alone)
    gradient = copy.deepcopy(shared[0].weight.grad)
    assert gradient.untyped_storage().nbytes() == gradient.nbytes


def check_another_world() -> None:
    """Agreements made in one world do not hold in the next."""
    shared, distributed, alone, single = settled()
    rueda.barrier()
    rueda.shutdown()
    rueda.init()
    old = distributed._rueda
    fresh, fresh_optimizer = copy.deepcopy((shared, distributed))
    if rueda.rank() == rueda.size() - 1:  # a new process would have no agreements yet
        shared, distributed = fresh, fresh_optimizer
        distributed._rueda._separate._prefix = old._separate._prefix
        distributed._rueda._bucketed._prefix = old._bucketed._prefix
    train(shared, distributed, alone, single, steps=3)
    in_buckets(distributed, shared)
    close(shared, alone)


class Halved:
    """A custom compressor."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor / 2, None

    def decompress(self, tensor: torch.Tensor, _: None) -> torch.Tensor:
        return tensor * 2


def check_compressed_buckets() -> None:
    for compression, epsilon in ((rt.Compression.fp16, 2.0**-10), (rt.Compression.bf16, 2.0**-7)):
        shared, distributed, alone, single = pair(sgd, **ON, compression=compression)
        packed = rueda.metrics()["bytes_packed"]
        for step in range(3):
            x, y = batch(step)
            for net, optimizer, part in (
                (shared, distributed, share),
                (alone, single, lambda t: t),
            ):
                optimizer.zero_grad()
                F.cross_entropy(net(part(x)), part(y)).backward()
                optimizer.step()
        in_buckets(distributed, shared)
        assert rueda.metrics()["bytes_packed"] > packed, "nothing was converted"
        for a, b in zip(shared.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=20 * epsilon)
        same_bits(*shared.parameters())


def check_why_there_are_no_buckets() -> None:
    last = rueda.size() - 1

    def why_not(**options: object) -> str:
        shared, distributed, alone, single = pair(sgd, **options)
        train(shared, distributed, alone, single, steps=3)
        if "compression" not in options:
            close(shared, alone)
        described = distributed.gradient_buckets()
        assert described.names == described.sizes == ()
        return described.why_not

    assert why_not(gradient_as_bucket_view=False) == "gradient_as_bucket_view=False"
    assert "compressed" in why_not(**ON, compression=Halved())
    if rueda.size() == 1 and DEVICE.type == "cpu":
        assert why_not(gradient_as_bucket_view=None) == "there is one rank"
    allocate = _native.allocate
    if rueda.rank() == last:

        def refuse(size: int) -> None:
            raise MemoryError

        _native.allocate = refuse
    try:
        why = why_not(**ON)
    finally:
        _native.allocate = allocate
    assert f"rank {last} of the set has no memory for buckets of" in why, why
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0))]
    optimizer = rt.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **ON)
    for _ in range(2):
        optimizer.zero_grad()
        sum(p.sum() for p in parameters).backward()
        optimizer.step()
    described = optimizer.gradient_buckets()
    assert described.names == (("group0.parameter0",),)
    assert described.left_out == {"group0.parameter1": "it is empty"}
    with parallel.raises(rueda.InvalidArgumentError, "bucket_bytes=0"):
        rt.DistributedOptimizer(sgd(parameters), bucket_bytes=0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
