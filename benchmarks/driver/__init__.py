"""The command `rueda bench`: measures Rueda and its alternatives side by side, in one run.

This folder is installed as `rueda.bench`. `turns.py` loops over the sizes and lets the contenders take turns. Each
contender is a `Group` of ranks that sleep between turns; `contenders.py` defines them.
"""

from .subcommands import make_bench_command

__all__ = ["make_bench_command"]
