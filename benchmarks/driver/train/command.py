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
from rueda.launcher.result_files import require_file, write_file
from rueda.launcher.temporary import require_temporary_files

from ..options import file_option, ranks_option

MODELS = ("synthetic", "transformer", "gradients")
# Those of --doors; also the order.
DOOR_MODELS = ("mlp", "conv", "synthetic", "transformer", "embedding")

_EPILOG = """
\b
Models. synthetic: 161 float32 tensors with the shapes of ResNet-50's parameters, 102 MB, whose
forward and backward pass cost one pass over the elements each. transformer: 4 layers, width 256, on
synthetic text. gradients: communication alone, 161 gradients through the optimizer's hooks, beside
one tensor as large through MPI (where mpi4py is installed and ranks are started by mpirun) and gloo.
mlp: 4 linear layers, 67 MB, one matrix of 33 MB. conv: 40 blocks of convolution, normalization and
ReLU. embedding: a table of 51 MB whose gradient is dense.


Doors. --doors compares the ways in which a program can train, on mlp, conv, synthetic, transformer
and embedding: DistributedDataParallel over gloo and over Rueda (both with gradient_as_bucket_view),
rueda.horovod's optimizer, rueda.torch's, and no communication; each with its defaults otherwise, SGD
with momentum, and zero_grad() before each step. Every door is a job of its own under `rueda run
--no-mpi`, not bound; one makes --steps steps while the others sleep. --seconds bounds one
model's measurement, after the start of its jobs; --add continues a report, so that models and
numbers of ranks can be measured one by one, on the same processors and kernel, with the same
settings and torch.

\b
How it is measured. Every rank trains one model per contender. Contenders take turns, in --rounds
rounds of --steps steps, each time another first; ranks start each step together, and a step
lasts until the last rank has ended it. Exposed communication: the median step less the median step
of the contender that does not communicate. Checked: that the ranks' parameters have the same bits,
and differ from those of DistributedDataParallel by no more than 1e-4; with --doors after one step, and after
all steps of models in which another order of summation does not grow from step to step.

\b
--json writes one object; with --doors: schema (1), kind ("doors"), head, and runs, a list with
model, ranks, threads, torch, tensors, bytes, wrong and results by door: median_ms, p10_ms,
p90_ms, steps, exposed_ms, of_best (the quickest door that communicates is 1) and page_faults of
rank 0 in a step. Without it: schema (1), ranks, threads, torch, transport, bucket_bytes, notes, models;
for each model tensors, bytes, wrong (a list of texts) and results by contender: median_ms,
p10_ms, p90_ms, steps and, where there is a training, exposed_ms.

\b
Exit code: 0; 1 where a result was wrong; otherwise that of `rueda run`.
"""


def make_train_command() -> click.Command:
    """The command."""

    @click.command("train", epilog=_EPILOG, short_help="Measure steps of training.")
    @ranks_option(1)
    @click.option(
        "--models",
        metavar="LIST",
        help=f"Of {', '.join(MODELS)}; with --doors of {', '.join(DOOR_MODELS)}. Default: all.",
    )
    @click.option("--doors", is_flag=True, help="Compare the ways in which a program can train.")
    @click.option("--quick", is_flag=True, help="With --doors: one step of each, as a trial.")
    @click.option(
        "--seconds",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        metavar="S",
        help="With --doors: begin no further round of a model after as long. Default 60.",
    )
    @file_option("--add", "With --doors: add to the results in FILE, or begin it.")
    @click.option("--rounds", type=click.IntRange(min=1), default=6, metavar="N", help="Default 6.")
    @click.option("--steps", type=click.IntRange(min=1), default=4, metavar="N", help="Default 4.")
    @click.option(
        "--bucket-bytes",
        type=click.IntRange(min=1),
        default=8 << 20,
        metavar="N",
        help="As for DistributedOptimizer. Default 8388608.",
    )
    @click.option("--no-mpi", is_flag=True, help="Start the ranks without mpirun.")
    @file_option("--json", "Write the results.")
    @file_option("--markdown", "Write the tables as Markdown.")
    @click.pass_context
    def train(context: click.Context, /, **values: Any) -> None:
        """Measures steps of training with Rueda, with DistributedDataParallel, without communication."""
        known = DOOR_MODELS if values["doors"] else MODELS
        models = [name.strip() for name in (values["models"] or ",".join(known)).split(",")]
        unknown = [name for name in models if name not in known]
        if unknown:
            raise click.BadParameter(f"there is no model '{unknown[0]}'", param_hint="--models")
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
    """Exit code of the ranks, and what they found."""
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
        # gloo looks up the host's name otherwise, which need not lead to an address.
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
