"""Shows which algorithm the library uses for which sizes."""

from __future__ import annotations

from rueda.launcher.errors import LaunchError

from .sizes import format_size, parse_size
from .tables import Table

_WHAT = {
    "flat": "one host: every rank copies its data into shared memory and reads that of all others",
    "staged": "one host: through shared memory in parts, of which every rank combines its own",
    "direct": "one host: ranks read and write each other's tensors",
    "ring": "messages around a ring, over the transport",
    "hierarchical": "memory within each host, a ring for each slice between them, in parts",
    "doubling": "memory within each host, recursive doubling between one rank of each",
    "halving": "memory within each host, recursive halving between one rank of each",
    "tree": "memory within each host, two binary trees over one rank of each, each for half of the data",
    "gathered": "all-to-all, by what a rank has for one of another host: a message for all ranks of a host",
    "pairwise": "all-to-all: a message for each pair of ranks",
}


def algorithm_table(text: str) -> Table:
    """`flat:0-8K;direct:8K-` as a table. Text without ranges becomes a single row."""
    rows = []
    for part in text.split(";"):
        name, _, sizes = part.strip().partition(":")
        low, _, high = sizes.partition("-")
        try:
            first = format_size(parse_size(low or "0"))
            last = format_size(parse_size(high)) if high else "…"
        except LaunchError as error:
            raise LaunchError(f"the library's table of algorithms is '{text}'") from error
        rows.append([first, last, name, _WHAT.get(name, "")])
    return Table("algorithms by size in bytes", ["from", "below", "algorithm", "what"], rows)
