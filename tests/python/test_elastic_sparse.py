"""Optimizer state that is sparse, such as SGD's momentum of sparse gradients, while ranks are lost and join."""

from __future__ import annotations

import re
import signal

import pytest
from elastic_launcher import ElasticJob

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

# Runs until process 2 has joined and process 0 is lost, and some steps more. Process 0 kills itself after the
# optimizer's step, so that survivors may have to take the state of one of them. Ends with the hash of all state.
PROGRAM = """
import hashlib, os, signal, time
import rueda, rueda.elastic, rueda.torch, torch

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
torch.manual_seed(number)
rueda.init()
table, head = torch.nn.Embedding(50, 4, sparse=True), torch.nn.Linear(4, 1)
model = torch.nn.Sequential(table, head)
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model.named_parameters()
)
least = int(os.environ["STEPS"])

def loss(step):
    generator = torch.Generator().manual_seed(1000 * step + rueda.rank())
    return model(torch.randint(0, 50, (3,), generator=generator)).square().sum()

def take_step(step):
    optimizer.zero_grad()
    loss(step).backward()
    optimizer.step()
    members = rueda.attendance.attendance().members
    if number == 0 and 2 in members and step >= least:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return members == [1, 2]

def by_steps():
    last = 100000
    for step in rueda.elastic.steps(100000, model, optimizer, background_bytes=BACKGROUND):
        with step:
            if take_step(step.number):
                last = min(last, step.number + 5)
        if step.number >= last:
            return

@rueda.elastic.run
def by_run(state):
    while state.left:
        if take_step(state.step):
            state.left -= 1
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

by_steps() if os.environ["FORM"] == "steps" else by_run(
    rueda.elastic.State(model=model, optimizer=optimizer, step=0, left=6)
)
momentum = optimizer.state[table.weight]["momentum_buffer"]
assert momentum.layout == torch.sparse_coo, momentum.layout
parts = [*model.parameters(), momentum._indices(), momentum._values(), momentum.to_dense()]
parts += [optimizer.state[each]["momentum_buffer"] for each in head.parameters()]
bits = b"".join(each.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() for each in parts)
print("ended", momentum.is_coalesced(), hashlib.sha256(bits).hexdigest()[:16], flush=True)
"""


@pytest.mark.parametrize(
    ("form", "background"), [("steps", "1 << 40"), ("steps", "1"), ("run", "0")]
)
def test_sparse_momentum_outlives_losses_and_reaches_newcomers(form: str, background: str) -> None:
    program = PROGRAM.replace("BACKGROUND", background)
    with ElasticJob(program, 2, FORM=form, STEPS="4") as job:
        job.start_joiner()
        ended = job.ended()
        assert {number: how.returncode for number, how in ended.items()} == {
            0: -signal.SIGKILL,
            1: 0,
            2: 0,
        }, job.outputs()
        ends = [re.findall(r"^ended .*$", ended[number].output, re.M) for number in (1, 2)]
    assert len(ends[0]) == 1, job.outputs()
    assert ends[0] == ends[1], job.outputs()
