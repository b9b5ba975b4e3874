"""`rueda report`: where the time of a training goes, and a prediction for more ranks."""

from .command import make_report_command

__all__ = ["make_report_command"]
