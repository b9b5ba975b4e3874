"""How the programs beside this one are told to compress gradients: ``CODEC[+momentum][+warm][+clip][-feedback]``.

A codec is one of rueda.compression, by its name. ``-feedback``: none of the error feedback that it has by default.
``+momentum``: momentum correction, in the place of the optimizer's momentum. ``+warm``: a warm-up over a fifth of the
steps. ``+clip``: each rank clips its gradients.
"""

from __future__ import annotations

import numpy as np
import rueda.torch as rueda

MOMENTUM = 0.9
CLIP_NORM = 1.0


def corrects_momentum(spec: str) -> bool:
    """Whether the optimizer is to have none of its own."""
    return "+momentum" in spec


def codec_of(spec: str) -> str:
    """Its name alone."""
    return spec.removesuffix("-feedback").split("+")[0]


def policy_of(spec: str, steps: int) -> rueda.CompressionPolicy:
    """For a training of so many steps."""
    return rueda.CompressionPolicy(
        {"*": codec_of(spec)},
        error_feedback=False if spec.endswith("-feedback") else None,
        momentum=MOMENTUM if corrects_momentum(spec) else 0.0,
        warm_up_steps=steps // 5 if "+warm" in spec else 0,
        clip_norm=CLIP_NORM if "+clip" in spec else None,
    )


def shown(spec: str) -> str:
    """As in a table."""
    return spec.replace("-feedback", ", no error feedback").replace("+", ", ")


def with_error(values: list[float]) -> str:
    """Mean and standard error over seeds."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):+.2f} ± {error:.2f}"
