"""Every rank: diverged parameters are found, named and repaired."""

from __future__ import annotations

import random
import warnings

import parallel
import rueda
import rueda.torch as rt
import torch
from rueda.torch.fingerprints import (
    BLOCK_BYTES,
    block_hashes,
    combined,
    number_of_words,
    numbers_of,
)
from torch import nn

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.complex64,
    torch.bool,
]


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of many dtypes and layouts, the same on all ranks."""
    torch.manual_seed(seed)
    made = {str(dtype): torch.randn(37, 5).to(dtype) for dtype in DTYPES}
    made["large"] = torch.randn(3 * BLOCK_BYTES // 4 + 17)
    made["transposed"] = torch.randn(50, 60).t()
    made["strided"] = torch.randn(40, 6)[:, ::2]
    made["at an odd place"] = torch.arange(100, dtype=torch.uint8)[3:60]
    made["one"] = torch.tensor(1.0)
    made["none"] = torch.zeros(0, 4)
    made["special"] = torch.tensor([float("nan"), -0.0, float("inf")])
    return made


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())


def flip(tensor: torch.Tensor, element: tuple[int, ...], bit: int) -> None:
    """Flips a bit of one element, in the tensor's own memory."""
    one = tensor[element].clone().view(1)
    content = one.view(torch.uint8)
    content[bit // 8] ^= 1 << bit % 8
    tensor[element] = one[0]


def check_what_agrees_costs_one_small_allreduce() -> None:
    before = rueda.metrics()
    assert rt.check_agreement(tensors(1)) == []
    after = rueda.metrics()
    assert after["tensors_submitted"] - before["tensors_submitted"] == 1
    assert after["allreduce_tensor_bytes"] - before["allreduce_tensor_bytes"] == 32


def check_each_of_100_flipped_bits_is_named_and_repaired() -> None:
    chance = random.Random(7)  # the same on all ranks
    names = [name for name, each in tensors(0).items() if each.numel()]
    for trial in range(100):
        mine, right = tensors(trial), tensors(trial)
        name = chance.choice(names)
        tensor = mine[name]
        victim = chance.randrange(rueda.size())
        element = tuple(chance.randrange(extent) for extent in tensor.shape)
        # A bool has one significant bit.
        bit = 0 if tensor.dtype == torch.bool else chance.randrange(8 * tensor.element_size())
        if rueda.rank() == victim:
            flip(tensor, element, bit)
        if rueda.size() == 2:
            with parallel.raises(rt.DivergenceError, f"'{name}'", "No majority"):
                rt.check_agreement(mine, repair=True)
            continue
        (found,) = rt.check_agreement(mine, repair=True)
        assert (found.tensor, found.ranks, found.element) == (name, (victim,), element), found
        assert (found.elements, found.blocks) == (1, 1), found
        width = 8 * tensor.element_size()
        assert int(found.values[0], 16) ^ int(found.values[1], 16) == 1 << bit, (found, width)
        assert all(bits(mine[each]) == bits(right[each]) for each in mine)
        assert rt.check_agreement(mine) == []


def check_without_repair_every_rank_raises_and_keeps_what_it_has() -> None:
    mine = {"weight": torch.zeros(10)}
    last = rueda.size() - 1
    if rueda.rank() == last:
        mine["weight"][4] = -0.0
    # With two ranks there is no majority.
    parts = ["'weight'", f"rank {last}", "element [4]", "0x80000000", "0x00000000"]
    with parallel.raises(rt.DivergenceError, *parts):
        rt.check_agreement(mine)
    assert bits(mine["weight"]).count(0x80) == (rueda.rank() == last)


def check_nobody_is_right_where_all_differ() -> None:
    mine = {"good": torch.zeros(3), "bad": torch.full((3,), float(rueda.rank()))}
    if rueda.rank() == 0:
        mine["good"][0] = 1.0
    before = bits(mine["good"])
    with parallel.raises(
        rt.DivergenceError, "'bad'" if rueda.size() > 2 else "'good'", "1 more", "No majority"
    ):
        rt.check_agreement(mine, repair=True)
    assert bits(mine["good"]) == before


def check_ranks_that_compare_other_tensors_are_told() -> None:
    own = torch.zeros(3 + rueda.rank())
    with parallel.raises(rt.MismatchError, "'weight', float32[3]", "float32[4]"):
        rt.check_agreement({"weight": own})
    with parallel.raises(rt.MismatchError, "rank 0 has 0, rank 1 1"):
        rt.check_agreement([torch.zeros(1)] * rueda.rank())
    sparse = torch.eye(2).to_sparse() if rueda.rank() == 1 else torch.eye(2)
    with parallel.raises(rt.InvalidArgumentError, "rank 1 is sparse"):
        rt.check_agreement({"eye": sparse})
    assert rt.check_agreement({"eye": torch.eye(2)}) == []


def check_what_cannot_be_compared_is_told_on_every_rank() -> None:
    class Failing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: object, **__: object) -> object:
            raise OSError("its device is gone")

    strange = {
        "is on the meta device": torch.ones(3, device="meta"),
        "is nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "is nested: only dense": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        "is not a tensor": None,
        "cannot be compared: OSError: its device is gone": torch.ones(3).as_subclass(Failing),
    }
    for why, it in strange.items():
        for who in (0, 1, None):
            here = it if who in (rueda.rank(), None) else torch.ones(3)
            first = 0 if who is None else who
            with parallel.raises(rt.InvalidArgumentError, f"'w' on rank {first} {why}"):
                rt.check_agreement({"v": torch.ones(2), "w": here})
        assert rt.check_agreement({"w": torch.ones(3)}) == []


def check_an_optimizers_state_is_compared() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert rt.check_agreement(model, optimizer) == []
    if rueda.rank() == 1:
        optimizer.state[model.bias]["exp_avg"][2] += 1
    assert rt.check_agreement(model) == []
    with parallel.raises(rt.DivergenceError, "'bias/exp_avg'", "element [2]"):
        rt.check_agreement(model, optimizer)


def check_what_an_optimizer_keeps_in_lists_is_compared() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert rt.check_agreement(model, optimizer) == []
    if rueda.rank() == 1:
        optimizer.state[model.weight]["old_dirs"][0][5] += 1
    with parallel.raises(rt.DivergenceError, "'weight/old_dirs/0'", "element [5]"):
        rt.check_agreement(model, optimizer)


def check_a_distributed_optimizer_repairs_what_diverges() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = rt.DistributedOptimizer(inner, model.named_parameters(), check_every=3)
    last = rueda.size() - 1
    for step in range(1, 10):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).sum().backward()
        if step == 5 and rueda.rank() == last:
            flip(model.weight.data, (1, 4), 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if step == 6 and rueda.size() == 2:
                with parallel.raises(rt.DivergenceError, "'weight'", "element [1, 4]"):
                    optimizer.step()
                break
            optimizer.step()
        told = [str(each.message) for each in caught if "repaired" in str(each.message)]
        assert len(told) == (step == 6), (step, told)
        if told:
            assert f"'weight' differs on rank {last}: element [1, 4]" in told[0], told
    else:
        assert rt.check_agreement(model) == []
    with parallel.raises(rt.InvalidArgumentError, "check_every=-1"):
        rt.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), check_every=-1)


def check_only_the_members_of_a_process_set_are_compared() -> None:
    pair = rueda.add_process_set([0, rueda.size() - 1])
    if pair.included():
        mine = torch.full((3,), float(rueda.rank() > 0))
        with parallel.raises(rt.DivergenceError, f"rank {rueda.size() - 1}", "No majority"):
            rt.check_agreement({"mine": mine}, process_set=pair)
    rueda.remove_process_set(pair)


def check_the_number_of_a_tensor_depends_on_every_bit_and_place() -> None:
    torch.manual_seed(3)
    tensor = torch.randn(2 * BLOCK_BYTES // 4 + 5)
    whole = combined(block_hashes(tensor))
    for element in (0, 1, 4095, 8191, 8192, len(tensor) - 1):
        for bit in (0, 31):
            other = tensor.clone()
            flip(other, (element,), bit)
            assert combined(block_hashes(other)) != whole
    swapped = tensor.clone()
    swapped[[2, 10]] = swapped[[10, 2]]
    assert combined(block_hashes(swapped)) != whole
    assert combined(block_hashes(tensor.roll(BLOCK_BYTES // 4))) != whole


def check_numbers_of_tensors_do_not_depend_on_who_computes_them() -> None:
    # The extension hashes contiguous CPU memory, torch everything else.
    made = list(tensors(5).values())
    for size in (1, 7, 8, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 3):
        made.append(torch.randint(0, 255, (size,), dtype=torch.uint8))
    made += [torch.randn(6, dtype=torch.complex64).conj(), torch.randn(4, dtype=torch.cfloat).imag]
    expected = [combined(block_hashes(each)) for each in made]
    assert numbers_of(made) == expected
    assert number_of_words(expected) == combined(torch.tensor(expected))


if __name__ == "__main__":
    parallel.run(globals())
