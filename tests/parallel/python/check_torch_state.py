"""Every rank: broadcasts of models and optimizers."""

from __future__ import annotations

import copy

import parallel
import rueda
import rueda.elastic
import rueda.torch as rt
import torch
from torch import nn

OPTIMIZERS = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "RMSprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True),
    "Adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr),
    "Adadelta": lambda p, lr: torch.optim.Adadelta(p, lr=lr),
    "LBFGS": lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=2),
    "tensor lr": lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(lr)),
}


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def take_steps(module: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(torch.randn(5, 4)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(count):
        optimizer.step(closure)


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.dtype == right.dtype
            and torch.equal(left, right)
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(left[k], right[k]) for k in left)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def check_parameters_in_every_form() -> None:
    root = rueda.size() - 1
    expected = model(root).state_dict()
    for number, form in enumerate(
        (
            lambda m: m.state_dict(),
            lambda m: m.named_parameters(),
            lambda m: m.parameters(),
            lambda m: list(m.named_parameters()),
        )
    ):
        mine = model(rueda.rank())
        rt.broadcast_parameters(form(mine), root_rank=root)
        for name, parameter in mine.named_parameters():
            assert torch.equal(parameter, expected[name]), (number, name)
            assert parameter.requires_grad


def check_buffers() -> None:
    mine = model(rueda.rank())
    for _ in range(rueda.rank() + 1):
        mine(torch.randn(4, 4))
    rt.broadcast_parameters(mine.state_dict(), root_rank=0)
    assert mine[1].num_batches_tracked.item() == 1
    parts = rueda.allgather_object([b.numpy() for b in mine.buffers()])
    assert all((a == b).all() for part in parts for a, b in zip(parts[0], part, strict=True))


def check_layouts() -> None:
    base = torch.full((3, 4), float(rueda.rank()))
    rt.broadcast_parameters({"strided": base[:, ::2], "transposed": base[:, 1::2].T}, 0)
    assert torch.equal(base, torch.zeros(3, 4))


def check_values_that_are_not_tensors() -> None:
    with parallel.raises(rueda.InvalidArgumentError, "extra", "int", "broadcast_object"):
        rt.broadcast_parameters({"extra": 3}, root_rank=0)
    parallel.still_works()


def check_every_optimizer() -> None:
    root = rueda.size() - 1
    for name, make in OPTIMIZERS.items():
        for steps in (0, 3):
            is_root = rueda.rank() == root
            module = model(7)
            optimizer = make(module.parameters(), 0.01 if is_root else 0.5)
            take_steps(module, optimizer, steps if is_root else 1)
            before = copy.deepcopy(optimizer.state_dict())
            parameters = [p.clone() for p in module.parameters()]
            rt.broadcast_optimizer_state(optimizer, root_rank=root)
            after = optimizer.state_dict()
            if is_root:
                assert same(before, after), name
            assert all(map(torch.equal, parameters, module.parameters())), name
            reference = rueda.broadcast_object(after, root_rank=root)
            assert same(reference, after), (name, reference, after)
            take_steps(module, optimizer, 1)  # received state is usable


def check_state_of_other_dtypes_than_the_parameters() -> None:
    """The load_state_dict() of torch would cast it, such as the float32 that NAdam keeps for bfloat16."""
    root = rueda.size() - 1
    is_root = rueda.rank() == root
    for name in ("NAdam", "ASGD"):
        module = nn.Linear(4, 3).to(torch.bfloat16)
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.01)
        for _ in range(3 if is_root else 1):
            module(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
        kept = optimizer.state[module.weight]
        kept["own"] = {"master": [torch.full((2,), 1 / 3 if is_root else 1.0)]}
        seen = []
        hooks = (
            optimizer.register_load_state_dict_pre_hook(lambda _, s: {**s, "seen": True}),
            optimizer.register_load_state_dict_post_hook(
                lambda o, seen=seen: seen.append(next(iter(o.state.values()))["own"]["master"][0])
            ),
        )
        rt.broadcast_optimizer_state(optimizer, root_rank=root)
        after = optimizer.state_dict()
        assert after["state"][0]["own"]["master"][0].dtype == torch.float32
        reference = rueda.broadcast_object(after, root_rank=root)
        assert same(reference, after), (name, reference, after)
        assert [each.dtype for each in seen] == [torch.float32] * (not is_root)
        for hook in hooks:
            hook.remove()
        assert not optimizer._optimizer_load_state_dict_pre_hooks
        assert not optimizer._optimizer_load_state_dict_post_hooks


def check_a_restored_state_has_the_dtypes_that_were_saved() -> None:
    module = nn.Linear(4, 3).to(torch.bfloat16)
    optimizer = torch.optim.NAdam(module.parameters(), lr=0.01)
    inputs = torch.ones(2, 4, dtype=torch.bfloat16)
    state = rueda.elastic.State(module=module, optimizer=optimizer)
    for _ in range(3):
        module(inputs).sum().backward()
        optimizer.step()
    state.save()
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"][0]["mu_product"].dtype == torch.float32
    optimizer.step()
    state.restore()
    assert same(saved, optimizer.state_dict())


def sparse_parts(optimizer: torch.optim.Optimizer) -> list[object]:
    """What an optimizer keeps of the sparse gradients of its first parameter."""
    kept = optimizer.state_dict()["state"][0]
    found = [each for each in kept.values() if isinstance(each, torch.Tensor) and each.is_sparse]
    return [
        [each._indices(), each._values(), list(each.shape), each.is_coalesced()] for each in found
    ]


def check_sparse_state() -> None:
    """Such as SGD's momentum, which need not be coalesced; rows may differ in number, and there may be none."""
    root = rueda.size() - 1
    for rows, steps in (([3, 5, 3], 3), ([1], 1), ([], 2)):
        is_root = rueda.rank() == root
        module = nn.Embedding(9, 2, sparse=True)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps if is_root else 1):
            optimizer.zero_grad()
            module(torch.tensor(rows if is_root else [0, 8], dtype=torch.int64)).sum().backward()
            optimizer.step()
        before = copy.deepcopy(sparse_parts(optimizer))
        rt.broadcast_optimizer_state(optimizer, root_rank=root)
        after = sparse_parts(optimizer)
        assert len(after) == 1
        if is_root:
            assert same(before, after)
        assert same(rueda.broadcast_object(after, root_rank=root), after)
        optimizer.zero_grad()
        module(torch.tensor([4])).sum().backward()
        optimizer.step()  # received state is usable


def check_an_optimizer_with_sparse_state_is_wrapped() -> None:
    module = nn.Embedding(9, 2, sparse=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.tensor([rueda.rank() + 1])).sum().backward()
    optimizer.step()
    wrapped = rt.wrap(module, optimizer)
    for _ in range(2):
        wrapped.zero_grad()
        module(torch.tensor([rueda.rank()])).sum().backward()
        wrapped.step()
        after = [*sparse_parts(wrapped), module.weight.detach()]
        assert same(rueda.broadcast_object(after), after)


def check_distributed_optimizer() -> None:
    module = model(rueda.rank())
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1 + rueda.rank(), momentum=0.9),
        module.named_parameters(),
    )
    rt.broadcast_parameters(module.state_dict(), root_rank=0)
    rt.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    for _ in range(3):
        take_steps(module, optimizer, 1)
    parts = rueda.allgather_object([p.detach().numpy() for p in module.parameters()])
    assert all((a == b).all() for part in parts for a, b in zip(parts[0], part, strict=True))


def check_optimizers_that_differ() -> None:
    if rueda.size() == 1:
        return
    module = model(1)
    groups = [{"params": [p]} for p in module.parameters()]
    if rueda.rank() == rueda.size() - 1:
        groups = groups[:-1]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with parallel.raises(rueda.InvalidArgumentError, f"rank {rueda.size() - 1}", "does not fit"):
        rt.broadcast_optimizer_state(optimizer, root_rank=0)
    parallel.still_works()


def check_objects_with_tensors_of_any_dtype() -> None:
    """Also in objects that only cloudpickle takes."""
    content = torch.arange(16, dtype=torch.uint8)
    for dtype in (torch.uint16, torch.uint64, torch.complex32, torch.float8_e4m3fn, torch.float32):
        sent = nn.Parameter(content.view(dtype), requires_grad=False)
        things = {"all": [sent, sent.data], "shape": (sent.data.view(-1, 1),)}
        received = rueda.broadcast_object(things if rueda.rank() == 0 else None)
        for each in (*received["all"], *received["shape"]):
            assert each.dtype == dtype
            assert torch.equal(each.view(-1).view(torch.uint8), content)
        assert isinstance(received["all"][0], nn.Parameter)
        call = rueda.broadcast_object((lambda sent=sent: sent) if rueda.rank() == 0 else None)
        for each in (call(), *rueda.allgather_object(sent.data)):
            assert each.dtype == dtype
            assert torch.equal(each.view(torch.uint8), content)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
