"""Every rank: optimizers that are special: with sparse gradients, or with attributes of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import parallel
import rueda
import rueda.torch as rt
import torch
from parallel import raises, still_works
from simulated import fresh, train
from torch import nn
from training import Optimizer, same_bits

ROWS = 12


def words(step: int) -> torch.Tensor:
    """The whole batch of a step: rows of a table, some of them twice."""
    torch.manual_seed(step)
    return torch.randint(0, ROWS, (rueda.size(), 5))


def table(tied: bool = False) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Module()
    made.rows = nn.Embedding(ROWS, 3, sparse=True).double()
    if tied:
        made.out = nn.Linear(3, ROWS, bias=False).double()
        made.out.weight = made.rows.weight
    return made


def loss_of(trained: nn.Module, chosen: torch.Tensor) -> torch.Tensor:
    return trained.rows(chosen).square().sum()


def accumulated(
    make: Callable[[Iterable[nn.Parameter]], Optimizer], steps: int, left: bool = False
) -> None:
    """Compares with one process that takes a step with all batches of all ranks."""
    trained, alone = table(), table()
    wrapped = rt.wrap(trained, make(trained.parameters()), strategy="accumulate:2")
    single = make(alone.parameters())
    for step in range(steps):
        single.zero_grad()
        for number in (2 * step, 2 * step + 1):
            chosen = words(number)
            wrapped.zero_grad()
            # Where a rank is left out it has no gradient at all.
            if not (left and rueda.rank() == 0):
                loss_of(trained, chosen[rueda.rank()]).backward()
            wrapped.step()
            (loss_of(alone, chosen[int(left) :]) / 2 / rueda.size()).backward()
        single.step()
        torch.testing.assert_close(trained.rows.weight, alone.rows.weight)
        same_bits(trained.rows.weight)


def check_sparse_gradients_are_accumulated() -> None:
    for left in (False, True):
        if left and rueda.size() == 1:
            continue
        accumulated(lambda p: torch.optim.SparseAdam(p, lr=0.1), 4, left)
        accumulated(lambda p: torch.optim.SGD(p, lr=0.1), 4, left)


def check_what_is_accumulated_stays_sparse() -> None:
    trained = table()
    wrapped = rt.wrap(trained, torch.optim.SparseAdam(trained.parameters()), "accumulate:2")
    loss_of(trained, words(0)[rueda.rank()]).backward()
    wrapped.step()
    total = wrapped.strategy._sums["rows.weight"]
    assert total.layout == torch.sparse_coo
    assert total._nnz() < ROWS
    loss_of(trained, words(1)[rueda.rank()]).backward()
    wrapped.step()
    assert trained.rows.weight.grad.layout == torch.sparse_coo


def check_accumulated_sparse_gradients_are_saved() -> None:
    ends = []
    for resumes in (False, True):
        trained = table()
        wrapped = rt.wrap(trained, torch.optim.SparseAdam(trained.parameters()), "accumulate:2")
        for step in range(4):
            if resumes and step == 3:
                saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
                trained = table()
                optimizer = torch.optim.SparseAdam(trained.parameters())
                wrapped = rt.wrap(trained, optimizer, "accumulate:2")
                trained.load_state_dict(saved[0])
                wrapped.load_state_dict(saved[1])
            wrapped.zero_grad()
            loss_of(trained, words(step)[rueda.rank()]).backward()
            wrapped.step()
        ends.append(trained.rows.weight.detach())
    assert torch.equal(*ends)


def check_gradients_of_another_dtype_than_their_parameter() -> None:
    """Added up as they are; a rank that has none sends zeros of their dtype."""
    if not hasattr(torch.Tensor, "grad_dtype"):
        return
    trained = nn.Linear(3, 2, dtype=torch.bfloat16)
    for each in trained.parameters():
        each.grad_dtype = torch.float32
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, foreach=False)
    wrapped = rt.wrap(trained, optimizer, strategy="accumulate:2")
    for _ in range(2):
        for number in range(2):
            wrapped.zero_grad()
            trained.bias.grad = torch.full((2,), 1.0 + 0.001 * (number + 1))
            if rueda.rank() == 0:
                trained.weight.grad = torch.full((2, 3), 1.001)
            wrapped.step()
        assert trained.bias.grad.dtype == torch.float32
        torch.testing.assert_close(trained.bias.grad, torch.full((2,), 1.0015))
        torch.testing.assert_close(trained.weight.grad, torch.full((2, 3), 1.001 / rueda.size()))
    same_bits(*(each.float() for each in trained.parameters()))


def check_a_model_that_gets_another_dtype() -> None:
    """Between steps, and between the batches of a step; also where gradients are sparse."""
    for strategy, batches in (("sync", 1), ("accumulate:1", 1), ("accumulate:2", 2)):
        for is_sparse in (False, True):
            trained = nn.Embedding(1, 2, sparse=is_sparse)
            nn.init.ones_(trained.weight)
            wrapped = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.5), strategy)
            for number in range(4 * batches):
                if number == 3:
                    trained.double()
                wrapped.zero_grad()
                (trained(torch.tensor(0)).sum() * (1 + rueda.rank())).backward()
                wrapped.step()
            assert trained.weight.dtype == trained.weight.grad.dtype == torch.float64
            expected = 1 - 4 * 0.5 * (1 + rueda.size()) / 2
            torch.testing.assert_close(
                trained.weight.detach(), torch.full((1, 2), expected, dtype=torch.float64)
            )
            same_bits(*trained.parameters())
            wrapped.close()


def check_sparse_gradients_that_no_module_tells_of() -> None:
    """As of a function called by itself."""
    trained = nn.ParameterDict({"table": torch.ones(ROWS, 2), "dense": torch.ones(3)})
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    wrapped = rt.wrap(trained, optimizer, strategy="accumulate:2")
    for step in range(4):
        wrapped.zero_grad()
        chosen = nn.functional.embedding(words(step)[rueda.rank()], trained["table"], sparse=True)
        (chosen.sum() + trained["dense"].sum()).backward()
        wrapped.step()
        if step % 2:
            assert trained["table"].grad.layout == torch.sparse_coo
    same_bits(*trained.parameters())


def check_a_sparse_table_that_is_the_last_layer_too() -> None:
    """Its gradients are dense, whatever the module of the table says."""
    trained, alone = table(tied=True), table(tied=True)
    wrapped = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), "accumulate:2")
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(2):
        single.zero_grad()
        for number in (2 * step, 2 * step + 1):
            chosen = words(number)
            wrapped.zero_grad()
            trained.out(trained.rows(chosen[rueda.rank()])).square().sum().backward()
            wrapped.step()
            (alone.out(alone.rows(chosen)).square().sum() / 2 / rueda.size()).backward()
        single.step()
    torch.testing.assert_close(trained.rows.weight, alone.rows.weight)


def check_sparse_gradients_on_some_ranks_only() -> None:
    """Dense on the last rank, missing on the first or in some steps; the mean is that of the dense ones."""
    last = rueda.size() - 1
    for told, dense_from, first_has in ((True, 0, True), (False, 0, False), (False, 2, True)):
        trained, alone = (nn.ParameterDict({"dense": torch.ones(3)}).double() for _ in range(2))
        for each in (trained, alone):
            each.rows = nn.Embedding(ROWS, 3, sparse=told)
            each.rows.weight = table().rows.weight
        wrapped = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), "accumulate:2")
        single = torch.optim.SGD(alone.parameters(), lr=0.1)

        def loss(module: Any, step: int, rank: int) -> torch.Tensor:
            total = module["dense"].square().sum()
            if rank or first_has or step > 3:  # noqa: B023
                rows = nn.functional.embedding(words(step)[rank], module.rows.weight, sparse=True)
                total = total + rows.square().sum()
            if rank == last and step >= dense_from:  # noqa: B023
                total = total + module.rows.weight.sum()
            return total

        for step in range(6):
            wrapped.zero_grad()
            loss(trained, step, rueda.rank()).backward()
            wrapped.step()
            for rank in range(rueda.size()):
                (loss(alone, step, rank) / 2 / rueda.size()).backward()
            if step % 2:
                single.step()
                single.zero_grad()
                is_sparse = step < dense_from
                layout = torch.sparse_coo if is_sparse else torch.strided
                assert trained.rows.weight.grad.layout == layout, (told, step)
        torch.testing.assert_close(trained.rows.weight, alone.rows.weight)
        torch.testing.assert_close(trained["dense"], alone["dense"])
        same_bits(*trained.parameters())
        still_works()


def check_undeclared_sparse_gradients_that_a_rank_lacks_at_first() -> None:
    """Nothing on a rank is neither sparse nor dense: the mean is sparse, as SparseAdam requires."""
    trained = nn.ParameterDict({"table": torch.ones(ROWS, 2)})
    wrapped = rt.wrap(trained, torch.optim.SparseAdam(trained.parameters()), "accumulate:1")
    for step in range(3):
        wrapped.zero_grad()
        if rueda.rank() or step or rueda.size() == 1:
            chosen = words(step)[rueda.rank()]
            nn.functional.embedding(chosen, trained["table"], sparse=True).sum().backward()
        wrapped.step()
        assert trained["table"].grad.layout == torch.sparse_coo
        same_bits(trained["table"])


def check_sparse_gradients_that_ranks_lack_in_the_first_step() -> None:
    """The module says that they are sparse; not of a table that is the last layer, too, whose are dense."""
    for tied in (False, True):
        trained, alone = table(tied), table(tied)
        wrapped = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1))
        single = torch.optim.SGD(alone.parameters(), lr=0.1)

        def loss(module: nn.Module, step: int, rank: int) -> torch.Tensor:
            rows = module.rows(words(step)[rank])
            return (module.out(rows) if tied else rows).square().sum()  # noqa: B023

        for step in range(4):
            wrapped.zero_grad()
            single.zero_grad()
            having = [rank for rank in range(rueda.size()) if (rank + step) % 2]
            if rueda.rank() in having:
                loss(trained, step, rueda.rank()).backward()
            wrapped.step()
            for rank in having:
                (loss(alone, step, rank) / rueda.size()).backward()
            single.step()
            assert (trained.rows.weight.grad.layout == torch.sparse_coo) == (not tied)
        torch.testing.assert_close(trained.rows.weight, alone.rows.weight)
        same_bits(trained.rows.weight)
        wrapped.close()


class Boosted(torch.optim.Adam):
    """Has an attribute of its own, which step() reads."""

    def __init__(self, parameters: Iterable[nn.Parameter], boost: float = 2.0) -> None:
        super().__init__(parameters, lr=0.01)
        self.boost = boost
        self.calls: list[int] = []

    def step(self, closure: Any = None) -> Any:
        self.calls.append(1)
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.grad.mul_(self.boost)
        return super().step(closure)


class Closed(torch.optim.Adam):
    """Its step() fails without the model's gradients, and so in any trial."""

    def step(self, closure: Any = None) -> Any:
        if all(each.dim() < 2 for group in self.param_groups for each in group["params"]):
            raise RuntimeError("where is the weight?")
        return super().step(closure)


class OfItsOwn(torch.optim.Optimizer):
    """Not on top of any of torch's optimizers."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float = 0.9) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.decay = decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    kept = self.state[each]
                    if not kept:
                        kept["exp_avg"] = torch.zeros_like(each)
                        kept["exp_avg_sq"] = torch.zeros_like(each)
                    kept["exp_avg"].lerp_(each.grad, 1 - self.decay)
                    kept["exp_avg_sq"].lerp_(each.grad.square(), 1 - self.decay)
                    each.sub_(group["lr"] * kept["exp_avg"])


class Odd(OfItsOwn):
    """Refuses to try."""

    def step(self, closure: Any = None) -> None:
        if not any(each.numel() > 3 for each in self.param_groups[0]["params"]):
            raise RuntimeError("this is not my model")
        super().step(closure)


def check_moments_of_optimizers_that_one_has_written_oneself() -> None:
    for kind in (Boosted, Closed, OfItsOwn):
        trained, optimizer = fresh(kind)
        wrapped = rt.wrap(trained, optimizer, strategy="desloc:2,2,2")
        assert getattr(wrapped, "calls", []) == [], "the trial has changed the optimizer"
        train(trained, wrapped, 0, 4)
        same_bits(*trained.parameters())
        for kept in wrapped.state.values():
            same_bits(kept["exp_avg"], kept["exp_avg_sq"])
        wrapped.close()


def check_moments_of_sparse_gradients() -> None:
    trained = table()
    optimizer = torch.optim.SparseAdam(trained.parameters())
    wrapped = rt.wrap(trained, optimizer, strategy="desloc:2,2,2")
    for step in range(2):
        wrapped.zero_grad()
        loss_of(trained, words(step)[rueda.rank()]).backward()
        wrapped.step()
    same_bits(trained.rows.weight, wrapped.state[trained.rows.weight]["exp_avg"])


def check_optimizers_whose_state_is_unknown() -> None:
    for kind, why in ((torch.optim.LBFGS, "closure"), (Odd, "this is not my model")):
        trained, optimizer = fresh(kind)
        with raises(
            rt.UnsupportedError,
            f"which state {kind.__name__} keeps",
            why,
            "take a step with it on every rank before wrap()",
        ):
            rt.wrap(trained, optimizer, strategy="desloc:2,2,2")
        still_works()
    # As the text advises.
    trained, optimizer = fresh(Odd)
    for each in trained.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    wrapped = rt.wrap(trained, optimizer, strategy="desloc:2,2,2")
    train(trained, wrapped, 0, 2)
    same_bits(*(kept["exp_avg"] for kept in wrapped.state.values()))


def check_optimizers_that_take_matrices_only() -> None:
    trained = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Muon(trained.parameters(), lr=0.1)
    with raises(rt.InvalidArgumentError, "DESLOC", "Muon keeps momentum_buffer"):
        rt.wrap(trained, optimizer, strategy="desloc:2,2,2")
    still_works()


def check_step_counts_of_zero_dimensional_parameters_are_not_averaged() -> None:
    """They come from the first rank with a step, as other parameters' do; moments are averaged."""
    for kind in (torch.optim.Adam, torch.optim.NAdam, torch.optim.ASGD):
        for steps_of_first in (5, 0):
            trained = nn.ParameterList([torch.tensor(1.0), torch.ones(3)])
            wrapped = rt.wrap(trained, kind(trained.parameters(), lr=0.1), strategy="oneshot")
            for _ in range(2 if rueda.rank() else steps_of_first):
                wrapped.zero_grad()
                ((trained[0] * trained[1]).sum() * (rueda.rank() + 1)).backward()
                wrapped.step()
            moment = "ax" if kind is torch.optim.ASGD else "exp_avg"
            mine = wrapped.state.get(trained[0], {}).get(moment, torch.tensor(0.0))
            mean = rt.allreduce(mine.reshape(1).clone(), name="moment")
            wrapped.switch("sync")
            scalar, vector = wrapped.state[trained[0]], wrapped.state[trained[1]]
            assert scalar["step"] == (steps_of_first or 2)
            for name in ("step", "mu_product", "mu", "eta"):
                assert scalar.get(name) == vector.get(name), name
            torch.testing.assert_close(scalar[moment].reshape(1), mean)
            same_bits(*(scalar[name] for name in sorted(scalar)))
            wrapped.close()


def check_state_of_parameters_that_some_ranks_have_not_used() -> None:
    """Counts as zeros where it is missing; the step count comes from a rank that has one. Dense if any rank's is."""
    last = rueda.size() - 1
    makers = {
        "momentum_buffer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "exp_avg": lambda p: torch.optim.Adam(p, lr=0.1),
    }
    for moment, is_sparse, users, dense_on in (
        ("exp_avg", False, {last}, -1),
        ("exp_avg", False, {0}, -1),
        ("momentum_buffer", False, {last}, -1),
        ("momentum_buffer", True, {last}, -1),
        ("momentum_buffer", True, {0, last}, -1),
        ("momentum_buffer", True, {0, last}, last),
        ("momentum_buffer", True, set(), -1),
    ):
        trained = nn.Sequential(nn.Embedding(ROWS, 3, sparse=is_sparse), nn.Linear(3, 1)).double()
        wrapped = rt.wrap(trained, makers[moment](trained.parameters()), strategy="local:2")
        table_of, used = trained[0].weight, rueda.rank() in users
        for step in range(3):
            wrapped.zero_grad()
            rows = trained[0](words(step)[rueda.rank()]) if used else torch.ones(2, 3).double()
            if rueda.rank() == dense_on:
                rows = rows + table_of.sum()
            trained[1](rows).square().sum().backward()
            wrapped.step()
        kept = wrapped.state.get(table_of, {}).get(moment, torch.zeros(ROWS, 3).double())
        mean = rt.allreduce(kept.to_dense().clone(), name="moment")
        wrapped.switch("sync")
        state = wrapped.state.get(table_of, {})
        assert bool(state) == bool(users)
        if users:
            layout = torch.sparse_coo if is_sparse and dense_on < 0 else torch.strided
            assert state[moment].layout == layout, (users, dense_on)
            torch.testing.assert_close(state[moment].to_dense(), mean)
            same_bits(state[moment].to_dense())
        if moment == "exp_avg":
            assert state["step"] == 3
        wrapped.zero_grad()
        trained(words(4)[rueda.rank()]).square().sum().backward()
        wrapped.step()
        same_bits(*trained.parameters())
        wrapped.close()


if __name__ == "__main__":
    parallel.run(globals())
