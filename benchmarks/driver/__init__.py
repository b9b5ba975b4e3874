"""The command `rueda bench`: Rueda and its alternatives measured side by side, in one run.

The folder is installed as `rueda.bench`. `turns.py` walks through the sizes and lets the contenders take turns; each
is a `Group` of ranks that sleep between their turns. What a contender is stands in `contenders.py`.
"""

from .subcommands import make_bench_command

__all__ = ["make_bench_command"]
