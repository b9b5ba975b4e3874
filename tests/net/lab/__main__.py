"""The lab as a command: `python -m tests.net.lab up --hosts 4 --rate 1gbit`, `exec h0 -- CMD`, `down`."""

from __future__ import annotations

import argparse
import os
import sys

from . import namespaces
from .lab import Lab
from .tools import Unavailable, find

_DEFAULT = "main"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.net.lab", description=__doc__)
    parser.add_argument("--name", default=_DEFAULT, help="of the lab; default %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="makes the hosts h0, h1, ...")
    up.add_argument("--hosts", type=int, default=2)
    up.add_argument("--links", type=int, default=1, help="of each host")
    up.add_argument("--rate", help="of each link, e.g. 1gbit")
    up.add_argument("--ipv6", action="store_true", help="without IPv4")
    up.add_argument("--congestion", choices=["reno", "cubic", "bbr"])
    up.add_argument("--ssh", action="store_true", help="with an sshd on each host")
    run = commands.add_parser("exec", help="runs a program on a host")
    run.add_argument("host")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ARGUMENTS")
    cut = commands.add_parser("cut", help="takes a link down")
    cut.add_argument("--silent", action="store_true", help="loses everything without a word")
    mend = commands.add_parser("mend", help="takes cut back")
    for command in (cut, mend):
        command.add_argument("host")
        command.add_argument("--link", type=int, default=0)
    commands.add_parser("list", help="the labs of this machine")
    down = commands.add_parser(
        "down", help="removes the lab, also one of which only a part is left"
    )
    down.add_argument("--all", action="store_true", help="removes every lab of this machine")
    return parser


def _up(arguments: argparse.Namespace) -> None:
    lab = Lab(
        arguments.hosts,
        rate=arguments.rate,
        links=arguments.links,
        ipv6=arguments.ipv6,
        congestion=arguments.congestion,
        name=arguments.name,
    )
    lab.up()
    print("hosts:", *lab.names)
    print("agent:", lab.agent)
    if arguments.ssh:
        print("ssh:", *lab.ssh())


def _exec(arguments: argparse.Namespace) -> None:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    line = Lab.existing(arguments.name).inside(arguments.host, *(program or ["bash"]))
    os.execv(find(line[0]) or line[0], line)


def _act(arguments: argparse.Namespace) -> None:
    if arguments.command == "up":
        _up(arguments)
    elif arguments.command == "exec":
        _exec(arguments)
    elif arguments.command == "cut":
        link = Lab.existing(arguments.name).link(arguments.host, arguments.link)
        link.silence() if arguments.silent else link.cut()
    elif arguments.command == "mend":
        link = Lab.existing(arguments.name).link(arguments.host, arguments.link)
        link.mend()
        link.end_silence()
    elif arguments.command == "list":
        print("\n".join(namespaces.labs()))
    else:
        for lab in namespaces.labs() if arguments.all else [namespaces.PREFIX + arguments.name]:
            namespaces.remove(lab)


def main() -> None:
    try:
        _act(_parser().parse_args())
    except (Unavailable, ValueError) as error:
        sys.exit(f"lab: {error}")


if __name__ == "__main__":
    main()
