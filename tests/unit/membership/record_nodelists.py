"""Writes nodelists.txt: node lists and their expansion by Slurm's scontrol, for tests without Slurm.

python tests/unit/membership/record_nodelists.py [SCONTROL [PLUGIN_DIR]]

PLUGIN_DIR: the plugins of a Slurm that is unpacked but not installed; LD_LIBRARY_PATH must name its library.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDED = Path(__file__).with_name("nodelists.txt")
COUNT = 100
MOST_NAMES = 60
TEXTS = ("n", "gpu-7", "rack", "a.b", "x9")
# Lists as users and sites write them.
BY_HAND = (
    "node",
    "localhost",
    "a,b,c",
    "n[01-03,15],gpu7",
    "n[8-11]",
    "n[08-11]",
    "n[98-101]",
    "n[098-101]",
    "rack[1-2]node[3-4]",
    "rack[01-02]node[3,5-6],login1",
    "n[1-1]",
    "n[0]",
    "n[5,1,3]",
    "n[1,1]",
    "n1,n1",
    "n[1-2],m[3-4],n[7-8]",
    "cpu-b-[1-3]",
    "g[000-003,0010]",
    "node-1.example.org",
    "nid[00012-00015,00020]",
)
_CONFIGURATION = "ClusterName=a\nSlurmctldHost=a\nAuthType=auth/none\n"


def numbers(chosen: random.Random) -> str:
    ranges = []
    for _ in range(chosen.randint(1, 3)):
        first = chosen.randint(0, 120)
        last = first + chosen.randint(0, 5)
        text = str(first).zfill(chosen.randint(1, 4))
        ranges.append(text if last == first else f"{text}-{str(last).zfill(len(text))}")
    return "[" + ",".join(ranges) + "]"


def node_list(chosen: random.Random) -> str:
    entries = []
    for _ in range(chosen.randint(1, 4)):
        parts = range(chosen.randint(1, 2))
        entries.append("".join(chosen.choice(TEXTS) + numbers(chosen) for _ in parts))
    return ",".join(entries)


def main(scontrol: str = "scontrol", plugins: str = "") -> None:
    """Records the expansion of each list."""
    chosen = random.Random(0)
    with tempfile.NamedTemporaryFile("w") as configuration:
        configuration.write(_CONFIGURATION + (f"PluginDir={plugins}\n" if plugins else ""))
        configuration.flush()

        def told(*words: str) -> str:
            line = [scontrol, *words]
            variables = {**os.environ, "SLURM_CONF": configuration.name}
            return subprocess.run(
                line, env=variables, stdout=subprocess.PIPE, text=True, check=True
            ).stdout

        version = told("--version").strip()
        lines = [f"# A list, and the names that {version} makes of it. By record_nodelists.py."]
        for each in (*BY_HAND, *(node_list(chosen) for _ in range(4 * COUNT))):
            names = told("show", "hostnames", each).split()
            if len(names) <= MOST_NAMES and len(lines) <= COUNT + len(BY_HAND):
                lines.append(" ".join([each, *names]))
    RECORDED.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
