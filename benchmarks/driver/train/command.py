"""The command `rueda bench train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rueda.launcher.ranges import Seconds
from rueda.launcher.result_files import require_file, write_file
from rueda.launcher.temporary import require_temporary_files

from ..options import file_option, ranks_option

MODELS = ("synthetic", "transformer", "gradients")
# The models of --doors, in the order in which they are measured.
DOOR_MODELS = ("mlp", "conv", "synthetic", "transformer", "embedding")

_EPILOG = """
\b
Models. synthetic: 161 float32 tensors with the shapes of ResNet-50's parameters, 102 MB, whose
forward and backward passes each cost one pass over the elements. transformer: 4 layers, width 256,
on synthetic text. gradients: communication alone: 161 gradients through the optimizer's hooks,
compared with one tensor of the same total size through MPI (if mpi4py is installed and mpirun
starts the ranks) and gloo. mlp: 4 linear layers, 67 MB, one matrix of 33 MB. conv: 40 blocks of
convolution, normalization and ReLU. embedding: a table of 51 MB with a dense gradient.

\b
Doors. --doors compares the ways ("doors") in which a program can train, on mlp, conv, synthetic,
transformer and embedding: DistributedDataParallel over gloo and over Rueda (both with
gradient_as_bucket_view), rueda.horovod's optimizer, rueda.torch's optimizer, and no communication.
Apart from that each uses its defaults, SGD with momentum, and zero_grad() before each step. Every
door is its own job under `rueda run --no-mpi`, not bound. One door takes --steps steps while the
others sleep. --seconds limits the time per model once its jobs have started. --add continues a
report, so that models and numbers of ranks can be measured one at a time, on the same processors
and kernel, with the same settings and torch.

\b
How it is measured. Every rank trains one model per contender. Contenders take turns in --rounds
rounds of --steps steps, and a different one goes first in each round. Ranks start each step
together, and a step lasts until the last rank finishes it. Exposed communication is the median step
minus the median step of the contender without communication. Two checks: all ranks' parameters have
the same bits, and they differ from DistributedDataParallel's by at most 1e-4. With --doors, the
second check is made after one step, and after all steps of those models in which differences from
another order of summation do not grow from step to step.

\b
--json writes one object. With --doors: schema (1), kind ("doors"), head, and runs, a list with
model, ranks, threads, torch, tensors, bytes, wrong and results by door: median_ms, p10_ms, p90_ms,
steps, exposed_ms, of_best (relative to the fastest door that communicates) and page_faults (per
step, of rank 0). Without it: schema (1), ranks, threads, torch, transport, bucket_bytes, notes,
models; for each model tensors, bytes, wrong (a list of texts) and results by contender: median_ms,
p10_ms, p90_ms, steps and, except for gradients, exposed_ms.

\b
Exit code: 0; 1 if a result was wrong; otherwise that of `rueda run`.
"""


def make_train_command() -> click.Command:
    """The command."""

    @click.command("train", epilog=_EPILOG, short_help="Measure training steps.")
    @ranks_option(1)
    @click.option(
        "--models",
        metavar="LIST",
        help=f"Any of {', '.join(MODELS)}; with --doors any of {', '.join(DOOR_MODELS)}. Default: all.",
    )
    @click.option("--doors", is_flag=True, help="Compare the ways in which a program can train.")
    @click.option("--quick", is_flag=True, help="With --doors: a trial with one step per door.")
    @click.option(
        "--seconds",
        type=Seconds(min=0, min_open=True),
        default=60.0,
        metavar="S",
        help="With --doors: start no further round of a model after this time. Default 60.",
    )
    @file_option("--add", "With --doors: add the results to those in FILE, which need not exist.")
    @click.option("--rounds", type=click.IntRange(min=1), default=6, metavar="N", help="Default 6.")
    @click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=4,
        metavar="N",
        help="Steps of a contender per round. Default 4.",
    )
    @click.option(
        "--bucket-bytes",
        type=click.IntRange(min=1),
        default=8 << 20,
        metavar="N",
        help="As for DistributedOptimizer. Default 8388608.",
    )
    @click.option("--no-mpi", is_flag=True, help="Start the ranks without mpirun.")
    @file_option("--json", "Write the results as JSON.")
    @file_option("--markdown", "Write the tables as Markdown.")
    @click.pass_context
    def train(context: click.Context, /, **values: Any) -> None:
        """Measures training steps with Rueda, with DistributedDataParallel and without communication."""
        known = DOOR_MODELS if values["doors"] else MODELS
        models = [name.strip() for name in (values["models"] or ",".join(known)).split(",")]
        unknown = [name for name in models if name not in known]
        if unknown:
            raise click.BadParameter(_why_unknown(unknown[0]), param_hint="--models")
        if values["doors"]:
            context.exit(_compare_doors(models, values))
        for option in ("quick", "add_file"):
            if values[option]:
                raise click.UsageError(f"--{option.removesuffix('_file')} belongs to --doors")
        for option in ("json", "markdown"):
            require_file(f"--{option}", values[f"{option}_file"])
        code, report = _measured({**values, "models": models})
        if report is None:
            context.exit(code or 1)
        _show(report, values["json_file"], values["markdown_file"], context)

    return train  # fmt: skip


def _why_unknown(model: str) -> str:
    """Says of a model that cannot be measured with these flags whether the others would do."""
    if model in DOOR_MODELS:
        return f"'{model}' is measured only with --doors"
    if model in MODELS:
        return f"'{model}' is measured only without --doors"
    return f"there is no model '{model}'"


def _compare_doors(models: list[str], values: dict[str, Any]) -> int:
    from .doors_run import QUICK, Effort, run_doors

    effort = Effort(values["rounds"], values["steps"], seconds=values["seconds"])
    return run_doors(
        models,
        values["ranks"],
        QUICK if values["quick"] else effort,
        values["json_file"],
        values["add_file"],
        values["markdown_file"],
    )


def _measured(values: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    """The ranks' exit code and their report, or None if they left none."""
    require_temporary_files()
    with tempfile.TemporaryDirectory(prefix="rueda-bench-") as folder:
        result = Path(folder, "result.json")
        order = {
            "store": str(Path(folder, "gloo")),
            "result": str(result),
            **{key: values[key] for key in ("models", "rounds", "steps", "bucket_bytes")},
        }
        package = __package__ or "rueda.bench.train"
        root = package.split(".")[0]
        command = [sys.executable, "-m", root, "run", "-np", str(values["ranks"])]
        command += ["--no-mpi"] if values["no_mpi"] else []
        command += ["--", sys.executable, "-m", f"{package}.worker", json.dumps(order)]
        # Otherwise gloo looks up the host's name, which may not resolve to an address.
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
        code = subprocess.run(command, env=environment, check=False).returncode
        if code != 0 or not result.exists():
            return code, None
        return 0, json.loads(result.read_text())


def _show(
    report: dict[str, Any],
    json_file: Path | None,
    markdown_file: Path | None,
    context: click.Context,
) -> None:
    from .report import is_right, render

    click.echo(render(report), nl=False)
    if json_file:
        write_file(json_file, json.dumps(report, indent=2) + "\n")
    if markdown_file:
        write_file(markdown_file, render(report, markdown=True))
    context.exit(0 if is_right(report) else 1)
