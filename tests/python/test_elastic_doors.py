"""What holds however an elastic job's loop is written: rueda.elastic.steps, rueda.elastic.run, hvd.elastic.run."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

DOORS = ["steps", "run", "hvd"]

# loop(total, **values): calls act(state) in each step, where state.step is its number. The values are the same however
# it goes: `died` kills the process in the given step, `made` is an optimizer of the door's own kind.
LOOPS = """
import os, signal, sys, time
from types import SimpleNamespace
import rueda, rueda.checkpoint, rueda.elastic, rueda.torch, torch
import rueda.horovod.torch as hvd

door = os.environ["DOOR"]
number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
torch.manual_seed(number)
rueda.init()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def loop(total, act, begin=lambda: None, callback=lambda: None, **values):
    if door == "steps":
        begin()
        for step in rueda.elastic.steps(total, *values.values()):
            with step:
                act(SimpleNamespace(step=step.number, **values))
        return
    run = rueda.elastic.run if door == "run" else hvd.elastic.run
    kind = rueda.elastic.State if door == "run" else hvd.elastic.TorchState
    @run
    def train(state):
        begin()
        while state.step < total:
            act(state)
            state.step += 1
            state.commit()
    state = kind(step=0, **values)
    state.register_reset_callbacks([callback])
    train(state)
"""


def outputs_of(program: str, size: int, door: str, lost: tuple[int, ...] = ()) -> list[str]:
    """What the survivors have written."""
    with ElasticJob(LOOPS + program, size, DOOR=door) as job:
        ended = job.ended()
        for number, how in ended.items():
            assert how.returncode == (-signal.SIGKILL if number in lost else 0), job.outputs()
        return [how.output for number, how in ended.items() if number not in lost]


@pytest.mark.parametrize("door", DOORS)
def test_what_would_only_recur_is_raised(door: str, tmp_path: Path) -> None:
    """A divergence that nobody can judge, and a checkpoint that cannot be written."""
    program = f"""
model = torch.nn.Linear(2, 1)
starts = []
blocked = {str(tmp_path / "file")!r}
open(blocked, "w").close()

def diverged(state):
    with torch.no_grad():
        model.bias += rueda.rank()
    rueda.torch.check_agreement(model)

def unwritable(state):
    rueda.checkpoint.save(blocked + "/folder", 1, model=model).result()

for act, words in ((diverged, "'bias' differs on rank"), (unwritable, "Not a directory")):
    starts.clear()
    try:
        loop(3, act, lambda: starts.append(1), model=model)
    except Exception as error:
        assert words in str(error), error
    else:
        raise SystemExit("nothing was raised")
    assert len(starts) == 1, starts
"""
    outputs_of(program, 2, door)


@pytest.mark.parametrize("door", DOORS)
def test_samples_are_divided_over_those_who_are_left(door: str) -> None:
    program = """
sampler = hvd.elastic.ElasticSampler(list(range(24)), shuffle=False)
model = torch.nn.Linear(1, 1)

def act(state):
    if (number, state.step) == (1, 1):
        die()
    assert sampler.num_replicas == rueda.size() and sampler.rank == rueda.rank(), sampler.__dict__
    own = torch.tensor(list(sampler))
    every = rueda.torch.allgather(own).sort().values
    assert every.tolist() == list(range(24)), every

loop(4, act, model=model, sampler=sampler)
assert rueda.size() == 2
"""
    outputs_of(program, 3, door, lost=(1,))


@pytest.mark.parametrize("door", ["steps", "run"])
def test_parameters_of_no_module_are_shared_as_well(door: str) -> None:
    """At the start, by newcomers' means, and when what a lost rank has interrupted is given up."""
    program = """
model, scale = torch.nn.Linear(3, 1), torch.nn.Parameter(torch.randn(2))
optimizer = rueda.torch.DistributedOptimizer(torch.optim.SGD([*model.parameters(), scale], lr=0.1))

def act(state):
    optimizer.zero_grad()
    (model(torch.ones(2, 3)) * scale).sum().backward()
    optimizer.step()
    if (number, state.step) == (1, 2):
        die()
    rueda.allreduce(torch.ones(1), "behind the step")

loop(5, act, model=model, optimizer=optimizer)
assert rueda.size() == 2
print("bits", scale.tolist(), model.weight.tolist(), flush=True)
"""
    said = outputs_of(program, 3, door, lost=(1,))
    assert len({re.search(r"^bits (.*)$", output, re.M)[1] for output in said}) == 1, said  # type: ignore[index]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("library", ["rueda", "hvd"])
def test_a_loss_counts_whichever_library_notices_it(door: str, library: str) -> None:
    program = f"""
library = {"rueda.torch" if library == "rueda" else "hvd"}
model = torch.nn.Linear(3, 1)
optimizer = library.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)

def act(state):
    if (number, state.step) == (1, 2):
        die()
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    library.allreduce(torch.ones(1))

loop(4, act, model=model, optimizer=optimizer)
assert rueda.size() == 2
"""
    outputs_of(program, 3, door, lost=(1,))


@pytest.mark.parametrize("door", ["run", "hvd"])
def test_a_rank_lost_while_reset_callbacks_run_is_a_loss_as_well(door: str) -> None:
    program = """
def act(state):
    if (number, state.step) == (1, 1):
        die()
    rueda.allreduce(torch.ones(1), "work")

def callback():
    if number == 3:
        die()
    rueda.allreduce(torch.ones(1), "callback")

loop(3, act, callback=callback, model=torch.nn.Linear(1, 1))
assert rueda.size() == 2
"""
    outputs_of(program, 4, door, lost=(1, 3))


@pytest.mark.parametrize("door", DOORS)
def test_leaves_are_divided_over_those_who_are_left(door: str) -> None:
    program = """
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), reproducible=True, leaves=6
)
data = torch.randn(24, 4)
sampler = rueda.LeafSampler(24, leaves=6, leaf_size=4)
batch = next(iter(sampler.epoch(0)))

def act(state):
    for leaf in optimizer.leaves(batch):
        if (number, state.step) == (1, 2):
            die()
        (model(data[leaf.samples]).square().mean() * leaf.weight).backward()
    optimizer.step()

def main():
    loop(4, act, model=model, optimizer=optimizer)
    print("bits", model.weight.tolist(), flush=True)
main()
"""
    said = outputs_of(program, 3, door, lost=(1,))
    said += outputs_of(program.replace("== (1, 2)", "== (1, 99)"), 2, door)
    assert len({re.search(r"^bits (.*)$", output, re.M)[1] for output in said}) == 1, said  # type: ignore[index]


@pytest.mark.parametrize("door", ["run", "hvd"])
def test_an_optimizer_that_the_function_makes_has_one_name_on_all_ranks(
    door: str, tmp_path: Path
) -> None:
    """The members have made one more than a newcomer."""
    program = """
model = torch.nn.Linear(2, 1)
made = []

def begin():
    made[:] = [rueda.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )]

def act(state):
    made[0].zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    made[0].step()
    if rueda.size() < 3:
        state.step = 0
    time.sleep(0.005)

loop(4, act, begin, model=model)
assert rueda.size() == 3
"""
    with ElasticJob(LOOPS + program, 2, DOOR=door) as job:
        job.start_joiner()
        assert all(how.returncode == 0 for how in job.ended().values()), job.outputs()


@pytest.mark.parametrize("door", DOORS)
def test_a_handle_that_is_kept_from_an_earlier_world_ends_the_job_with_its_error(door: str) -> None:
    program = """
kept = []

def act(state):
    if state.step == 1 and not kept:
        if number == 1:
            die()
        kept.append(rueda.allreduce_async(torch.ones(1), name="kept"))
    rueda.allreduce(torch.ones(1), "work")
    if state.step == 2:
        kept[0].result()

loop(4, act, model=torch.nn.Linear(1, 1))
"""
    with ElasticJob(LOOPS + program, 3, DOOR=door) as job:
        ended = job.ended()
        for number in (0, 2):
            assert ended[number].returncode == 1, job.outputs()
            # Or rank 0, where that had begun to recover before this rank noticed the loss.
            assert re.search(
                r"allreduce of 'kept' cannot complete: rank [01] ", ended[number].output
            ), job.outputs()
            assert "belongs to another one, which has ended" in ended[number].output, job.outputs()
            assert "the world is whole" not in ended[number].output, job.outputs()


@pytest.mark.parametrize("door", ["run", "hvd"])
def test_a_handle_that_is_dropped_after_its_error_costs_one_more_start(door: str) -> None:
    program = """
kept = []

def act(state):
    if state.step == 1 and number == 1:
        die()
    if state.step == 1 and not kept:
        kept.append(rueda.allreduce_async(torch.ones(1), name="kept"))
    rueda.allreduce(torch.ones(1), "work")
    if state.step == 2 and kept:
        kept.pop().result()

loop(4, act, lambda: starts.append(1), model=torch.nn.Linear(1, 1))
assert not kept and 3 <= len(starts) <= 4, starts
"""
    outputs_of("starts = []\n" + program, 3, door, lost=(1,))


# What a newcomer does before the loop. Each would make all ranks wait for each other.
TOO_EARLY = """
model = torch.nn.Linear(2, 1)
operations = [
    lambda: rueda.allreduce([1.0], "early"),
    lambda: rueda.allreduce(np.ones(1), "early"),
    lambda: rueda.allreduce_(np.ones(1), "early"),
    lambda: rueda.allreduce_async(np.ones(1), "early"),
    lambda: rueda.broadcast(np.ones(1), 0, "early"),
    lambda: rueda.allgather_object(1, "early"),
    lambda: rueda.barrier(),
    lambda: rueda.torch.allreduce(torch.ones(1)),
    lambda: rueda.torch.allreduce_(torch.ones(1)),
    lambda: rueda.torch.broadcast_parameters(model.state_dict()),
    lambda: rueda.torch.PersistentAllreduce(torch.ones(1)),
    lambda: rueda.add_process_set([0]),
]
"""


@pytest.mark.parametrize("door", ["steps", "run"])
def test_a_newcomers_collective_before_the_loop_is_refused_and_the_others_go_on(door: str) -> None:
    program = (
        "import numpy as np\n"
        + TOO_EARLY
        + """
if "RUEDA_JOINER" in os.environ:
    if os.environ["RUEDA_JOINER"] == "2":
        operations[0]()
    for operation in operations:
        try:
            operation()
        except rueda.InvalidArgumentError as error:
            assert "joined a running job, whose ranks wait for it in" in str(error), error
        else:
            raise SystemExit("was begun")
    assert rueda.global_process_set.rank() == rueda.rank()

def act(state):
    rueda.allreduce(torch.ones(1), "work")
    if rueda.size() < 3:
        time.sleep(0.005)
    if state.step == 1 and rueda.size() < 3:
        state.step -= 1  # it goes on once the newcomer is there; with steps(), it has 2,000 for that

loop(2000 if door == "steps" else 3, act, model=model)
assert rueda.size() == 3
"""
    )
    with ElasticJob(
        LOOPS + program, 2, DOOR=door, RUEDA_STALL_WARNING="3", RUEDA_STALL_ERROR="6"
    ) as job:
        early = job.start_joiner()
        assert job.processes[early][0].wait(60) == 1, job.outputs()
        assert "InvalidArgumentError: this process has joined" in job.outputs()
        fitting = job.start_joiner()
        ended = job.ended()
        for number in (0, 1, fitting):
            assert ended[number].returncode == 0, job.outputs()


def test_a_persistent_operation_of_an_earlier_world_says_so() -> None:
    """After a newcomer has come, and after a loss, whether a run of it is under way or not."""
    program = """
def made(name):
    tensor = torch.ones(1)
    return rueda.torch.PersistentAllreduce(tensor, op=rueda.Sum, name=name)

def outdated(call, name):
    try:
        call()
    except rueda.InvalidArgumentError as error:
        assert str(error) == f"the persistent allreduce '{name}' belongs to an earlier world: create it again", error
    else:
        raise SystemExit("was done")

is_new = "RUEDA_JOINER" in os.environ
if not is_new:
    joined = made("joined")
    joined.start()
    joined.wait()
    while rueda.elastic.update() is None:
        time.sleep(0.01)
    outdated(joined.start, "joined")
idle, started = made("idle"), made("started")
rueda.barrier()
if number == 1:
    time.sleep(0.3)  # until the others have left the barrier
    die()
try:
    started.start()
    started.wait()
    raise SystemExit("was done")
except rueda.PeerLostError:
    rueda.recover()
outdated(idle.start, "idle")
for call in (started.start, started.wait, started.done):
    try:
        call()
    except rueda.InvalidArgumentError as error:
        assert "belongs to an earlier world: create it again" in str(error), error
again = made("idle")
again.start()
again.wait()
assert again.output.item() == 2
"""
    with ElasticJob(LOOPS + program, 2, DOOR="") as job:
        job.start_joiner()
        ended = job.ended()
        for number in (0, 2):
            assert ended[number].returncode == 0, job.outputs()


def test_a_value_that_cannot_be_copied_is_named() -> None:
    program = """
import threading
for value in (threading.Lock(), torch.ones(1, requires_grad=True) * 2):
    try:
        rueda.elastic.State(good=1, wrong=value)
    except rueda.InvalidArgumentError as error:
        assert "'wrong' cannot be copied" in str(error), error
    else:
        raise SystemExit("was taken")
"""
    outputs_of(program, 1, "run")


def test_numbers_of_steps_are_whole() -> None:
    program = """
for arguments in ({"total": 3.5}, {"total": -1}, {"total": 3, "every": 2.5}, {"total": 3, "every": 0},
                  {"total": 3, "begin": lambda: -2}, {"total": 3, "begin": lambda: None}):
    try:
        next(rueda.elastic.steps(**arguments))
    except rueda.InvalidArgumentError as error:
        assert "steps()" in str(error), error
    else:
        raise SystemExit(f"{arguments} were taken")
try:
    rueda.elastic.StepSampler(10, batch=0)
except rueda.InvalidArgumentError as error:
    assert "batch=0" in str(error), error
"""
    outputs_of(program, 1, "steps")
