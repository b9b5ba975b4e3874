"""``horovod.ray`` on :mod:`rueda.ray`: ``RayExecutor`` with Horovod's arguments, and ``ray_logger``."""

from rueda.horovod.ray import ray_logger
from rueda.horovod.ray.runner import ElasticRayExecutor, RayExecutor

__all__ = ["ElasticRayExecutor", "RayExecutor", "ray_logger"]
