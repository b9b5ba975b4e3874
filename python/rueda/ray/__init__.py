"""Ranks as actors of Ray: a backend for Ray Train, and an executor with Horovod's methods.

Needs Ray, which ``import rueda`` does not. docs/ray.md has examples and tells what is promised.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.ray",
    "Ray",
    "ray",
    (2, 51),  # in which Ray Train v2 is what there is by default
    "pip install 'ray[train]>=2.51'",
)
_needs.require()

from rueda.ray.executor import RayExecutor  # noqa: E402 - after the check, which tells what is missing
from rueda.ray.train import RuedaConfig, RuedaTrainer, report  # noqa: E402

__all__ = ["RayExecutor", "RuedaConfig", "RuedaTrainer", "report"]
