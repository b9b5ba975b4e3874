"""Every rank: strategies against a simulation of all workers in one process."""

from __future__ import annotations

import copy
from functools import partial

import parallel
import rueda
import rueda.torch as rt
import torch
from rueda.torch.strategies import DiLoCo, LocalSGD, Strategy
from simulated import Workers, fresh, train
from torch import nn
from torch.nn import functional as F
from training import Make, Optimizer, adam, batch, close, same_bits, sgd, share


def agrees(
    strategy: Strategy | str, workers: Workers, steps: int, make: Make = sgd
) -> tuple[nn.Module, Optimizer]:
    """Trains with the strategy, and compares with the simulated workers."""
    trained, optimizer = fresh(make)
    wrapped = rt.wrap(trained, optimizer, strategy=strategy)
    train(trained, wrapped, 0, steps)
    close(trained, workers.mine())
    return trained, wrapped


def check_synchronous_is_the_distributed_optimizer_to_the_bit() -> None:
    for make in (sgd, adam):
        ours, optimizer = fresh(make)
        wrapped = rt.wrap(ours, optimizer)
        theirs, optimizer = fresh(make)
        distributed = rt.DistributedOptimizer(optimizer, theirs.named_parameters())
        for trained, each in ((ours, wrapped), (theirs, distributed)):
            train(trained, each, 0, 4)
        for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(left, right)
        same_bits(*ours.parameters())
    workers = Workers(adam)
    workers.train(4, before=lambda step, them: them.average_gradients())
    close(ours, workers.mine())


def check_ranks_begin_with_the_model_of_the_first() -> None:
    trained, optimizer = fresh(sgd, seed=10 + rueda.rank())
    rt.wrap(trained, optimizer, strategy="local:100")
    close(trained, fresh(sgd, seed=10)[0], rtol=0, atol=0)


def check_accumulation() -> None:
    """Three batches, each cut into shares, equal one batch of three times the size."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="accumulate:3")
    train(trained, wrapped, 0, 7)  # one is left
    alone, single = fresh(sgd)
    for step in range(2):
        single.zero_grad()
        for number in range(3):
            x, y = batch(3 * step + number)
            (F.cross_entropy(alone(x), y) / 3).backward()
        single.step()
    close(trained, alone)
    same_bits(*trained.parameters())
    assert wrapped._rueda_replica.steps == 2
    with parallel.raises(rt.InvalidArgumentError, "1 of 3 batches"):
        wrapped.switch("sync")
    train(trained, wrapped, 7, 2)
    wrapped.switch("sync")


def check_local_steps() -> None:
    for make in (sgd, adam):
        workers = Workers(make)
        workers.train(8, after=lambda step, them: them.average() if step % 3 == 0 else None)
        trained, wrapped = agrees("local:3", workers, 8, make)
        wrapped.consolidate()
        workers.average()
        close(trained, workers.mine())
        same_bits(*trained.parameters())


def check_ranks_have_the_same_bits_after_each_synchronisation() -> None:
    for strategy in (LocalSGD(3), DiLoCo(3)):
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        for step in range(9):
            train(trained, wrapped, step, 1)
            if (step + 1) % 3 == 0:
                same_bits(*trained.parameters())


def check_post_local() -> None:
    def before(step: int, them: Workers) -> None:
        if step <= 4:
            them.average_gradients()

    def after(step: int, them: Workers) -> None:
        if step > 4 and (step - 4) % 3 == 0:
            them.average()

    workers = Workers(sgd)
    workers.train(9, before, after)
    agrees("postlocal:3,after=4", workers, 9)


def check_one_shot() -> None:
    workers = Workers(sgd)
    workers.train(10, after=lambda step, them: them.average() if step % 4 == 0 else None)
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, mode="synchronous", frequency="epoch", steps_per_epoch=4)
    train(trained, wrapped, 0, 10)
    close(trained, workers.mine())
    # The same with explicit ends of epochs.
    by_hand, optimizer = fresh(sgd)
    wrapped = rt.wrap(by_hand, optimizer, strategy="oneshot")
    for first, steps in ((0, 4), (4, 4), (8, 2)):
        if first:
            wrapped.end_epoch()
        train(by_hand, wrapped, first, steps)
    close(by_hand, trained, rtol=0, atol=0)


class SimulatedDiLoCo:
    """DiLoCo on slices of the workers' vectors."""

    def __init__(self, workers: Workers, slices: list[slice], delay: int, mixing: float) -> None:
        self.agreed = workers.vectors[0]
        self.momentum = torch.zeros_like(self.agreed)
        self.slices, self.delay, self.mixing = slices, delay, mixing
        self.due: dict[int, list[tuple[slice, torch.Tensor]]] = {}

    def after(self, step: int, workers: Workers, period: int) -> None:
        vectors = workers.vectors
        for number, part in enumerate(self.slices):
            if (step - (number + 1) * period // len(self.slices)) % period == 0:
                mean = torch.stack([self.agreed[part] - each[part] for each in vectors]).mean(0)
                self.due.setdefault(step + self.delay, []).append((part, mean))
        for part, mean in self.due.pop(step, []):
            self.momentum[part] = 0.9 * self.momentum[part] + mean
            self.agreed[part] -= 0.7 * (mean + 0.9 * self.momentum[part])
            for each in vectors:
                each[part] = self.mixing * each[part] + (1 - self.mixing) * self.agreed[part]
        workers.vectors = vectors


def check_diloco() -> None:
    whole = [slice(0, 83)]
    halves = [slice(0, 48), slice(48, 83)]  # the first weights; the rest
    for strategy, slices in (
        (DiLoCo(4), whole),
        (DiLoCo(4, delay=2), whole),
        (DiLoCo(4, fragments=2), halves),
        (DiLoCo(5, fragments=2, delay=4, mixing=0.25), halves),  # both are in flight at once
    ):
        workers = Workers(adam)
        simulated = SimulatedDiLoCo(workers, slices, strategy.delay, strategy.mixing)
        period = strategy.period
        workers.train(
            11, after=lambda step, them, s=simulated, h=period: s.after(step, them, period=h)
        )
        trained, wrapped = agrees(strategy, workers, 11, adam)
        wrapped.consolidate()
        same_bits(*trained.parameters())


def check_several_means_are_on_their_way() -> None:
    """One fragment leaves after steps 2, 7, ..., the other after 5, 10, ...; used 4 later."""
    trained, optimizer = fresh(adam)
    wrapped = rt.wrap(trained, optimizer, strategy="diloco:5,fragments=2,delay=4,mixing=0.5")
    under_way = []
    for step in range(12):
        train(trained, wrapped, step, 1)
        fragments = wrapped.strategy._fragments
        under_way.append(sum(fragment.in_flight for fragment in fragments))
    assert under_way == [0, 1, 1, 1, 2, 1, 2, 2, 1, 2, 1, 2]


def check_diloco_with_int8() -> None:
    """Each outer gradient is off by at most a 254th of its largest magnitude, twice."""
    workers = Workers(adam)
    simulated = SimulatedDiLoCo(workers, [slice(0, 83)], 0, 0.0)
    workers.train(8, after=lambda step, them: simulated.after(step, them, period=4))
    trained, optimizer = fresh(adam)
    wrapped = rt.wrap(trained, optimizer, strategy="diloco:4,codec=int8")
    train(trained, wrapped, 0, 8)
    same_bits(*trained.parameters())
    # Adam moves an element by at most 0.01 per step: 0.04 in a period, and 2 · 0.7 · 1.9 of that
    # error in each outer step.
    close(trained, workers.mine(), rtol=0, atol=2 * 2.7 * 2 * 0.04 / 254)


def check_switching() -> None:
    """Parameters and momentum are carried over as their means."""
    workers = Workers(sgd)
    gradients = {"before": lambda step, them: them.average_gradients()}
    local = {"after": lambda step, them: them.average() if step % 2 == 0 else None}
    workers.train(3, **gradients)
    workers.train(3, **local)
    workers.average()
    workers.average_state("momentum_buffer")
    workers.train(3, **gradients)

    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer)
    train(trained, wrapped, 0, 3)
    first = wrapped.strategy  # kept, but without effect
    wrapped.switch("local:2")
    assert first is not wrapped.strategy
    train(trained, wrapped, 3, 3)
    wrapped.switch(mode="synchronous", frequency="batch")
    train(trained, wrapped, 6, 3)
    close(trained, workers.mine())
    same_bits(*trained.parameters())
    same_bits(*(kept["momentum_buffer"] for kept in wrapped.state.values()))
    wrapped.switch("diloco:2,delay=1")
    train(trained, wrapped, 9, 2)
    wrapped.switch("sync")  # with a mean in flight
    train(trained, wrapped, 11, 2)
    same_bits(*trained.parameters())


def check_switching_between_gradients_and_their_step() -> None:
    """The new strategy decides what happens to them."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer)
    x, y = batch(0)
    F.cross_entropy(trained(share(x)), share(y)).backward()
    wrapped.synchronize()
    wrapped.switch("accumulate:2")
    before = copy.deepcopy(trained.state_dict())
    wrapped.step()  # accumulates them
    assert all(torch.equal(each, before[name]) for name, each in trained.state_dict().items())


def check_an_epoch_goes_on_through_a_switch() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, steps_per_epoch=5)
    train(trained, wrapped, 0, 7)
    wrapped.switch("oneshot")
    train(trained, wrapped, 7, 3)
    same_bits(*trained.parameters())


RESUMED = [
    "sync",
    "accumulate:3",
    "local:3",
    "postlocal:2,after=3",
    "postlocal:2,after=9",
    "diloco:4",
    "diloco:5,fragments=2,delay=4,mixing=0.5",
]


def check_training_goes_on_from_its_state() -> None:
    for strategy in RESUMED:
        trained, optimizer = fresh(adam)
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        train(trained, wrapped, 0, 5)
        saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
        train(trained, wrapped, 5, 6)

        resumed, optimizer = fresh(adam, seed=2)
        again = rt.wrap(resumed, optimizer, strategy=strategy)
        resumed.load_state_dict(saved[0])
        again.load_state_dict(copy.deepcopy(saved[1]))
        train(resumed, again, 5, 6)
        for left, right in zip(trained.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(left, right), strategy
        # Rewind to the saved state, in the same optimizer.
        trained.load_state_dict(saved[0])
        wrapped.load_state_dict(copy.deepcopy(saved[1]))
        train(trained, wrapped, 5, 6)
        close(trained, resumed, rtol=0, atol=0)


def check_states_that_do_not_fit() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:3")
    other, optimizer = fresh(sgd)
    state = rt.wrap(other, optimizer, strategy="local:4").state_dict()
    with parallel.raises(rt.InvalidArgumentError, "LocalSGD(period=4)", "LocalSGD(period=3)"):
        wrapped.load_state_dict(state)
    train(trained, wrapped, 0, 2)
    wrapped.load_state_dict(optimizer.state_dict())  # plain: the strategy starts anew
    assert wrapped._rueda_replica.steps == 0
    rt.broadcast_optimizer_state(wrapped)
    train(trained, wrapped, 0, 3)
    same_bits(*trained.parameters())


def evaluated(
    trained: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """The body of a closure."""
    optimizer.zero_grad()
    loss = F.cross_entropy(trained(x), y)
    loss.backward()
    return loss


def check_schedulers_hooks_and_closures() -> None:
    for strategy in ("sync", "local:2"):
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        assert isinstance(wrapped, torch.optim.SGD)
        scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 2, gamma=0.5)
        calls: list[int] = []
        wrapped.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        plain, optimizer = fresh(sgd)
        by_closure = rt.wrap(plain, optimizer, strategy=strategy)
        for step in range(4):
            train(trained, wrapped, step, 1)
            scheduler.step()
            by_closure.param_groups[0]["lr"] = 0.1 * 0.5 ** (step // 2)
            loss = by_closure.step(partial(evaluated, plain, by_closure, *map(share, batch(step))))
            assert strategy != "sync" or len(set(rueda.allgather_object(float(loss)))) == 1
        assert len(calls) == 4
        assert wrapped.param_groups[0]["lr"] == 0.025
        close(trained, plain, rtol=0, atol=0)


def check_clipping() -> None:
    """synchronize() produces the gradients that step() uses; they are not reduced twice."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer)
    alone, single = fresh(sgd)
    for step in range(3):
        x, y = batch(step)
        for each, trains, own_x, own_y in (
            (trained, wrapped, share(x), share(y)),
            (alone, single, x, y),
        ):
            trains.zero_grad()
            F.cross_entropy(each(own_x), own_y).backward()
            if each is trained:
                wrapped.synchronize()
            assert torch.nn.utils.clip_grad_norm_(each.parameters(), 0.05) > 0.05
            trains.step()
    close(trained, alone)


def check_a_backward_that_is_forgotten() -> None:
    """As with DistributedOptimizer: gradients in flight are not cleared."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer)
    train(trained, wrapped, 0, 2)  # one backward() each: from now on gradients are reduced at once
    x, y = batch(1)
    F.cross_entropy(trained(share(x)), share(y)).backward()
    with parallel.raises(rt.InvalidArgumentError, "zero_grad()"):
        wrapped.zero_grad()
    with parallel.raises(
        rt.InvalidArgumentError,
        "more than once before step()",
        '"accumulate:k"',
        "was wrapped before",
    ):
        F.cross_entropy(trained(share(x)), share(y)).backward()
    wrapped.step()
    train(trained, wrapped, 2, 1)
    same_bits(*trained.parameters())
    wrapped.zero_grad(set_to_none=False)
    assert all(not each.grad.any() for each in trained.parameters())
    train(trained, wrapped, 3, 1)
    wrapped.zero_grad()
    assert all(each.grad is None for each in trained.parameters())


def check_several_backward_passes_before_a_step() -> None:
    """Gradients that are accumulated by hand: each rank's sum, then the mean over ranks, as often as the loop likes."""
    for passes_of_steps in ((3, 3, 3, 3), (2, 1, 3, 1, 5), (1, 2, 1, 1, 4)):
        for make in (sgd, adam):
            trained, optimizer = fresh(make)
            wrapped = rt.wrap(trained, optimizer)
            alone, single = fresh(make)
            number = 0
            for passes in passes_of_steps:
                wrapped.zero_grad()
                single.zero_grad()
                for _ in range(passes):
                    x, y = batch(number)
                    number += 1
                    for each, own_x, own_y in ((trained, share(x), share(y)), (alone, x, y)):
                        (F.cross_entropy(each(own_x), own_y) / passes).backward()
                wrapped.step()
                single.step()
            close(trained, alone)
            same_bits(*trained.parameters())


def check_several_backward_passes_on_some_ranks_only() -> None:
    """How often backward() was called is each rank's own affair."""
    passes = 1 + rueda.rank()
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer)
    alone, single = fresh(sgd)
    for step in range(4):
        x, y = batch(step)
        wrapped.zero_grad()
        for _ in range(passes):
            (F.cross_entropy(trained(share(x)), share(y)) / passes).backward()
        wrapped.step()
        single.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        single.step()
    close(trained, alone)
    same_bits(*trained.parameters())


def check_two_models_one_of_which_is_trained_through_the_other() -> None:
    """As in a GAN: the generator's loss also gives the discriminator gradients, which are cleared without a step."""

    def play(is_alone: bool, losses: int, clears_model: bool) -> list[nn.Module]:
        generator, discriminator = fresh(sgd)[0], fresh(sgd, seed=2)[0]
        generator.append(nn.Linear(3, 6).to(batch(0)[0]))
        with torch.no_grad():
            for each in generator[-1].parameters():
                each.fill_(0.1)
        of_generator, of_discriminator = (
            sgd(list(each.parameters())) for each in (generator, discriminator)
        )
        if not is_alone:
            of_generator = rt.wrap(generator, of_generator)
            of_discriminator = rt.wrap(discriminator, of_discriminator)
        for step in range(5):
            x = batch(step)[0] if is_alone else share(batch(step)[0])
            (discriminator if clears_model else of_discriminator).zero_grad()
            made = generator(x)
            apart = [-discriminator(x).square().mean(), discriminator(made.detach()).exp().mean()]
            for loss in apart if losses == 2 else [apart[0] + apart[1]]:
                loss.backward()
            of_discriminator.step()
            (generator if clears_model else of_generator).zero_grad()
            (discriminator(made).square().mean() + made.square().mean()).backward()
            of_generator.step()
        return [generator, discriminator]

    for losses in (1, 2):
        for clears_model in (False, True):
            together, alone = (play(each, losses, clears_model) for each in (False, True))
            for left, right in zip(together, alone, strict=True):
                close(left, right)
                same_bits(*left.parameters())


def check_lbfgs() -> None:
    """Several evaluations per step, decided by the loss over all ranks."""
    trained, optimizer = fresh(lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3))
    wrapped = rt.wrap(trained, optimizer)
    alone, single = fresh(lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3))
    x, y = batch(0)

    for _ in range(3):
        wrapped.step(partial(evaluated, trained, wrapped, share(x), share(y)))
        single.step(partial(evaluated, alone, single, x, y))
    close(trained, alone, rtol=1e-6, atol=1e-8)
    same_bits(*trained.parameters())


def check_a_model_that_is_wrapped_again() -> None:
    """The first strategy's hooks on the model are removed with it."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer)
    train(trained, wrapped, 0, 2)
    del wrapped
    before = rueda.metrics()["allreduce_tensors"]
    again = rt.wrap(trained, sgd(list(trained.parameters())), strategy="local:100")
    train(trained, again, 2, 3)
    assert rueda.metrics()["allreduce_tensors"] == before
    again.switch("sync")
    train(trained, again, 5, 2)
    same_bits(*trained.parameters())


def check_process_sets() -> None:
    """Two groups that are unaware of each other."""
    cut = max(1, rueda.size() // 2)
    sets = [rueda.add_process_set(range(cut))]
    if cut < rueda.size():
        sets.append(rueda.add_process_set(range(cut, rueda.size())))
    mine = next(each for each in sets if each.included())
    trained, optimizer = fresh(sgd)
    for other in sets:
        if other is not mine:
            with parallel.raises(rt.InvalidArgumentError, "not a member"):
                rt.wrap(trained, optimizer, process_set=other)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2", process_set=mine)
    train(trained, wrapped, 0, 2)
    wrapped.switch("adpsgd:1")
    train(trained, wrapped, 2, 2)
    wrapped.switch("sync")
    train(trained, wrapped, 4, 2)
    digest = float(sum(each.detach().double().sum() for each in trained.parameters()))
    told = rueda.allgather_object(digest)
    assert len(set(told[:cut])) == 1
    assert len(set(told[cut:])) <= 1
    rueda.barrier()
    for each in sets:
        rueda.remove_process_set(each)


if __name__ == "__main__":
    parallel.run(globals())
