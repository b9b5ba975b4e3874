"""Every rank: the last one takes more steps or lacks an average, and no rank mistakes that for agreement."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import parallel
import rueda
import rueda.torch as rt
import torch
from parallel import raises, still_works
from rueda.torch.strategies import LocalSGD, Strategy
from rueda.torch.strategies.pairs import partner_in
from rueda.torch.strategies.replica import Averaging, Replica
from simulated import fresh, train
from training import Make, Optimizer, adam, model, same_bits, sgd


@dataclass
class OfOnesOwn(Strategy):
    """A user's strategy that consolidates by default."""

    def after_step(self) -> None:
        if self.replica.steps % 4 == 0:
            self.replica.average_parameters()


@dataclass
class WithStateOfItsOwn(LocalSGD):
    """A user's strategy that saves nothing of the one that it extends."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


def trained_by(
    strategy: Strategy | str, make: Make = sgd, **options: int
) -> tuple[Optimizer, Callable[[int], None]]:
    """A wrapped optimizer, and how to let it take steps."""
    trained, optimizer = fresh(make)
    wrapped = rt.wrap(trained, optimizer, strategy=strategy, **options)
    return wrapped, lambda steps: train(trained, wrapped, 0, steps)


def check_a_period_that_ends_on_one_rank_only() -> None:
    """The others consolidate while it averages."""
    for strategy, waits_for in (
        ("local:4", "parameters"),
        ("diloco:4,codec=int8", "fragment0"),
        (OfOnesOwn(), "parameters"),
    ):
        wrapped, steps = trained_by(strategy, adam)
        steps(3)
        if rueda.rank() == LAST:
            with raises(rt.StalledError, f"/{waits_for}"):
                steps(1)
        else:
            with raises(rt.StalledError, "/consolidate"):
                wrapped.consolidate()
        still_works()
        wrapped.switch("sync")  # goes on from the mean
        steps(1)
        same_bits(*wrapped.param_groups[0]["params"])


def check_an_epoch_that_ends_on_one_rank_only() -> None:
    """Ranks may take different numbers of steps in it, but all must end it."""
    wrapped, steps = trained_by("oneshot", steps_per_epoch=4)
    steps(3)
    if rueda.rank() == LAST:
        with raises(rt.StalledError, "/parameters"):
            steps(1)
    else:
        with raises(rt.StalledError, "/consolidated parameters"):
            wrapped.consolidate()
    still_works()


def check_a_partner_that_consolidates_instead() -> None:
    for strategy in ("adpsgd:4", "noloco:4"):
        wrapped, steps = trained_by(strategy)
        steps(3)
        if (
            partner_in(1, range(rueda.size()), LAST, seed=0) is None
        ):  # they all come to consolidate()
            steps(1 if rueda.rank() == LAST else 0)
            with raises(rt.MismatchError, f"rank {LAST}: 4"):
                wrapped.consolidate()
        elif rueda.rank() == LAST:
            with raises(rt.TimeoutError, "has not swapped tensors"):
                steps(1)
        else:
            with raises(rt.StalledError, "/consolidate"):
                wrapped.consolidate()
    still_works()


def check_numbers_of_steps_are_compared() -> None:
    """Where every rank has come to consolidate() or close(), all learn at once who has taken how many."""
    for strategy in (
        "local:8",
        "postlocal:8",
        "diloco:8",
        "sparseloco:8,0.5",
        "easgd:8",
        "desloc:8,8,8",
        "adpsgd:8",
        "noloco:8",
        OfOnesOwn(),
    ):
        wrapped, steps = trained_by(strategy, adam)
        steps(3 if rueda.rank() == LAST else 2)
        for ends in (wrapped.consolidate, wrapped.close):
            with raises(rt.MismatchError, "the number of steps differs", f"rank {LAST}: 3", ": 2"):
                ends()
        if rueda.rank() != LAST:
            steps(1)
        wrapped.close()


def check_a_period_that_has_just_ended() -> None:
    """The others have nothing to exchange any more."""
    wrapped, steps = trained_by(LocalSGD(2))
    steps(2)
    if rueda.rank() == LAST:
        steps(1)
    with raises(rt.MismatchError, f"rank {LAST}: 3"):
        wrapped.consolidate()


# With periods that end after step 6.
AVERAGES = (
    "local:3",
    "postlocal:3,after=3",
    "desloc:3,3,3",
    "diloco:3",
    "diloco:3,fragments=2",
    "diloco:6,codec=int8",
    "sparseloco:3,0.5",
)
# Local steps go on while its mean is in flight, which a later one includes.
DELAYED = "diloco:4,delay=2"


@contextmanager
def results_are_lost(on_this_rank: bool) -> Iterator[None]:
    """Averages and gathers take place, but this rank raises instead of having the result, as when another dies."""

    def lost(result: Callable[..., Any]) -> Callable[..., Any]:
        def fails(*arguments: Any, **options: Any) -> None:
            result(*arguments, **options)
            raise rt.PeerLostError("its result is lost", 0)

        return fails

    if not on_this_rank:
        yield
        return
    with (
        mock.patch.object(Averaging, "result", lost(Averaging.result)),
        mock.patch.object(Replica, "gather", lost(Replica.gather)),
        raises(rt.PeerLostError, "its result is lost"),
    ):
        yield


def check_a_lost_average_is_made_up_for() -> None:
    """By consolidate(), and so with the bits of a training that has lost nothing."""
    for strategy in AVERAGES:
        ends = []
        for loses in (False, True):
            wrapped, steps = trained_by(strategy, adam)
            steps(5)
            with results_are_lost(loses):
                steps(1)
            wrapped.consolidate()
            ends.append(wrapped.param_groups[0]["params"])
            same_bits(*ends[-1])
        assert all(map(torch.equal, *ends)), strategy


def check_an_average_that_only_some_ranks_have() -> None:
    def switch_to_sync(wrapped: Optimizer) -> None:
        wrapped.switch("sync")

    def switch_to_the_same(wrapped: Optimizer) -> None:
        wrapped.switch(wrapped.strategy)

    def consolidate(wrapped: Optimizer) -> None:
        wrapped.consolidate()

    for strategy in (*AVERAGES, DELAYED):
        for goes_on in (consolidate, switch_to_sync, switch_to_the_same):
            wrapped, steps = trained_by(strategy, adam)
            steps(5)
            with results_are_lost(rueda.rank() == LAST):
                steps(1)
            goes_on(wrapped)
            parameters = wrapped.param_groups[0]["params"]
            same_bits(*parameters)
            steps(7)
            wrapped.close()
            same_bits(*parameters)


def check_a_mean_in_flight_on_one_rank_only() -> None:
    """The others take part before they switch: it neither waits for them nor meets a mean of the next strategy."""
    for strategy, before in (
        ("diloco:4,delay=3", 3),
        ("diloco:4,delay=3,fragments=2", 3),
        ("diloco:4,delay=3,codec=int8", 7),
    ):
        wrapped, steps = trained_by(strategy)
        steps(before)
        parameters = wrapped.param_groups[0]["params"]
        wrapped.param_groups[0]["lr"] = 0.0
        with torch.no_grad():
            for each in parameters:
                each.zero_()
        steps(1 if rueda.rank() == LAST else 0)
        wrapped.switch("diloco:8")
        steps(8)
        wrapped.close()
        assert not any(each.any() for each in parameters), strategy


def check_a_state_knows_that_an_average_was_lost() -> None:
    wrapped, steps = trained_by("local:3")
    steps(5)
    with results_are_lost(True):
        steps(1)
    state = copy.deepcopy(wrapped.state_dict())
    older = copy.deepcopy(state)
    older["rueda_strategy"]["kept"] = {}  # as of a version that did not save it
    for each in (state, older):
        wrapped.load_state_dict(each)
        with torch.no_grad():
            wrapped.param_groups[0]["params"][0].fill_(rueda.rank())
        wrapped.consolidate()
        same_bits(*wrapped.param_groups[0]["params"])


def check_a_loaded_strategy_that_does_not_say_when_it_averaged() -> None:
    wrapped, steps = trained_by(WithStateOfItsOwn(8))
    steps(5)
    wrapped.load_state_dict(copy.deepcopy(wrapped.state_dict()))
    wrapped.consolidate()
    same_bits(*wrapped.param_groups[0]["params"])


def check_strategies_for_which_numbers_may_differ() -> None:
    for strategy in ("oneshot", "downpour:1", "ssp:9"):
        trained = model().float()
        wrapped = rt.wrap(trained, sgd(list(trained.parameters())), strategy=strategy)
        for _ in range(3 if rueda.rank() == LAST else 2):
            wrapped.zero_grad()
            sum(each.square().sum() for each in trained.parameters()).backward()
            wrapped.step()
        wrapped.consolidate()
        same_bits(*trained.parameters())
        wrapped.close()


if __name__ == "__main__":
    rueda.init()
    LAST = rueda.size() - 1
    parallel.run(globals())
