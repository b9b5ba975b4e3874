"""Keras 3 on several ranks: one script runs on the torch, JAX and TensorFlow backends.

Requires Keras 3; ``import rueda`` does not. docs/keras.md has an example and lists the guarantees.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.keras",
    "Keras",
    "keras",
    (3,),  # the first version whose optimizers have apply()
    "pip install 'keras>=3,<4'",
    below=4,
)
_needs.require()

from rueda.keras.callbacks import (  # noqa: E402 - after the check, whose message is clearer than an ImportError
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
