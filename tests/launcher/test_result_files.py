"""Files in which commands leave their results, also on full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rueda.launcher.errors import LaunchError
from rueda.launcher.result_files import replace_file, require_file, write_file


def test_a_file_is_replaced_and_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    file, link = tmp_path / "found.json", tmp_path / "link"
    link.symlink_to(file)
    replace_file(link, "one")
    file.chmod(0o600)
    replace_file(link, "two")
    assert file.read_text() == "two"
    assert file.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"found.json", "link"}


# A limit on the file size stands in for a full disk.
FULL = """
import resource, signal, sys
from pathlib import Path
from rueda.launcher.errors import LaunchError
from rueda.launcher.result_files import replace_file, write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    {"replace": replace_file, "write": write_file}[sys.argv[2]](Path(sys.argv[1]), "x" * 100)
except LaunchError as error:
    sys.stdout.write(str(error))
"""


def fill(file: Path, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(file), how],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout == f"cannot write '{file}': File too large"


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.write_text("kept")
    fill(file, "replace")
    assert file.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_no_new_file(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    fill(file, "write")
    assert not list(tmp_path.iterdir())
    file.touch()
    fill(file, "write")
    assert list(tmp_path.iterdir()) == [file], "what was there before is not removed"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot write '/dev/full': No space left on device"):
        write_file(Path("/dev/full"), "x")
    with pytest.raises(LaunchError, match="Is a directory"):
        write_file(tmp_path, "x")


def test_characters_that_are_no_text_are_written_all_the_same(tmp_path: Path) -> None:
    """For example from a command line that is not UTF-8."""
    write_file(tmp_path / "page", "train\udce9.py")
    assert (tmp_path / "page").read_text() == "train\\udce9.py"


def test_files_that_cannot_be_are_refused_before_anything_runs(tmp_path: Path) -> None:
    require_file("--json", None)
    require_file("--json", tmp_path / "new")
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "kept"
    kept.write_text("before")
    require_file("--json", kept)
    assert kept.read_text() == "before"
    (tmp_path / "link").symlink_to(tmp_path / "none")
    require_file("--json", tmp_path / "link")
    require_file("--json", Path("/dev/null"))
    with pytest.raises(LaunchError, match=r"--json .*: it cannot be created: File name too long"):
        require_file("--json", tmp_path / ("x" * 300))
    with pytest.raises(LaunchError, match=r"--markdown /proc/x: it cannot be created: "):
        require_file("--markdown", Path("/proc/x"))
    with pytest.raises(LaunchError, match=r"--json .*: that is a folder"):
        require_file("--json", tmp_path)
    with pytest.raises(LaunchError, match="--json none/new: there is no folder '/"):
        require_file("--json", Path("none/new"))
