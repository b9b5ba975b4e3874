"""``python -m rueda``: prints the paths that C++ projects need; the launcher handles everything else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def answers() -> dict[str, str]:
    """What each flag prints."""
    import rueda

    return {
        "--version": rueda.__version__,
        "--cmake-dir": str(PACKAGE / "lib" / "cmake" / "rueda"),
        "--include-dir": str(PACKAGE / "include"),
        "--library-dir": str(PACKAGE / "lib"),
    }


def main(arguments: list[str]) -> int:
    """Runs with the command line's arguments; returns the exit status."""
    if len(arguments) == 1 and (answer := answers().get(arguments[0])) is not None:
        if arguments[0] != "--version" and not Path(answer).is_dir():
            print(f"rueda: {answer} is missing: rueda runs from its source tree", file=sys.stderr)
            return 1
        print(answer)
        return 0
    if importlib.util.find_spec("rueda.launcher") is None:  # a source tree that is not installed
        print(f"usage: python -m rueda {' | '.join(answers())}", file=sys.stderr)
        return 2
    importlib.import_module("rueda.launcher.cli").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
