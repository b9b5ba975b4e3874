"""Labs for pytest: `from net.lab.fixture import make_lab`, which skips where none can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from .lab import Lab
from .tools import Unavailable

MakeLab = Callable[..., Lab]


@contextmanager
def or_skip() -> Iterator[None]:
    """Skips the test, with the reason, where the lab lacks something."""
    try:
        yield
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """Makes labs, arguments as Lab takes them, that are gone after the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **keywords: Any) -> Lab:
            with or_skip():
                return stack.enter_context(Lab(*arguments, **keywords))

        yield make
