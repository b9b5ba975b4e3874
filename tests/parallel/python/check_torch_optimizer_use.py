"""Every rank: DistributedOptimizer as an optimizer: state, schedulers, groups, odd models and misuse."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings

import numpy as np
import parallel
import rueda
import rueda.torch as rt
import torch
from torch import nn
from torch.nn import functional as F
from training import (
    Wrapper,
    batch,
    close,
    model,
    pair,
    same_bits,
    sgd,
    share,
    train,
)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.right = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)


def check_parameters_without_gradient() -> None:
    filled = rueda.metrics()["gradients_filled"]
    module = Branches()
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0), module.named_parameters()
    )
    for _ in range(2):
        optimizer.zero_grad()
        (module.left if rueda.rank() == 0 else module.right).sum().backward()
        optimizer.synchronize()
        n = rueda.size()
        torch.testing.assert_close(module.left.grad, torch.full((3,), 1 / n).double())
        torch.testing.assert_close(module.right.grad, torch.full((2,), (n - 1) / n).double())
        assert module.frozen.grad is None
        optimizer.step()
    same_bits(*module.parameters())
    # This rank's unused branch, in each of the two steps.
    assert rueda.metrics()["gradients_filled"] - filled == 2


def _two_layers(freeze: bool = False, **options: object) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].weight.requires_grad_(not freeze)
    inner = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    return module, rt.DistributedOptimizer(inner, module.named_parameters(), **options)


def _step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if hasattr(optimizer, "leaves"):
        for leaf in optimizer.leaves():
            module(torch.full((2, 4), leaf.number + 1.0)).square().sum().backward()
    else:
        optimizer.zero_grad()
        module(torch.full((2, 4), rueda.rank() + 1.0)).square().sum().backward()
    optimizer.step()


def check_a_parameter_that_is_frozen_later_stays_where_it_is() -> None:
    """Momentum and weight decay do not move it: it has no gradient, as in torch."""
    ways = (
        {"reproducible": True, "leaves": 4},
        {"groups": 1, "gradient_as_bucket_view": False},
        {},
    )
    for options in ways:
        module, optimizer = _two_layers(**options)
        for _ in range(2):
            _step(module, optimizer)
        module[1].weight.requires_grad_(False)
        before = module[1].weight.detach().clone()
        for _ in range(2):
            _step(module, optimizer)
        assert torch.equal(module[1].weight, before), options
        same_bits(*module.parameters())


def check_a_parameter_that_is_unfrozen_later_is_reduced() -> None:
    for options in ({"reproducible": True, "leaves": 4}, {}):
        module, optimizer = _two_layers(freeze=True, **options)
        _step(module, optimizer)
        start = module[0].weight.detach().clone()
        module[0].weight.requires_grad_(True)
        _step(module, optimizer)
        assert not torch.equal(module[0].weight, start), options
        same_bits(*module.parameters())


def check_parameters_that_come_behind_the_optimizers_back_are_refused() -> None:
    for make in (
        lambda inner, module: rt.DistributedOptimizer(inner, module.named_parameters()),
        lambda inner, module: rt.wrap(module, inner, strategy="local:2"),
    ):
        module = model()
        inner = sgd(module.parameters())
        optimizer = make(inner, module)
        stranger = nn.Parameter(torch.ones(2))
        inner.add_param_group({"params": [stranger]})
        with parallel.raises(rt.InvalidArgumentError, "parameter 0 of group 1", "is not reduced"):
            optimizer.step()
        stranger.requires_grad_(False)  # no step moves it
        optimizer.step()


def check_a_gradient_whose_elements_share_memory() -> None:
    module, optimizer = _two_layers(gradient_as_bucket_view=False)
    for parameter in module.parameters():
        value = parameter.sum() * (rueda.rank() + 1)
        parameter.grad = torch.autograd.grad(value, parameter)[0]
        assert parameter.grad.stride() in ((0,), (0, 0))
    optimizer.synchronize()
    mean = (rueda.size() + 1) / 2
    for parameter in module.parameters():
        assert torch.equal(parameter.grad, torch.full_like(parameter, mean))
    optimizer.step()
    same_bits(*module.parameters())


def check_is_still_the_optimizer() -> None:
    shared, distributed, alone, single = pair(sgd)
    assert isinstance(distributed, torch.optim.SGD)
    assert type(distributed).__name__ == "SGD"
    calls = []
    distributed.register_step_post_hook(lambda *_: calls.append("hook"))
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (distributed, single)]
    for step in range(3):
        train(shared, distributed, alone, single, steps=1)
        assert len(calls) == step + 1
        for scheduler in schedulers:
            scheduler.step()
    close(shared, alone)
    state = copy.deepcopy(distributed.state_dict())
    distributed.load_state_dict(state)
    single.load_state_dict(copy.deepcopy(single.state_dict()))
    train(shared, distributed, alone, single, steps=1)
    assert len(calls) == 4
    close(shared, alone)
    assert distributed.param_groups[0]["lr"] == single.param_groups[0]["lr"] == 0.1 * 0.5**3


def check_scheduler_made_before() -> None:
    shared = model()
    optimizer = torch.optim.SGD(shared.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    distributed = rt.DistributedOptimizer(optimizer, shared.named_parameters())
    distributed.zero_grad()
    before = [p.clone() for p in shared.parameters()]
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    same_bits(*shared.parameters())
    assert not all(map(torch.equal, before, shared.parameters()))
    with warnings.catch_warnings():  # the scheduler checks for calls of the old optimizer's step()
        warnings.simplefilter("ignore")
        scheduler.step()
    assert distributed.param_groups[0]["lr"] == 0.5


def check_groups_added_later() -> None:
    shared, alone = model(), model()
    optimizers = []
    for module in (shared, alone):
        optimizer = torch.optim.SGD(module[0].parameters(), lr=0.1)
        if module is shared:
            optimizer = rt.DistributedOptimizer(optimizer, module[0].named_parameters())
        optimizer.add_param_group({"params": list(module[2].parameters()), "lr": 0.05})
        optimizers.append(optimizer)
    train(shared, optimizers[0], alone, optimizers[1])
    close(shared, alone)


def check_two_optimizers_at_once() -> None:
    first, first_optimizer, alone, single = pair(sgd)
    second, second_optimizer, _, _ = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(first(share(x)), share(y)).backward()
    F.cross_entropy(second(share(x)), share(y)).backward()
    first_optimizer.step()
    second_optimizer.step()
    F.cross_entropy(alone(x), y).backward()
    single.step()
    close(first, alone)
    close(second, alone)


def check_one_optimizer_after_the_other() -> None:
    """A model outlives its optimizers: a deleted one must not watch gradients."""
    for views in (True, False):
        shared, distributed, alone, single = pair(sgd, gradient_as_bucket_view=views)
        train(shared, distributed, alone, single, steps=2)
        del distributed
        gc.collect()
        distributed = rt.DistributedOptimizer(
            sgd(list(shared.parameters())),
            shared.named_parameters(),
            gradient_as_bucket_view=views,
        )
        train(shared, distributed, alone, sgd(list(alone.parameters())), steps=2)
        close(shared, alone)


def check_misuse() -> None:
    shared, distributed, _, _ = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    with parallel.raises(rueda.InvalidArgumentError, "zero_grad", "4 gradients are being reduced"):
        distributed.zero_grad()
    with parallel.raises(rueda.InvalidArgumentError, "backward_passes_per_step=1"):
        F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    distributed.zero_grad()
    F.cross_entropy(shared(share(x)), share(y)).backward()
    distributed.step()
    same_bits(*shared.parameters())

    named = list(shared.named_parameters())
    plain = sgd(list(shared.parameters()))
    with parallel.raises(rueda.InvalidArgumentError, "twice", "0.weight"):
        rt.DistributedOptimizer(plain, [*named, named[0]])
    with parallel.raises(rueda.InvalidArgumentError, "group0.parameter1", "[8]"):
        rt.DistributedOptimizer(plain, [named[0], *named[2:]])
    with parallel.raises(rueda.InvalidArgumentError, "pairs"):
        rt.DistributedOptimizer(plain, shared.parameters())
    with parallel.raises(rueda.InvalidArgumentError, "backward_passes_per_step=0"):
        rt.DistributedOptimizer(plain, named, backward_passes_per_step=0)
    with parallel.raises(rueda.InvalidArgumentError, "averaged or summed"):
        rt.DistributedOptimizer(plain, named, op=rt.Max)
    with parallel.raises(rueda.InvalidArgumentError, "predivide"):
        rt.DistributedOptimizer(plain, named, op=rt.Sum, gradient_predivide_factor=2.0)
    with parallel.raises(rueda.InvalidArgumentError, "already"):
        rt.DistributedOptimizer(distributed, named)


def check_gradients_that_are_not_accumulated() -> None:
    """torch.autograd.grad() leaves ``.grad`` alone, so it may run while those are being reduced."""
    for views in (True, False):
        shared, distributed, alone, single = pair(sgd, gradient_as_bucket_view=views)
        for step in range(2):
            x, y = batch(step)
            losses = [F.cross_entropy(m(part(x)), part(y)) for m, part in
                      ((shared, share), (alone, lambda whole: whole))]  # fmt: skip
            distributed.zero_grad()
            single.zero_grad()
            for loss in losses:
                loss.backward(retain_graph=True)
            gradients = torch.autograd.grad(losses[0], list(shared.parameters()), retain_graph=True)
            assert len(gradients) == 4
            with parallel.raises(rueda.InvalidArgumentError, "backward_passes_per_step=1"):
                losses[0].backward(inputs=[shared[0].weight])
            distributed.step()
            single.step()
            close(shared, alone)


def check_models_that_differ() -> None:
    if rueda.size() == 1:
        return
    me, last = rueda.rank(), rueda.size() - 1
    layer = nn.Linear(3, 2 if me != last else 4, bias=False)
    optimizer = rt.DistributedOptimizer(sgd(list(layer.parameters())), layer.named_parameters())
    layer(torch.ones(1, 3)).sum().backward()
    with parallel.raises(rueda.MismatchError, "weight'", "[2, 3]", "[4, 3]", f"rank {last}"):
        optimizer.step()
    layer = nn.Linear(3, 2)
    optimizer = rt.DistributedOptimizer(sgd(list(layer.parameters())), layer.named_parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def check_sparse_gradients_on_some_ranks() -> None:
    me, last = rueda.rank(), rueda.size() - 1
    for as_dense in (False, True):
        table = nn.Embedding(5, 2, sparse=me == last)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.1),
            table.named_parameters(),
            sparse_as_dense=as_dense,
        )
        table(torch.tensor([1, 2])).sum().backward()
        if as_dense or last == 0:
            optimizer.step()
        else:
            told = ("weight'", f"rank {last}", "sparse_as_dense=True")
            with parallel.raises(rueda.MismatchError, *told):
                optimizer.step()
    parallel.still_works()


def check_gradients_without_memory_of_their_own() -> None:
    wrapper = nn.Parameter(Wrapper(torch.ones(3)))
    optimizer = rt.DistributedOptimizer(torch.optim.SGD([wrapper], lr=1.0), [("p", wrapper)])
    wrapper.grad = Wrapper(torch.ones(3))
    with parallel.raises(rueda.UnsupportedError, "p'", "Wrapper", "to_local()"):
        optimizer.step()
    parallel.still_works()


class Lookup(nn.Module):
    """Rows of a table, then a layer; some ranks may look up nothing."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(7, 4, sparse=sparse).double()
        self.layer = nn.Linear(4, 1).double()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(rows)).square().mean()


def check_sparse_gradients() -> None:
    """Like dense ones on one rank; optimizers without momentum accept sparse gradients."""
    n, me = rueda.size(), rueda.rank()
    for as_dense, compression in ((False, "none"), (True, "none"), (False, "bf16")):
        shared, alone = Lookup(True), Lookup(False)
        optimizer = rt.DistributedOptimizer(
            torch.optim.Adagrad(shared.parameters(), lr=0.1),
            shared.named_parameters(),
            sparse_as_dense=as_dense,
            compression=getattr(rt.Compression, compression),
        )
        single = torch.optim.Adagrad(alone.parameters(), lr=0.1)
        for step in range(4):
            rows = torch.arange(n * 2).reshape(n, 2) * (step + 1) % 7
            optimizer.zero_grad()
            single.zero_grad()
            # In later steps the last rank looks up nothing and contributes nothing.
            if me < n - 1 or step < 2:
                shared(rows[me]).backward()
            taking_part = range(n) if step < 2 else range(n - 1)
            for rank in taking_part:
                (alone(rows[rank]) / n).backward()
            optimizer.step()
            if step < 2 or n > 1:
                single.step()
        tolerance = {"rtol": 0.1, "atol": 0.02} if compression == "bf16" else {}
        close(shared, alone, **tolerance)
        same_bits(*shared.parameters())


def check_grouped_gradients() -> None:
    """A group is a bucket, or a grouped allreduce without buckets."""
    for views in (True, False):
        for how in (2, 100, "lists"):
            shared, alone = model(), model()
            first, _, third, last = shared.parameters()
            groups = [[first, third], [last]] if how == "lists" else how
            optimizer = rt.DistributedOptimizer(
                sgd(list(shared.parameters())),
                shared.named_parameters(),
                groups=groups,
                gradient_as_bucket_view=views,
                backward_passes_per_step=2 if how == 2 else 1,
            )
            single = sgd(list(alone.parameters()))
            for step in range(3):
                x, y = batch(step)
                optimizer.zero_grad()
                single.zero_grad()
                passes = 2 if how == 2 else 1
                for part in range(passes):
                    F.cross_entropy(
                        shared(share(x[part::passes])), share(y[part::passes])
                    ).backward()
                    F.cross_entropy(alone(x[part::passes]), y[part::passes]).backward()
                optimizer.step()
                single.step()
            close(shared, alone)
            same_bits(*shared.parameters())
            names = optimizer.gradient_buckets().names
            if not views:
                assert names == ()
            elif how == "lists":
                assert {frozenset(bucket) for bucket in names} == {
                    frozenset(("0.weight", "2.weight")), frozenset(("2.bias",)), frozenset(("0.bias",))
                }  # fmt: skip
            else:
                assert sorted(map(len, names)) == ([2, 2] if how == 2 else [1, 1, 1, 1])


def check_grouped_gradients_that_are_missing() -> None:
    """A group that lacks some gradients is completed in synchronize()."""
    module = Branches()
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0), module.named_parameters(), groups=1,
        gradient_as_bucket_view=False,
    )  # fmt: skip
    n = rueda.size()
    for _ in range(2):
        optimizer.zero_grad()
        (module.left if rueda.rank() == 0 else module.right).sum().backward()
        optimizer.synchronize()
        torch.testing.assert_close(module.left.grad, torch.full((3,), 1 / n).double())
        torch.testing.assert_close(module.right.grad, torch.full((2,), (n - 1) / n).double())
        optimizer.step()


def check_groups_that_make_no_sense() -> None:
    shared = model()
    plain, named = sgd(list(shared.parameters())), list(shared.named_parameters())
    weight = shared[0].weight
    with parallel.raises(rueda.InvalidArgumentError, "negative"):
        rt.DistributedOptimizer(plain, named, groups=-1)
    with parallel.raises(rueda.InvalidArgumentError, "'0.weight'", "twice"):
        rt.DistributedOptimizer(plain, named, groups=[[weight], [weight]])
    with parallel.raises(rueda.InvalidArgumentError, "lists of tensors", "str"):
        rt.DistributedOptimizer(plain, named, groups=[["0.weight"]])
    if rueda.size() > 1:
        told = ("differ between ranks", "rank 1")
        with parallel.raises(rueda.InvalidArgumentError, *told):
            rt.DistributedOptimizer(plain, named, groups=2 if rueda.rank() == 1 else 3)
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters(), groups=1,
        gradient_as_bucket_view=False,
    )  # fmt: skip
    table(torch.tensor([1])).sum().backward()
    with parallel.raises(rueda.UnsupportedError, "weight'", "sparse_as_dense"):
        optimizer.step()
    parallel.still_works()


def check_state_loaded_in_the_middle_of_a_step() -> None:
    """Gradients in flight are discarded, and the step restarts."""
    for views in (True, False):
        shared, distributed, alone, single = pair(sgd, gradient_as_bucket_view=views)
        train(shared, distributed, alone, single, steps=2)
        state = copy.deepcopy(distributed.state_dict())
        x, y = batch(7)
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.load_state_dict(state)
        train(shared, distributed, alone, single, steps=2)
        close(shared, alone)


def check_process_set() -> None:
    n, me = rueda.size(), rueda.rank()
    members = rueda.add_process_set(range(max(1, n - 1)))
    if members.included():
        shared = model()
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(shared.parameters(), lr=0.1), None, process_set=members
        )
        shared[0].bias.grad = None
        (shared(torch.ones(1, 6).double()).sum() * me).backward()
        optimizer.step()
        gathered = rueda.allgather_object(
            [p.detach().numpy() for p in shared.parameters()], process_set=members
        )
        for other in gathered[1:]:
            for a, b in zip(gathered[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
    rueda.barrier()
    rueda.remove_process_set(members)
    # The others have not seen that optimizer, yet the next one's names agree on all ranks.
    train(*pair(sgd), steps=2)


def check_parameters_that_are_frozen_on_some_ranks() -> None:
    """Every rank learns which and where, in each step, and continues once all freeze the same."""
    n, me = rueda.size(), rueda.rank()
    for options in (
        {},
        {"gradient_as_bucket_view": False},
        {"gradient_as_bucket_view": False, "groups": 2},
    ):
        for first in (0, 2):  # before the ranks know about each other's gradients, or afterwards
            shared, distributed, alone, single = pair(sgd, **options)
            train(shared, distributed, alone, single, steps=first)
            frozen = list(shared[0].parameters()) if me == 0 and n > 1 else []
            for parameter in frozen:
                parameter.requires_grad_(False)
            for _ in range(2 if n > 1 else 0):
                x, y = map(share, batch(0))
                F.cross_entropy(shared(x), y).backward()
                with parallel.raises(
                    rueda.InvalidArgumentError, "rank 0", "0.weight", "freeze it on all ranks"
                ):
                    distributed.step()
                distributed.zero_grad()
            for parameter in frozen:
                parameter.requires_grad_(True)
            for module in (shared, alone):
                module[0].requires_grad_(first == 0)
            train(shared, distributed, alone, single, steps=3)
            close(shared, alone)
    parallel.still_works()


def check_gradients_resized_in_flight() -> None:
    """The gradient's rank gets the error; the others take their step, and all can restart."""
    changes = [lambda g: setattr(g, "data", torch.zeros(3).double()), lambda g: g.resize_(2, 2)]
    for views in (False, True):
        for change in changes:
            shared, distributed, alone, single = pair(sgd, gradient_as_bucket_view=views)
            train(shared, distributed, alone, single, steps=2)
            state = copy.deepcopy((shared.state_dict(), distributed.state_dict()))
            x, y = batch(5)
            F.cross_entropy(shared(share(x)), share(y)).backward()
            if rueda.rank() == 0:
                change(shared[0].weight.grad)
                with parallel.raises(
                    rueda.InvalidArgumentError, "'0.weight' was resized from [8, 6]", "in flight"
                ):
                    distributed.step()
            else:
                distributed.step()
            shared.load_state_dict(state[0])
            distributed.load_state_dict(state[1])
            distributed.zero_grad()
            train(shared, distributed, alone, single, steps=2)
            close(shared, alone)
            same_bits(*shared.parameters())


def check_a_scaler_before_synchronize() -> None:
    """It would unscale gradients in flight, and look for infinities in its own rank's only."""
    for fused in (False, True):
        for views in (True, False):
            shared, distributed, alone, single = pair(
                lambda p, fused=fused: torch.optim.Adam(p, lr=0.01, fused=fused),
                gradient_as_bucket_view=views,
            )
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            for step in range(3):
                x, y = batch(step)
                distributed.zero_grad()
                scaler.scale(F.cross_entropy(shared(share(x)), share(y))).backward()
                before = [p.detach().clone() for p in shared.parameters()]
                with parallel.raises(rueda.InvalidArgumentError, "synchronize() first", "'0."):
                    scaler.step(distributed)
                assert all(map(torch.equal, before, shared.parameters()))
                scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
                with parallel.raises(rueda.InvalidArgumentError, "zero_grad"):
                    distributed.zero_grad()
                distributed.load_state_dict(distributed.state_dict())  # restarts the step
                distributed.zero_grad()
                scaler.scale(F.cross_entropy(shared(share(x)), share(y))).backward()
                distributed.synchronize()
                scaler.step(distributed)
                scaler.update()
                single.zero_grad()
                F.cross_entropy(alone(x), y).backward()
                single.step()
            close(shared, alone)
            same_bits(*shared.parameters())


def check_a_scaler_before_the_last_pass_is_synchronized() -> None:
    """E.g. in the short last step of an epoch: if one rank finds an infinity, all must skip."""
    shared, distributed, _, _ = pair(sgd, backward_passes_per_step=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    x, y = batch(0)
    scaler.scale(F.cross_entropy(shared(share(x)), share(y))).backward()
    with parallel.raises(rueda.InvalidArgumentError, "synchronize() first"):
        scaler.step(distributed)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(F.cross_entropy(shared(share(x)), share(y))).backward()
    distributed.synchronize()
    scaler.step(distributed)
    scaler.update()
    same_bits(*shared.parameters())


def check_a_trace_of_the_profiler_shows_the_wait() -> None:
    shared, distributed, _, _ = pair(sgd)
    x, y = batch(0)
    F.cross_entropy(shared(share(x)), share(y)).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        distributed.step()
    assert "rueda:wait for gradients" in {event.name for event in profile.events()}


def check_what_is_no_process_set() -> None:
    module = model()
    for wrong in (None, 0, [0]):
        for call in (
            lambda wrong: rt.allreduce(torch.ones(1), process_set=wrong),
            lambda wrong: rt.DistributedOptimizer(sgd(module.parameters()), process_set=wrong),
            lambda wrong: rt.wrap(
                module, sgd(module.parameters()), strategy="local:2", process_set=wrong
            ),
        ):
            with parallel.raises(rueda.InvalidArgumentError, "is not a process set"):
                call(wrong)


def check_gradients_written_in_flight() -> None:
    """E.g. by clipping without synchronize(), which would make each rank's parameters differ."""
    for views in (True, False):
        for groups in (None, 1):
            shared, distributed, alone, single = pair(
                sgd, gradient_as_bucket_view=views, groups=groups
            )
            train(shared, distributed, alone, single, steps=2)
            state = copy.deepcopy((shared.state_dict(), distributed.state_dict()))
            x, y = batch(5)
            F.cross_entropy(shared(share(x)), share(y)).backward()
            nn.utils.clip_grad_norm_(shared.parameters(), 0.01)
            told = ("the gradient of '", "was modified", "call synchronize() before")
            with parallel.raises(rueda.InvalidArgumentError, *told):
                distributed.step()
            shared.load_state_dict(state[0])
            distributed.load_state_dict(state[1])
            distributed.zero_grad()
            train(shared, distributed, alone, single, steps=2)
            close(shared, alone)
            same_bits(*shared.parameters())


def check_gradients_replaced_in_flight() -> None:
    """E.g. by clipping or by model.zero_grad(), which sets them to None: the average would take their place."""

    def scaled(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad * 0.5

    for views, groups, change in itertools.product(
        (True, False), (None, 1), (scaled, nn.Module.zero_grad)
    ):
        shared, distributed, alone, single = pair(sgd, gradient_as_bucket_view=views, groups=groups)
        train(shared, distributed, alone, single, steps=2)
        before = [parameter.detach().clone() for parameter in shared.parameters()]
        x, y = batch(5)
        F.cross_entropy(shared(share(x)), share(y)).backward()
        change(shared)
        told = ("the gradient of '", "was replaced", "call synchronize() before")
        with parallel.raises(rueda.InvalidArgumentError, *told):
            distributed.step()
        assert all(map(torch.equal, shared.parameters(), before))
        distributed.zero_grad()
        train(shared, distributed, alone, single, steps=2)
        close(shared, alone)
        same_bits(*shared.parameters())


def check_sparse_gradients_replaced_in_flight() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters()
    )
    for change in (None, torch.clone):
        table(torch.tensor([1, 2])).sum().backward()
        table.weight.grad = change and change(table.weight.grad)
        with parallel.raises(rueda.InvalidArgumentError, "'weight' was replaced"):
            optimizer.step()
        optimizer.zero_grad()


def check_gradients_that_are_parts_of_one_tensor() -> None:
    """Autograd sees a write to one as one to all; backward() writes one during a reduction."""
    shared, distributed, alone, single = pair(sgd, gradient_as_bucket_view=False)
    flat = torch.zeros(sum(p.numel() for p in shared.parameters()), dtype=torch.float64)
    parts = flat.split([p.numel() for p in shared.parameters()])
    for parameter, part in zip(shared.parameters(), parts, strict=True):
        parameter.grad = part.view(parameter.shape)
    for step in range(3):
        x, y = batch(step)
        distributed.zero_grad(set_to_none=False)
        F.cross_entropy(shared(share(x)), share(y)).backward()
        distributed.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(shared, alone)
    assert all(p.grad.untyped_storage().nbytes() == flat.nbytes for p in shared.parameters())


def check_gradients_that_are_lazy_conjugates() -> None:
    n, me = rueda.size(), rueda.rank()
    inputs = torch.randn(n, 5, generator=torch.Generator().manual_seed(3), dtype=torch.complex128)
    for views in (True, False):
        for groups in (None, 1):
            shared, alone = (nn.Parameter(torch.ones(5, dtype=torch.complex128)) for _ in range(2))
            optimizer = rt.DistributedOptimizer(
                torch.optim.SGD([shared], lr=0.1),
                [("shared", shared)],
                gradient_as_bucket_view=views,
                groups=groups,
            )
            single = torch.optim.SGD([alone], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                single.zero_grad()
                (shared.conj() * inputs[me]).sum().abs().backward()
                sum((alone.conj() * row).sum().abs() for row in inputs).div(n).backward()
                optimizer.step()
                single.step()
            torch.testing.assert_close(shared, alone)


def halve(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(0.5)


def check_hooks_that_write_gradients_before_they_are_submitted() -> None:
    """The reduction includes what a tensor's own hook, or an earlier hook, does to a gradient."""
    for views in (True, False):
        shared, alone = model(), model()
        for module in (shared, alone):
            for parameter in module.parameters():
                parameter.register_post_accumulate_grad_hook(halve)
        distributed = rt.DistributedOptimizer(
            sgd(list(shared.parameters())),
            shared.named_parameters(),
            gradient_as_bucket_view=views,
            backward_passes_per_step=1,
        )
        train(shared, distributed, alone, sgd(list(alone.parameters())), steps=3)
        close(shared, alone)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
