"""Recognizes the step that torch takes to make an optimizer create its state."""

from __future__ import annotations

import sys

__all__ = ["STATE_FUNCTIONS", "is_trial_step"]

# The module whose functions take such steps. While it is not imported, there are none.
STATE_FUNCTIONS = "torch.distributed.checkpoint.state_dict"
_FUNCTION = "_init_optim_state"
# How many callers may be between torch's function and a layer, such as a scheduler's wrapper of step().
_CALLERS = 16


def is_trial_step() -> bool:
    """Whether the step that is being taken is only one of torch's get_state_dict() or set_state_dict().

    They take one with gradients of zeros and a learning rate of 0 if an optimizer has neither state nor gradients, as
    SGD without momentum between any two steps. It is none of the training's: other ranks need not take it, so nothing
    must be exchanged, and it must not count. Gradients and learning rate alone do not tell, as a rank may have such a
    step in a training, and the others wait for it.
    """
    if STATE_FUNCTIONS not in sys.modules:
        return False
    frame = sys._getframe(1)
    for _ in range(_CALLERS):
        if frame.f_code.co_name == _FUNCTION and frame.f_globals.get("__name__") == STATE_FUNCTIONS:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
