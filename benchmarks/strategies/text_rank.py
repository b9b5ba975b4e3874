"""One rank of text.py: trains a small transformer on the text of Python's own library, and tells how that went.

    python text_rank.py RUN SETTINGS

RUN is a strategy as rueda.torch.wrap() takes it as text, or ``alone``: each rank for itself, without communication.
SETTINGS are those of the class below, as JSON. Each rank prints one line of JSON. What a step exposes is the time that
optimizer.step() and consolidate() take beyond the step of the optimizer within: waiting for others and for the
network, and the strategy's own arithmetic.
"""

from __future__ import annotations

import json
import math
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "compression"))
from train_transformer import Transformer

WARM_UP = 100  # steps
CHARACTERS = 128  # ASCII; any other is a question mark
HELD_OUT_EVERY = 10  # files
VALIDATION = 256  # texts
INTERFACE = "eth0"


class Settings(NamedTuple):
    """What all ranks of a training are told."""

    seed: int
    steps: int
    rate: float  # the highest
    last_rate: float  # at the end, as a part of the highest
    width: int  # of the model
    context: int  # characters
    batch: int  # texts of each rank

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The inverse of dump()."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(self._asdict())

    def rate_of(self, step: int) -> float:
        """The learning rate: linear for WARM_UP steps, then half a cosine down to the last."""
        if step < WARM_UP:
            return self.rate * (step + 1) / WARM_UP
        done = (step - WARM_UP) / max(1, self.steps - WARM_UP)
        return self.rate * (
            self.last_rate + (1 - self.last_rate) * (1 + math.cos(math.pi * done)) / 2
        )


class Text(NamedTuple):
    """Characters as numbers."""

    training: torch.Tensor
    validation: torch.Tensor


def load() -> Text:
    """All modules of the standard library's own folder; every tenth is held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [torch.frombuffer(bytearray(_ascii(file)), dtype=torch.uint8) for file in files]
    held_out = texts[::HELD_OUT_EVERY]
    training = [text for at, text in enumerate(texts) if at % HELD_OUT_EVERY]
    return Text(torch.cat(training).long(), torch.cat(held_out).long())


def _ascii(file: Path) -> bytes:
    return file.read_text(encoding="utf-8").encode("ascii", "replace") + b"\n"


def batch_of(
    text: torch.Tensor, starts: np.ndarray[Any, Any], context: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts that begin there, and the characters that follow each of theirs."""
    batch = torch.stack([text[start : start + context + 1] for start in starts])
    return batch[:, :-1], batch[:, 1:]


def loss_of(model: Transformer, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Nats per character."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@torch.no_grad()
def validation_loss(model: Transformer, text: torch.Tensor, context: int) -> float:
    """The same texts whatever the seed."""
    starts = np.linspace(0, len(text) - context - 1, VALIDATION).astype(int)
    return loss_of(model, batch_of(text, starts, context)).item()


def bytes_sent() -> int:
    """By this host's interface, with all headers, acknowledgements and control messages."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    raise RuntimeError(f"this host has no interface {INTERFACE}")


class Clock:
    """How long an optimizer's own steps take, and all calls around them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.own = 0.0
        self.around = 0.0
        self._began = 0.0
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.own += time.perf_counter() - self._began

    def call(self, function: Any) -> None:
        """Calls it."""
        began = time.perf_counter()
        function()
        self.around += time.perf_counter() - began


def train(
    rank: int,
    settings: Settings,
    wrap: Callable[[Transformer, torch.optim.Optimizer], Any],
    meet: Callable[[], None],
) -> dict[str, float]:
    """What this rank has measured.

    `wrap` makes of an optimizer the one whose step() is called; `meet` returns once all ranks have come to it.
    """
    text, context = load(), settings.context
    torch.manual_seed(settings.seed)
    model = Transformer(CHARACTERS, settings.width, context)
    inner = torch.optim.AdamW(model.parameters(), lr=settings.rate)
    clock = Clock(inner)
    optimizer = wrap(model, inner)
    random = np.random.default_rng((settings.seed, rank))
    meet()
    before, began = bytes_sent(), time.perf_counter()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate_of(step)
        starts = random.integers(0, len(text.training) - context - 1, settings.batch)
        optimizer.zero_grad()
        loss_of(model, batch_of(text.training, starts, context)).backward()
        clock.call(optimizer.step)
    if hasattr(optimizer, "consolidate"):
        clock.call(optimizer.consolidate)
    seconds = time.perf_counter() - began
    return {
        "rank": rank,
        "loss": validation_loss(model, text.validation, context),
        "bytes": bytes_sent() - before,
        "seconds": seconds,
        "exposed": clock.around - clock.own,
    }


def main() -> None:
    """The command."""
    run, settings = sys.argv[1], Settings.parse(sys.argv[2])
    torch.set_num_threads(1)
    rueda.init()

    def wrap(model: Transformer, optimizer: torch.optim.Optimizer) -> Any:
        return optimizer if run == "alone" else rueda.wrap(model, optimizer, strategy=run)

    found = train(rueda.rank(), settings, wrap, rueda.barrier)
    print("measured", json.dumps(found), flush=True)
    rueda.shutdown()


if __name__ == "__main__":
    main()
