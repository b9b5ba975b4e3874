"""Temporarily set environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["set_variables"]


@contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the variables and restores them afterwards, so that processes started later do not see them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
