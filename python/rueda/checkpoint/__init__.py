"""Checkpoints that all ranks write together while they train, and that are either complete or not visible at all.

Example::

    import rueda.checkpoint

    found = rueda.checkpoint.load("runs/7", model=model, optimizer=optimizer)  # None where there is none
    begin = found.step if found else 0
    for step in range(begin, 10_000):
        if step % 500 == 0 and step > begin:
            rueda.checkpoint.save("runs/7", step, model=model, optimizer=optimizer, keep=3)
        ...

Each checkpoint is a folder of ``torch.distributed.checkpoint`` plus a list of its files and their checksums, so torch
can read it without Rueda. ``docs/checkpoints.md`` says who writes what, what can go wrong, and what it costs.
"""

from rueda.checkpoint.folder import Checkpoint, available, latest
from rueda.checkpoint.loading import Loaded, load
from rueda.checkpoint.problems import CheckpointError
from rueda.checkpoint.random_states import random_states, set_random_states
from rueda.checkpoint.saving import PendingSave, save

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Loaded",
    "PendingSave",
    "available",
    "latest",
    "load",
    "random_states",
    "save",
    "set_random_states",
]
