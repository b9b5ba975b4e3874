"""Ranks as Ray actors: a backend for Ray Train, and an executor with Horovod's methods.

Needs Ray, which ``import rueda`` does not. docs/ray.md has examples and lists the guarantees.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.ray",
    "Ray",
    "ray",
    (2, 51),  # in which Ray Train v2 is the default
    "pip install 'ray[train]>=2.51'",
    newest=(2, 60),
)
_needs.require()

with _needs.understood():
    from rueda.ray.executor import RayExecutor
    from rueda.ray.train import RuedaConfig, RuedaTrainer, report

__all__ = ["RayExecutor", "RuedaConfig", "RuedaTrainer", "report"]
