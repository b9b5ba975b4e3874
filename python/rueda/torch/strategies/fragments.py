"""A part of a model that DiLoCo averages and steps separately."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rueda.compression import Codec, RandomK, named_codec
from rueda.errors import InvalidArgumentError
from rueda.lifecycle import world_number
from rueda.torch.strategies.named import Named, assign, copied, difference, load
from rueda.torch.strategies.replica import Averaging, Replica

__all__ = ["Fragment", "split"]

_NEVER = -1  # as the step of an exchange


def split(parameters: Mapping[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """Splits parameters, in order, into ``count`` non-empty runs of about equal numbers of elements."""
    rest = list(parameters.items())
    runs = []
    for left in range(count, 0, -1):
        share = sum(each.numel() for _, each in rest) / left
        run: dict[str, torch.Tensor] = {}
        taken = 0.0
        while len(rest) >= left and (not run or taken + rest[0][1].numel() / 2 <= share):
            name, parameter = rest.pop(0)
            run[name] = parameter
            taken += parameter.numel()
        runs.append(run)
    return runs


class Fragment:
    """Some parameters, the last values common to all ranks, and the outer optimizer of these values."""

    def __init__(
        self,
        number: int,
        replica: Replica,
        parameters: Named,
        outer: Mapping[str, Any],
        codec: Codec | str | None,
    ) -> None:
        self._number = number
        self._replica = replica
        self._parameters = parameters
        self._codec = named_codec(codec)
        self.agreed = copied(parameters)
        self._outer = torch.optim.SGD(self.agreed.values(), **outer)
        self._in_flight: Averaging | None = None
        self.sent_at = replica.steps
        # The exchanges that this rank has begun, successful or not, in the world with this number: those of an earlier
        # world are void.
        self._begun = (world_number(), 0)

    @property
    def in_flight(self) -> bool:
        """Whether a mean is in flight."""
        return self._in_flight is not None

    def exchanged_at(self) -> tuple[int, int]:
        """The steps in which this rank has begun the last mean that it has, and the one that is in flight."""
        return (_NEVER, self.sent_at) if self.in_flight else (self.sent_at, _NEVER)

    def send(self) -> None:
        """Begins to average the sums of all ranks' local steps."""
        steps = self._replica.steps
        self._begun = (world_number(), self._begun_here() + 1)
        # The mean's tensors are created here, and the outer optimizer may write them in another mode.
        with torch.inference_mode(False), torch.no_grad():
            self._in_flight = self._replica.average_async(
                difference(self.agreed, self._parameters),
                f"fragment{self._number}",
                self._codec_of_round(steps),
            )
        self.sent_at = steps

    def _codec_of_round(self, steps: int) -> Codec | None:
        """The codec; a random one chooses other elements in each round and fragment, the same on all ranks."""
        if not isinstance(self._codec, RandomK):
            return self._codec
        # Steps are part of a saved state, so that a resumed run chooses as one without interruption.
        place = self._number << 32 | steps & 0xFFFFFFFF
        return replace(self._codec, seed=operator.index(self._codec.seed) + place)

    def receive(self, mixing: float) -> None:
        """Waits for the mean, takes the outer step, and mixes its result into the parameters."""
        assert self._in_flight is not None
        averaging, self._in_flight = self._in_flight, None
        # Later steps write the outer optimizer's state, whatever their mode.
        with torch.inference_mode(False), torch.no_grad():
            try:
                means = averaging.result()
            except InvalidArgumentError:
                raise  # the codec cannot hold a rank's local steps, which settle() drops on all
            except BaseException:
                self.sent_at = _NEVER  # so that settle() sends again
                raise
            for name, mean in means.items():
                self.agreed[name].grad = mean
            self._outer.step()
            self._outer.zero_grad()
            for name, parameter in self._parameters.items():
                if mixing:
                    parameter.lerp_(self.agreed[name], 1 - mixing)
                else:
                    parameter.copy_(self.agreed[name])

    def settle(self) -> None:
        """Completes all exchanges, so that all ranks have the same parameters."""
        if self.in_flight:
            self.receive(0.0)
            # Steps taken while the mean was in flight are dropped, as without mixing.
            self.sent_at = self._replica.steps
        elif self.sent_at != self._replica.steps:
            self.send()
            self.receive(0.0)
        else:
            assign(self._parameters, self.agreed)

    def _begun_here(self) -> int:
        world, begun = self._begun
        return begun if world == world_number() else 0

    def pending(self) -> int:
        """How many this world's exchange is, from 1, in which others may still have to take part; 0 without one."""
        if self._in_flight is None or self._in_flight.done():
            return 0
        return self._begun_here()

    def take_part_in(self, count: int) -> None:
        """Begins exchanges until there are as many in this world as on another rank, which waits for the last one."""
        while self._begun_here() < count:
            self.drop()
            self.send()

    def drop(self) -> None:
        """Waits for a mean in flight, which frees its name, and discards it."""
        if self._in_flight is not None:
            self._in_flight.wait()
            self._in_flight = None

    def state_dict(self) -> dict[str, Any]:
        """The state, including a mean in flight, for which this waits."""
        if self._in_flight is not None:
            ready = self._in_flight.result()
        return {
            "agreed": self.agreed,
            "outer": self._outer.state_dict(),
            "sent_at": self.sent_at,
            "mean": None if self._in_flight is None else ready,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse."""
        with torch.no_grad():
            load(self.agreed, state["agreed"])
        self._outer.load_state_dict(state["outer"])
        self.sent_at = int(state["sent_at"])
        mean = state["mean"]
        self._in_flight = None
        if mean is not None:
            self._in_flight = _Arrived(
                {n: each.to(self.agreed[n].device) for n, each in mean.items()}
            )


class _Arrived(Averaging):
    """A mean that had completed before it was saved."""

    def __init__(self, mean: dict[str, torch.Tensor]) -> None:
        self._mean = mean

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing to wait for."""

    def result(self) -> dict[str, torch.Tensor]:
        return self._mean
