"""`rueda check`: what is built and found, and what to do about what is not."""

from .command import make_check_command

__all__ = ["make_check_command"]
