"""Every rank: invalid strategies; all ranks get the error, and go on."""

from __future__ import annotations

import numpy as np
import parallel
import rueda
import rueda.torch as rt
import torch
from parallel import raises, still_works
from rueda.torch.strategies import DiLoCo, GradientAccumulation, LocalSGD, PostLocalSGD, Strategy
from rueda.torch.strategies.parsing import strategy_of
from simulated import fresh, train
from torch import nn
from training import same_bits, sgd


def refuses(kind: type[BaseException], *parts: str, **options: object) -> None:
    """wrap() on every rank; a list in ``options`` holds the others' value, then the last rank's."""
    mine = {
        key: value[rueda.rank() == LAST] if isinstance(value, list) else value
        for key, value in options.items()
    }
    trained, optimizer = fresh(sgd)
    with raises(kind, *parts):
        rt.wrap(trained, optimizer, **mine)
    still_works()


def _partly_frozen() -> nn.Module:
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    trained[0].requires_grad_(False)
    trained.table = nn.Parameter(torch.arange(-100, 100, dtype=torch.int8), requires_grad=False)
    return trained


def check_parameters_that_are_frozen_do_not_travel_and_do_not_change() -> None:
    for strategy in ("local:1", "diloco:2", "easgd:1", "noloco:1", "ssp:1", "accumulate:2"):
        trained = _partly_frozen()
        optimizer = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), strategy)
        before = {name: each.clone() for name, each in trained.state_dict().items()}
        for _ in range(4):
            optimizer.zero_grad()
            trained(torch.full((2, 4), rueda.rank() + 1.0)).square().sum().backward()
            optimizer.step()
        optimizer.consolidate()
        for name in ("0.weight", "0.bias", "table"):
            assert torch.equal(trained.state_dict()[name], before[name]), (strategy, name)
        assert not torch.equal(trained[1].weight, before["1.weight"]), strategy
        same_bits(*trained.parameters())
        optimizer.close()


def check_a_parameter_that_is_unfrozen_later() -> None:
    """Strategies that average gradients follow; the others ask for a switch()."""
    for strategy in ("sync", "accumulate:1", "local:1", "diloco:2"):
        trained = _partly_frozen()
        optimizer = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), strategy)

        def step(
            trained: nn.Module = trained, optimizer: torch.optim.Optimizer = optimizer
        ) -> None:
            optimizer.zero_grad()
            trained(torch.full((2, 4), rueda.rank() + 1.0)).square().sum().backward()
            optimizer.step()

        step()
        start = trained[0].weight.detach().clone()
        trained[0].requires_grad_(True)
        if strategy in ("local:1", "diloco:2"):
            with raises(rt.InvalidArgumentError, "'0.weight' requires gradients now", "switch()"):
                step()
            optimizer.switch(strategy)
        step()
        optimizer.consolidate()
        assert not torch.equal(trained[0].weight, start), strategy
        same_bits(*trained.parameters())
        optimizer.close()


def check_strategies_that_differ() -> None:
    others = "rank 0:" if LAST == 1 else "ranks 0"
    refuses(
        rt.MismatchError,
        "the strategy differs",
        f"{others}",
        "LocalSGD(period=8)",
        f"rank {LAST}: LocalSGD(period=16)",
        strategy=["local:8", "local:16"],
    )
    refuses(
        rt.MismatchError,
        "LocalSGD(period=8)",
        f"rank {LAST}: Synchronous(codec=None)",
        strategy=["local:8", "sync"],
    )
    refuses(
        rt.MismatchError,
        f"rank {LAST}: 12",
        "steps per epoch",
        strategy="oneshot",
        steps_per_epoch=[10, 12],
    )


def check_parameters_without_sense() -> None:
    for strategy, text in (
        ("local:0", "period=0"),
        (LocalSGD(0), "period=0 of LocalSGD is not a whole number of at least 1"),
        (LocalSGD(2.5), "period=2.5"),
        ("local:-3", "period=-3"),
        ("local:eight", "period='eight' is not a whole number"),
        ("local:8,period=8", "given twice"),
        ("local:8,9", "no parameter"),
        ("local:8,speed=9", "'speed=9' is no parameter of LocalSGD, which has period"),
        ("locale:8", "there is no 'locale'; there are sync, accumulate, local"),
        ("AD-PSGD", "did you mean 'adpsgd'?"),
        (GradientAccumulation(0), "batches=0"),
        (PostLocalSGD(4, after=-1), "after=-1"),
        ("postlocal:0", "period=0 of PostLocalSGD"),
        ("diloco:0", "period=0 of DiLoCo"),
        ("diloco:4,delay=4", "delay=4 of DiLoCo is not less than period=4"),
        ("diloco:4,fragments=5", "more than the 4 parameters"),
        ("diloco:4,mixing=2", "mixing=2.0 of DiLoCo is not a number of at least 0, at most 1"),
        ("diloco:4,codec=int7", "int7"),
        ("sync:codec=int7", "int7"),
        ("adpsgd:0", "period=0 of ADPSGD"),
        ("noloco:0", "period=0 of NoLoCo"),
        ("noloco:4,outer_momentum=1.5", "outer_momentum=1.5"),
        ("noloco:4,timeout=-1", "timeout=-1.0"),
        ("sparseloco:0,0.1", "period=0 of SparseLoCo"),
        ("sparseloco:16,0", "density=0"),
        ("sparseloco:16,1.5", "density=1.5"),
        ("desloc:0,4,8", "period=0"),
        ("desloc:4,0,8", "first=0 of DESLOC"),
        ("desloc:4,4,0", "second=0 of DESLOC"),
        ("easgd:0", "period=0 of EASGD"),
        ("easgd:4,beta=-1", "beta=-1.0"),
        ("diloco:4,outer_lr=inf", "outer_lr=inf of DiLoCo is not a finite number of at least 0"),
        ("diloco:4,outer_lr=nan", "outer_lr=nan of DiLoCo"),
        ("diloco:4,outer_momentum=nan", "outer_momentum=nan of DiLoCo"),
        ("diloco:4,mixing=nan", "mixing=nan of DiLoCo"),
        ("diloco:4,codec=foo", "codec of DiLoCo: compression='foo' is not one of fp16"),
        (DiLoCo(4, codec=8), "codec of DiLoCo: compression=8 is neither a codec"),
        ("sparseloco:4,outer_lr=inf", "outer_lr=inf of SparseLoCo"),
        ("sparseloco:4,density=nan", "density=nan of SparseLoCo"),
        ("sparseloco:4,decay=inf", "decay=inf of SparseLoCo"),
        ("noloco:4,outer_lr=inf", "outer_lr=inf of NoLoCo"),
        ("noloco:4,pull=inf", "pull=inf of NoLoCo"),
        ("noloco:4,pull=nan", "pull=nan of NoLoCo"),
        ("noloco:4,timeout=inf", "timeout=inf of NoLoCo"),
        ("easgd:4,beta=nan", "beta=nan of EASGD"),
        (LocalSGD(10**400), "of LocalSGD is not a whole number"),
        (7, "strategy=7"),
    ):
        refuses(rt.InvalidArgumentError, text, strategy=strategy)
        # On one rank only: the others get the error.
        refuses(rt.InvalidArgumentError, f"rank {LAST}: ", text, strategy=["sync", strategy])


def check_steps_per_epoch_that_are_no_number() -> None:
    refuses(rt.InvalidArgumentError, "steps_per_epoch=0 is less than 1", steps_per_epoch=0)
    for given in (100 / 32, 3.0, "3", float("nan")):
        text = f"steps_per_epoch={given!r} is not a whole number"
        refuses(rt.InvalidArgumentError, text, steps_per_epoch=given)
        refuses(rt.InvalidArgumentError, f"rank {LAST}: {text}", steps_per_epoch=[3, given])


def check_numbers_of_numpy() -> None:
    """They are the same numbers, even where other ranks have Python's."""
    for strategy, options in (
        ("oneshot", {"steps_per_epoch": np.int64(2)}),
        (LocalSGD(np.int64(2)), {}),
        (DiLoCo(np.int32(2), outer_lr=np.float64(0.5)), {}),
        (None, {"mode": "synchronous", "frequency": np.int64(2)}),
    ):
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer, strategy, **options)
        train(trained, wrapped, 0, 2)
        same_bits(*trained.parameters())
        assert "np." not in wrapped.strategy.describe()
        wrapped.close()
    mine = np.int64(2) if rueda.rank() == LAST else 2
    for strategy, options in (
        ("oneshot", {"steps_per_epoch": mine}),
        (LocalSGD(mine), {}),
        (None, {"mode": "asynchronous", "frequency": mine}),
    ):
        trained, _ = fresh(sgd)
        trained.float()
        rt.wrap(trained, sgd(list(trained.parameters())), strategy, **options).close()


def check_what_is_no_model() -> None:
    trained, optimizer = fresh(sgd)
    for given, kind in (
        (None, "NoneType"),
        (optimizer, "SGD"),
        (trained.parameters(), "generator"),
    ):
        with raises(rt.InvalidArgumentError, f"a {kind} is not a model", "wrap(model, optimizer)"):
            rt.wrap(given, optimizer)
    with raises(rt.InvalidArgumentError, "a NoneType is not an optimizer"):
        rt.wrap(trained, None)
    still_works()


def check_modes() -> None:
    # The model is float64.
    refuses(
        rt.UnsupportedError, f"rank {LAST}: Hogwild", "float32", mode=["synchronous", "hogwild"]
    )
    refuses(rt.InvalidArgumentError, "frequency=0", mode="asynchronous", frequency=0)
    refuses(rt.InvalidArgumentError, "mode='together'", mode="together")
    refuses(rt.InvalidArgumentError, "frequency='week'", mode="synchronous", frequency="week")
    refuses(rt.InvalidArgumentError, "period=0", frequency=0)
    refuses(rt.InvalidArgumentError, "excludes", strategy="sync", mode="synchronous")
    for mode, frequency, told in (
        ("synchronous", "batch", "Synchronous(codec=None)"),
        ("synchronous", 1, "Synchronous(codec=None)"),
        ("synchronous", "epoch", "EpochAveraging()"),
        ("synchronous", 5, "LocalSGD(period=5)"),
        ("asynchronous", "batch", "Downpour(window=1,"),
        ("asynchronous", "epoch", "Downpour(window='epoch',"),
        ("asynchronous", 5, "Downpour(window=5,"),
        ("hogwild", "batch", "Hogwild(window=1,"),
        ("hogwild", "epoch", "Hogwild(window='epoch',"),
    ):
        assert strategy_of(None, mode, frequency).describe().startswith(told)
        if frequency == "batch":
            assert strategy_of(mode, None, None).describe().startswith(told)


def check_models_that_differ() -> None:
    wide = rueda.rank() == LAST
    trained = nn.Linear(3, 5 if wide else 4)
    with raises(rt.MismatchError, "[5, 3]", "[4, 3]", f"rank {LAST}", "'weight'"):
        rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), strategy="local:2")
    trained = nn.Linear(3, 4, bias=not wide)
    with raises(rt.MismatchError, "number of tensors of the model", f"rank {LAST}: 1"):
        rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), strategy="local:2")
    trained = nn.Linear(3, 4)
    kind = torch.optim.Adam if wide else torch.optim.SGD
    with raises(rt.MismatchError, "optimizer", f"rank {LAST}: Adam"):
        rt.wrap(trained, kind(trained.parameters(), lr=0.1), strategy="local:2")
    other = nn.Linear(3, 4)
    with raises(
        rt.InvalidArgumentError,
        "the optimizer has parameters that are not the model's: group0.parameter0 of shape [4, 3]",
        "create it from model.parameters()",
    ):
        rt.wrap(trained, torch.optim.SGD(other.parameters(), lr=0.1))
    still_works()


def check_sparse_loco_is_for_real_numbers() -> None:
    trained = nn.ParameterList([torch.zeros(8, dtype=torch.complex64)])
    with raises(rt.UnsupportedError, "'0' is torch.complex64"):
        rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), strategy="sparseloco:1")
    still_works()


def check_parameters_out_of_reach() -> None:
    for strategy in ("sync", "local:2", "adpsgd:1", "noloco:2", "sparseloco:2", "ssp:1"):
        trained = nn.Linear(3, 4, device="meta" if rueda.rank() == LAST else "cpu")
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        with raises(rt.UnsupportedError, f"rank {LAST}: ", "'weight' is on 'meta'"):
            rt.wrap(trained, optimizer, strategy=strategy)
    still_works()


def check_what_a_wrapped_optimizer_refuses() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    with raises(rt.InvalidArgumentError, "distributed one already"):
        rt.wrap(trained, wrapped, strategy="local:2")
    with raises(rt.UnsupportedError, "all its parameters"):
        wrapped.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with raises(rt.UnsupportedError, "not copied"):
        wrapped.__reduce__()
    accumulating, optimizer = fresh(sgd)
    wrapped = rt.wrap(accumulating, optimizer, strategy="accumulate:2")
    with raises(rt.UnsupportedError, "takes no closure"):
        wrapped.step(lambda: accumulating(torch.ones(1, 6).double()).sum())


def check_switching_to_what_cannot_be() -> None:
    """Training continues as before."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    train(trained, wrapped, 0, 1)
    text = "local:3" if rueda.rank() == LAST else "local:4"
    with raises(rt.MismatchError, "the strategy differs", f"rank {LAST}: LocalSGD(period=3)"):
        wrapped.switch(text)
    with raises(rt.InvalidArgumentError, f"rank {LAST}: ", "period=0"):
        wrapped.switch(LocalSGD(0) if rueda.rank() == LAST else "sync")
    assert wrapped.strategy.describe() == "LocalSGD(period=2)"
    train(trained, wrapped, 1, 1)
    same_bits(*trained.parameters())


def check_outer_gradients_that_no_codec_can_hold() -> None:
    trained, optimizer = fresh(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    wrapped = rt.wrap(trained, optimizer, strategy=DiLoCo(1, codec="int8"))
    for parameter in trained.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if rueda.rank() == LAST:
        trained[0].weight.grad[0, 0] = float("nan")
    with raises(rt.InvalidArgumentError, "0.weight"):
        wrapped.step()
    wrapped.consolidate()  # what was agreed on last
    same_bits(*trained.parameters())
    assert bool(torch.isfinite(trained[0].weight).all())
    train(trained, wrapped, 0, 2)
    same_bits(*trained.parameters())


def check_user_strategies_that_fail() -> None:
    class Failing(Strategy):
        def validate(self, replica: object) -> None:
            raise KeyError("a mistake")

    trained, optimizer = fresh(sgd)
    with raises(rt.InvalidArgumentError, "KeyError: 'a mistake'", f"rank {LAST}"):
        rt.wrap(trained, optimizer, strategy=Failing() if rueda.rank() == LAST else "sync")
    still_works()


if __name__ == "__main__":
    rueda.init()
    LAST = rueda.size() - 1
    parallel.run(globals())
