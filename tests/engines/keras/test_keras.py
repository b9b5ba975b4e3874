"""rueda.keras with real ranks, on each backend of Keras, in .engines/keras."""

import re
from pathlib import Path

import pytest
from engines.environments import ROOT, STALLS, Engine, imported_with
from worlds import checks_in

SCRIPT = Path(__file__).resolve().parent / "check_keras.py"
HOROVOD = SCRIPT.parent / "check_horovod.py"


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_one_script_on_each_backend(engine: Engine, backend: str, tmp_path: Path) -> None:
    outputs = engine.run(
        SCRIPT,
        2,
        [str(tmp_path), str(ROOT / "docs" / "keras.md")],
        {**STALLS, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        limit=240,
    )
    for output in outputs:
        assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == checks_in(SCRIPT), output


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_names_of_horovod(engine: Engine, backend: str, tmp_path: Path) -> None:
    outputs = engine.run(
        HOROVOD,
        2,
        [str(tmp_path), str(ROOT / "docs" / "horovod_tensorflow_signatures.txt")],
        {**STALLS, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        limit=240,
    )
    for output in outputs:
        assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == checks_in(HOROVOD), output


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
