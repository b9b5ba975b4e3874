"""A rank of goodput.py and price.py: trains steps of a given length, elastic or as before there was rueda.elastic.

Each step the first rank writes a line into the file DIARY: time, number of the step, ranks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import rueda
import rueda.elastic
import rueda.torch
import torch

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
folder = Path(os.environ["FOLDER"])
torch.manual_seed(0)
width = int(os.environ.get("WIDTH", "256"))
model = torch.nn.Sequential(
    *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(8))
)
rueda.init()
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=1e-4),
    model.named_parameters(),
    check_every=int(os.environ.get("CHECK_EVERY", "0")),
)
sampler = rueda.elastic.StepSampler(1 << 20, batch=256)
(folder / f"pid{number}").write_text(str(os.getpid()))
diary = os.open(folder / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
total = int(os.environ.get("STEPS", "1000000"))


def steps() -> Iterator[tuple[int, contextlib.AbstractContextManager[object]]]:
    """The steps' numbers, and in what each is to be done."""
    if os.environ.get("ELASTIC") == "1":
        for step in rueda.elastic.steps(total, model, optimizer):
            yield step.number, step
        return
    rueda.torch.broadcast_parameters(model.state_dict())
    for step_number in range(total):
        yield step_number, contextlib.nullcontext()


for step, done in steps():
    with done:
        time.sleep(float(os.environ.get("PAUSE", "0")))
        samples = torch.from_numpy(sampler.samples(step))
        inputs = (samples[:, None] % torch.arange(1, width + 1)).float() / width
        optimizer.zero_grad()
        (model(inputs).square().mean() * sampler.weight(step)).backward()
        optimizer.step()
    if rueda.rank() == 0:
        os.write(diary, f"{time.monotonic()} {step} {rueda.size()}\n".encode())
