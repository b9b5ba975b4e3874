"""Every sample once per epoch, whichever ranks join and leave."""

from __future__ import annotations

import random
import signal
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob

pytest.importorskip("rueda._native")

from rueda.elastic import StepSampler, step_sampler
from rueda.errors import InvalidArgumentError


def test_whatever_the_worlds_each_sample_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(11)
    for _ in range(200):
        items, batch = chance.randint(1, 60), chance.randint(1, 17)
        drop_last = chance.random() < 0.3 and batch <= items
        sampler = StepSampler(items, batch, seed=chance.randint(-3, 9), drop_last=drop_last)
        orders = []
        for epoch in range(2):
            seen: list[int] = []
            for position in range(len(sampler)):
                step = epoch * len(sampler) + position
                assert sampler.epoch(step) == epoch
                size = chance.randint(1, 7)
                monkeypatch.setattr(step_sampler, "size", lambda size=size: size)
                shares, weights = [], []
                for rank in chance.sample(range(size), size):
                    monkeypatch.setattr(step_sampler, "rank", lambda rank=rank: rank)
                    shares.append(sampler.samples(step).tolist())
                    weights.append(sampler.weight(step))
                lengths = [len(share) for share in shares]
                assert max(lengths) - min(lengths) <= 1
                assert sum(weights) == pytest.approx(size)
                seen += sorted(chain.from_iterable(shares))
            count = items // batch * batch if drop_last else items
            assert len(seen) == count
            assert set(Counter(seen).values()) <= {1}
            assert set(seen) <= set(range(items))
            orders.append(seen)
        if items > 20 and batch < 10 and not drop_last:
            assert orders[0] != orders[1]  # another order in another epoch


def test_numbers_that_make_no_sense_are_refused() -> None:
    for wrong in ({"items": 0, "batch": 1}, {"items": 3, "batch": 0}, {"items": 3, "batch": 1.5}):
        with pytest.raises(InvalidArgumentError):
            StepSampler(**wrong)
    with pytest.raises(InvalidArgumentError, match="3 samples are fewer than a batch of 4"):
        StepSampler(3, 4, drop_last=True)


# Each sample's parameter counts how often it was used.
PROGRAM = """
import os, signal, time
import rueda, rueda.elastic, rueda.torch, torch

rueda.init()
number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
count = torch.nn.ParameterList([torch.zeros(23)])
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(count.parameters(), lr=1.0), count.named_parameters(), op=rueda.Sum
)
sampler = rueda.elastic.StepSampler(23, batch=5, seed=4)
epochs = 100000
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.01)
for step in rueda.elastic.steps(100000, count, optimizer, background_bytes=BYTES):
    with step:
        if (number, step.number) in DYING:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)
        optimizer.zero_grad()
        used = torch.zeros(23)
        used[torch.from_numpy(sampler.samples(step.number))] = 1.0
        (-(count[0] * used).sum()).backward()
        optimizer.step()
    if 4 in rueda.attendance.attendance().members and step.number > 40:
        epochs = min(epochs, sampler.epoch(step.number) + 2)
    if step.lost is None and step.number + 1 >= epochs * len(sampler):
        break
assert set(count[0].tolist()) == {float(epochs)}, (epochs, count[0])
print("each", epochs, "times", flush=True)
"""


@pytest.mark.parametrize("background_bytes", [1, 1 << 30])
def test_in_a_job_with_losses_and_joins_each_sample_is_used_once(
    background_bytes: int, tmp_path: Path
) -> None:
    program = PROGRAM.replace("BYTES", str(background_bytes)).replace("DYING", "{(1, 7), (0, 31)}")
    gate = tmp_path / "gate"
    with ElasticJob(program, 4, GATE=str(gate)) as job:
        job.await_ready(job.start_joiner())
        gate.touch()
        ended = job.ended()
    for number, how in ended.items():
        assert how.returncode == (-signal.SIGKILL if number in (0, 1) else 0), how.output
        if number > 1:
            assert "each" in how.output, how.output
