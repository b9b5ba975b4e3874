"""Finds the package if it is not installed, before a test imports it."""

import rueda_command  # noqa: F401
