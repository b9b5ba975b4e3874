"""The state of compression between steps, as stored in an optimizer's state_dict()."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.compression import CompressionPolicy
from rueda.torch.separate_gradients import Watched

__all__ = [
    "COMPRESSION_STATE",
    "CompressionState",
    "compression_state",
    "load_compression_state",
    "shared_by_ranks",
]

# The key in an optimizer's state_dict().
COMPRESSION_STATE = "rueda_compression"

Kept = dict[str, torch.Tensor]  # by the parameter's name


class CompressionState(TypedDict):
    """Of one rank. Only ``momenta`` and ``steps`` are the same on all: each loses other parts of gradients."""

    steps: int
    residuals: Kept
    velocities: Kept  # of momentum correction
    momenta: Kept  # momentum of gradients after their reduction


def compression_state(
    watched: Sequence[Watched], policy: CompressionPolicy | None, steps: int
) -> CompressionState | None:
    """The state itself, not a copy, as torch's optimizers hand out theirs."""
    if policy is None or not any(each.codec or each.velocity is not None for each in watched):
        return None
    state = CompressionState(steps=steps, residuals={}, velocities={}, momenta={})
    for name, kind, kept in _kept(watched, policy):
        state[kind][name] = kept  # type: ignore[literal-required]
    return state


def shared_by_ranks(state: CompressionState) -> CompressionState:
    """The state with which other ranks may start, having lost nothing yet."""
    return {**state, "residuals": {}, "velocities": {}}


def load_compression_state(
    watched: Sequence[Watched], policy: CompressionPolicy | None, state: CompressionState | None
) -> int:
    """Copies the state's tensors, or zeros where it has none; returns its number of steps.

    Raises :class:`rueda.InvalidArgumentError` for a tensor of another size.
    """
    found = []
    for name, kind, kept in _kept(watched, policy):
        loaded = None if state is None else state.get(kind, {}).get(name)  # type: ignore[attr-defined]
        if loaded is not None and loaded.numel() != kept.numel():
            raise InvalidArgumentError(
                f"the state keeps {loaded.numel()} elements for the compression of '{name}' ({kind}), "
                f"and the parameter has {kept.numel()}"
            )
        found.append((kept, loaded))
    for kept, loaded in found:
        if loaded is None:
            kept.zero_()
        elif loaded is not kept:
            kept.copy_(loaded.reshape(-1))
    return 0 if state is None else int(state["steps"])


def _kept(
    watched: Sequence[Watched], policy: CompressionPolicy | None
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields parameter name, key of the state, and tensor."""
    if policy is None:
        return
    for each in watched:
        if each.residual is not None:
            yield each.name, "residuals", each.residual
        if each.velocity is not None:
            own = policy.corrects_momentum(each.codec)
            yield each.name, "velocities" if own else "momenta", each.velocity
