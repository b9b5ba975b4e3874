"""Modules for engines name in one sentence the engine and version they need."""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType
from typing import NamedTuple

import pytest

from engines.environments import ROOT

pytest.importorskip("rueda._native")


class Case(NamedTuple):
    """``wanted``: text about versions; ``asked``: text if the engine is not installed."""

    module: str
    engine: str
    package: str
    wanted: str
    asked: str
    install: str
    refused: tuple[str, ...]


CASES = [
    Case(
        "rueda.dask", "Dask", "distributed", "2026.8 or newer", "Dask",
        "pip install 'distributed>=2026.8'", ("2.30.1", "2026.7.1"),
    ),
    Case(
        "rueda.horovod.tensorflow", "TensorFlow", "tensorflow", "2.16 or newer, below 3,", "TensorFlow",
        "pip install 'tensorflow>=2.16,<3'", ("2.15.0", "3.0.0"),
    ),
    Case(
        "rueda.jax", "JAX", "jax", "0.6 or newer", "JAX",
        "pip install 'jax>=0.6'", ("0.4.38", "0.5.3"),
    ),
    Case(
        "rueda.keras", "Keras", "keras", "3", "Keras 3",
        "pip install 'keras>=3,<4'", ("2.15.0", "4.0.0"),
    ),
    Case(
        "rueda.optuna", "Optuna", "optuna", "5 or newer", "Optuna",
        "pip install 'optuna>=5'", ("3.6.0", "4.9.0"),
    ),
    Case(
        "rueda.ray", "Ray", "ray", "2.51 or newer", "Ray",
        "pip install 'ray[train]>=2.51'", ("1.13.0", "2.50.1"),
    ),
    Case(
        "rueda.spark", "pyspark", "pyspark", "4", "pyspark 4",
        "pip install 'pyspark[sql]>=4,<5' and run a Spark of the same version",
        ("3.5.9", "5.0.0", "unknown"),
    ),
]  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.module)


def told(monkeypatch: pytest.MonkeyPatch, case: Case, version: str | None) -> str:
    """Returns the error of importing the module if the engine has that version, or is missing."""
    engine = None
    if version is not None:
        engine = ModuleType(case.package)
        engine.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, case.package, engine)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, case.module, raising=False)
    with pytest.raises((ImportError, AttributeError)) as raised:
        importlib.import_module(case.module)
    for name in [name for name in sys.modules if name.startswith(f"{case.module}.")]:
        del sys.modules[name]  # which use the stand-in
    return str(raised.value)


@each_case
def test_another_version_is_refused_in_a_sentence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in case.refused:
        assert told(monkeypatch, case, version) == (
            f"{case.module} needs {case.engine} {case.wanted}, but {case.engine} {version} is installed: {case.install}"
        )


@each_case
def test_an_engine_that_is_missing_is_asked_for_in_a_sentence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, case, None) == f"{case.module} needs {case.asked}: {case.install}"


NEWEST = {  # the newest version tested, for engines without an upper limit
    "rueda.dask": "2026.8",
    "rueda.jax": "0.10",
    "rueda.optuna": "5.0",
    "rueda.ray": "2.60",
}


@pytest.mark.parametrize("module", NEWEST)
def test_a_newer_engine_that_lacks_something_is_told_in_a_sentence(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses a stand-in that only has a version."""
    (case,) = [case for case in CASES if case.module == module]
    text = told(monkeypatch, case, "9999.1.2")
    assert text.startswith(
        f"{module} was tested with {case.engine} up to {NEWEST[module]}; {case.engine} 9999.1.2 is installed and lacks "
        f"something: install {NEWEST[module]} ("
    )
    assert "\n" not in text
    assert "was tested with" not in told(monkeypatch, case, f"{NEWEST[module]}.3")


@pytest.mark.parametrize("module", NEWEST)
def test_the_newest_engine_that_was_tried_is_that_of_its_tests(module: str) -> None:
    (case,) = [case for case in CASES if case.module == module]
    folder = ROOT / "tests" / "engines" / module.removeprefix("rueda.")
    pinned = dict(
        re.findall(r"^([\w-]+).*==([\d.]+)", (folder / "requirements.txt").read_text(), re.M)
    )
    assert pinned[case.package].startswith(f"{NEWEST[module]}.")


def test_what_pip_installs_with_an_engines_name_is_what_its_module_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    extras = dict(re.findall(r'^(\w+) = \["([^"]+)"', project, re.MULTILINE))
    cases = {case.module.rpartition(".")[2]: case for case in CASES}
    with_extra = cases.keys() & extras.keys()
    assert with_extra == {"dask", "jax", "optuna", "ray", "spark"}
    for name in with_extra:
        assert f"pip install '{extras[name]}'" in cases[name].install
