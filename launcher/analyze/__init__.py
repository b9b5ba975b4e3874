"""`rueda analyze`: what the records of a job's ranks tell when they are laid side by side."""

from .command import make_analyze_command

__all__ = ["make_analyze_command"]
