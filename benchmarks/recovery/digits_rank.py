"""A rank of digits.py: trains the network of examples/python/reproducible_digits.py while ranks come and go.

Writes lines into FOLDER/diary: "leaf STEP LEAF" for each that it has computed, "step STEP RANKS" from the first rank,
and at the end "end HASH ACCURACY".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rueda
import rueda.elastic
import rueda.torch
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/python"))
from digits import load
from reproducible_digits import LEAF_SIZE, LEAVES, hash_of, network

EPOCHS = int(os.environ["EPOCHS"])
REPRODUCIBLE = os.environ["REPRODUCIBLE"] == "1"

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
folder = Path(os.environ["FOLDER"])
diary = os.open(folder / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(*words: object) -> None:
    """Writes a line."""
    os.write(diary, (" ".join(map(str, words)) + "\n").encode())


torch.manual_seed(0)
x, y, test_x, test_y = load()
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
rueda.init()
if REPRODUCIBLE:
    optimizer = rueda.torch.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        reproducible=True,
        leaves=LEAVES,
        seed=3,
        named_buffers=model.named_buffers(),
    )
else:
    optimizer = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
by_leaves = rueda.LeafSampler(len(y), LEAVES, LEAF_SIZE, seed=1)
by_ranks = rueda.elastic.StepSampler(len(y), batch=LEAVES * LEAF_SIZE, seed=1)
in_epoch = len(by_leaves)
(folder / f"pid{number}").write_text(str(os.getpid()))

model.train()
for step in rueda.elastic.steps(EPOCHS * in_epoch, model, optimizer):
    with step:
        if REPRODUCIBLE:
            epoch, place = divmod(step.number, in_epoch)
            batch = next(by_leaves.epoch(epoch, first_step=place))
            for leaf in optimizer.leaves(batch):
                loss = F.cross_entropy(model(x[leaf.samples]), y[leaf.samples])
                (loss * leaf.weight).backward()
                note("leaf", step.number, leaf.number)
        else:
            samples = by_ranks.samples(step.number)
            optimizer.zero_grad()
            losses = F.cross_entropy(model(x[samples]), y[samples], reduction="sum")
            (losses / max(1, len(samples)) * by_ranks.weight(step.number)).backward()
        optimizer.step()
    if rueda.rank() == 0:
        note("step", step.number, rueda.size())

if not REPRODUCIBLE:  # statistics of BatchNorm are each rank's own
    rueda.torch.broadcast_parameters(model.state_dict())
model.eval()
with torch.no_grad():
    accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
note("end", hash_of(model), accuracy)
rueda.shutdown()
