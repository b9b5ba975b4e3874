"""Labs for pytest: `from net.lab.fixture import make_lab`, which skips if no lab can be made."""

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
    """Skips the test, with the reason, if the lab lacks something."""
    try:
        yield
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """Makes labs (arguments as for Lab) that are removed after the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **keywords: Any) -> Lab:
            with or_skip():
                return stack.enter_context(Lab(*arguments, **keywords))

        yield make
