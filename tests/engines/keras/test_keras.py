"""rueda.keras with real ranks, on each backend of Keras, in .engines/keras."""

from pathlib import Path

import pytest
from engines.environments import ROOT, STALLS, Engine, imported_with
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_keras.py"
HOROVOD = SCRIPT.parent / "check_horovod.py"


def run_on(backend: str, engine: Engine, folder: Path, script: Path, page: str) -> OneRun:
    variables = {**STALLS, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return engine.run_checks(script, 2, [str(folder), str(ROOT / "docs" / page)], variables)


@pytest.fixture(scope="module", params=["torch", "jax", "tensorflow"])
def on_backend(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> OneRun:
    return run_on(request.param, engine, tmp_path_factory.mktemp("keras"), SCRIPT, "keras.md")


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


@pytest.mark.parametrize("version", ["2.15.0", "3.0.0"])
def test_another_tensorflow_is_refused_in_a_sentence(tmp_path: Path, version: str) -> None:
    text = imported_with(tmp_path, "rueda.horovod.tensorflow", "tensorflow", version)
    assert text == (
        f"rueda.horovod.tensorflow needs TensorFlow 2.16 or newer, below 3, and TensorFlow {version} is installed: "
        "pip install 'tensorflow>=2.16,<3'\n"
    )


@pytest.mark.parametrize("version", ["2.15.0", "4.0.0"])
def test_another_major_version_is_refused_in_a_sentence(tmp_path: Path, version: str) -> None:
    assert imported_with(tmp_path, "rueda.keras", "keras", version) == (
        f"rueda.keras needs Keras 3 and Keras {version} is installed: pip install 'keras>=3,<4'\n"
    )


def test_without_keras_it_is_asked_for_in_a_sentence(tmp_path: Path) -> None:
    assert (
        imported_with(tmp_path, "rueda.keras", "keras", None)
        == "rueda.keras needs Keras 3: pip install 'keras>=3,<4'\n"
    )
