"""Ranks as actors of Ray: a backend for Ray Train, and an executor with Horovod's methods.

Needs Ray, which ``import rueda`` does not. docs/ray.md has examples and tells what is promised.
"""

try:
    import ray as _ray
except ModuleNotFoundError as _error:
    if _error.name != "ray":
        raise
    raise ImportError("rueda.ray needs Ray: pip install 'ray[train]>=2.51'", name="ray") from None

from rueda.ray.versions import check_version as _check_version

_check_version(_ray.__version__)

from rueda.ray.executor import RayExecutor  # noqa: E402 - after the check, which tells what is missing
from rueda.ray.train import RuedaConfig, RuedaTrainer  # noqa: E402

__all__ = ["RayExecutor", "RuedaConfig", "RuedaTrainer"]
