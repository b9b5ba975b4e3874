"""Which versions of an engine a module of Rueda's can work with."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["Needs"]


class Needs(NamedTuple):
    """What a module needs of an engine.

    ``module``: the one that needs it. ``engine`` and ``package``: its name for people and for ``import``. ``oldest``:
    major version, or major and minor one. ``below``: the first major version that is too new; by default none is.
    ``install``: what to do about it. ``newest``: the newest that was tried, major and minor version, where newer ones
    are taken as well.
    """

    module: str
    engine: str
    package: str
    oldest: tuple[int, ...]
    install: str
    below: int | None = None
    newest: tuple[int, int] | None = None

    def require(self) -> None:
        """Imports the engine; raises ImportError, in one sentence, where it is missing or :meth:`check` refuses it."""
        try:
            engine = importlib.import_module(self.package)
        except ModuleNotFoundError as error:
            if error.name != self.package:
                raise
            raise self.missing() from None
        self.check(engine.__version__)

    def check(self, version: str) -> None:
        """Raises ImportError, in one sentence, for a version that is too old, too new or none."""
        found = _numbers(version)
        new = self.below is not None and found >= (self.below,)
        if not found or found < self.oldest or new:
            raise ImportError(
                f"{self.module} needs {self.engine} {self._wanted()}, but {self.engine} {version} is installed: "
                f"{self.install}",
                name=self.package,
            )

    @contextmanager
    def understood(self) -> Iterator[None]:
        """For the module's own imports: where these fail with a version newer than ``newest``, ImportError tells that.

        An error with a version that was tried is raised as it is.
        """
        try:
            yield
        except (ImportError, AttributeError) as error:
            version = importlib.import_module(self.package).__version__
            if self.newest is None or _numbers(version)[:2] <= self.newest:
                raise
            tried = ".".join(str(number) for number in self.newest)
            raise ImportError(
                f"{self.module} was tested with {self.engine} up to {tried}; {self.engine} {version} is installed and "
                f"lacks something: install {tried} ({type(error).__name__}: {error})",
                name=self.package,
            ) from error

    def missing(self) -> ImportError:
        """What to raise where the engine is not there."""
        one = self.below is not None and self.oldest == (self.below - 1,)
        wanted = f"{self.engine} {self._wanted()}" if one else self.engine
        return ImportError(f"{self.module} needs {wanted}: {self.install}", name=self.package)

    def _wanted(self) -> str:
        oldest = ".".join(str(number) for number in self.oldest)
        if self.below is None:
            return f"{oldest} or newer"
        if self.oldest == (self.below - 1,):
            return oldest
        return f"{oldest} or newer, below {self.below},"


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor version; none where it begins with no number."""
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return tuple(int(number or 0) for number in found.groups()) if found else ()
