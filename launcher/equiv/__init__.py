"""`rueda equiv`: does a distributed training come to what one process comes to, and what does it take?"""

from .command import make_equiv_command

__all__ = ["make_equiv_command"]
