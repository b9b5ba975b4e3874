"""The version of Rueda."""

from __future__ import annotations


def installed_version() -> str:
    """The installed version, or a text that this is a checkout that is not installed."""
    import importlib.metadata  # a third of the start-up time of everything else

    try:
        return importlib.metadata.version("rueda")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"
