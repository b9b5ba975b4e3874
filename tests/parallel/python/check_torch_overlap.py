"""Every rank: DistributedOptimizer(overlap_forward=True), whose step() defers updates."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable

import parallel
import rueda
import rueda.torch as rt
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack as active_modes
from training import Optimizer, same_bits

Make = Callable[[list[nn.Parameter]], Optimizer]
# One for each way of using state and groups.
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}]),
    "foreach": lambda p: torch.optim.Adam(p, foreach=True),
}


class Attention(nn.Module):
    """Reads weights of its child's children without calling them; uses a parameter rarely."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)
        self.outer = nn.Linear(8, 8)
        self.rare = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = self.inner(x, x, x)[0] + x
        return self.outer(x) + (self.rare if step % 3 == 0 else 0)


def model() -> nn.Module:
    torch.manual_seed(5)
    return Attention()


def distributed(module: nn.Module, make: Make, **options: object) -> Optimizer:
    options = {"overlap_forward": True, "bucket_bytes": 256, **options}
    return rt.DistributedOptimizer(
        make(list(module.parameters())), module.named_parameters(), **options
    )


def backward(module: nn.Module, step: int) -> None:
    torch.manual_seed(10 * step + rueda.rank())
    module(torch.randn(3, 4, 8), step).square().mean().backward()


def train(
    module: nn.Module,
    optimizer: Optimizer,
    steps: int,
    after: Callable[[int], None] = lambda step: None,
) -> int:
    """Returns how many steps have deferred updates."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    left = 0
    for step in range(steps):
        backward(module, step)
        optimizer.step()
        left += optimizer._rueda_deferred.are_left()
        schedule.step()
        after(step)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    optimizer.finish_updates()
    return left


def pair(
    make: Make = OPTIMIZERS["SGD"], **options: object
) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    """A model with deferred updates, and the same model without."""
    late, early = model(), model()
    return (
        late,
        distributed(late, make, **options),
        early,
        distributed(early, make, **{**options, "overlap_forward": False}),
    )


def same(left: nn.Module, right: nn.Module) -> None:
    for name, (one, other) in zip(
        dict(left.named_parameters()),
        zip(left.parameters(), right.parameters(), strict=True),
        strict=True,
    ):
        assert torch.equal(one, other), name


def check_parameters_become_the_same_to_the_bit() -> None:
    for name, make in OPTIMIZERS.items():
        for options in ({}, {"gradient_as_bucket_view": False}, {"compression": "fp16"}):
            late, optimizer, early, usual = pair(make, **options)
            # All but the first step defer, scattered over later uses or not.
            assert train(late, optimizer, 6) == 5, name
            assert train(early, usual, 6) == 0
            same(late, early)
            same_bits(*late.parameters())
            for one, other in zip(
                optimizer.state_dict()["state"].values(),
                usual.state_dict()["state"].values(),
                strict=True,
            ):
                for key, value in one.items():
                    assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key])), key


def check_whatever_looks_at_a_parameter_finds_it_updated() -> None:
    looks: dict[str, Callable[[nn.Module], object]] = {
        "data": lambda m: [p.data.clone() for p in m.parameters()],
        "detach": lambda m: [p.detach().clone() for p in m.parameters()],
        "norm": lambda m: torch.nn.utils.parameters_to_vector(m.parameters()).clone(),
        "stack": lambda m: [torch.cat([p.flatten(), p.flatten()]) for p in m.parameters()],
        "foreach": lambda m: torch._foreach_add(list(m.parameters()), 1.0),
        "keyword": lambda m: [torch.add(input=p, other=0) for p in m.parameters()],
        "state_dict": lambda m: list(copy.deepcopy(m.state_dict()).values()),
        "copy": lambda m: list(copy.deepcopy(m).parameters()),
        "numpy": lambda m: [torch.from_numpy(p.detach().numpy().copy()) for p in m.parameters()],
        "list": lambda m: [torch.tensor(p.tolist()) for p in m.parameters()],
    }
    for name, look in looks.items():
        late, optimizer, early, usual = pair()
        train(late, optimizer, 1)
        train(early, usual, 1)
        for module, each in ((late, optimizer), (early, usual)):
            backward(module, 1)
            each.step()
        assert optimizer._rueda_deferred.are_left()
        seen, wanted = look(late), look(early)
        for one, other in zip(
            torch.utils._pytree.tree_leaves(seen),
            torch.utils._pytree.tree_leaves(wanted),
            strict=True,
        ):
            assert torch.equal(one, other), name
        optimizer.finish_updates()


def check_gradients_and_changes_by_hand_come_after_the_update() -> None:
    late, optimizer, early, usual = pair()
    for module, each in ((late, optimizer), (early, usual)):
        train(module, each, 1)
        backward(module, 1)
        each.step()
        with torch.no_grad():
            module.outer.weight.clamp_(-0.01, 0.01)
            module.outer.bias.grad.mul_(2)
    optimizer.finish_updates()
    same(late, early)
    for one, other in zip(late.parameters(), early.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def check_an_average_of_weights() -> None:
    late, optimizer, early, usual = pair()
    averages = []
    for module, each in ((late, optimizer), (early, usual)):
        average = [torch.zeros_like(p) for p in module.parameters()]

        def blend(
            step: int, average: list[torch.Tensor] = average, module: nn.Module = module
        ) -> None:
            for kept, parameter in zip(average, module.parameters(), strict=True):
                kept.lerp_(parameter.detach(), 0.3)

        train(module, each, 4, blend)
        averages.append(average)
    assert all(torch.equal(one, other) for one, other in zip(*averages, strict=True))


def check_frozen_parameters_and_clipping() -> None:
    late, optimizer, early, usual = pair()
    for module, each in ((late, optimizer), (early, usual)):
        train(module, each, 2)
        module.outer.bias.requires_grad_(False)
        train(module, each, 2)
        backward(module, 2)
        each.synchronize()
        torch.nn.utils.clip_grad_norm_([p for p in module.parameters() if p.grad is not None], 0.1)
        each.step()
        assert not each._rueda_deferred.are_left()
    same(late, early)


def check_step_waits_where_it_must_and_says_why() -> None:
    module = model()
    optimizer = distributed(module, OPTIMIZERS["SGD"])
    train(module, optimizer, 2)
    handle = optimizer.register_step_post_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert train(module, optimizer, 1) == 0
        handle.remove()
        with torch.device("cpu"):
            assert train(module, optimizer, 1) == 0
    assert ["hooks of step()" in str(warning.message) for warning in told] == [True]
    assert train(module, optimizer, 2) == 2


def check_step_within_backward_waits() -> None:
    """What its hooks enter, such as the mode that makes deferred updates, ends with the hook."""
    late, optimizer, early, usual = pair()
    for module, each in ((late, optimizer), (early, usual)):
        train(module, each, 2)

        def step(_: torch.Tensor, each: Optimizer = each) -> None:
            torch.autograd.Variable._execution_engine.queue_callback(each.step)

        handle = module.outer.bias.register_post_accumulate_grad_hook(step)
        for number in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                backward(module, number)
            assert not each._rueda_deferred.are_left()
            each.zero_grad()
        handle.remove()
        train(module, each, 2)
    same(late, early)


def check_updates_left_by_another_thread_are_found_here() -> None:
    """A mode is a thread's: the next step() of this thread enters it again."""
    late, optimizer, early, usual = pair()
    for module, each in ((late, optimizer), (early, usual)):
        train(module, each, 2)
        backward(module, 2)
        elsewhere = threading.Thread(target=each.step)
        elsewhere.start()
        elsewhere.join()
        each.finish_updates()
        each.zero_grad()
        train(module, each, 3)
    same(late, early)


class Other(TorchFunctionMode):
    """Changes nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


def check_modes_are_left_with_the_last_update() -> None:
    """Also from below a mode that was entered meanwhile, and with those of another optimizer."""
    first, second = (
        (module, distributed(module, OPTIMIZERS["SGD"])) for module in (model(), model())
    )
    for module, optimizer in (first, second):
        train(module, optimizer, 1)
        backward(module, 1)
        optimizer.step()
    assert len(active_modes()) == 1
    with Other() as other:
        for (_, optimizer), left in ((first, 2), (second, 1)):
            optimizer.finish_updates()
            assert len(active_modes()) == left
        assert active_modes() == [other]
    assert not active_modes()


def check_optimizers_that_are_gone_leave_no_mode() -> None:
    """As in a cross validation; however the garbage collector runs, functions pass through one mode at most."""
    for collects in (True, False):
        for _ in range(5):
            module = model()
            optimizer = distributed(module, OPTIMIZERS["SGD"])
            for step in range(3):
                backward(module, step)
                optimizer.step()
            if collects:
                same(module, copy.deepcopy(module))  # uses all parameters
            # Otherwise the last updates stay pending, as of parameters that are not used again.
            del module, optimizer
            gc.collect()
            assert len(active_modes()) == (not collects)


def check_an_optimizer_that_updates_parameters_together_is_refused() -> None:
    module = model()
    with parallel.raises(rueda.InvalidArgumentError, "LBFGS"):
        distributed(module, lambda p: torch.optim.LBFGS(p))


def check_what_a_reduction_raises_comes_with_the_parameter() -> None:
    module = model()
    optimizer = distributed(module, OPTIMIZERS["SGD"])
    train(module, optimizer, 2)
    backward(module, 2)
    optimizer.step()
    if rueda.size() > 1:
        # A gradient whose shape differs from its bucket's is this rank's own mistake, found on use.
        with torch._C.DisableTorchFunction():
            module.outer.bias.grad = None
            module.outer.bias.data = torch.zeros(3)
            module.outer.bias.grad = torch.zeros(3)
        with parallel.raises(rueda.InvalidArgumentError, "outer.bias"):
            module.outer.bias.sum()
        assert not optimizer._rueda_deferred.are_left()


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
