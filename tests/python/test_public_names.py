"""Statements of the documentation about all public names, checked against the package."""

from __future__ import annotations

import re
from pathlib import Path

from launching import alone

ROOT = Path(__file__).resolve().parents[2]
# About arrays: rueda.torch replaces them or has no counterpart.
ABOUT_ARRAYS = {"allreduce_leaves", "allreduce_leaves_async", "empty", "__version__"}


def test_the_module_for_tensors_has_everything_that_is_not_about_arrays() -> None:
    ended = alone(
        f"""
        import rueda, rueda.torch
        assert set(rueda.__all__) - {ABOUT_ARRAYS} <= set(rueda.torch.__all__)
        shared = "recover", "Lost", "LeafSampler", "report", "write_flight_record", "elastic"
        for name in shared + ("checkpoint", "rendezvous", "server"):
            assert getattr(rueda.torch, name) is getattr(rueda, name), name
            assert name in dir(rueda.torch), name
        """
    )
    assert ended.returncode == 0, ended.output


def test_modules_are_imported_when_they_are_asked_for() -> None:
    ended = alone(
        """
        import sys
        import rueda
        assert "rueda.elastic" not in sys.modules
        assert rueda.elastic.State and rueda.server.Table and rueda.horovod
        assert {"elastic", "server"} <= set(dir(rueda))
        # Where a framework is absent, its own error says so.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
            del sys.modules[name]
        sys.modules["torch"] = None
        for name in "torch", "checkpoint":
            assert name not in dir(rueda)
            try:
                getattr(rueda, name)
            except ImportError as error:
                assert "torch" in str(error)
            else:
                raise AssertionError(name)
        """
    )
    assert ended.returncode == 0, ended.output


def test_every_reason_of_an_error_is_documented() -> None:
    ended = alone("import rueda\nprint(rueda.RuedaError.__doc__)")
    told = ended.output
    header = (ROOT / "include/rueda/error.h").read_text()
    block = re.search(r"enum class ErrorReason[^{]*\{(.*?)\};", header, re.DOTALL)
    assert block is not None
    reasons = set(re.findall(r"^  (\w+),", block[1], re.MULTILINE)) - {"unspecified"}
    for source in (ROOT / "python/rueda").rglob("*.py"):
        reasons |= set(re.findall(r'reason="(\w+)"', source.read_text()))
    assert {"deadline", "not_finite", "corrupted"} <= reasons
    assert [reason for reason in sorted(reasons) if f'``"{reason}"``' not in told] == []


def test_the_table_of_element_types_is_right() -> None:
    """The table in docs/api.md: which dtype supports which reduction."""
    ended = alone(
        """
        import re
        from pathlib import Path
        import numpy as np
        import rueda, rueda.dtypes
        rueda.init()
        page = Path("docs/api.md").read_text()
        rows = page.split("| --- | --- | --- | --- | --- | --- |")[1].split("\\n\\n")[0]
        names = []
        for row in rows.strip().splitlines():
            types, *told = [cell.strip() for cell in row.strip("|").split("|")]
            columns = [["Sum"], ["Average"], ["Min", "Max"], ["Product"], ["BitAnd", "BitOr", "BitXor"]]
            for name in types.split(", "):
                names.append(name)
                if name == "bfloat16":
                    continue  # as the other floating-point types; NumPy has none without ml_dtypes
                for cell, ops in zip(told, columns, strict=True):
                    for op in ops:
                        try:
                            rueda.allreduce(np.ones(2, name), op=getattr(rueda, op))
                        except rueda.UnsupportedError:
                            assert cell == "no", (name, op)
                        else:
                            assert cell != "no", (name, op)
        assert sorted(names) == sorted(rueda.dtypes.names()), names
        """.replace("docs/api.md", str(ROOT / "docs/api.md"))
    )
    assert ended.returncode == 0, ended.output
