"""Local steps, and an outer optimizer over what they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rueda.compression import Codec, named_codec
from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.fragments import Fragment, split
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, at_least, within, without_gpu

__all__ = ["DiLoCo"]


@dataclass
class DiLoCo(Strategy):
    """``"diloco:16"``: takes ``period`` local steps; their mean is the gradient of an outer Nesterov step.

    After every H-th local step, with x̃ the parameters that all ranks had last: Δ = 1/P Σ_i (x̃ - x_i);
    m ← μ m + Δ; x̃ ← x̃ - λ (Δ + μ m); x_i ← x̃. H is ``period``, λ ``outer_lr``, μ ``outer_momentum``. Douillard et
    al., "DiLoCo: distributed low-communication training of language models", 2023, algorithm 1, whose authors take
    λ = 0.7 and μ = 0.9. 1/H of the bytes of synchronous training; memory for the parameters twice more. All ranks
    have the same x̃, to the bit.

    Streaming, of Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, algorithm 2:

    - ``fragments``: the parameters are cut into so many runs of about equal size, which take turns within the period:
      as many bytes in all, and 1/fragments of them at a time (section 2.2).
    - ``delay`` τ: the mean is used τ local steps after it was asked for, and travels meanwhile; several fragments may
      be on their way. Less than the period (section 2.3).
    - ``mixing`` a: x_i ← a x_i + (1 - a) x̃, so that of the local steps that were taken meanwhile something stays
      (section 2.3, which has 0.5 with a delay). With more than 0 ranks differ by it.
    - ``codec``: how Δ travels, such as ``"int8"``, see docs/compression.md (section 2.4 has 4 bits). Without error
      feedback.

    Example::

        >>> from rueda.torch.strategies import DiLoCo
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> streaming = DiLoCo(16, fragments=2, delay=4, mixing=0.5, codec="int8")
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy=streaming)
    """

    period: int = 16
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    fragments: int = 1
    delay: int = 0
    mixing: float = 0.0
    codec: Codec | str | None = None

    name: ClassVar[str] = "diloco"

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "period", "fragments")
        at_least(self, 0, "outer_lr", "delay")
        within(self, 0, 1, "outer_momentum", "mixing")
        if named_codec(self.codec) is not None:
            without_gpu(self, replica)
        if self.delay >= self.period:
            raise InvalidArgumentError(
                f"delay={self.delay} of DiLoCo is not less than period={self.period}: the next mean would be asked "
                f"for before this one is used"
            )
        if self.fragments > len(replica.parameters):
            raise InvalidArgumentError(
                f"fragments={self.fragments} of DiLoCo are more than the {len(replica.parameters)} parameters"
            )

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self.stop()
        momentum = self.outer_momentum
        outer = {"lr": self.outer_lr, "momentum": momentum, "nesterov": momentum > 0}
        self._fragments = [
            Fragment(number, replica, parameters, outer, self.codec)
            for number, parameters in enumerate(split(replica.parameters, self.fragments))
        ]

    def after_step(self) -> None:
        steps = self.replica.steps
        for number, fragment in enumerate(self._fragments):
            turn = (number + 1) * self.period // self.fragments
            if (steps - turn) % self.period == 0:
                fragment.send()
            if fragment.in_flight and steps == fragment.sent_at + self.delay:
                fragment.receive(self.mixing)

    def consolidate(self) -> None:
        for fragment in self._fragments:
            fragment.settle()

    def stop(self) -> None:
        for fragment in getattr(self, "_fragments", []):
            fragment.drop()

    def state_dict(self) -> dict[str, Any]:
        return {"fragments": [fragment.state_dict() for fragment in self._fragments]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for fragment, kept in zip(self._fragments, state["fragments"], strict=True):
            fragment.load_state_dict(kept)
