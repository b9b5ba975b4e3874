"""torch.distributed continues in the world that remains after a loss or grows by newcomers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob
from launching import Ended, check, run

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

# Trains with DistributedDataParallel. Every process also computes, alone, each step of all ranks.
PROGRAM = """
import copy, os, signal, sys
import rueda, rueda.elastic, torch, torch.distributed as dist
from rueda.torch.c10d import renew_process_group, typed_errors
from torch.nn.parallel import DistributedDataParallel

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
torch.set_num_threads(1)
rueda.init()
torch.manual_seed(5)
layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)

def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return model(torch.rand(4, 6, generator=generator, dtype=torch.float64)).square().mean()

def mean_gradients(step, size):
    alone = copy.deepcopy(layers)
    alone.zero_grad()
    sum(loss_of(alone, step, rank) / size for rank in range(size)).backward()
    return [parameter.grad for parameter in alone.parameters()]

@rueda.elastic.run
def train(state):
    renew_process_group()
    assert (dist.get_rank(), dist.get_world_size()) == (rueda.rank(), rueda.size())
    renew_process_group()  # is the present one: nothing is to be done
    model = DistributedDataParallel(state.layers, bucket_cap_mb=0.0005)  # several buckets
    everybody = dist.new_group()
    while not state.enough:
        size = dist.get_world_size()
        expected = mean_gradients(state.step, size)
        state.optimizer.zero_grad()
        loss = loss_of(model, state.step, dist.get_rank())
        before_backward(state)
        with typed_errors():
            loss.backward()
        for parameter, right in zip(state.layers.parameters(), expected):
            torch.testing.assert_close(parameter.grad, right, rtol=1e-12, atol=1e-14)
        total = torch.tensor([dist.get_rank() + 1.0, is_enough(state)])
        dist.all_reduce(total, group=everybody)
        assert total[0] == size * (size + 1) / 2, total
        state.optimizer.step()
        state.step += 1
        state.sizes.append(size)
        state.enough = total[1] > 0
        state.commit()

state = rueda.elastic.State(layers=layers, optimizer=optimizer, step=0, sizes=[], enough=False)
"""

END = """
train(state)
print("trained", *state.sizes, sum(float(p.detach().sum()) for p in layers.parameters()), flush=True)
dist.destroy_process_group()
"""


def of_program(special: str) -> str:
    return PROGRAM + special + END


def trained(ended: dict[int, Ended], *lost: int) -> dict[int, tuple[str, str]]:
    """The size of the world in each step, and the sum of the parameters."""
    found = {}
    for number, how in ended.items():
        output = "\n".join(each.output for each in ended.values())
        assert how.returncode == (-signal.SIGKILL if number in lost else 0), output
        if number not in lost:
            (line,) = [each for each in how.output.splitlines() if each.startswith("trained ")]
            _, *sizes, total = line.split()
            found[number] = (" ".join(sizes), total)
    return found


@pytest.mark.parametrize("lost", [0, 1])
def test_training_goes_on_with_those_that_are_left(lost: int) -> None:
    """The first rank hosts torch's store, which is lost with it."""
    program = of_program(f"""
def before_backward(state):
    if number == {lost} and state.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
def is_enough(state): return state.step == 6
""")
    with ElasticJob(program, 3) as job:
        found = trained(job.ended(), lost)
    assert {sizes for sizes, _ in found.values()} == {"3 3 3 2 2 2 2"}
    assert len({total for _, total in found.values()}) == 1, found


def test_losses_follow_each_other() -> None:
    program = of_program("""
def before_backward(state):
    if (number, state.step) in ((3, 1), (0, 3), (2, 4)):
        os.kill(os.getpid(), signal.SIGKILL)
def is_enough(state): return state.step == 5
""")
    with ElasticJob(program, 4) as job:
        found = trained(job.ended(), 0, 2, 3)
    assert [sizes for sizes, _ in found.values()] == ["4 3 3 2 1 1"]


def test_newcomers_come_into_the_group() -> None:
    program = of_program("""
import time
def before_backward(state):
    time.sleep(0.02)
    if number == 1 and state.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
def is_enough(state): return 2 in state.sizes and state.sizes[-2:] == [3, 3]
""")
    with ElasticJob(program, 3) as job:
        job.await_world(0, 2)
        newcomer = job.start_joiner()
        job.await_world(0, 2, newcomer)
        found = trained(job.ended(), 1)
    assert set(found) == {0, 2, newcomer}
    assert len(set(found.values())) == 1, found


def test_a_group_of_a_world_that_has_gone_says_so() -> None:
    ended = run(
        """
        import os, signal, sys
        import rueda, rueda.torch.c10d, torch, torch.distributed as dist
        rueda.init()
        dist.init_process_group("rueda")
        group = dist.group.WORLD
        if dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                dist.all_reduce(torch.ones(3))
        except rueda.PeerLostError as error:
            assert group.fatal_error is error
        rueda.recover()
        try:
            dist.all_reduce(torch.ones(3))
            sys.exit("was accepted")
        except rueda.ShutdownError as error:
            assert "renew_process_group() makes one" in str(error), error
        rueda.torch.c10d.renew_process_group()
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [2.0] * 3
        try:
            group.allreduce([total], dist.AllreduceOptions())
            sys.exit("was accepted")
        except rueda.ShutdownError as error:
            assert "has been destroyed" in str(error), error
        # What torch prints before each line of an exception is there once.
        import io
        kept, sys.stderr = sys.stderr, io.StringIO()
        sys.excepthook(ValueError, ValueError("told once"), None)
        text, sys.stderr = sys.stderr.getvalue(), kept
        assert text.count(f"[rank{dist.get_rank()}]: ") == text.count(chr(10)), text
        """,
        3,
        extra={"RUEDA_RECOVERY": "on"},
    )
    for rank, how in enumerate(ended):
        assert how.returncode == (-signal.SIGKILL if rank == 2 else 0), how.output


def test_a_loss_during_the_renewal_forgets_nothing(tmp_path: Path) -> None:
    ended = run(
        """
        import os, signal, sys
        from datetime import timedelta
        import rueda, rueda.torch.c10d, torch, torch.distributed as dist
        rank, size = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])
        store = dist.FileStore(os.environ["STORE"])
        limit = timedelta(seconds=77)
        dist.init_process_group("rueda", store=store, rank=rank, world_size=size, timeout=limit)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                dist.all_reduce(torch.ones(3))
        except rueda.PeerLostError:
            rueda.recover()
        store.set(f"rank {rank} has recovered", "")
        if rank == 1:  # whose loss would otherwise be part of the first recovery of those that are slower
            store.wait(["rank 0 has recovered", "rank 2 has recovered"])
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            rueda.torch.c10d.renew_process_group()
            sys.exit("was renewed")
        except rueda.PeerLostError:
            rueda.recover()
        rueda.torch.c10d.renew_process_group()
        assert dist.get_world_size() == 2
        assert dist.group.WORLD.timeout == limit, dist.group.WORLD.timeout
        dist.barrier()
        dist.destroy_process_group()
        assert not rueda.is_initialized()  # the first group has formed the world
        """,
        4,
        extra={"RUEDA_RECOVERY": "on", "STORE": str(tmp_path / "store")},
    )
    for rank, how in enumerate(ended):
        assert how.returncode == (-signal.SIGKILL if rank in (1, 3) else 0), how.output


def test_what_is_no_error_of_the_group_stays_what_it_is() -> None:
    check(
        """
        import sys, rueda, rueda.torch.c10d, torch, torch.distributed as dist
        from rueda.torch.c10d import renew_process_group, typed_errors
        try:
            renew_process_group()
            sys.exit("was accepted")
        except rueda.NotInitializedError:
            pass
        rueda.init()
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        try:
            renew_process_group()
            sys.exit("was accepted")
        except rueda.UnsupportedError:
            dist.destroy_process_group()
        renew_process_group()
        raised = RuntimeError("mine")
        try:
            with typed_errors():
                raise raised
        except RuntimeError as error:
            assert error is raised
        try:
            with typed_errors():
                dist.all_reduce(torch.ones(1 + dist.get_rank()))
        except rueda.MismatchError:
            dist.destroy_process_group()
        else:
            sys.exit("was accepted")
        """,
        2,
    )
