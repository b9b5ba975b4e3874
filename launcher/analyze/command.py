"""The command `rueda analyze`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .comparison import compare
from .records import RecordsError, read_folder
from .report import as_json, lines_of

_EPILOG = """
\b
--json prints one object:
  schema     1; grows only when a field changes its meaning or goes
  diverged   whether any world has a divergence
  worlds     of each world, the first one first:
    epoch, size, folder
    ranks            by number: host, pid, why, occasion ("request",
                     "stall", "failure" or null), submitted,
                     lateness_ms, last_done, open
    without_record   ranks that have left none
    outdated         ranks whose records are older than what others tell
                     of, as where one was killed after a stall
    damaged          by file: why it could not be read
    divergences      kind ("missing" or "mismatch"), operation, ranks,
                     missing, fields (by name: of each value, its ranks)
    cut_short        as divergences, but the world failed by the loss of
                     another rank before those in "missing" had come to it
    not_compared     operations that had not ended, and whose names could
                     not be told apart
    reordered        operations, ranks; or null

\b
An operation is printed as: set, generation (how often its members had
joined), name, of_name (counts those of its name since), number (counts
what its rank submitted), collective, dtype, shape, op, root, stage
(submitted, running, done, failed), submitted, started, ended
(microseconds since 1970), code and error of one that failed.

\b
Exit code: 0 where no divergence was found, 1 where the ranks diverged, 2 where there
is nothing to analyse.
"""


def make_analyze_command() -> click.Command:
    """The command; it needs nothing but the records."""

    @click.command(
        "analyze", epilog=_EPILOG, short_help="Find where the ranks of a failed job diverged."
    )
    @click.argument("folder", type=click.Path(path_type=Path))
    @click.option("--json", "prints_json", is_flag=True, help="Print one JSON object.")
    @click.pass_context
    def analyze(context: click.Context, folder: Path, prints_json: bool) -> None:
        """Finds the first operation on which ranks diverge, in the records in FOLDER.

        Ranks write them when their world fails or stalls, where RUEDA_FLIGHT_RECORDER (or rueda run
        --flight-recorder) names that folder. Of several hosts, gather the files in one folder.
        """
        try:
            analyses = [compare(world) for world in read_folder(folder)]
        except RecordsError as error:
            raise click.UsageError(str(error), context) from error
        if prints_json:
            click.echo(json.dumps(as_json(analyses), indent=2, ensure_ascii=False))
        else:
            for line in lines_of(analyses):
                click.echo(line)
        context.exit(1 if any(analysis.divergences for analysis in analyses) else 0)

    return analyze
