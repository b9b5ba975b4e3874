"""Every rank: strategies over a parameter table, against their equations."""

from __future__ import annotations

import math
import mmap
import random
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import parallel
import rueda
import rueda.torch as rt
import torch
from rueda.torch.strategies import (
    ADAG,
    AEASGD,
    EAMSGD,
    SSP,
    Downpour,
    DynSGD,
    Hogwild,
    Served,
    Strategy,
)
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import BATCH, DEVICE, Optimizer, model, same_bits

# Single precision: products are summed in another order.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def fresh(momentum: float = 0.0) -> tuple[nn.Module, Optimizer]:
    trained = model().float()
    parameters = list(trained.parameters())
    return trained, torch.optim.SGD(parameters, lr=0.1, momentum=momentum, nesterov=momentum > 0)


def backward(trained: nn.Module, step: int) -> None:
    """Computes gradients of this rank's share of a batch."""
    torch.manual_seed(100 + step)
    x, y = torch.randn(BATCH, 6), torch.randint(0, 3, (BATCH,))
    mine = slice(rueda.rank(), None, rueda.size())
    F.cross_entropy(trained(x[mine].to(DEVICE)), y[mine].to(DEVICE)).backward()


def train(trained: nn.Module, wrapped: Optimizer, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        wrapped.zero_grad()
        backward(trained, step)
        wrapped.step()


def vector(trained: nn.Module) -> torch.Tensor:
    return parameters_to_vector(trained.parameters()).detach().clone()


class Pushes:
    """Records what this rank's strategy adds to the centre."""

    def __init__(self, strategy: Served) -> None:
        self.total = torch.zeros_like(strategy.pulled)
        push = strategy.push

        def noted(delta: torch.Tensor, **options: float) -> object:
            self.total.add_(delta, alpha=options.get("factor", 1.0))
            return push(delta, **options)

        strategy.push = noted  # type: ignore[method-assign]


def check_without_slack_it_is_synchronous() -> None:
    """Bulk-synchronous: the mean of the ranks' SGD steps is the step with the mean gradient."""
    served, optimizer = fresh()
    wrapped = rt.wrap(served, optimizer, strategy="ssp:0")
    equal, optimizer = fresh()
    synchronous = rt.wrap(equal, optimizer)
    for step in range(12):
        train(served, wrapped, step, 1)
        train(equal, synchronous, step, 1)
        torch.testing.assert_close(vector(served), vector(equal), **CLOSE)
        # Other ranks push between a rank's steps: it sees one consistent state per owner.
    wrapped.consolidate()
    same_bits(*served.parameters())
    wrapped.strategy.stop()


def check_no_rank_goes_further_ahead_than_the_slack_allows() -> None:
    """Each rank records its steps in shared memory; ranks are occasionally slow, at random."""
    folder = rueda.broadcast_object(tempfile.mkdtemp() if rueda.rank() == 0 else None, 0)
    path = Path(folder) / "clocks"
    if rueda.rank() == 0:
        path.write_bytes(bytes(8 * rueda.size()))
    rueda.barrier()
    draw = random.Random(rueda.rank())
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        clocks = np.frombuffer(shared, np.int64)
        for slack in (0, 2):
            trained, optimizer = fresh()
            wrapped = rt.wrap(trained, optimizer, strategy=SSP(slack))
            for step in range(60):
                if draw.random() < 0.1:
                    time.sleep(0.004)
                train(trained, wrapped, step, 1)
                # The others' counts may have grown since, but not shrunk.
                clocks[rueda.rank()] = step + 1
                gap = step + 1 - int(clocks.min())
                assert gap <= slack + 1, (slack, step, gap)
            wrapped.consolidate()
            wrapped.strategy.stop()
            clocks[rueda.rank()] = 0
            rueda.barrier()
        del clocks
    rueda.barrier()
    if rueda.rank() == 0:
        shutil.rmtree(folder)


def check_without_a_bound_nobody_waits() -> None:
    """A rank takes all its steps while the others take none; then they read them."""
    trained, optimizer = fresh()
    wrapped = rt.wrap(trained, optimizer, strategy="ssp:inf")
    begun = vector(trained)
    rueda.barrier()
    for turn in range(rueda.size()):
        if turn == rueda.rank():
            train(trained, wrapped, 0, 20)
            assert wrapped.strategy.table.clock == 20
        rueda.barrier()
    assert not torch.equal(vector(trained), begun)
    centre = wrapped.strategy.table.get().result()
    if rueda.rank() == rueda.size() - 1:  # it has pulled all earlier ranks' pushes
        np.testing.assert_allclose(vector(trained).cpu().numpy(), centre, rtol=1e-6)
    wrapped.consolidate()
    same_bits(*trained.parameters())
    np.testing.assert_allclose(vector(trained).cpu().numpy(), centre, rtol=2e-5, atol=2e-6)
    wrapped.strategy.stop()


def check_pushes_count_less_the_later_they_come() -> None:
    """Ranks take turns, so a push's staleness is known: all pushes since its rank pulled."""
    trained, optimizer = fresh()
    wrapped = rt.wrap(trained, optimizer, strategy=DynSGD(1))
    deltas: list[torch.Tensor] = []
    push = wrapped.strategy.push

    def noted(delta: torch.Tensor, **options: float) -> object:
        deltas.append(delta.clone())
        return push(delta, **options)

    wrapped.strategy.push = noted  # type: ignore[method-assign]
    expected = vector(trained).cpu().numpy().astype(np.float64)
    size = rueda.size()
    rueda.barrier()
    for step in range(3):
        for turn in range(size):
            if turn == rueda.rank():
                train(trained, wrapped, step, 1)
            rueda.barrier()
        of_all = rueda.allgather(deltas[-1].cpu().numpy()[None], name="deltas")
        for other in range(size):  # in the first round, the first rank sees no other pushes
            expected += of_all[other] / (1 + (other if step == 0 else size - 1))
    assert len(deltas) == 3
    centre = wrapped.strategy.table.get().result()
    np.testing.assert_allclose(centre, expected, **CLOSE)
    wrapped.consolidate()
    same_bits(*trained.parameters())
    wrapped.strategy.stop()


def check_what_is_pushed_is_what_the_centre_moves_by() -> None:
    """Whatever the order of pushes: none is lost, and none counts twice."""
    for strategy in (
        Downpour(1),
        Downpour(3),
        ADAG(4),
        Hogwild(),
        SSP(2),
        SSP(math.inf),
        AEASGD(2),
    ):
        trained, optimizer = fresh()
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        begun = vector(trained)
        pushes = Pushes(wrapped.strategy)
        train(trained, wrapped, 0, 10 + rueda.rank())  # different numbers of steps
        wrapped.consolidate()
        same_bits(*trained.parameters())
        total = rueda.allreduce(pushes.total.numpy(), "pushes", op=rueda.Sum)
        expected = begun + torch.from_numpy(total).to(DEVICE)
        torch.testing.assert_close(vector(trained), expected, **CLOSE)
        train(trained, wrapped, 50, 3)  # it goes on
        wrapped.consolidate()
        same_bits(*trained.parameters())
        wrapped.strategy.stop()


def check_the_guard_pushes_less_where_pushes_over_correct() -> None:
    """A quadratic of curvature 1 and steps of 1.9: converges alone, but P ranks' steps add up."""
    ends: dict[str, float] = {}
    for guard in ("off", "scale"):
        weights = nn.Parameter(torch.ones(5, device=DEVICE))
        module = nn.Module()
        module.weights = weights
        wrapped = rt.wrap(
            module, torch.optim.SGD([weights], lr=1.9), strategy=Downpour(1, guard=guard)
        )
        # It grows until there are enough pushes to estimate their staleness.
        for _ in range(60 if guard == "off" else 200):
            rueda.barrier()  # so that all push onto nearly the same centre
            wrapped.zero_grad()
            (weights.square().sum() / 2).backward()
            wrapped.step()
        wrapped.consolidate()
        ends[guard] = float(weights.detach().abs().max())
        wrapped.strategy.stop()
    assert ends["scale"] < 1, ends
    assert rueda.size() == 1 or not ends["off"] < 1e3, ends


def check_modes_and_frequencies() -> None:
    """The terms of Elephas: each combination trains."""
    for mode in ("synchronous", "asynchronous", "hogwild"):
        for frequency in ("batch", "epoch", 3):
            trained, optimizer = fresh()
            wrapped = rt.wrap(trained, optimizer, mode=mode, frequency=frequency, steps_per_epoch=4)
            begun = vector(trained)
            train(trained, wrapped, 0, 8)
            wrapped.consolidate()
            assert not torch.equal(vector(trained), begun)
            same_bits(*trained.parameters())
            wrapped.switch("sync")


def check_switching_and_states() -> None:
    trained, optimizer = fresh()
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    train(trained, wrapped, 0, 4)
    wrapped.switch(AEASGD(2))
    train(trained, wrapped, 4, 5)
    rueda.barrier()
    state = wrapped.state_dict()
    kept = vector(trained)
    centre = rueda.allgather(state["rueda_strategy"]["kept"]["centre"].numpy(), "centre")
    rueda.barrier()
    train(trained, wrapped, 9, 5)
    wrapped.consolidate()
    vector_to_parameters(kept, trained.parameters())
    damaged = {**state, "rueda_strategy": {"strategy": wrapped.strategy.describe()}}
    with parallel.raises(rt.InvalidArgumentError, "rank 0: KeyError: 'steps'"):  # before any waits
        wrapped.load_state_dict(damaged if rueda.rank() == 0 else state)
    wrapped.load_state_dict(state)
    pulled = torch.empty(kept.numel())
    wrapped.strategy.table.get(pulled.numpy()).result()
    np.testing.assert_array_equal(pulled.numpy(), centre)
    rueda.barrier()  # before any rank pushes
    train(trained, wrapped, 9, 3)
    wrapped.switch("sync")
    same_bits(*trained.parameters())
    train(trained, wrapped, 12, 2)
    same_bits(*trained.parameters())


def check_what_the_rule_keeps_is_in_a_state() -> None:
    trained, optimizer = fresh()
    wrapped = rt.wrap(trained, optimizer, strategy="downpour:1,server=adagrad")
    states = []
    for _ in range(2):
        train(trained, wrapped, 0, 3)
        rueda.barrier()
        states.append(wrapped.state_dict())
        rueda.barrier()
    sums = [state["rueda_strategy"]["kept"]["kept_by_rule"] for state in states]
    assert (sums[1] > sums[0]).any() or not len(sums[0])
    wrapped.load_state_dict(states[0])
    rueda.barrier()
    again = wrapped.state_dict()["rueda_strategy"]["kept"]["kept_by_rule"]
    assert torch.equal(again, sums[0])
    wrapped.close()


def check_switching_where_a_rank_has_taken_no_step() -> None:
    """Its missing optimizer state counts as zeros; step counts come from a rank with steps."""
    if rueda.size() == 1:
        return
    for kind in (torch.optim.SGD, torch.optim.Adam):
        trained = model().float()
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        wrapped = rt.wrap(
            trained, kind(trained.parameters(), lr=0.1, **options), strategy="downpour:1"
        )
        name = "momentum_buffer" if kind is torch.optim.SGD else "exp_avg"
        if rueda.rank() != 0:
            train(trained, wrapped, 0, 2)
        before = [
            wrapped.state.get(each, {}).get(name, torch.zeros_like(each)).cpu().numpy().copy()
            for each in trained.parameters()
        ]
        mean = [rueda.allreduce(each, name=f"{kind}{n}") for n, each in enumerate(before)]
        wrapped.switch("sync")
        for each, expected in zip(trained.parameters(), mean, strict=True):
            np.testing.assert_allclose(
                wrapped.state[each][name].cpu().numpy(), expected, rtol=1e-5, atol=1e-7
            )
            if kind is torch.optim.Adam:
                assert float(wrapped.state[each]["step"]) == 2
        train(trained, wrapped, 2, 2)
        same_bits(*trained.parameters())


def check_an_epoch_goes_on_with_the_next_strategy_on_all_ranks_alike() -> None:
    """Even if they are at different points in it: it ends on all in the same step."""
    trained, optimizer = fresh()
    wrapped = rt.wrap(trained, optimizer, strategy="downpour:1", steps_per_epoch=5)
    train(trained, wrapped, 0, 2 if rueda.rank() == 0 else 3)
    wrapped.switch("oneshot")
    most = 2 if rueda.size() == 1 else 3
    for step in range(most, 5):
        train(trained, wrapped, step, 1)
    same_bits(*trained.parameters())  # averaged at the epoch's end
    wrapped.consolidate()
    wrapped.close()


def check_one_optimizer_after_another() -> None:
    """Each releases its table when it ends."""
    tables = []
    for _ in range(3):
        trained, optimizer = fresh()
        wrapped = rt.wrap(trained, optimizer, strategy="downpour:1")
        tables.append(wrapped.strategy.table)
        train(trained, wrapped, 0, 2)
        wrapped.close()
        wrapped.close()
        same_bits(*trained.parameters())
        for refused in (
            wrapped.step,
            wrapped.consolidate,
            wrapped.end_epoch,
            lambda closed=wrapped: closed.switch("sync"),
        ):
            with parallel.raises(rueda.InvalidArgumentError, "the optimizer was closed"):
                refused()
    for table in tables:
        with parallel.raises(rueda.InvalidArgumentError, "has been closed"):
            table.get()
    parallel.still_works()


def check_bad_input() -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    for strategy, text in (
        ("ssp:-1", "slack=-1.0 of SSP is not a number of at least 0"),
        ("ssp:2.5", "slack=2.5 of SSP is not a whole number of steps"),
        ("downpour:-1", "window=-1"),
        ("downpour:0", "window=0 of Downpour is neither a whole number of at least 1 nor 'epoch'"),
        ("hogwild:0", "window=0 of Hogwild"),
        ("adag:hour", "window='hour' is not a whole number"),
        ("downpour:1,replicated=2", "replicated='2' is neither yes nor no"),
        (SSP(1, replicated="yes"), "replicated='yes' of SSP is neither True nor False"),
        ("downpour:1,rate=inf", "rate=inf of Downpour is not a finite number of at least 0"),
        ("downpour:1,rate=nan", "rate=nan of Downpour"),
        ("aeasgd:1,beta=nan", "beta=nan of AEASGD"),
        ("eamsgd:1,beta=inf", "beta=inf of EAMSGD"),
        ("downpour:1,warn,sum,0.1,yes", "'yes' is no parameter"),
        ("downpour:1,guard=yes", "guard='yes' is not one of off, warn, scale"),
        ("downpour:1,server=adam", "server='adam' is not one of sum, adagrad"),
        ("downpour:1,server=adagrad,guard=warn", "guard= is for server='sum'"),
        ("adag:0", "window=0 of ADAG"),
        ("dynsgd:0", "window=0 of DynSGD"),
        ("aeasgd:0", "period=0 of AEASGD"),
        ("eamsgd:0", "period=0 of EAMSGD"),
        ("hogwild:1,guard=scale", "Hogwild has no guard="),
        ("eamsgd:4", "EAMSGD needs torch.optim.SGD with momentum= and nesterov=True"),
    ):
        trained, optimizer = fresh()
        with parallel.raises(rt.InvalidArgumentError, text):
            rt.wrap(trained, optimizer, strategy=strategy)
        parallel.still_works()
    # On one rank only: the others, which would have started, get the error.
    last = rueda.size() - 1
    mine = "ssp:-1" if rueda.rank() == last else "ssp:1"
    with parallel.raises(rt.InvalidArgumentError, f"rank {last}: slack=-1.0 of SSP"):
        rt.wrap(*fresh(), strategy=mine)
    if last:
        mine = "ssp:2" if rueda.rank() == last else "ssp:1"
        with parallel.raises(rt.MismatchError, f"rank {last}: SSP(slack=2.0)", "SSP(slack=1.0)"):
            rt.wrap(*fresh(), strategy=mine)
    parallel.still_works()
    wide = Double()
    with parallel.raises(rt.UnsupportedError, "'weight' is torch.float64"):
        rt.wrap(wide, torch.optim.SGD(wide.parameters(), lr=0.1), strategy="ssp")
    for mode, frequency in (("parallel", None), (None, "hour"), ("asynchronous", 0)):
        trained, optimizer = fresh()
        with parallel.raises(rt.InvalidArgumentError, "is not"):
            rt.wrap(trained, optimizer, mode=mode, frequency=frequency)
    parallel.still_works()


# --- One rank: the order of events is known, and so is the result


def alone(
    strategy: Strategy, steps: int, momentum: float = 0.0, foreach: bool | None = None
) -> torch.Tensor:
    trained, optimizer = fresh(momentum)
    optimizer.param_groups[0]["foreach"] = foreach
    wrapped = rt.wrap(trained, optimizer, strategy=strategy)
    train(trained, wrapped, 0, steps)
    reached = vector(trained)
    wrapped.strategy.stop()
    return reached


def check_one_rank_downpour_is_plain_training() -> None:
    if rueda.size() > 1:
        return
    plain, optimizer = fresh()
    train(plain, optimizer, 0, 12)
    for strategy in (Downpour(1), Downpour(3), DynSGD(4), SSP(0), SSP(3)):
        torch.testing.assert_close(alone(strategy, 12), vector(plain), **CLOSE)


def check_one_rank_adag_takes_the_mean_step_of_a_window() -> None:
    if rueda.size() > 1:
        return
    plain, optimizer = fresh()
    for window in range(4):
        begun = vector(plain)
        train(plain, optimizer, 3 * window, 3)
        vector_to_parameters(begun + (vector(plain) - begun) / 3, plain.parameters())
    torch.testing.assert_close(alone(ADAG(3), 12), vector(plain), **CLOSE)


def check_one_rank_adagrad_at_the_server() -> None:
    if rueda.size() > 1:
        return
    trained, _ = fresh()
    squares = torch.zeros_like(vector(trained))
    for step in range(8):
        trained.zero_grad()
        backward(trained, step)
        gradient = parameters_to_vector([each.grad for each in trained.parameters()])
        squares += gradient**2
        moved = vector(trained) - 0.05 * gradient / (squares.sqrt() + 1e-8)
        vector_to_parameters(moved, trained.parameters())
    for momentum in (0.0, 0.9):  # with which the optimizer overwrites the gradients
        reached = alone(Downpour(1, server="adagrad", rate=0.05), 8, momentum, foreach=True)
        torch.testing.assert_close(reached, vector(trained), **CLOSE)


def check_one_rank_adagrad_gets_gradients_that_a_fused_optimizer_unscales() -> None:
    if rueda.size() > 1:
        return
    pushed = []
    for scales in (False, True):
        trained = model().float()
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, fused=scales)
        wrapped = rt.wrap(trained, optimizer, strategy=Downpour(9, server="adagrad"))
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=64.0, enabled=scales)
        # And one skipped step, with gradients that are not finite.
        for value in (1.0, *([float("inf")] if scales else []), 1.0):
            wrapped.zero_grad()
            batch = torch.full((2, 6), value, device=DEVICE)
            scaler.scale(trained(batch).square().sum()).backward()
            scaler.step(wrapped)
            scaler.update()
        pushed.append(wrapped.strategy.unpushed().clone())
        wrapped.close()
    torch.testing.assert_close(*pushed, **CLOSE)


def check_one_rank_hogwild_reads_what_it_had_not_pushed_yet() -> None:
    if rueda.size() > 1:
        return
    trained, _ = fresh()
    centre = vector(trained)
    seen = centre.clone()
    coming: torch.Tensor | None = None
    for step in range(9):
        vector_to_parameters(seen, trained.parameters())
        trained.zero_grad()
        backward(trained, step)
        gradient = parameters_to_vector([each.grad for each in trained.parameters()])
        centre = centre - 0.1 * gradient
        seen = centre if coming is None else coming
        coming = centre
    torch.testing.assert_close(alone(Hogwild(), 9), seen, **CLOSE)


def check_one_rank_elastic() -> None:
    if rueda.size() > 1:
        return
    trained, _ = fresh()
    centre = vector(trained)
    for step in range(9):
        trained.zero_grad()
        backward(trained, step)
        here = vector(trained)
        gradient = parameters_to_vector([each.grad for each in trained.parameters()])
        if (step + 1) % 2 == 0:
            spring = 0.6 * (here - centre)
            centre = centre + spring
            here = here - spring
        vector_to_parameters(here - 0.1 * gradient, trained.parameters())
    torch.testing.assert_close(alone(AEASGD(2, beta=0.6), 9), vector(trained), **CLOSE)


def check_one_rank_elastic_with_momentum() -> None:
    """As in algorithm 2: the gradient at the look-ahead position of the momentum."""
    if rueda.size() > 1:
        return
    trained, _ = fresh()
    here = vector(trained)
    centre, speed = here.clone(), torch.zeros_like(here)
    for step in range(9):
        vector_to_parameters(here + 0.8 * speed, trained.parameters())
        trained.zero_grad()
        backward(trained, step)
        gradient = parameters_to_vector([each.grad for each in trained.parameters()])
        if (step + 1) % 2 == 0:
            spring = 0.6 * (here - centre)
            centre = centre + spring
            here = here - spring
        speed = 0.8 * speed - 0.1 * gradient
        here = here + speed
    reached = alone(EAMSGD(2, beta=0.6), 9, momentum=0.8)
    torch.testing.assert_close(reached, here + 0.8 * speed, **CLOSE)


if __name__ == "__main__":
    parallel.run(globals())
