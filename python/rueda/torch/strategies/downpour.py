"""Asynchronous strategies: ranks push updates to shared parameters and pull these, without waiting for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.torch.strategies.guard import Guard
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.served import Served
from rueda.torch.strategies.strategy import at_least

__all__ = ["ADAG", "Downpour", "DynSGD", "Hogwild"]

_SERVERS = ("sum", "adagrad")
_GUARDS = ("off", "warn", "scale")


@dataclass
class Downpour(Served):
    """``"downpour:5"``: every ``window`` steps a rank adds its change to the centre, and continues from the centre.

    With z the centre and x_i = z when it was pulled: x_i ← x_i - η ∇f_i(x_i), H times; then z ← z + (x_i - pulled) and
    x_i ← z, H being ``window``. Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1 and
    algorithm 4.1 with n_fetch = n_push = H, with the difference of parameters in place of accumulated gradients, as in
    dist-keras. Updates that P ranks compute from nearly the same z are added, not averaged: this acts like a learning
    rate P·H times as large with a delay of P - 1, and diverges if that is too much. ``guard="scale"`` measures this
    and scales pushes down, ``"warn"`` only warns; see :class:`Guard`. ``server="adagrad"``: ranks push the window's
    gradients, and the centre takes an Adagrad step with ``rate`` (section 4.1, equation 1), which also stabilizes it.

    ``window="epoch"``: once per epoch, see wrap() for ``steps_per_epoch``; Elephas' ``mode="asynchronous"``.

    Example::

        >>> from rueda.torch.strategies import Downpour
        >>> Downpour(5, guard="scale").describe()
        "Downpour(window=5, guard='scale', server='sum', rate=0.05)"
    """

    window: int | str = 1
    guard: str = "off"
    server: str = "sum"
    rate: float = 0.05

    name: ClassVar[str] = "downpour"
    pushes_by_staleness: ClassVar[bool] = False

    def validate(self, replica: Replica) -> None:
        super().validate(replica)
        _number_or_epoch(self)
        at_least(self, 0, "rate")
        _one_of(self.server, _SERVERS, "server")
        _one_of(self.guard, _GUARDS, "guard")
        if self.guard != "off" and self.server != "sum":
            raise InvalidArgumentError("guard= is for server='sum': Adagrad scales by itself")
        if self.server == "adagrad" and any(
            group.get("maximize") for group in replica.optimizer.param_groups
        ):
            raise InvalidArgumentError("server='adagrad' is for an optimizer without maximize=")

    def rule(self) -> tuple[str, tuple[float, ...]]:
        return ("sum", ()) if self.server == "sum" else ("adagrad", (self.rate, 1e-8))

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._gradients = (
            torch.zeros(self._size, dtype=torch.float32, device="cpu")
            if self.server == "adagrad"
            else None
        )
        self.stability = self._new_guard()

    def _new_guard(self) -> Guard | None:
        return None if self.guard == "off" else Guard(self.replica.process_set.size(), self.window)

    def before_update(self) -> None:
        if self._gradients is not None:
            self._accumulate(self._gradients)

    def after_step(self) -> None:
        if isinstance(self.window, int) and self.replica.steps % self.window == 0:
            self.attempt(self.exchange)

    @torch.no_grad()
    def _accumulate(self, gradients: torch.Tensor) -> None:
        """Adds the gradients before the optimizer overwrites them, as SGD with momentum may do."""
        # A gradient scaler leaves it to a fused optimizer to unscale, and to skip steps with non-finite gradients.
        optimizer = self.replica.optimizer
        scale, not_finite = (getattr(optimizer, of, None) for of in ("grad_scale", "found_inf"))
        if not_finite is not None and float(not_finite):
            return
        factor = 1.0 if scale is None else 1.0 / float(scale)
        given = self.replica.gradients()
        for name, part in self.in_parts(gradients):
            if name in given:
                part.add_(given[name].to_dense().cpu(), alpha=factor)

    def after_epoch(self) -> None:
        if self.window == "epoch":
            self.attempt(self.exchange)

    def unpushed(self) -> torch.Tensor:
        """The change that the next push sends."""
        return self.parameters() - self.pulled if self._gradients is None else self._gradients

    def factor(self) -> float:
        """The factor that multiplies a push."""
        return 1.0

    def _guarded(self, delta: torch.Tensor) -> float:
        factor = self.factor()
        if self.stability is None:
            return factor
        staleness = self.table.staleness()
        seen = self.table.seen()
        counted = sum(seen) / len(seen)
        damped = factor
        if self.pushes_by_staleness and staleness:
            # The mean factor that the owners apply.
            shares = sum(count / (1 + delay) for delay, count in staleness.items())
            damped *= shares / sum(staleness.values())
        advised = self.stability.advise(self.pulled, delta, staleness, damped, counted)
        return factor * advised if self.guard == "scale" else factor

    @torch.no_grad()
    def exchange(self) -> None:
        """Pushes, then pulls; waits only for the owners, which serve while they compute."""
        delta = self.unpushed()
        factor = self._guarded(delta)
        pushed = self.push(delta, factor=factor, by_staleness=self.pushes_by_staleness)
        self.set_parameters(self.pull())
        pushed.result()
        self.has_pushed()

    def has_pushed(self) -> None:
        """Later changes belong to the next push."""
        if self._gradients is not None:
            self._gradients.zero_()

    def rebase(self) -> None:
        super().rebase()
        self.has_pushed()  # some owners may have applied the push, and their parts survive
        self.stability = self._new_guard()

    def consolidate(self) -> None:
        moved = not torch.equal(self.parameters(), self.pulled)
        if moved or (self._gradients is not None and bool(self._gradients.any())):
            self.attempt(self.exchange)
        super().consolidate()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self._gradients is None else {**state, "gradients": self._gradients.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._gradients is not None:
            self._gradients.copy_(state["gradients"])


@dataclass
class ADAG(Downpour):
    """``"adag:5"``: like Downpour, but divides a window's change by its steps: accumulated gradient normalization.

    z ← z + (x_i - pulled)/H. Hermans, Spanakis and Möckel, "Accumulated gradient normalization", ACML 2017, section 3,
    equation 5, AGN, or ADAG in dist-keras. Long windows are as stable as short ones, and a push is worth one step.

    Example::

        >>> from rueda.torch.strategies import ADAG
        >>> ADAG(5).window
        5
    """

    window: int | str = 5

    name: ClassVar[str] = "adag"

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._pushed_at: int = replica.steps

    def factor(self) -> float:
        return 1.0 / max(1, self.replica.steps - self._pushed_at)

    def has_pushed(self) -> None:
        super().has_pushed()
        self._pushed_at = self.replica.steps

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "pushed_at": self._pushed_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._pushed_at = int(state["pushed_at"])


@dataclass
class DynSGD(Downpour):
    """``"dynsgd:5"``: like Downpour, but the centre divides each push by 1 + its staleness as it adds it.

    z ← z + (x_i - pulled)/(1 + τ), τ being the number of pushes that the owner counted since this rank pulled. Jiang et
    al., "Heterogeneity-aware distributed parameter servers", SIGMOD 2017, section 5, as in dist-keras. Stale pushes
    count less.

    Example::

        >>> from rueda.torch.strategies import DynSGD
        >>> DynSGD(5).window
        5
    """

    window: int | str = 5

    name: ClassVar[str] = "dynsgd"
    pushes_by_staleness: ClassVar[bool] = True


@dataclass
class Hogwild(Downpour):
    """``"hogwild"``: like Downpour, but continues before its own push has arrived.

    z ← z - η ∇f_i(x_i), x_i being the centre as read while other ranks' pushes, and this rank's last one, were in
    flight. Niu et al., "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", NIPS 2011,
    algorithm 1, with the ranks' parts in place of single elements: parts may be read at different times. Elephas'
    ``mode="hogwild"``.

    Example::

        >>> from rueda.torch.strategies import Hogwild
        >>> Hogwild().describe()
        "Hogwild(window=1, guard='off', server='sum', rate=0.05)"
    """

    name: ClassVar[str] = "hogwild"

    def validate(self, replica: Replica) -> None:
        super().validate(replica)
        if self.guard != "off":
            raise InvalidArgumentError(
                "Hogwild has no guard=: its owners cannot tell how stale a push is that began before it was read"
            )

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._coming: Handle[torch.Tensor] | None = None
        self._gone: Handle[None] | None = None

    @torch.no_grad()
    def exchange(self) -> None:
        delta = self.unpushed()
        self._finish_push()
        self._gone = self.push(delta.clone(), factor=self.factor())
        self.has_pushed()
        coming, self._coming = self._coming, None
        if coming is None:
            self.pull()
        else:
            self.pulled = coming.result()
        self.set_parameters(self.pulled)
        self._coming = self.pull_async()

    def _finish_push(self) -> None:
        """Waits for the last push, usually long done, and raises its error."""
        gone, self._gone = self._gone, None
        if gone is not None:
            gone.result()

    def _go_on(self) -> None:
        self._coming = self._gone = None  # they belong to the broken world
        super()._go_on()

    def consolidate(self) -> None:
        super().consolidate()
        self._finish_push()
        self._coming = None  # it was read before

    def state_dict(self) -> dict[str, Any]:
        """The state, including what a read in flight brings, for which this waits."""
        self._finish_push()
        coming = None if self._coming is None else self._coming.result().clone()
        return {**super().state_dict(), "coming": coming}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        coming = state.get("coming")  # older versions did not save it
        if coming is None:
            self._coming = None
        else:
            centre = coming.to("cpu", copy=True)
            self._coming = Handle(list, lambda _: centre, None)  # a read that has completed

    def stop(self) -> None:
        self._finish_push()
        self._coming = None
        super().stop()


def _number_or_epoch(strategy: Downpour) -> None:
    window = strategy.window
    if window == "epoch" or (
        isinstance(window, int) and not isinstance(window, bool) and window >= 1
    ):
        return
    raise InvalidArgumentError(
        f"window={window!r} of {type(strategy).__name__} is neither a whole number of at least 1 nor 'epoch'"
    )


def _one_of(value: str, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        raise InvalidArgumentError(f"{name}={value!r} is not one of {', '.join(choices)}")
