"""The command `rueda equiv`."""

from __future__ import annotations

import importlib.util
import json
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import LaunchError
from ..figures import require_plot
from ..job import check_command
from ..ranges import FiniteRange, Seconds
from ..sink import say
from ..temporary import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .plan import Plan, Planned, Way
    from .running import Outcome

_HELP = """Runs COMMAND once for each number of ranks, strategy and seed, and judges whether these runs give the
same result as one process.

\b
  rueda equiv --np 1,2,4 --strategy sync,local:8,diloco:16 --seeds 5 python train.py

The script says what to compare, in two or three lines (docs/equivalence.md):

\b
  import rueda.torch as rueda
  ...
  torch.manual_seed(rueda.equiv.seed())
  optimizer = rueda.wrap(model, optimizer)   # no strategy: uses the run's
  ...
      optimizer.step()
      rueda.equiv.record(loss=loss)
  rueda.equiv.result(accuracy=accuracy)      # at the end, if there is one

{seed}, {strategy} and {np} in COMMAND are filled in. Options come before COMMAND, or all after it, --np first.
"""

_EPILOG = """
\b
Verdicts (--confidence applies to all of them together):
  same bits     after each step, on all ranks, with all seeds
  same state    rounding explains the distance, in each step
  same quality  the gap is within the effect of one seed more or less
  better/worse  the gap, with its interval
  other state   rounding does not explain it, and the quality is undecided
  undecided     the seeds are too few to tell; says how many would do
  failed        runs that failed, hung, recorded nothing or had another number of ranks

\b
A run whose loss or metric ends as NaN or infinite, unlike the reference's, has
diverged: worse, or undecided if only some seeds did.

\b
--json prints one object: schema (1), seeds, confidence, metric, target_loss,
between_seeds, reference, notes and, for each way to train, in ways:
  np, strategy, variant, value, level, why, seeds_needed
  rounding   explains (true, false, null), factor, low, high, seeds_needed
  quality    verdict, gap, low, high, margin, spread, why, seeds_needed,
             lost (seeds with which it diverged and the reference did not)
  diverges   step, tensor, rank, times, seeds, relative; or null
  distance, loss_gap, ranks_agree, ranks_agree_at_end, notes, problems
  to_target  reached, seeds, step, seconds, bytes, speedup

\b
Exit code: 0 if all verdicts meet --require; 3 if those that do not are undecided;
1 if one falls short or has failed; 2 if nothing could be compared.
"""


class _EquivCommand(click.Command):
    """COMMAND may also come first, followed by options that begin with --np."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        comes_first = bool(args) and not args[0].startswith("-") and "--np" in args
        if comes_first:
            begin = args.index("--np")
            args = [*args[begin:], *args[:begin]]
        return super().parse_args(context, args)


def _looks(plan: Plan, folder: Path, values: dict[str, Any]) -> Mapping[Way, int]:
    """How many earlier looks there were at these runs."""
    from .looks import note_looks

    question = ", ".join(f"{each}={values[each]}" for each in ("metric", "margin", "confidence"))
    return note_looks(folder, plan, question)


def _needs_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise LaunchError("rueda equiv needs SciPy: pip install 'scipy>=1.10'")


def _options(command: Any) -> Any:
    for option in reversed(
        [
            click.option("--np", "ranks", default="1,2", show_default=True, metavar="N,N,…",
                         help="Numbers of ranks."),
            click.option("--strategy", default="sync", show_default=True, metavar="S,S,…",
                         help="Strategies, as text that rueda.torch.wrap() accepts; a semicolon "
                              "also separates them."),
            click.option("--seeds", default=5, show_default=True, type=click.IntRange(1),
                         help="How many seeds: 0, 1, …"),
            click.option("--variant", "variants", multiple=True, metavar="NAME:VAR=VALUE,…",
                         help="Also compares runs with these variables; may be repeated."),
            click.option("--reference", default="1:sync", show_default=True, metavar="N:S",
                         help="What all runs are compared with: ranks and strategy."),
            click.option("--metric", metavar="NAME[:max|:min]",
                         help="The metric of quality: loss, or what the script passes to result(); "
                              "by default the first value passed to result(), else loss. Without :max or "
                              ":min the name decides: lower is better for a loss, an error, a perplexity."),
            click.option("--margin", type=FiniteRange(0, min_open=True), metavar="X",
                         help="The gap that counts as the same, in the metric's unit; by default the "
                              "difference between seeds of the reference."),
            click.option("--target-loss", "target", type=FiniteRange(), metavar="X",
                         help="Reports time and bytes to this loss; by default the reference's worst last loss, "
                              "with a slack for rounding."),
            click.option("--confidence", default=0.95, show_default=True,
                         type=FiniteRange(0.5, 1, max_open=True), help="Confidence of all verdicts together."),
            click.option("--require", "required", default="quality", show_default=True,
                         type=click.Choice(["bits", "state", "quality"]),
                         help="What exit code 0 requires: the same bits, the same state, or the same "
                              "quality or better."),
            click.option("--every", default=1, show_default=True, type=click.IntRange(1), metavar="K",
                         help="Records the state only in every K-th step."),
            click.option("--timeout", default=600.0, show_default=True,
                         type=Seconds(0, min_open=True), metavar="S",
                         help="Ends a run after S seconds."),
            click.option("--launch", default="", metavar="FLAGS",
                         help="Flags for `rueda run`, such as '--no-mpi' or '-H a:2,b:2', but none that set the number "
                              "of ranks."),
            click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
                         help="Keeps records and output there, and reuses those of an earlier call with "
                              "the same settings: more seeds need only the new runs."),
            click.option("--json", "prints_json", is_flag=True, help="Prints one JSON object."),
            click.option("--plot", type=click.Path(path_type=Path), metavar="FILE",
                         help="Also draws a plot (.svg, .png, .pdf); needs matplotlib."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def make_equiv_command() -> click.Command:
    """The command. SciPy is imported only when it is used."""

    @click.command(
        "equiv",
        help=_HELP,
        epilog=_EPILOG,
        short_help="Judge whether distributed training gives the same result as one process.",
        cls=_EquivCommand,
        context_settings={"allow_interspersed_args": False},
    )
    @_options
    @click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
    @click.pass_context
    def equiv(context: click.Context, /, **values: Any) -> None:
        _needs_scipy()
        if values["plot"] is not None:
            require_plot(values["plot"])
        plan = _plan(values)
        _check(plan, values["out"])
        from . import plot
        from .comparison import compare

        with ExitStack() as stack:
            folder = values["out"]
            if folder is None:
                folder = stack.enter_context(
                    temporary_folder("rueda-equiv-", ", or a folder to keep the runs in --out")
                )
            outcomes = _outcomes(plan, folder.resolve(), values)
            comparison = compare(
                plan,
                outcomes,
                values["confidence"],
                values["metric"],
                values["margin"],
                values["target"],
                _looks(plan, folder, values) if values["out"] is not None else {},
            )
            _show(comparison, values["prints_json"])
            if values["plot"] is not None:
                plot.draw(comparison, outcomes, values["plot"])
        context.exit(exit_code({row.verdict.level for row in comparison.rows}, values["required"]))

    return equiv


def exit_code(levels: set[str], required: str) -> int:
    """The exit code by all verdicts and the least level for --require; 3 if more seeds may still reach that level."""
    enough = {
        "bits": {"same bits"},
        "state": {"same bits", "same state"},
        "quality": {"same bits", "same state", "same quality", "better"},
    }[required]
    is_open = {"undecided", "other state"} if required == "quality" else {"undecided"}
    missing = levels - enough
    return 0 if not missing else 3 if missing <= is_open else 1


def _plan(values: dict[str, Any]) -> Plan:
    """The plan, as far as can be told before anything runs. Raises LaunchError."""
    from .plan import Plan, Way, candidates_of, parse_list, parse_metric, parse_strategies

    if values["metric"] is not None:
        parse_metric(values["metric"])
    count, mark, strategy = values["reference"].partition(":")
    if not count.isdigit() or int(count) < 1 or (mark and not strategy):
        raise LaunchError(
            f"--reference {values['reference']}: give a number of ranks and a strategy, such as 1:sync"
        )
    reference = Way(int(count), strategy or "sync")
    try:
        launch = tuple(shlex.split(values["launch"]))
    except ValueError as error:
        raise LaunchError(f"--launch: {error}") from error
    _check_program(values["command"], launch)
    ranks = parse_list(values["ranks"], "--np")
    strategies = parse_strategies(values["strategy"])
    candidates = candidates_of(ranks, strategies, values["variants"], reference)
    if not candidates:
        raise LaunchError(f"nothing to compare with {reference}: give more in --np or --strategy")
    seeds, every = values["seeds"], values["every"]
    return Plan(reference, candidates, seeds, tuple(values["command"]), launch, every)


def _check(plan: Plan, folder: Path | None) -> None:
    """Raises LaunchError for what would otherwise be found only after other trainings."""
    from .checks import check_launch, check_strategies, check_variables
    from .looks import read_looks

    ways = (plan.reference, *plan.candidates)
    check_variables(ways)
    check_launch(plan)
    check_strategies(plan)
    if folder is not None:
        read_looks(folder)


def _check_program(command: tuple[str, ...], launch: tuple[str, ...]) -> None:
    """Raises LaunchError, before anything runs, if the program or script does not exist."""
    is_filled_in = any("{" in word for word in command[:2])
    is_local = not any(word.startswith(("-H", "--host")) for word in launch)
    if not is_filled_in:
        check_command(command, is_local)


def _outcomes(plan: Plan, folder: Path, values: dict[str, Any]) -> dict[Planned, Outcome]:
    from .comparison import choose_measure
    from .running import run, run_again

    runs = list(plan.runs())
    outcomes: dict[Planned, Outcome] = {}
    for number, planned in enumerate(runs, 1):
        settings = plan.settings(planned)
        where = folder / planned.folder
        outcome = run_again(where, settings)
        if outcome is None:
            outcome = run(where, settings, values["timeout"])
            told = outcome.problem or f"{outcome.seconds:.1f} s"
            say(f"run {number} of {len(runs)}: {planned}: {told}")
            if outcome.problem and planned.way == plan.reference:
                raise LaunchError(f"the reference, {planned}: {outcome.problem}")
        if number == 1:  # the reference shows what can be judged, before the others run
            choose_measure(values["metric"], values["margin"], outcome)
        outcomes[planned] = outcome
    return outcomes


def _show(comparison: Any, prints_json: bool) -> None:
    from ..terminal import console
    from .report import as_json, print_report

    if prints_json:
        click.echo(json.dumps(as_json(comparison), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print_report(comparison, console())
