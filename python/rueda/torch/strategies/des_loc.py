"""Local steps; parameters and moments are averaged with separate periods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rueda.torch.strategies.averaged import Averaged
from rueda.torch.strategies.named import assign
from rueda.torch.strategies.optimizer_state import entries_or_zeros
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import at_least

__all__ = ["DESLOC"]

# The names in torch's optimizers.
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "max_exp_avg_sq")


@dataclass
class DESLOC(Averaged):
    """``"desloc:16,48,96"``: local steps; averages the parameters and both moments, each with its own period.

    With Adam inside, after step t: x_i ← 1/P Σ_j x_j if ``period`` divides t, likewise the first moments if ``first``
    divides t and the second moments if ``second`` does. Iacob et al., "DES-LOC: desynced low communication adaptive
    optimizers for training foundation models", 2025, algorithm 1: the closer a moment's decay is to 1, the more slowly
    it changes, so moments can be averaged less often than parameters; averaging them at all keeps ranks from
    diverging. With three equal periods it is Local Adam (Cheng and Glasgow, "Convergence of distributed adaptive
    optimization with local updates", 2024), at three times the bytes of ``local``; periods in the ratio 1 : 3 : 6
    halve that. The optimizer must keep moments: Adam, AdamW, NAdam, RAdam.

    An element whose gradient has always been exactly 0 on a rank, such as that of a pixel or token that the rank has
    not seen, has a second moment of 0 there. If the first moments are averaged before the second ones, its step is the
    mean first moment divided by Adam's ``eps`` alone, which ruins the model: let ``second`` divide ``first`` then, or
    increase ``eps`` (docs/strategies.md has figures). A parameter without any gradient on some rank, such as another
    rank's expert, counts there as moments of 0, and that rank still keeps no state for it.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy="desloc:16,48,96")
    """

    period: int = 16
    first: int = 48
    second: int = 96

    name: ClassVar[str] = "desloc"
    state_needed: ClassVar[tuple[tuple[str, ...], ...]] = (FIRST_MOMENTS, SECOND_MOMENTS)

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period", "first", "second")

    def after_step(self) -> None:
        replica, steps = self.replica, self.replica.steps
        due = dict(replica.parameters) if steps % self.period == 0 else {}
        if steps % self.first == 0:
            due |= entries_or_zeros(replica, FIRST_MOMENTS)
        if steps % self.second == 0:
            due |= entries_or_zeros(replica, SECOND_MOMENTS)
        if not due:
            return
        assign(due, replica.average(due, "parameters and moments"))
        if steps % self.period == 0:
            self._averaged_at = steps
