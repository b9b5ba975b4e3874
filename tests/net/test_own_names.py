"""Jobs on hosts of which the launcher's own is listed under a name that means its loopback address."""

from __future__ import annotations

from pathlib import Path

import pytest

from .lab import Lab, namespaces
from .lab.fixture import MakeLab, or_skip
from .launching import Launcher

SHOWS = """
    import rueda
    rueda.init()
    print("at", os.environ["RUEDA_RENDEZVOUS"].rpartition(":")[0], rueda.local_size(), flush=True)
"""


@pytest.fixture
def launcher(make_lab: MakeLab, tmp_path: Path) -> Launcher:
    """Starts jobs on two hosts over ssh. Host h0 has its full name at 127.0.1.1, as under Debian."""
    lab = make_lab(2)
    with or_skip():
        ssh = lab.ssh()
    add_names(lab, "h0", "127.0.1.1 h0.cluster h0-alias\n")
    return Launcher(lab, tmp_path, [*ssh, "-o", "HostKeyAlias=h0"])


def add_names(lab: Lab, host: str, lines: str) -> None:
    """Adds lines to /etc/hosts of a host."""
    with (namespaces.ETC / lab.namespace(host) / "hosts").open("a") as file:
        file.write(lines)


@pytest.mark.parametrize("hosts", ["h0.cluster:1,h1:1", "h1:1,h0.cluster:1", "127.0.1.1:1,h1:1"])
def test_its_address_is_the_one_that_the_other_host_can_reach(
    launcher: Launcher, hosts: str
) -> None:
    first = launcher.lab.ipv4("h1" if hosts.startswith("h1") else "h0")
    ran = launcher.run("-H", hosts, *launcher.program(SHOWS))
    assert ran.code == 0, ran.err
    assert ran.out.count(f"at tcp:{first} 1") == 2, ran.out


def test_without_another_host_its_loopback_address_will_do(launcher: Launcher) -> None:
    ran = launcher.run("-H", "localhost:1,h0.cluster:1,h0-alias:1", *launcher.program(SHOWS))
    assert ran.code == 0, ran.err
    assert ran.out.count("at tcp:127.0.0.1 3") == 3, ran.out


def test_without_an_address_for_others_the_start_fails_at_once(
    launcher: Launcher,
) -> None:
    # The other host is known to ssh alone, and is reached through a gateway on its own loopback interface.
    through = f"{launcher.folder}/through"
    Path(through).write_text(
        "#!/bin/bash\n"
        "while [[ $1 == -* ]]; do shift; done\n"
        f'exec ip netns exec {launcher.lab.lab}-h1 env "SSH_CONNECTION=::1 5 ::1 22" '
        'unshare --uts sh -c "hostname h1; ${*:2}"\n'
    )
    Path(through).chmod(0o755)
    gateway = Launcher(launcher.lab, launcher.folder, [through])
    ran = gateway.run("-H", "beyond:1,h0:1", *launcher.program("mark('ran')"))
    assert ran.code == 2, ran.err
    assert ran.err == (
        "rueda: host 'beyond': no address of it is known that the other hosts can reach: name its network interface "
        "with --interface\n"
    )
    assert not list(launcher.folder.glob("ran.*"))
