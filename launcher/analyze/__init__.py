"""`rueda analyze`: compares the records of a job's ranks."""

from .command import make_analyze_command

__all__ = ["make_analyze_command"]
