"""Makes what PCCL needs to run beside Rueda, below build/pccl: PCCL of PyPI, whose wheel is for Python 3.12 only.

The wheel's libpccl.so is linked to NVIDIA's driver, also where no GPU takes part: on a machine without it, a library
that answers "no device" stands in. It also needs glibc 2.38 and the C++ library of GCC 13: where the system's are
older, those of Debian 13 are unpacked beside it, and only PCCL's processes run with them. Nothing else is changed.

    python benchmarks/pccl/environment.py

What is there already is kept. Needs gcc and nm for the stand-in, and apt-get and dpkg-deb for the newer libraries.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "pccl"
COMMAND = FOLDER / "command.json"
VENV = FOLDER / "venv"
PACKAGES = ("pypccl==1.0.0", "numpy>=2")
# Of Debian, with the release that has them new enough.
LIBRARIES = ("libc6", "libstdc++6", "libgcc-s1", "libgomp1")
RELEASE = "trixie"
MULTIARCH = "x86_64-linux-gnu"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def command() -> list[str]:
    """What starts a Python that can import pccl, to be followed by a program."""
    if not COMMAND.exists():
        raise click.ClickException(
            "PCCL's environment is missing: run python benchmarks/pccl/environment.py"
        )
    return list(json.loads(COMMAND.read_text()))


def error_of(argv: list[str]) -> str:
    """Why this Python cannot import pccl; empty if it can."""
    line = [*argv, "-c", "import pccl"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def run(*line: str | Path, **variables: str) -> str:
    """The output of a command that must succeed."""
    argv = [str(word) for word in line]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if done.returncode != 0:
        raise click.ClickException(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout}")
    return done.stdout


def pythons() -> Iterator[str]:
    """Where a Python 3.12 may be."""
    yield from filter(None, [shutil.which("python3.12"), shutil.which("python3")])
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob("versions/3.12*/bin/python3.12"), reverse=True))


def find_python(named: Path | None) -> str:
    """The one that was named, or the first that is found and runs."""
    for candidate in [str(named)] if named else pythons():
        line = [candidate, "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.stdout.split() == ["3", "12"]:
            return candidate
    raise click.ClickException(
        f"{named} is no Python 3.12"
        if named
        else "there is no Python 3.12, the only one that pypccl 1.0.0 has a wheel for: install it "
        "(pyenv install 3.12), or name it with --python"
    )


def make_venv(python: str) -> None:
    """With PCCL in it."""
    run(python, "-m", "venv", VENV)
    run(VENV / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES)


def make_driver_stub(library: Path, folder: Path) -> None:
    """A libcuda.so.1 with the functions that the library calls, each of which says that there is no device."""
    undefined = run("nm", "-D", "--undefined-only", library)
    names = re.findall(r"^\s+U (cu[A-Z]\w*)$", undefined, re.M)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "libcuda.c"
    source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names))
    named = "-Wl,-soname,libcuda.so.1"
    run("gcc", "-shared", "-fPIC", named, "-o", folder / "libcuda.so.1", source)


def unpack_libraries(folder: Path) -> Path:
    """Unpacks newer libraries from the Debian mirror that apt is set up for; returns where they lie.

    apt has folders of its own for this: the system's packages and lists stay as they are.
    """
    mirrors = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages",
        "Origin: Debian", "Label: Debian",
    ).split()  # fmt: skip
    if not mirrors:
        raise click.ClickException("apt has no Debian mirror to fetch newer libraries from")
    state = folder / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources, settings = state / "sources.list", state / "apt.conf"
    sources.write_text(f"deb [arch=amd64 signed-by={keyring}] {mirrors[0]} {RELEASE} main\n")
    settings.write_text(
        f'Dir::State "{state}/state"; Dir::State::status "/dev/null"; Dir::Cache "{state}/cache";\n'
        f'Dir::Etc::sourcelist "{sources}"; Dir::Etc::sourceparts "-"; Acquire::Languages "none";\n'
        'APT::Architectures "amd64"; APT::Sandbox::User "root";\n'
    )
    run("apt-get", "update", APT_CONFIG=str(settings))
    run("sh", "-c", f"cd '{state}' && apt-get download {' '.join(LIBRARIES)}",
        APT_CONFIG=str(settings))  # fmt: skip
    for package in sorted(state.glob("*.deb")):
        run("dpkg-deb", "-x", package, folder)
    shutil.rmtree(state)
    return folder / "usr" / "lib" / MULTIARCH


def has_driver() -> bool:
    """Whether this machine has NVIDIA's own."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@click.command(help=__doc__)
@click.option(
    "--python", type=click.Path(path_type=Path), help="Python 3.12; else it is looked for."
)
def main(python: Path | None) -> None:
    """Makes what is missing."""
    if COMMAND.exists() and not error_of(command()):
        click.echo(f"PCCL is there already, in {FOLDER}")
        return
    interpreter = str(VENV / "bin" / "python")
    if not next(VENV.glob("lib/python3.12/site-packages/pccl/libpccl.so"), None):
        make_venv(find_python(python))
    folders = []
    if not has_driver():
        library = next(VENV.glob("lib/python3.12/site-packages/pccl/libpccl.so"))
        make_driver_stub(library, FOLDER / "driver")
        folders.append(str(FOLDER / "driver"))
    argv = ["env", f"LD_LIBRARY_PATH={':'.join(folders)}", interpreter]
    if "GLIBC" in (error := error_of(argv)):
        newer = unpack_libraries(FOLDER / "libraries")
        path = ":".join([*folders, str(newer)])
        # Started by its own loader, so that nothing else sees the newer libraries.
        argv = [str(newer / "ld-linux-x86-64.so.2"), "--library-path", path, interpreter]
        error = error_of(argv)
    if error:
        raise click.ClickException(f"pccl cannot be imported: {error}")
    COMMAND.write_text(json.dumps(argv))
    click.echo(f"PCCL is in {FOLDER}; its Python is started by: {' '.join(argv)}")


if __name__ == "__main__":
    main()
