"""`rueda report`: where the time of a training goes, and what it would be on more ranks."""

from .command import make_report_command

__all__ = ["make_report_command"]
