"""Loops of all kinds, one after another and nested, in which ranks are lost at any moment."""

from __future__ import annotations

import random
import signal

import pytest
from elastic_launcher import ElasticJob

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

# Each epoch takes four steps in a loop of its KIND, and each step adds 10 ** (epoch % 5) to the weight, with all ranks.
PROGRAM = """
import os, signal, threading, time
import rueda, rueda.elastic, rueda.torch, torch

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
rueda.init()
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
)

def act(epoch):
    optimizer.zero_grad()
    (model(torch.ones(1, 1)) * -(10.0 ** (epoch % 5))).sum().backward()
    optimizer.step()

def steps(epoch):
    for step in rueda.elastic.steps(4, model, optimizer):
        with step:
            act(epoch)

@rueda.elastic.run
def commits(state, epoch):
    while state.done < 4:
        act(epoch)
        state.done += 1
        state.commit()
    state.done = 0

@rueda.elastic.run
def steps_in_a_call(state, epoch):
    while state.done < 2:
        for step in rueda.elastic.steps(2, model, optimizer):
            with step:
                act(epoch)
        state.done += 1
        state.commit()
    state.done = 0

state = rueda.elastic.State(model=model, optimizer=optimizer, done=0)
kinds = {
    "s": steps,
    "c": lambda epoch: commits(state, epoch),
    "n": lambda epoch: steps_in_a_call(state, epoch),
}

def die():
    time.sleep(float(os.environ[f"DIES{rueda.rank()}"]))
    os.kill(os.getpid(), signal.SIGKILL)

if f"DIES{rueda.rank()}" in os.environ:
    threading.Thread(target=die, daemon=True).start()
for epoch, kind in enumerate(os.environ["KINDS"]):
    kinds[kind](epoch)
print(f"ended with {model.weight.item():.0f}", flush=True)
"""


@pytest.mark.parametrize("seed", range(6))
def test_no_step_is_lost_or_done_twice(seed: int) -> None:
    chance = random.Random(seed)
    kinds = "".join(chance.choices("scn", k=chance.choice([5, 20, 40])))
    size = chance.choice([3, 4])
    lost = chance.sample(range(size), chance.choice([1, 2]))
    when = {f"DIES{rank}": f"{chance.uniform(0.001, 0.004 * len(kinds)):.4f}" for rank in lost}
    expected = sum(4 * 10 ** (epoch % 5) for epoch in range(len(kinds)))
    with ElasticJob(PROGRAM, size, KINDS=kinds, **when) as job:
        for rank, ended in job.ended().items():
            if rank in lost and ended.returncode == -signal.SIGKILL:
                continue
            assert ended.returncode == 0, (kinds, when, job.outputs())
            assert f"ended with {expected}\n" in ended.output, (kinds, when, job.outputs())
