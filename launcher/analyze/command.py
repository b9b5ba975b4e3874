"""The command `rueda analyze`."""

from __future__ import annotations

from pathlib import Path

import click

from .comparison import compare
from .records import RecordsError, read_folder
from .report import json_text_of, lines_of

_EPILOG = """
\b
--json prints one object:
  schema     1; increases only when a field changes its meaning or is removed
  diverged   whether any world has a divergence
  worlds     for each world, the first one first:
    epoch, size, folder
    ranks            by number: host, pid, why, occasion ("request",
                     "stall", "failure" or null), submitted,
                     lateness_ms, last_done, last_failed, open
    without_record   ranks that left no record, not even a damaged one
    left             ranks that had shut down, by the records of others
    outdated         ranks whose records are too old, by what other records
                     show, for example if one was killed after a stall
    damaged          by file: why it cannot be read
    divergences      kind ("missing" or "mismatch"), operation, ranks,
                     missing, late (by rank: seconds after others had given
                     it up), fields (by name: for each value, its ranks),
                     error (of a mismatch, or null)
    cut_short        like divergences, but the world failed because
                     another rank was lost before those in "missing" got there
    not_compared     operations that had not ended, and whose names could
                     not be told apart
    reordered        operations, ranks; or null

\b
An operation is printed as: set, generation (how often its members had
joined), name, of_name (counts operations of its name since), number (counts
its rank's submissions), collective, dtype, shape, op, root, stage
(submitted, running, done, failed), submitted, started, ended
(microseconds since 1970), code and error if it failed.

\b
Exit code: 0 if no divergence was found, 1 if the ranks diverged, 2 if there is
nothing to analyze.
"""


def make_analyze_command() -> click.Command:
    """The command. It needs only the records."""

    @click.command(
        "analyze", epilog=_EPILOG, short_help="Find where the ranks of a failed job diverged."
    )
    @click.argument("folder", type=click.Path(path_type=Path))
    @click.option("--json", "prints_json", is_flag=True, help="Print one JSON object.")
    @click.pass_context
    def analyze(context: click.Context, folder: Path, prints_json: bool) -> None:
        """Finds the first operation on which ranks diverge, from the records in FOLDER.

        Ranks write records when their world fails or stalls, if RUEDA_FLIGHT_RECORDER (or rueda run
        --flight-recorder) names that folder. With several hosts, gather the files in one folder.
        """
        try:
            analyses = [compare(world) for world in read_folder(folder)]
        except RecordsError as error:
            raise click.UsageError(str(error), context) from error
        if prints_json:
            click.echo(json_text_of(analyses))
        else:
            for line in lines_of(analyses):
                click.echo(line)
        context.exit(1 if any(analysis.divergences for analysis in analyses) else 0)

    return analyze
