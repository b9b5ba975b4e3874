"""What error feedback keeps between steps, as an optimizer's state_dict() holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.separate_gradients import Watched

__all__ = ["COMPRESSION_STATE", "CompressionState", "compression_state", "load_compression_state"]

# The key in an optimizer's state_dict().
COMPRESSION_STATE = "rueda_compression"


class CompressionState(TypedDict):
    """Of one rank: the others have lost other parts of their gradients."""

    steps: int
    residuals: dict[str, torch.Tensor]  # by the parameter's name


def compression_state(watched: Sequence[Watched], steps: int) -> CompressionState | None:
    """The state itself, not a copy, as torch's optimizers hand out theirs."""
    if not any(each.codec for each in watched):
        return None
    residuals = {each.name: each.residual for each in watched if each.residual is not None}
    return {"steps": steps, "residuals": residuals}


def load_compression_state(watched: Sequence[Watched], state: CompressionState | None) -> int:
    """Copies the residuals of a state, zeros where it has none; returns its steps.

    Raises :class:`rueda.InvalidArgumentError` for residuals of another size.
    """
    residuals = {} if state is None else state["residuals"]
    for each in watched:
        kept = residuals.get(each.name)
        if kept is not None and each.residual is not None and kept.numel() != each.residual.numel():
            raise InvalidArgumentError(
                f"the state keeps {kept.numel()} elements that the compression of '{each.name}' has lost, "
                f"and the parameter has {each.residual.numel()}"
            )
    for each in watched:
        if each.residual is None:
            continue
        kept = residuals.get(each.name)
        if kept is None:
            each.residual.zero_()
        elif kept is not each.residual:
            each.residual.copy_(kept.reshape(-1))
    return 0 if state is None else int(state["steps"])
