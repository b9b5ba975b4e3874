"""rueda.keras with real ranks: each backend in .engines/keras, JAX alone in .engines/jax."""

import subprocess
from pathlib import Path

import pytest
from engines.environments import ROOT, STALLS, Engine, find
from launching import environment
from one_run import OneRun, each_check_of
from rueda_command import LAUNCHER

SCRIPT = Path(__file__).resolve().parent / "check_keras.py"
HOROVOD = SCRIPT.parent / "check_horovod.py"


def run_on(
    backend: str,
    engine: Engine,
    folder: Path,
    script: Path,
    page: str,
    extra: dict[str, str] | None = None,
    killed: int | None = None,
) -> OneRun:
    variables = {**STALLS, **(extra or {}), "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    arguments = [str(folder), str(ROOT / "docs" / page)]
    return engine.run_checks(script, 2, arguments, variables, killed=killed)


@pytest.fixture(scope="module", params=["torch", "jax", "tensorflow"])
def on_backend(
    digits: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> OneRun:
    engine = find("keras")
    if isinstance(engine, str) and request.param == "jax":
        engine = find("jax")  # which has Keras too
    if isinstance(engine, str):
        pytest.skip(engine)
    folder = tmp_path_factory.mktemp("keras")
    return run_on(request.param, engine, folder, SCRIPT, "keras.md", digits, killed=1)


@each_check_of(SCRIPT)
def test_one_script_on_each_backend(on_backend: OneRun, check: str) -> None:
    on_backend.require(check)


@pytest.fixture(scope="module", params=["jax", "tensorflow"])
def with_horovods_names(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> OneRun:
    signatures = "horovod_tensorflow_signatures.txt"
    folder = tmp_path_factory.mktemp("horovod")
    return run_on(request.param, engine, folder, HOROVOD, signatures)


@each_check_of(HOROVOD)
def test_names_of_horovod(with_horovods_names: OneRun, check: str) -> None:
    with_horovods_names.require(check)


def test_two_jobs_at_once(engine: Engine, tmp_path: Path) -> None:
    """Jobs of rueda.keras and rueda.jax, each under `rueda run`, with the same operation names."""
    variables = environment({**STALLS, "KERAS_BACKEND": "jax"})
    script = SCRIPT.with_name("at_once.py")
    jobs = []
    for own, other in ("ab", "ba"):
        line = [*LAUNCHER, "run", "-np", "2", engine.python, script, tmp_path, own, other]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        jobs.append(subprocess.Popen(line, env=variables, **pipes))
    try:
        for own, job in zip("ab", jobs, strict=True):
            output, _ = job.communicate(timeout=150)
            assert job.returncode == 0, output
            assert output.count(f"trained {own}") == 2, output
    finally:
        for job in jobs:
            if job.poll() is None:
                job.terminate()  # the launcher ends its ranks
                job.wait(30)
