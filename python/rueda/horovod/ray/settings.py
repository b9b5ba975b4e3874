"""What ``RayExecutor.create_settings()`` returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rueda.engines.given import interface_of, seconds_of
from rueda.errors import InvalidArgumentError, UnsupportedError

__all__ = ["MiniSettings", "checked"]


@dataclass
class MiniSettings:
    """The settings of an executor.

    ``timeout_s``: how many seconds ranks may take to meet, and to detect another rank's failure.
    ``placement_group_timeout_s``: how many seconds to wait for resources that others hold. ``nics``: the ranks' network
    interfaces.
    """

    nics: Iterable[str] | None = None
    verbose: int = 1
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False


def checked(settings: Any) -> MiniSettings:
    """Validates any object with these attributes; ``None`` gives the defaults."""
    if settings is None:
        return MiniSettings()
    names = ("timeout_s", "placement_group_timeout_s")
    if any(not hasattr(settings, name) for name in names):
        raise InvalidArgumentError(
            f"settings={settings!r}: pass RayExecutor.create_settings(), and numbers by their names, as num_workers=4"
        )
    if getattr(settings, "elastic", False):
        raise UnsupportedError("settings.elastic is true: pass those of create_settings()")
    return MiniSettings(
        nics=[each] if (each := interface_of("nics", getattr(settings, "nics", None))) else None,
        timeout_s=seconds_of("timeout_s", settings.timeout_s),
        placement_group_timeout_s=seconds_of(
            "placement_group_timeout_s", settings.placement_group_timeout_s
        ),
    )
