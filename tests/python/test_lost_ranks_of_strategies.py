"""Training survives lost ranks: asynchronously, and in pairs as state or rounds allow."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from launching import run

pytest.importorskip("torch")

PROGRAM = """
import hashlib, os, signal
import rueda.torch as rueda
import torch

rueda.init()
torch.set_num_threads(1)
victim = rueda.rank() == 1
torch.manual_seed(1)
model = torch.nn.Linear(40, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.04)
optimizer = rueda.wrap(model, optimizer, strategy="{strategy}")
truth = torch.linspace(-1, 1, 120).view(3, 40)
draw = torch.Generator().manual_seed(rueda.rank())
for step in range(150):
    if victim and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.randn(8, 40, generator=draw)
    optimizer.zero_grad()
    loss = (model(x) - x @ truth.T).square().mean()
    loss.backward()
    optimizer.step()
optimizer.consolidate()
assert rueda.size() == {left}, rueda.size()
bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
assert len(set(rueda.allgather_object(hashlib.sha256(bits).hexdigest()))) == 1
assert float(loss.detach()) < 5, loss  # 13 at the beginning
print("went on")
rueda.shutdown()
"""


@pytest.mark.parametrize(
    "strategy",
    [
        "downpour:1",
        "hogwild",
        "ssp:2",
        "aeasgd:2",
        "ssp:2,replicated=yes",
        "downpour:1,server=adagrad,rate=0.3,replicated=yes",
    ],
)
def test_the_others_go_on(strategy: str) -> None:
    ended = run(PROGRAM.format(strategy=strategy, left=2), 3, extra={"RUEDA_RECOVERY": "on"})
    output = "\n".join(each.output for each in ended)
    codes = [each.returncode for each in ended]
    assert codes == [0, -signal.SIGKILL, 0], output
    assert output.count("went on") == 2, output
    # With replicas nothing is lost.
    assert ("later pushes to them are lost" in output) == ("replicated" not in strategy), output


def test_without_recovery_the_loss_is_told() -> None:
    ended = run(PROGRAM.format(strategy="downpour:1", left=2), 2)
    assert [each.returncode for each in ended] == [1, -signal.SIGKILL]
    # Possibly while it waits for rank 1 in an operation.
    assert re.search(r"PeerLostError: .*rank 1 ", ended[0].output), ended[0].output


# Rank 2 dies before the step whose end averages the parameters.
LOST_AVERAGE = """
import os, signal
import rueda.torch as rueda
import torch
from rueda import recover

strategy, end = {strategy!r}, {end!r}
rueda.init()
model = torch.nn.Linear(1, 1, bias=False)
optimizer = rueda.wrap(model, torch.optim.Adam(model.parameters(), lr=0.1), strategy=strategy)

def step():
    optimizer.zero_grad()
    (model(torch.ones(1, 1)) * (1.0 - 2 * rueda.rank())).sum().backward()
    optimizer.step()

for _ in range(5):
    step()
if rueda.rank() == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    step()
    raise SystemExit("rank 2 was not missed")
except rueda.PeerLostError:
    recover()
apart = rueda.allgather_object(model.weight.item())
optimizer.consolidate() if end == "consolidate" else optimizer.switch(end)
weight, *others = rueda.allgather_object(model.weight.item())
assert others == [weight], (weight, others)
assert abs(weight - sum(apart) / 2) < 1e-6, (weight, apart)
step()
optimizer.switch("sync")
step()
weight, *others = rueda.allgather_object(model.weight.item())
assert others == [weight], (weight, others)
print("went on")
rueda.shutdown()
"""


@pytest.mark.parametrize("strategy", ["local:3", "postlocal:3,after=3", "desloc:3,3,3"])
@pytest.mark.parametrize("end", ["consolidate", "sync", "{strategy}"])
def test_an_average_that_was_lost_is_made_up_for(strategy: str, end: str) -> None:
    program = LOST_AVERAGE.format(strategy=strategy, end=end.format(strategy=strategy))
    ended = run(program, 3, extra={"RUEDA_RECOVERY": "on"})
    output = "\n".join(each.output for each in ended)
    assert [each.returncode for each in ended] == [0, 0, -signal.SIGKILL], output
    assert output.count("went on") == 2, output


PAIRS = """
import copy, hashlib, os, signal
import rueda.torch as rueda
import torch
from rueda import recover

rueda.init()
torch.set_num_threads(1)
victim = rueda.rank() == 1
draw = torch.Generator().manual_seed(rueda.rank())

def training(strategy):
    torch.manual_seed(1)
    model = torch.nn.Linear(40, 3)
    return model, rueda.wrap(model, torch.optim.SGD(model.parameters(), lr=0.04), strategy=strategy)

def train(trainings, steps):
    for _ in range(steps):
        x = torch.randn(8, 40, generator=draw)
        for model, optimizer in trainings:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

def states():
    return copy.deepcopy([(model.state_dict(), optimizer.state_dict()) for model, optimizer in every])

def load(saved):
    for (model, optimizer), (parameters, state) in zip(every, saved):
        model.load_state_dict(parameters)
        optimizer.load_state_dict(state)

def consolidated():
    for model, optimizer in every + served:
        optimizer.consolidate()
        bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        assert len(set(rueda.allgather_object(hashlib.sha256(bits).hexdigest()))) == 1

going_on = training("noloco:1,timeout=0.3")  # which may wait that long where rounds differ after the loss
waiting = [training("adpsgd:1"), training("noloco:5")]
served = [training("adag:3"), training("dynsgd:2")]
adagrad = training("downpour:1,server=adagrad,rate=0.3")
every = [going_on, *waiting]
train([*every, *served, adagrad], 10)
saved = states()
try:
    train(every, 7)  # with the last of each
    if victim:
        os.kill(os.getpid(), signal.SIGKILL)
    train(every, 100)
    raise SystemExit("rank 1 was not missed")
except rueda.PeerLostError:
    recover()
assert rueda.size() == 3
held = adagrad[1].strategy.table.parts()[0]
adagrad[1].consolidate()  # in the new world; nothing is left to be pushed
kept = adagrad[1].strategy.state_dict()
sums = torch.cat([each for _, each in sorted(rueda.allgather_object((kept["part"], kept["kept_by_rule"])))])
for begin, state in rueda.allgather_object((held.begin, torch.tensor(held.state))):
    assert state.any() and torch.equal(sums[begin : begin + len(state)], state)  # of who is left
for each in waiting:  # who has come to which exchange is not known; also who meets nobody in this step refuses
    try:
        train([each], 1)
    except rueda.InvalidArgumentError as error:
        assert "load_state_dict()" in str(error) and "switch()" in str(error), error
    else:
        raise SystemExit("went on")
if rueda.rank() == 0:  # as where it had ended a switch() in which others learnt of the loss
    for _, optimizer in waiting:
        optimizer._rueda_replica._begun += 1
train([going_on, *served], 20)  # of these the application has called recover() itself
for each in waiting:
    each[1].switch(each[1].strategy)
train(every, 20)
consolidated()
load(saved)
train(every, 20)
consolidated()
print("went on")
rueda.shutdown()
"""


def test_pairs_go_on_or_tell_what_they_need() -> None:
    ended = run(PAIRS, 4, extra={"RUEDA_RECOVERY": "on"})
    output = "\n".join(each.output for each in ended)
    assert [each.returncode for each in ended] == [0, -signal.SIGKILL, 0, 0], output
    assert output.count("went on") == 3, output


TWICE = """
import os, signal, time
from pathlib import Path
import rueda.torch as rueda
import torch
from rueda import recover
from rueda.server import handing_over
from rueda.torch.strategies import served

flag = Path("{flag}")

def wait(until):
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def miss():
    try:
        rueda.barrier(name="somebody dies")
    except rueda.PeerLostError:
        recover()

rueda.init()
me = rueda.rank()
model = torch.nn.Linear(40, 3, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
strategy = rueda.wrap(model, optimizer, strategy="{strategy}").strategy
begun = strategy.pulled.clone()
rueda.barrier()
if me == 1:
    strategy.push(torch.ones(120)).result()
rueda.barrier()
if me == 3:
    die()
miss()
put, meet, barrier = served._put, served.Served._meet, handing_over.barrier
times = 0

def cut_off(*_):
    wait(flag.exists)
    die() if me == 2 else rueda.barrier(name="cut off")

def once(act, before=lambda *_: None, after=lambda *_: None):
    def acts(*arguments):
        global times
        times += 1
        if times == 1:
            before(*arguments)
        act(*arguments)
        if times == 1:
            after(*arguments)
    return acts
{scenario}
strategy.attempt(lambda: None)
if rueda.size() == 3:
    then()
    miss()
    strategy.attempt(lambda: None)
moved = torch.from_numpy(strategy.table.get().result()) - begun
expected = torch.cat([torch.full((count,), float(by)) for count, by in {expected}])
torch.testing.assert_close(moved, expected)
rueda.barrier()
print("went on")
rueda.shutdown()
"""

# Rank 0 has put its part, and ranks 1 and 2 nothing.
BEFORE = """
def noting(self, when):
    if when == "is whole again":
        flag.touch()
    meet(self, when)

def put_last(table, part):  # so that what it puts would hide what others have
    values = torch.empty(30)
    def are_there():
        table.get(values.numpy(), 30).result()
        return torch.equal(values, begun[30:60] + 1)
    if rueda.size() == 2:
        wait(are_there)
    put(table, part)

if me == 0:
    served.Served._meet, served._put = noting, put_last
else:
    served._put = once(put, before=cut_off)
"""

# Rank 0 knows that all have put theirs, and adds something; rank 1 learns only of the loss.
AFTER = """
if me == 1:
    handing_over.barrier = once(barrier, after=cut_off)
    served.Served._meet = once(meet, after=cut_off)
    times = {times}

def then():
    if me == 0:
        strategy.push(torch.ones(120)).result()
        flag.touch()
    else:
        cut_off()
"""


@pytest.mark.parametrize(
    ("strategy", "scenario", "expected"),
    [
        # Of four quarters, those of the survivors.
        ("downpour:1", BEFORE, [(60, 1), (60, 0)]),
        # The same of three thirds; the last quarter had been lost before.
        ("downpour:1", AFTER.format(times=-1), [(80, 2), (10, 1), (30, 0)]),
        ("downpour:1,replicated=yes", AFTER.format(times=0), [(120, 2)]),
    ],
)
def test_a_second_loss_while_ranks_go_on(
    tmp_path: Path, strategy: str, scenario: str, expected: list[tuple[int, int]]
) -> None:
    program = TWICE.format(
        strategy=strategy, scenario=scenario, expected=expected, flag=tmp_path / "flag"
    )
    ended = run(program, 4, extra={"RUEDA_RECOVERY": "on"})
    output = "\n".join(each.output for each in ended)
    codes = [each.returncode for each in ended]
    assert codes == [0, 0, -signal.SIGKILL, -signal.SIGKILL], output
    assert output.count("went on") == 2, output


def test_a_mean_of_an_earlier_world_does_not_count_as_begun_in_the_next() -> None:
    """One rank begins the mean of step 4 before a loss, the other after it: both take part in that one's."""
    program = """
    import os, signal
    import rueda.torch as rueda
    import torch

    rueda.init()
    rank = rueda.rank()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = rueda.wrap(model, optimizer, strategy="diloco:4,delay=3")

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(2, 3) * (rank + 1)).sum().backward()
            optimizer.step()

    steps(3)
    if rank == 1:
        steps(1)
    rueda.allgather(torch.ones(1), name="all have come as far")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            rueda.barrier()
    except rueda.PeerLostError:
        rueda.recover()
    steps(1)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.switch("diloco:4")
    before = [each.clone() for each in model.parameters()]
    steps(8)
    optimizer.close()
    assert all(map(torch.equal, before, model.parameters())), (before, list(model.parameters()))
    print("went on")
    """
    ended = run(program, 3, extra={"RUEDA_RECOVERY": "on", "RUEDA_STALL_ERROR": "10"})
    for rank, how in enumerate(ended):
        assert how.returncode == (-signal.SIGKILL if rank == 2 else 0), how.output
        assert ("went on" in how.output) == (rank < 2), how.output
