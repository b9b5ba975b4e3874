"""Gradients that the core compresses."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import rueda
import rueda.torch as rt
import torch
from parallel import raises, run, still_works
from rueda.torch.strategies import Synchronous
from torch import nn
from torch.nn import functional as F
from training import batch, same_bits, share

STEPS = 6


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 3)
    )


def distributed(network: nn.Module, compression: object, **options: Any) -> Any:
    inner = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    return rt.DistributedOptimizer(
        inner, network.named_parameters(), compression=compression, **options
    )


def train(network: nn.Module, optimizer: Any, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(network(share(x).float()), share(y)).backward()
        optimizer.step()


def distance(left: nn.Module, right: nn.Module) -> float:
    return max(
        float((a - b).detach().abs().max())
        for a, b in zip(left.parameters(), right.parameters(), strict=True)
    )


def check_complex_gradients_travel_as_they_are() -> None:
    """With the policy's momentum, which applies to all."""
    for codec in ("int8", "topk:0.01"):
        weights = nn.Parameter(torch.zeros(2048, dtype=torch.complex64))
        policy = rt.CompressionPolicy(codec, momentum=0.5)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD([weights], lr=1.0), [("w", weights)], compression=policy
        )
        for _ in range(2):
            optimizer.zero_grad()
            (weights * (1 - 2j)).real.sum().backward()
            optimizer.step()
        torch.testing.assert_close(weights.detach(), torch.full((2048,), -2.5 - 5j))


def check_functions_take_a_codec() -> None:
    ones = torch.full((200,), rueda.rank() + 1.0, requires_grad=True)
    mean = (rueda.size() + 1) / 2
    result = rt.allreduce(ones, compression="int8")
    torch.testing.assert_close(result, torch.full((200,), mean), rtol=0.01, atol=0)
    result.sum().backward()
    assert ones.grad is not None
    torch.testing.assert_close(ones.grad, torch.ones(200), rtol=0.01, atol=0)
    plain = ones.detach()
    for each in (
        rt.allreduce_async(plain, compression="bf16").result(),
        rt.allreduce_(plain.clone(), compression="fp16"),
        *rt.grouped_allreduce([plain, plain], compression="int8"),
    ):
        torch.testing.assert_close(each, torch.full((200,), mean), rtol=0.01, atol=0)


def check_training_stays_near() -> None:
    exact = model()
    train(exact, distributed(exact, None))
    for codec, near in (("int8", 0.01), ("bf16", 0.01), ("fp16", 0.001)):
        network = model()
        train(network, distributed(network, rt.CompressionPolicy({"*": codec}, min_elements=0)))
        same_bits(*network.parameters())
        assert 0 < distance(network, exact) < near, (codec, distance(network, exact))


def check_rules_choose_by_name_and_size() -> None:
    network = model()
    optimizer = distributed(network, {"*.bias": None, "2.*": "topk:0.1", "*": "int8"})
    train(network, optimizer)
    same_bits(*network.parameters())
    kept = optimizer.state_dict()["rueda_compression"]["residuals"]
    assert kept.keys() == {"2.weight"}, kept.keys()
    if rueda.size() > 1:
        buckets = optimizer.gradient_buckets()
        assert "it is compressed" in buckets.left_out["2.weight"], buckets
        in_buckets = {name for names in buckets.names for name in names}
        assert in_buckets == {"0.weight", "0.bias", "2.bias", "4.weight", "4.bias"}, buckets


def check_error_feedback_helps() -> None:
    exact = model()
    train(exact, distributed(exact, None), last=40)
    distances = {}
    for feedback in (True, False):
        network = model()
        policy = rt.CompressionPolicy({"*": "topk:0.02"}, min_elements=0, error_feedback=feedback)
        train(network, distributed(network, policy), last=40)
        same_bits(*network.parameters())
        distances[feedback] = distance(network, exact)
    assert distances[True] < distances[False], distances


def check_a_checkpoint_resumes_exactly() -> None:
    for codec in ("topk:0.05", "randomk:0.05", "int8"):
        policy = rt.CompressionPolicy({"*": codec}, min_elements=0, error_feedback=True)
        whole = model()
        train(whole, distributed(whole, policy), last=8)
        first = model()
        optimizer = distributed(first, policy)
        train(first, optimizer, last=4)
        file = io.BytesIO()
        torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        second = model()
        second.load_state_dict(state["model"])
        resumed = distributed(second, policy)
        resumed.load_state_dict(state["optimizer"])
        train(second, resumed, first=4, last=8)
        assert distance(second, whole) == 0, codec
        # A copy continues in the same way.
        train(first, copied := copy.deepcopy(optimizer), last=0)
        kept = copied.state_dict()["rueda_compression"]
        for name, residual in optimizer.state_dict()["rueda_compression"]["residuals"].items():
            assert torch.equal(kept["residuals"][name], residual), name


def check_broadcast_state_leaves_residuals_alone() -> None:
    network = model()
    optimizer = distributed(network, rt.CompressionPolicy({"*": "topk:0.05"}, min_elements=0))
    train(network, optimizer)
    rt.broadcast_optimizer_state(optimizer, root_rank=0)
    kept = optimizer.state_dict()["rueda_compression"]
    assert kept["steps"] == STEPS, kept["steps"]
    lost = any(bool(residual.any()) for residual in kept["residuals"].values())
    assert lost == (rueda.rank() == 0)


def check_groups_of_one_codec() -> None:
    network = model()
    train(network, distributed(network, rt.CompressionPolicy({"*": "topk:0.1"}, 0), groups=2))
    same_bits(*network.parameters())
    with raises(rueda.InvalidArgumentError, "need one codec"):
        distributed(model(), {"*.bias": None, "*": "int8"}, groups=1)


def check_what_is_not_finite_names_the_parameter() -> None:
    network = model()
    optimizer = distributed(network, "int8")
    train(network, optimizer, last=2)
    optimizer.zero_grad()
    x, y = batch(0)
    F.cross_entropy(network(share(x).float()), share(y)).backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    if rueda.rank() == 0:
        network[2].weight.register_hook(lambda gradient: gradient * float("nan"))
    F.cross_entropy(network(share(x).float()), share(y)).backward()
    with raises(rueda.InvalidArgumentError, "2.weight", "NaN", "on rank 0"):
        optimizer.step()
    still_works()


CODECS = ("fp16", "bf16", "int8", "topk:0.1", "randomk:0.1")


def scaled(codec: str, how: str) -> tuple[nn.Module, Any]:
    network = model()
    inner = torch.optim.SGD(network.parameters(), lr=0.1, fused=how == "fused")
    if how == "wrapped":
        return network, rt.wrap(network, inner, Synchronous(codec=codec))
    policy = rt.CompressionPolicy(codec, error_feedback=True)
    return network, rt.DistributedOptimizer(inner, network.named_parameters(), policy)


def scaled_step(network: nn.Module, optimizer: Any, scaler: Any, step: int) -> None:
    x, y = batch(step)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(network(share(x).float()).float(), share(y))
    scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.step(optimizer)
    scaler.update()


def check_a_scaler_skips_what_a_codec_cannot_hold() -> None:
    """On all ranks, as without a codec; no residuals of gradients with a larger scale remain."""
    last = rueda.size() - 1
    for codec in CODECS:
        for how in ("plain", "fused", "wrapped"):
            network, optimizer = scaled(codec, how)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            for step in range(2):
                scaled_step(network, optimizer, scaler, step)
            before = [p.detach().clone() for p in network.parameters()]
            bad = [math.inf, math.nan][step % 2]
            if rueda.rank() == last:
                broken = network[2].weight.register_hook(lambda gradient, b=bad: gradient * b)
            for step in range(2, 4):
                scaled_step(network, optimizer, scaler, step)
            if rueda.rank() == last:
                broken.remove()
            assert scaler.get_scale() == 256.0, (codec, how, scaler.get_scale())
            assert all(map(torch.equal, before, network.parameters())), (codec, how)
            state = optimizer.state_dict()["rueda_compression"]
            assert not any(each.any() for each in state["residuals"].values()), (codec, how)
            for step in range(4, 8):
                scaled_step(network, optimizer, scaler, step)
            assert scaler.get_scale() == 256.0
            assert not any(map(torch.equal, before, network.parameters())), (codec, how)
            assert all(bool(p.isfinite().all()) for p in network.parameters()), (codec, how)
            same_bits(*network.parameters())
    still_works()


def check_step_raises_what_synchronize_has_left() -> None:
    """If no scaler has looked at the gradients; but not if the application has replaced them."""
    for how in ("plain", "wrapped", "closure"):
        network, optimizer = scaled("int8", how)
        weight = network[2].weight

        def evaluate(network: nn.Module = network, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            x, y = batch(0)
            loss = F.cross_entropy(network(share(x).float()), share(y))
            loss.backward()
            return loss

        hook = weight.register_hook(lambda gradient: gradient * math.nan)
        before = [p.detach().clone() for p in network.parameters()]
        if how == "closure":
            with raises(rueda.InvalidArgumentError, "2.weight", "NaN"):
                optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.synchronize()
            assert weight.grad is not None
            assert bool(weight.grad.isnan().all())
            for _ in range(2):
                with raises(rueda.InvalidArgumentError, "2.weight", "NaN"):
                    optimizer.step()
        assert all(map(torch.equal, before, network.parameters()))
        if how != "closure":
            evaluate()
            optimizer.synchronize()
            weight.grad.zero_()
            optimizer.step()
            assert torch.equal(before[2], weight)
            assert not torch.equal(before[0], network[0].weight)
        hook.remove()
        evaluate()
        optimizer.step()
        same_bits(*network.parameters())


def check_momentum_survives_a_step_that_is_not_finite() -> None:
    """Also for gradients that are not compressed."""
    for codec in ("topk:0.1", "int8"):
        network = model()
        policy = rt.CompressionPolicy({"*.bias": None, "*": codec}, momentum=0.5)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), policy
        )
        for step in range(4):
            hooks = []
            if step == 1:
                hooks = [p.register_hook(lambda g: g * math.inf) for p in network.parameters()]
            optimizer.zero_grad()
            x, y = batch(step)
            F.cross_entropy(network(share(x).float()), share(y)).backward()
            optimizer.synchronize()
            for hook in hooks:
                hook.remove()
            if step != 1:
                optimizer.step()
        assert all(bool(p.isfinite().all()) for p in network.parameters())
        same_bits(*network.parameters())


def kept(optimizer: Any, what: str, name: str) -> torch.Tensor:
    tensor: torch.Tensor = optimizer.state_dict()["rueda_compression"][what][name]
    return tensor.clone()


def check_momentum_is_gathered_before_elements_are_chosen() -> None:
    policy = rt.CompressionPolicy({"*.bias": None, "*": "topk:0.1"}, 0, momentum=0.5)
    network = model()
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1),
        network.named_parameters(),
        policy,
        op=rueda.Sum,
    )
    name, weight = "2.weight", network[2].weight
    state = {what: torch.zeros(weight.numel()) for what in ("residuals", "velocities")}
    momentum = torch.zeros_like(network[2].bias)
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(network(share(x).float()), share(y))
        own = torch.autograd.grad(loss, [weight, network[2].bias], retain_graph=True)
        loss.backward()
        optimizer.synchronize()
        before, state = state, {what: kept(optimizer, what, name) for what in state}
        gathered = 0.5 * before["velocities"] + own[0].reshape(-1)
        # Over all ranks: every accumulated value has either arrived or is a residual.
        total = rt.allreduce(before["residuals"] + gathered - state["residuals"], op=rueda.Sum)
        torch.testing.assert_close(weight.grad.reshape(-1), total, rtol=1e-3, atol=1e-5)
        if rueda.local_size() == rueda.size():
            travelled = state["residuals"] != before["residuals"] + gathered
            assert 0 < int(travelled.sum()) < weight.numel() / 4
            torch.testing.assert_close(state["velocities"], gathered * ~travelled)
        momentum = 0.5 * momentum + rt.allreduce(own[1], op=rueda.Sum)
        torch.testing.assert_close(network[2].bias.grad, momentum, rtol=1e-4, atol=1e-6)
        optimizer.step()
    same_bits(*network.parameters())
    assert optimizer.state_dict()["rueda_compression"]["momenta"].keys() == {
        "0.bias",
        "2.bias",
        "4.bias",
    }


def check_warming_up_and_clipping() -> None:
    policy = rt.CompressionPolicy(
        {"*": "topk:0.001"}, 0, warm_up_steps=8, clip_norm=1e-3, momentum=0.9
    )
    codec = policy.codec_for("x", 5000)
    fractions = [policy.codec_at(codec, step).fraction for step in range(10)]
    assert fractions[0] == fractions[1] == 0.25
    assert fractions[8] == fractions[9] == 0.001
    assert sorted(set(fractions), reverse=True) == list(dict.fromkeys(fractions))
    assert len(set(fractions)) == 5
    network = model()
    optimizer = rt.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), policy
    )
    train(network, optimizer, last=10)
    same_bits(*network.parameters())
    first = model()
    plain = rt.DistributedOptimizer(
        torch.optim.SGD(first.parameters(), lr=0.1),
        first.named_parameters(),
        rt.CompressionPolicy({"*": "fp16"}, 0, clip_norm=1e-3),
    )
    train(first, plain, last=1)
    for parameter in first.parameters():
        assert 0 < float(parameter.grad.norm()) <= 1.01e-3 / rueda.size() ** 0.5


def check_clipping_where_squares_are_beyond_the_dtype() -> None:
    for dtype, value in ((torch.float16, 2000.0), (torch.float32, 1e25)):
        weights = nn.Parameter(torch.ones(3000, dtype=dtype))
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD([weights], lr=1.0),
            [("w", weights)],
            rt.CompressionPolicy("int8", clip_norm=1.0),
        )
        (weights * value).sum().backward()
        optimizer.synchronize()
        assert weights.grad is not None
        clipped = float(weights.grad.double().norm()) * rueda.size() ** 0.5
        assert abs(clipped - 1) < 0.02, clipped


def check_a_parameter_of_another_size_begins_anew() -> None:
    policy = rt.CompressionPolicy({"*": "topk:0.1"}, 0, momentum=0.5)
    for groups in (None, 1):
        network = nn.Linear(64, 40)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1),
            network.named_parameters(),
            policy,
            groups=groups,
        )
        for rows in (40, 4000, 8):
            for parameter in network.parameters():
                parameter.data = torch.zeros(rows, *parameter.shape[1:])
                parameter.grad = None
            for _ in range(2):
                optimizer.zero_grad()
                network(torch.ones(1, 64)).sum().backward()
                optimizer.step()
            for kind in ("residuals", "velocities"):
                assert kept(optimizer, kind, "weight").numel() == 64 * rows
            same_bits(*network.parameters())


def check_momentum_of_sparse_gradients() -> None:
    def trained(policy: Any, momentum: float, **options: Any) -> torch.Tensor:
        torch.manual_seed(5)
        table = nn.Embedding(200, 4, sparse=policy is not None)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.1, momentum=momentum),
            table.named_parameters(),
            policy,
            **options,
        )
        for step in range(4):
            optimizer.zero_grad()
            torch.manual_seed(10 * step + rueda.rank())
            table(torch.randint(200, (20,))).square().sum().backward()
            optimizer.step()
            assert table.weight.grad is not None
            assert table.weight.grad.is_sparse == (policy is not None)
        same_bits(*table.parameters())
        return table.weight.detach()

    expected = trained(None, 0.5)
    for codec, options in ((None, {}), (None, {"sparse_as_dense": True}), ("int8", {})):
        policy = rt.CompressionPolicy({"*": codec}, 0, momentum=0.5)
        torch.testing.assert_close(trained(policy, 0.0, **options), expected)
    with raises(rueda.UnsupportedError, "weight'", "sparse", "momentum", "sparse_as_dense"):
        trained(rt.CompressionPolicy("topk", 0, momentum=0.5), 0.0)
    still_works()


def check_policies_are_compared() -> None:
    """Once, by the first step, also for options that no single gradient reveals."""
    if rueda.size() == 1:
        return
    last = rueda.rank() == rueda.size() - 1
    usual: dict[str, Any] = {"rules": "topk:0.1", "momentum": 0.5}
    for option, value in (
        ("momentum", 0.9),
        ("error_feedback", True),
        ("clip_norm", 1.0),
        ("min_elements", 1025),
        ("warm_up_steps", 9),
        ("rules", "int8"),
    ):
        policy = rt.CompressionPolicy(**{**usual, option: value} if last else usual)
        network = model()
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters(), policy
        )
        before = [p.detach().clone() for p in network.parameters()]
        with raises(
            rueda.MismatchError, f"{option} of the compression", f"rank {rueda.size() - 1}"
        ):
            train(network, optimizer)
        assert all(map(torch.equal, before, network.parameters()))
        still_works()
    for given in (None, "int8"):
        network = nn.Linear(3, 3)  # too small to be compressed
        optimizer = distributed(network, "fp16" if last else given)
        with raises(rueda.MismatchError, "rules of the compression", "Float16()"):
            network(torch.ones(3)).sum().backward()
            optimizer.step()
    network = model()
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    with raises(rueda.MismatchError, "Synchronous(codec='int8')"):
        rt.wrap(network, inner, Synchronous(codec="int8" if last else "bf16"))
    still_works()


def check_momentum_in_both() -> None:
    policy = rt.CompressionPolicy({"*": "topk"}, momentum=0.9)
    network = model()
    optim = torch.optim
    for kind in (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax):
        inner: Any = kind(network.parameters())
        with raises(rueda.InvalidArgumentError, "replaces the optimizer's", "betas[0]=0.9"):
            rt.DistributedOptimizer(inner, network.named_parameters(), policy)
    inner = optim.Adam(network.parameters(), betas=(0.0, 0.999))
    train(network, rt.DistributedOptimizer(inner, network.named_parameters(), policy))
    same_bits(*network.parameters())


def check_wrong_options() -> None:
    for wrong in ("int9", {"*": "topk:3"}, 7):
        with raises(rueda.InvalidArgumentError, "compression="):
            distributed(model(), wrong)
    for wrong in (["int8"], [("*", "int8", 3)], {7: "int8"}, 7):
        with raises(rueda.InvalidArgumentError, repr(wrong), "not rules of a CompressionPolicy"):
            rt.CompressionPolicy(wrong)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "compression='int9'"):
        rt.CompressionPolicy("int9")
    assert rt.CompressionPolicy("topk:0.1") == rt.CompressionPolicy([("*", "topk:0.1")])
    for option in (
        {"momentum": 1.0},
        {"momentum": "a"},
        {"momentum": None},
        {"momentum": math.nan},
        {"warm_up_steps": -1},
        {"warm_up_steps": 2.5},
        {"min_elements": -1},
        {"min_elements": "q"},
        {"clip_norm": 0.0},
        {"clip_norm": math.inf},
        {"clip_norm": "a"},
    ):
        with raises(rueda.InvalidArgumentError, next(iter(option))):
            rt.CompressionPolicy({"*": "int8"}, **option)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "replaces the optimizer's momentum"):
        distributed(model(), rt.CompressionPolicy({"*": "topk"}, momentum=0.9))


if __name__ == "__main__":
    run(globals())
