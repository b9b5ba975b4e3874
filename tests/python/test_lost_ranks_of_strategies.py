"""Training goes on where a rank dies: without synchrony by itself, in pairs as its state or its rounds allow."""

from __future__ import annotations

import re
import signal

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
    # With replicas nothing is.
    assert ("had pushed to them since is lost" in output) == ("replicated" not in strategy), output


def test_without_recovery_the_loss_is_told() -> None:
    ended = run(PROGRAM.format(strategy="downpour:1", left=2), 2)
    assert [each.returncode for each in ended] == [1, -signal.SIGKILL]
    # Maybe while it waits for rank 1 in an operation.
    assert re.search(r"PeerLostError: .*rank 1 ", ended[0].output), ended[0].output


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
