"""Files in which commands leave their results, also on full disks."""

from __future__ import annotations

import errno
import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from rueda.launcher.errors import LaunchError
from rueda.launcher.result_files import require_file, write_file


def modes(folder: Path) -> dict[str, int]:
    """Of all files in the folder, also of hidden ones."""
    return {path.name: path.stat().st_mode & 0o7777 for path in folder.iterdir()}


def test_a_file_is_replaced_and_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    file, link = tmp_path / "found.json", tmp_path / "link"
    link.symlink_to(file)
    write_file(link, "one")
    assert file.read_text() == "one"
    file.chmod(0o640)
    before = file.stat().st_ino
    write_file(link, "two")
    assert file.read_text() == "two"
    assert file.stat().st_ino != before, "it is another file, which was complete before"
    assert link.is_symlink()
    assert modes(tmp_path) == {"found.json": 0o640, "link": 0o640}


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "found.json", "x")
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"found.json": 0o640}


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 255)
    for text in ("one", "two"):
        write_file(file, text)
        assert file.read_text() == text


def test_a_file_with_two_names_keeps_both(tmp_path: Path) -> None:
    file, other = tmp_path / "found.json", tmp_path / "other"
    file.write_text("a longer text")
    other.hardlink_to(file)
    for text in ("short", "a text that is longer than any before"):
        write_file(file, text)
        assert (file.read_text(), other.read_text()) == (text, text)
    assert len(modes(tmp_path)) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_stays_theirs(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.touch()
    os.chown(file, 12345, 12346)
    write_file(file, "x")
    assert file.read_text() == "x"
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12346)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_with_attributes_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.touch()
    try:
        os.setxattr(file, "user.from", b"here")
    except OSError as error:
        pytest.skip(f"this file system has no attributes: {error}")
    write_file(file, "x")
    assert file.read_text() == "x"
    assert os.getxattr(file, "user.from") == b"here"


def test_a_file_gets_no_access_list_from_its_folder(tmp_path: Path) -> None:
    """It was there before the folder had one for new files."""
    file = tmp_path / "found.json"
    file.touch(0o640)
    before = os.listxattr(file)
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), (2, 7, 1234), (4, 4, nobody), (16, 7, nobody), (32, 0, nobody)]
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", listed)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error}")
    write_file(file, "x")
    assert file.read_text() == "x"
    assert os.listxattr(file) == before
    assert modes(tmp_path) == {"found.json": 0o640}
    new = tmp_path / "new"
    write_file(new, "x")
    inherited, number = os.getxattr(new, "system.posix_acl_access"), new.stat().st_ino
    write_file(new, "y")
    assert os.getxattr(new, "system.posix_acl_access") == inherited
    assert new.stat().st_ino != number, "another file in the folder has the same access list"


@pytest.mark.parametrize("is_own", [False, True])
def test_where_every_file_has_attributes_it_is_replaced_unless_it_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """As on NFSv4, where each file shows its access list, and on Lustre, where each shows its layout."""
    file = tmp_path / "found.json"
    file.write_text("before")

    def value(path: Path, name: str) -> bytes:
        is_other = name == "lustre.lov" or (is_own and name == "system.nfs4_acl")
        return path.name.encode() if is_other else b"usual"

    names = ["security.selinux", "system.nfs4_acl", "lustre.lov"]
    monkeypatch.setattr("os.listxattr", lambda _: names)
    monkeypatch.setattr("os.getxattr", value)
    before = file.stat().st_ino
    write_file(file, "x")
    assert file.read_text() == "x"
    assert (file.stat().st_ino == before) == is_own
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_that_does_not_grow_needs_no_space_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    file = tmp_path / "found.json"
    file.write_bytes(b"a" * 70_000)
    opened = os.fdopen

    class Full(io.FileIO):
        def write(self, _: object) -> int:
            raise OSError(error, os.strerror(error))

    def fdopen(descriptor: int, mode: str) -> object:
        is_part = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".part")
        return Full(descriptor, mode) if is_part else opened(descriptor, mode)

    monkeypatch.setattr("os.fdopen", fdopen)
    if file.stat().st_blocks * 512 < 70_000:
        pytest.skip("this file system compresses, so that it may need more space for other text")
    for size in (70_000, 10):
        write_file(file, "b" * size)
        assert file.read_text() == "b" * size
    with pytest.raises(LaunchError, match=os.strerror(error)):
        write_file(file, "c" * 11)
    with file.open("wb") as sparse:
        sparse.truncate(1 << 20)
    with pytest.raises(LaunchError, match=os.strerror(error)):
        write_file(file, "c" * (1 << 20))
    monkeypatch.undo()
    assert file.read_bytes() == bytes(1 << 20)
    assert list(tmp_path.iterdir()) == [file]


WITHOUT_RIGHTS = """
import os, sys
from pathlib import Path
from rueda.launcher.errors import LaunchError
from rueda.launcher.result_files import write_file
os.chdir(sys.argv[1])
if os.geteuid() == 0:  # whom no mode keeps out
    os.setgroups([])
    os.setgid(12346)
    os.setuid(12345)
for name in ("open", "closed", "new"):
    try:
        write_file(Path(name), "written")
    except LaunchError as error:
        print(error)
"""


def test_modes_of_folders_and_files_decide_who_may_write(tmp_path: Path) -> None:
    """In a folder in which no file can be created, one may be written; also where one could, none that is read-only."""
    for mode, names in ((0o555, {"open", "closed"}), (0o777, {"open", "closed", "new"})):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        for name, own in (("open", 0o666), ("closed", 0o444)):
            (folder / name).write_text("before")
            (folder / name).chmod(own)
        folder.chmod(mode)
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_RIGHTS, "."],
            cwd=folder, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        refused = ["closed"] if "new" in names else ["closed", "new"]
        told = [f"cannot write '{name}': Permission denied" for name in refused]
        assert ended.stdout.splitlines() == told
        assert modes(folder).keys() == names
        assert (folder / "open").read_text() == "written"
        assert (folder / "closed").read_text() == "before"
        folder.chmod(0o755)


def test_a_pipe_gets_it_all(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "x" * 200_000  # more than a pipe holds
    with (tmp_path / "out").open("wb") as out:
        reader = subprocess.Popen(["cat", str(pipe)], stdout=out)
    write_file(pipe, text)
    assert reader.wait(60) == 0
    assert (tmp_path / "out").read_text() == text
    assert pipe.is_fifo()


TO_STREAM = """
import os, sys
from pathlib import Path
from rueda.launcher.result_files import write_file
write_file(Path(sys.argv[1]), "found ")
os.lseek(1, 0, os.SEEK_END) if os.path.isfile("/dev/stdout") else None
os.write(1, b"and more")
"""


@pytest.mark.parametrize("stream", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("is_pipe", [False, True])
def test_what_follows_on_a_stream_goes_where_the_file_went(
    tmp_path: Path, stream: str, is_pipe: bool
) -> None:
    command = [sys.executable, "-c", TO_STREAM, stream]
    file = tmp_path / "out"
    if is_pipe:
        file.write_bytes(subprocess.run(command, stdout=-1, timeout=60, check=True).stdout)
    else:
        with file.open("w") as out:
            subprocess.run(command, stdout=out, timeout=60, check=True)
    assert file.read_text() == "found and more"


# A limit on the file size stands in for a full disk.
FULL = """
import resource, signal, sys
from pathlib import Path
from rueda.launcher.errors import LaunchError
from rueda.launcher.result_files import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    write_file(Path(sys.argv[1]), "x" * 100)
except LaunchError as error:
    sys.stdout.write(str(error))
"""


def fill(file: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(file)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout == f"cannot write '{file}': File too large"


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, is_in_place: bool) -> None:
    file = tmp_path / "found.json"
    file.write_text("kept")
    if is_in_place:
        (tmp_path / "other").hardlink_to(file)
    there = set(tmp_path.iterdir())
    fill(file)
    assert file.read_text() == "kept"
    assert set(tmp_path.iterdir()) == there


def test_a_full_disk_leaves_no_new_file(tmp_path: Path) -> None:
    fill(tmp_path / "found.json")
    assert not list(tmp_path.iterdir())
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "found.json")
    fill(link)
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("can_rename", [False, True])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool, can_rename: bool
) -> None:
    """Also on a file system that renames nothing, where a new file is removed."""
    file = tmp_path / "found.json"
    if not is_new:
        file.write_text("kept")

    class Interrupted(io.FileIO):
        def write(self, _: object) -> int:
            raise KeyboardInterrupt

    if can_rename:
        monkeypatch.setattr("os.fdopen", Interrupted)
    else:
        monkeypatch.setattr("rueda.launcher.result_files._replace", lambda *_: False)
        monkeypatch.setattr(Path, "open", lambda path, mode: Interrupted(str(path), mode))
    if can_rename or is_new:
        with pytest.raises(KeyboardInterrupt):
            write_file(file, "x")
    monkeypatch.undo()
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if is_new else ["kept"])


def test_where_no_file_can_be_renamed_it_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example onto a mount point."""

    def refused(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", refused)
    file = tmp_path / "found.json"
    for text in ("one", "two and more", "three"):
        write_file(file, text)
        assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot write '/dev/full': No space left on device"):
        write_file(Path("/dev/full"), "x")
    with pytest.raises(LaunchError, match="Is a directory"):
        write_file(tmp_path, "x")


def test_characters_that_are_no_text_are_written_all_the_same(tmp_path: Path) -> None:
    """For example from a command line that is not UTF-8."""
    write_file(tmp_path / "page", "train\udce9.py")
    assert (tmp_path / "page").read_text() == "train\\udce9.py"


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_file(tmp_path / "plot.png", b"\x89PNG\r\n")
    assert (tmp_path / "plot.png").read_bytes() == b"\x89PNG\r\n"


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
