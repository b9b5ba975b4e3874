"""Every rank: what torch asks of a group's backend, answered as by gloo where Rueda has nothing to add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rueda
import torch
import torch.distributed as dist
from c10d import DEVICE, raises, run, still_works
from rueda.torch.c10d.names import MAX_CONTEXTS, Names
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import fully_shard

CPU = torch.device("cpu")


def of(backend: str) -> Any:
    """The backend of a new group for the CPU."""
    return dist.new_group(backend=backend)._get_backend(CPU)


def told(ask: Callable[[Any], object], backend: Any) -> object:
    """The answer, or the class and text of the error."""
    try:
        return ask(backend)
    except Exception as error:
        return type(error), str(error).replace(backend.name(), "THE BACKEND")


def check_everything_that_torch_asks_about_support_has_an_answer() -> None:
    """A newer torch asks more."""
    group = dist.group.WORLD
    asked = [name for name in dir(Backend) if name.startswith("supports_")]
    assert "supports_coalescing" in asked
    for name in asked:
        answer = getattr(group, name)
        if not isinstance(getattr(Backend, name), property):
            answer = answer(CPU)
        assert answer is False, name


def check_what_is_not_supported_answers_as_in_torch() -> None:
    own, gloo = of("rueda"), of("gloo")
    asks: dict[str, Callable[[Any], object]] = {
        "supports_tensor_alloc": lambda backend: backend.supports_tensor_alloc(DEVICE),
        "allocate_tensor": lambda backend: backend.allocate_tensor(4, dtype=torch.int8, device=CPU),
        "mem_allocator": lambda backend: backend.mem_allocator,
        "memory_stats": lambda backend: backend.memory_stats(),
        "suspend": lambda backend: backend.suspend(),
        "resume": lambda backend: backend.resume(),
        "shrink": lambda backend: backend.shrink([1]),
        "eager_connect_single_device": lambda backend: backend.eager_connect_single_device(CPU),
        "setUsePgForSymmMemRendezvous": lambda backend: backend.setUsePgForSymmMemRendezvous(True),
        "_set_sequence_number_for_group": lambda backend: backend._set_sequence_number_for_group(),
    }
    for name, ask in asks.items():
        if hasattr(Backend, name):  # not in every version
            assert told(ask, own) == told(ask, gloo), name
    still_works()


def check_devices_without_a_backend() -> None:
    group = dist.group.WORLD
    served = {device.type for device in group._device_types}
    assert served == ({"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"})
    for kind in served:
        assert group._get_backend(torch.device(kind)) is group
        assert group._get_backend(torch.device(kind, 0)) is group
    for kind in {"cuda", "meta", "xpu"} - served:
        with raises(RuntimeError, f"No backend type associated with device type {kind}"):
            group._get_backend(torch.device(kind))


def check_times_cannot_be_estimated() -> None:
    if not hasattr(Backend, "supports_time_estimate"):  # not in every version
        return
    with (
        raises(NotImplementedError, "is not supported"),
        distributed_c10d._time_estimator(device=DEVICE),
    ):
        pass


def check_groups_cannot_be_shrunk() -> None:
    if dist.get_world_size() > 1 and hasattr(dist, "shrink_group"):  # not in every version
        with raises(TypeError, "does not support shrinking"):
            dist.shrink_group([dist.get_world_size() - 1])
        still_works()


def check_fsdp_that_would_allocate_from_the_group() -> None:
    if not hasattr(Backend, "supports_tensor_alloc"):  # not in every version
        return
    model = torch.nn.Linear(8, 8)
    fully_shard(model)
    model.set_allocate_memory_from_process_group_for_comm(True)
    model(torch.ones(2, 8)).sum().backward()
    assert bool((model.weight.grad.to_local() == 2).all())


def check_sequence_numbers() -> None:
    """They count collectives, as gloo's; messages are not counted. A failed collective counts as well."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(backend=backend) for backend in ("rueda", "gloo")]
    ones = [torch.ones(2, device="cpu") for _ in range(size)]
    at = [group._get_sequence_number_for_group() for group in groups]
    assert at[0] == 0
    for begin in (
        lambda group, one: dist.all_reduce(one, group=group),
        lambda group, one: dist.all_reduce(one, group=group, async_op=True).wait(),
        lambda group, one: dist.broadcast(one, 0, group=group),
        lambda group, one: dist.all_gather(ones, one, group=group),
        lambda group, one: dist.gather(one, ones if rank == 0 else None, 0, group=group),
        lambda group, one: dist.all_gather_object([None] * size, 3, group=group),
        lambda group, one: dist.barrier(group=group),
        lambda group, one: group.allreduce_coalesced([one, ones[0]]).wait(),
    ):
        for group in groups:
            begin(group, torch.ones(2, device="cpu"))
        now = [group._get_sequence_number_for_group() for group in groups]
        assert now[0] - at[0] == now[1] - at[1] > 0, now
        at = now
    if size > 1:
        with raises(rueda.MismatchError, "shape"):
            dist.all_reduce(torch.ones(4 + rank % 2, device="cpu"), group=groups[0])
        assert groups[0]._get_sequence_number_for_group() == at[0] + 1
        dist.barrier(group=groups[0])
        assert groups[0]._get_sequence_number_for_group() == at[0] + 2


def check_sequence_numbers_go_on_after_names_are_forgotten() -> None:
    names = Names("group")
    for number in range(2 * MAX_CONTEXTS + 1):
        names.next(number)
    assert names.begun == 2 * MAX_CONTEXTS + 1


if __name__ == "__main__":
    run(globals())
