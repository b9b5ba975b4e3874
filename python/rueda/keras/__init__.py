"""Keras 3 on several ranks, the same script for its backends torch, JAX and TensorFlow.

Needs Keras 3, which ``import rueda`` does not. docs/keras.md has an example and says what is guaranteed.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.keras",
    "Keras",
    "keras",
    (3,),  # whose optimizers have apply()
    "pip install 'keras>=3,<4'",
    below=4,
)
_needs.require()

from rueda.keras.callbacks import (  # noqa: E402 - after the check, whose sentence is clearer than what else would fail
    BroadcastCallback,
    JoinCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from rueda.keras.optimizer import DistributedOptimizer  # noqa: E402
from rueda.keras.tape import DistributedGradientTape  # noqa: E402

__all__ = [
    "BroadcastCallback",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "JoinCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
