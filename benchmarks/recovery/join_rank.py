"""A rank of join.py: trains a model of which, with Adam's state, there are MEGABYTES."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from pathlib import Path

import rueda
import rueda.elastic
import rueda.torch
import torch
from rueda.torch.state_follower import warm_up

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
folder = Path(os.environ["FOLDER"])
diary = os.open(folder / f"rank{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(event: str, **what: object) -> None:
    """Adds a line, at once and whole."""
    line = json.dumps({"at": time.monotonic(), "event": event, **what})
    os.write(diary, line.encode() + b"\n")


class Listener(logging.Handler):
    """Notes what has come while the others waited."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        found = re.match(r"(\d+) bytes of state", record.getMessage())
        note(
            "late" if found else "log",
            bytes=int(found[1]) if found else 0,
            text=record.getMessage(),
        )


logging.getLogger("rueda").addHandler(Listener())
logging.getLogger("rueda").setLevel(logging.INFO)
layers = 24
width = int(os.environ["MEGABYTES"]) * 10**6 // (3 * 4 * layers)
torch.manual_seed(number)
model = torch.nn.ParameterList([torch.rand(width) for _ in range(layers)])
last = int(os.environ["LAST"])
is_new = number == last
if is_new:
    warm_up()  # as part of the process's start, like its imports
    note("ready")
    while not (folder / "go").exists():
        time.sleep(0.001)
    note("asked")
rueda.init()
note("entered")
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=1e-4), model.named_parameters()
)
beyond = 1 << 60 if os.environ["MODE"] == "waiting" else 16 << 20
until = 10**6
for step in rueda.elastic.steps(until, model, optimizer, background_bytes=beyond):
    begin = time.monotonic()
    with step:
        time.sleep(float(os.environ["PAUSE"]))
        optimizer.zero_grad()
        sum((parameter * parameter).sum() for parameter in model).backward()
        optimizer.step()
    if rueda.size() == last + 1:
        until = min(until, step.number + 4)
    note("step", begin=begin, number=step.number, size=rueda.size())
    if step.number + 1 >= until:
        break
content = hashlib.sha256()
for parameter in model:
    content.update(parameter.detach().numpy())
note("end", hash=content.hexdigest())
