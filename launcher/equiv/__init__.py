"""`rueda equiv`: does distributed training reach the same result as one process, and at what cost?"""

from .command import make_equiv_command

__all__ = ["make_equiv_command"]
