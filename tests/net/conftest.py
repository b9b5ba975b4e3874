"""The fixture that makes labs."""

from .lab.fixture import make_lab

__all__ = ["make_lab"]
