"""Breaks the code in known ways, one at a time, and sees whether the test meant for the place notices.

The mutations stand in mutants.toml. They are applied to copies of the tree in build/mutants, never in place. Each runs
one test: a case of a unit test, a check of tests/parallel/python, or a test of tests/python. What the tests wrote is
kept in build/mutants/output.

Exit status: 0 where every mutation was killed, 1 otherwise, 2 for a list that makes no sense.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
# Quick to compile, with assertions. GPUs and MPI have no mutations here.
CMAKE_OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
    *(f"-DRUEDA_{part}=OFF" for part in ("CUDA", "MPI", "EXAMPLES", "BENCHMARKS")),
    "-DRUEDA_BASELINE_ONLY=ON",
    "-DRUEDA_UNITY=OFF",  # so that a mutation recompiles one file
    "-DRUEDA_WARNINGS_AS_ERRORS=OFF",
]
# Folders of the tree and their places in the Python package.
PACKAGE = {
    "python/rueda": "rueda",
    "launcher": "rueda/launcher",
    "benchmarks/driver": "rueda/bench",
}


class ListError(Exception):
    """A list of mutations is invalid."""


class DoesNotCompile(Exception):
    """The text is the compiler's output."""


@dataclass(frozen=True)
class Test:
    """The test that must notice a mutation.

    ``program``: a unit test (``ring_plan_test``), a script of tests/parallel/python
    (``check_messages.py``) or a file of tests/python (``test_pieces.py``). ``filter``: a Catch2
    test case, a check, or an expression for pytest's -k.
    """

    program: str
    filter: str
    ranks: int = 2  # of a script in tests/parallel/python
    seconds: float = 60  # then it is killed, and the mutation counts as killed

    @property
    def is_compiled(self) -> bool:
        return not self.program.endswith(".py")


@dataclass(frozen=True)
class Mutant:
    """Replaces ``old``, which must occur exactly once in the file, by ``new``."""

    name: str
    file: str
    old: str
    new: str
    test: Test


@dataclass
class Outcome:
    """The result of a test."""

    failed: bool
    timed_out: bool
    output: str


def read_list(path: Path) -> list[Mutant]:
    """Returns the mutations of a list, in its order. Raises ListError."""
    try:
        rows = tomllib.loads(path.read_text())["mutant"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise ListError(f"{path}: {error!r}") from None
    mutants = []
    of_test = {field.name for field in fields(Test)}
    of_mutant = {"name", "file", "old", "new"}
    for row in rows:
        wrong = row.keys() - of_test - of_mutant
        missing = (of_mutant | {"program", "filter"}) - row.keys()
        if wrong or missing:
            raise ListError(f"{row.get('name', row)}: unknown {wrong}, missing {missing}")
        test = Test(**{key: row[key] for key in row.keys() & of_test})
        mutants.append(Mutant(**{key: row[key] for key in of_mutant}, test=test))
        if test.is_compiled != mutants[-1].file.startswith(("csrc/", "include/")):
            raise ListError(f"{row['name']}: {test.program} does not see {row['file']}")
    names = [mutant.name for mutant in mutants]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ListError(f"names that occur twice: {twice}")
    return mutants


def tracked() -> list[Path]:
    """Returns the tree's files, including untracked ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name]


class Tree:
    """A copy of the tree with its own build. Use by one thread at a time."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._source = folder / "tree"
        self._build = folder / "build"
        self._python = folder / "python"
        self._jobs = jobs
        self._configured = False
        self._packaged = False
        self._environment = {
            **os.environ,
            # Copies share compiled objects.
            "CCACHE_BASEDIR": str(folder),
            "CCACHE_NOHASHDIR": "1",
            "PYTHONPATH": str(self._python),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._copy()

    def _copy(self) -> None:
        """Updates the copy from the tree. Unchanged files keep their time and are not rebuilt."""
        wanted = {path for path in tracked() if (ROOT / path).is_file()}
        for path in wanted:
            _copy_if_different(ROOT / path, self._source / path)
        for path in self._source.rglob("*"):
            if path.is_file() and path.relative_to(self._source) not in wanted:
                path.unlink()

    def package(self) -> None:
        """Copies the installed Python package, then the tree's sources over it."""
        found = importlib.util.find_spec("rueda")
        if found is None or not found.submodule_search_locations:
            raise ListError("rueda is not installed in this Python: make tools")
        installed = Path(found.submodule_search_locations[0])
        for path in installed.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                target = self._python / "rueda" / path.relative_to(installed)
                _copy_if_different(path, target)
        for folder, package in PACKAGE.items():
            for path in (self._source / folder).rglob("*"):
                if path.is_file():
                    target = self._python / package / path.relative_to(self._source / folder)
                    _copy_if_different(path, target)

    def program(self, name: str) -> Path:
        """Returns the executable with the cases of tests/unit/*/``name``.cpp, whatever its name."""
        rules = (self._build / "build.ninja").read_text().replace("$\n", "")
        folder = re.escape(str(self._source / "tests" / "unit"))
        source = rf"{folder}/(?:\S*/)?{re.escape(name)}\.cpp"
        compiled = re.search(rf"^build (\S+): CXX_COMPILER\S* {source}(?: |$)", rules, re.MULTILINE)
        if compiled:
            part = re.escape(compiled[1])
            rule = rf"^build (\S+): CXX_EXECUTABLE_LINKER\S* (?:[^|\n]* )?{part}(?: |$)"
            linked = re.search(rule, rules, re.MULTILINE)
            if linked:
                return self._build / linked[1]
        raise ListError(f"there is no unit test {name}")

    def build(self, test: Test) -> None:
        """Builds what the test needs. Raises DoesNotCompile."""
        if not test.is_compiled:
            if not self._packaged:  # an interrupted run may have left files
                self.package()
                self._packaged = True
            return
        if not self._configured:
            self._run(
                ["cmake", "-S", self._source, "-B", self._build, "-G", "Ninja", *CMAKE_OPTIONS]
            )
            self._configured = True
        target = str(self.program(test.program).relative_to(self._build))
        self._run(["cmake", "--build", self._build, "-j", self._jobs, "--target", target])

    def _run(self, command: Iterable[object]) -> None:
        ended = subprocess.run(
            [str(word) for word in command],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise DoesNotCompile(ended.stdout)

    def _command(self, test: Test) -> list[str]:
        if test.is_compiled:
            name = re.sub(r"([\\,\[\]])", r"\\\1", test.filter)
            return [str(self.program(test.program)), "--warn", "NoTests", name]
        if test.program.startswith("check_"):
            run = (
                "import sys; from launching import PARALLEL, check; "
                "check(PARALLEL / sys.argv[1], int(sys.argv[2]), [sys.argv[3]])"
            )
            return [sys.executable, "-c", run, test.program, str(test.ranks), test.filter]
        return [sys.executable, "-m", "pytest", "-q", "-x", test.program, "-k", test.filter]

    def run(self, test: Test) -> Outcome:
        """Runs the test, which must be built."""
        without_core = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"]  # some mutants crash
        with subprocess.Popen(
            [*without_core, *self._command(test)],
            cwd=self._source / "tests" / "python",
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            timed_out = False
            try:
                output, _ = process.communicate(timeout=test.seconds)
            except subprocess.TimeoutExpired:
                timed_out = True
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
        return Outcome(process.returncode != 0, timed_out, output)

    def try_out(self, mutant: Mutant) -> str:
        """Returns what became of the mutation."""
        places = [self._source / mutant.file]
        for folder, package in PACKAGE.items():
            if mutant.file.startswith(f"{folder}/"):
                places.append(self._python / package / Path(mutant.file).relative_to(folder))
        original = places[0].read_text()
        found = original.count(mutant.old)
        if found != 1:
            return f"does not apply: its text occurs {found} times"
        if not mutant.test.is_compiled:
            self.build(mutant.test)
        try:
            for place in places:
                place.write_text(original.replace(mutant.old, mutant.new))
            self.build(mutant.test)
            outcome = self.run(mutant.test)
            _keep(mutant.name, outcome.output)
        except DoesNotCompile as error:
            _keep(mutant.name, str(error))
            return "does not compile"
        finally:
            for place in places:
                place.write_text(original)
        if outcome.timed_out:
            return "killed by the time-out"
        return "killed" if outcome.failed else "survived"


def _keep(name: str, output: str) -> None:
    folder = WORK / "output"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{re.sub(r'[^a-z]+', '-', name.lower())}.txt").write_text(output)


def _copy_if_different(source: Path, target: Path) -> None:
    content = source.read_bytes()
    if target.is_file() and target.read_bytes() == content:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def in_parallel(
    trees: Sequence[Tree], tasks: Iterable[object], work: Callable[[Tree, object], None]
) -> None:
    """Calls ``work`` for each task with a free tree."""
    waiting: queue.SimpleQueue[object] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    errors: list[BaseException] = []

    def go_on(tree: Tree) -> None:
        try:
            while not errors:
                work(tree, waiting.get_nowait())
        except queue.Empty:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go_on, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def try_all(mutants: Sequence[Mutant], jobs: int) -> dict[str, str]:
    """Returns what became of each mutation, by name; prints progress."""
    processors = max(1, (os.cpu_count() or 1) // jobs)
    trees = [Tree(WORK / str(number), processors) for number in range(jobs)]
    results: dict[str, str] = {}
    broken: dict[Test, str] = {}

    def try_without(tree: Tree, test: object) -> None:
        assert isinstance(test, Test)
        try:
            tree.build(test)
        except DoesNotCompile as error:
            broken[test] = str(error)
            return
        outcome = tree.run(test)
        if outcome.failed:
            broken[test] = outcome.output
        print(
            f"{'fails' if outcome.failed else 'passes'} without: {test.program}: {test.filter}",
            flush=True,
        )

    def try_one(tree: Tree, mutant: object) -> None:
        assert isinstance(mutant, Mutant)
        began = time.monotonic()
        if mutant.test in broken:
            results[mutant.name] = "its test fails without it"
        else:
            results[mutant.name] = tree.try_out(mutant)
        took = time.monotonic() - began
        print(f"{took:5.0f} s  {mutant.name}: {results[mutant.name]}", flush=True)

    in_parallel(trees, dict.fromkeys(mutant.test for mutant in mutants), try_without)
    for test, output in broken.items():
        print(f"--- {test.program}: {test.filter}\n{output}")
    in_parallel(trees, mutants, try_one)
    return results


def summarize(mutants: Sequence[Mutant], results: dict[str, str]) -> bool:
    """Prints a table; returns whether all mutations were killed."""
    width = max(len(mutant.name) for mutant in mutants)
    print()
    for mutant in mutants:
        print(f"{mutant.name:{width}}  {results[mutant.name]:24}  {mutant.file}")
    killed = sum(result.startswith("killed") for result in results.values())
    print(f"\n{killed} of {len(mutants)} mutations killed")
    return killed == len(mutants)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "list", nargs="?", type=Path, default=Path(__file__).with_name("mutants.toml")
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only these mutations; * stands for anything; may be given several times",
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many copies of the tree")
    parser.add_argument("--names", action="store_true", help="only print the mutations' names")
    options = parser.parse_args(arguments)
    try:
        mutants = read_list(options.list)
        if options.only:
            mutants = [m for m in mutants if any(fnmatch.fnmatch(m.name, o) for o in options.only)]
        if not mutants:
            raise ListError(f"no mutation is called {' or '.join(options.only)}")
        if options.names:
            print(*(mutant.name for mutant in mutants), sep="\n")
            return 0
        return 0 if summarize(mutants, try_all(mutants, max(1, options.jobs))) else 1
    except ListError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
