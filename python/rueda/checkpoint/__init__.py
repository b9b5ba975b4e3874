"""Checkpoints that all ranks write at once while they train, and that are complete or not there at all.

Example::

    import rueda.checkpoint

    found = rueda.checkpoint.load("runs/7", model=model, optimizer=optimizer)  # None where there is none
    begin = found.step if found else 0
    for step in range(begin, 10_000):
        if step % 500 == 0 and step > begin:
            rueda.checkpoint.save("runs/7", step, model=model, optimizer=optimizer, keep=3)
        ...

Each is a folder of ``torch.distributed.checkpoint``, with a list of its files and their checksums beside: torch reads
it without Rueda. ``docs/checkpoints.md`` says what is written by whom, what can go wrong, and what it costs.
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
