"""How far a strategy is behind `sync` after so many rounds: the training of text.py without hosts and links.

All replicas train in this one process, which takes less time than hosts with links of their own where many rounds are
wanted. Model, text, batches and rates are those of text_rank.py, and the strategies are Rueda's own, whose tensors have
the replicas as their first dimension. Only strategies that average over all ranks after their steps are taken, `local`,
`diloco` and `desloc`, and without a codec, as nothing is encoded here. The table has the loss on the text held out, of
the mean of all replicas, at eight moments of the training, and by how much it is above that of `sync`.

    python benchmarks/strategies/text_rounds.py --width 32 --context 32 --batch 4 --steps 8960 diloco:112
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import numpy as np
import torch
from rueda.errors import InvalidArgumentError
from rueda.torch.strategies import DESLOC, DiLoCo, LocalSGD, Replica, Strategy, parse_strategy
from rueda.torch.strategies.replica import Averaging
from text_rank import CHARACTERS, Settings, Transformer, batch_of, load, loss_of, validation_loss

MOMENTS = 8
AVERAGING = (LocalSGD, DiLoCo, DESLOC)


class Arrived(Averaging):
    """A mean that is there already."""

    def __init__(self, mean: dict[str, torch.Tensor]) -> None:
        self._mean = mean

    def wait(self) -> None:
        """It is there."""

    def result(self) -> dict[str, torch.Tensor]:
        return self._mean


class Replicas(Replica):
    """All of them as one, whose averages are over the first dimension."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__(optimizer, parameters, None, "")  # type: ignore[arg-type]

    def average_async(
        self, tensors: Mapping[str, torch.Tensor], what: str, compression: Any = None
    ) -> Averaging:
        return Arrived(
            {
                name: each.detach().mean(0, keepdim=True).expand_as(each).contiguous()
                for name, each in tensors.items()
            }
        )


class Training:
    """So many replicas of a model, and their parameters and gradients as one tensor each."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.settings = settings
        self.models = []
        for _ in range(count):
            torch.manual_seed(settings.seed)
            self.models.append(Transformer(CHARACTERS, settings.width, settings.context))
        self.together: dict[str, torch.Tensor] = {}
        for name, first in self.models[0].named_parameters():
            joined = first.detach().repeat(count, *[1] * first.dim()).requires_grad_()
            joined = joined.detach().view(count, *first.shape).requires_grad_()
            joined.grad = torch.zeros_like(joined)
            self.together[name] = joined
            for at, model in enumerate(self.models):
                own = model.get_parameter(name)
                own.data = joined.data[at]
                own.grad = joined.grad[at]
        self.optimizer = torch.optim.AdamW(self.together.values(), lr=settings.rate)

    def step(self, step: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Of each replica, with its own batch."""
        for each in self.together.values():
            assert each.grad is not None
            each.grad.zero_()
        for model, batch in zip(self.models, batches, strict=True):
            loss_of(model, batch).backward()
        self.optimizer.param_groups[0]["lr"] = self.settings.rate_of(step)
        self.optimizer.step()

    def mean(self) -> Transformer:
        """A model with the mean of all parameters."""
        model = Transformer(CHARACTERS, self.settings.width, self.settings.context)
        model.load_state_dict(
            {name: each.detach().mean(0) for name, each in self.together.items()}, strict=False
        )
        return model


def averaging(run: str, replicas: Replicas) -> Strategy:
    """The strategy that a text names, if it can be trained here as it is."""
    try:
        strategy = parse_strategy(run)
        strategy.validate(replicas)
    except InvalidArgumentError as error:
        raise click.BadParameter(f"'{run}': {error}") from None
    if not isinstance(strategy, AVERAGING):
        names = ", ".join(each.name for each in AVERAGING)
        raise click.BadParameter(
            f"'{run}' exchanges otherwise than by means over all ranks after a step, which is all that is done here; "
            f"there are {names}"
        )
    if getattr(strategy, "codec", None) is not None:
        raise click.BadParameter(f"'{run}' has a codec, and what is averaged here is not encoded")
    return strategy


def losses_of(strategy: Strategy | None, settings: Settings, ranks: int) -> list[float]:
    """At each moment; without a strategy, of synchronous training."""
    text, context = load(), settings.context
    is_sync = strategy is None
    training = Training(settings, 1 if is_sync else ranks)
    replicas = Replicas(training.optimizer, training.together)
    if strategy is not None:
        strategy.start(replicas)
    random = [np.random.default_rng((settings.seed, rank)) for rank in range(ranks)]
    found = []
    for step in range(settings.steps):
        starts = [
            each.integers(0, len(text.training) - context - 1, settings.batch) for each in random
        ]
        shares = [np.concatenate(starts)] if is_sync else starts
        training.step(step, [batch_of(text.training, share, context) for share in shares])
        replicas.steps += 1
        if strategy is not None:
            strategy.after_step()
            if step + 1 == settings.steps:
                strategy.consolidate()
        if (step + 1) * MOMENTS // settings.steps > step * MOMENTS // settings.steps:
            found.append(validation_loss(training.mean(), text.validation, context))
    return found


@click.command(help=__doc__)
@click.argument("runs", nargs=-1, required=True)
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--steps", type=click.IntRange(min=MOMENTS), default=8960, show_default=True)
@click.option("--rate", type=click.FloatRange(0), default=2e-3, show_default=True)
@click.option("--last-rate", type=click.FloatRange(0, 1), default=0.1, show_default=True)
@click.option("--width", type=click.IntRange(min=4), default=96, show_default=True)
@click.option("--context", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(runs: tuple[str, ...], ranks: int, **training: Any) -> None:
    """The command."""
    torch.set_num_threads(1)
    settings = Settings(**training)
    one = Training(settings, 1)
    replicas = Replicas(one.optimizer, one.together)
    strategies = [averaging(run, replicas) for run in runs]
    moments = [settings.steps * (at + 1) // MOMENTS for at in range(MOMENTS)]
    click.echo("| run | " + " | ".join(f"{moment:,}" for moment in moments) + " |")
    click.echo("| --- |" + " ---: |" * MOMENTS)
    plain = losses_of(None, settings, ranks)
    click.echo("| `sync` | " + " | ".join(f"{each:.4f}" for each in plain) + " |")
    for run, strategy in zip(runs, strategies, strict=True):
        found = losses_of(strategy, settings, ranks)
        cells = [
            f"{own:.4f} ({100 * (own / other - 1):+.1f}%)"
            for own, other in zip(found, plain, strict=True)
        ]
        click.echo(f"| `{run}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
