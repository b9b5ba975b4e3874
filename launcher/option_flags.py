"""Flags of `rueda run` from the library's option table. Each sets one variable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

# Options that `rueda run` declares itself, because they affect the launcher.
_LAUNCHER_OWNS = {"bootstrap"}

# As in csrc/plan/algorithm_table.cpp.
_ALGORITHMS = (
    "auto",
    "flat",
    "staged",
    "direct",
    "ring",
    "hierarchical",
    "doubling",
    "halving",
    "tree",
    "gathered",
    "pairwise",
)

_NUMBERS = {
    "bytes": (
        re.compile(r"\d+(\.\d*)?([KMGkmg]i?B?)?"),
        "a number of bytes, with K, M or G if wanted",
    ),
    "count": (re.compile(r"\d+"), "a whole number from 0"),
    "seconds": (re.compile(r"\d+(\.\d*)?|\.\d+"), "a number of seconds from 0"),
}


@dataclass(frozen=True)
class OptionFlag:
    """One row of the table."""

    name: str
    environment: str
    horovod: str
    type: str
    choices: tuple[str, ...]
    description: str
    default: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> OptionFlag:
        """Reads a row of `rueda._native.option_table()`."""
        choices = row.get("choices") or ()
        if isinstance(choices, str):
            choices = choices.split("|")
        return cls(
            name=row["name"],
            environment=row["environment"],
            horovod=row.get("horovod") or "",
            type=str(row["type"]),
            choices=tuple(choices),
            description=row["description"],
            default=str(row.get("default", "")),
        )

    @property
    def parameter(self) -> str:
        """Click's name of the flag's value. None of the launcher's own flags has this prefix."""
        return f"option_{self.name}"

    @property
    def _default_in_words(self) -> str:
        """The default, with bytes in the largest unit that divides them, as in docs/options.md."""
        if self.type == "bytes" and self.default.isdigit():
            for suffix, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
                if int(self.default) and int(self.default) % unit == 0:
                    return f"{int(self.default) // unit}{suffix}"
        return self.default

    def problem_of(self, value: str) -> str:
        """Why the library does not accept this value, or ""."""
        if self.type == "choice" and value.lower() not in map(str.lower, self.choices):
            return f"give one of {', '.join(self.choices)}"
        if self.name == "algorithm" and (names := _unknown_algorithms(value)):
            return f"'{names[0]}' is none; choose from {', '.join(_ALGORITHMS)}, each optionally with a range of sizes"
        if self.type in _NUMBERS and not _NUMBERS[self.type][0].fullmatch(value):
            return f"give {_NUMBERS[self.type][1]}"
        return ""

    @property
    def help(self) -> str:
        """The flag's text in `--help`."""
        text = self.description
        if self.default:
            text += f" Default {self._default_in_words}."
        return f"{text} [{self.environment}{', ' + self.horovod if self.horovod else ''}]"


def _unknown_algorithms(value: str) -> list[str]:
    names = [part.partition(":")[0] for part in value.split(";")]
    return [name for name in names if name and name not in _ALGORITHMS]


def _check(flag: OptionFlag) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that accepts what the library accepts, and passes it on as written."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is not None and (problem := flag.problem_of(value)):
            raise click.BadParameter(f"'{value}' is not accepted: {problem}.", ctx, param)
        return value

    return check


def option_flags(table: Iterable[Mapping[str, Any]]) -> list[OptionFlag]:
    """The rows that become flags."""
    flags = [OptionFlag.from_row(row) for row in table]
    return [flag for flag in flags if flag.name not in _LAUNCHER_OWNS]


def add_flags(flags: Iterable[OptionFlag]) -> Callable[[click.Command], click.Command]:
    """Adds a click option per flag to a command."""

    def decorate(command: click.Command) -> click.Command:
        for flag in flags:
            choice = flag.type == "choice"
            command.params.append(
                click.Option(
                    ["--" + flag.name.replace("_", "-"), flag.parameter],
                    type=click.Choice(flag.choices, case_sensitive=False)
                    if choice
                    else click.STRING,
                    metavar=None if choice else flag.type.upper(),
                    callback=None if choice else _check(flag),
                    help=flag.help,
                )
            )
        return command

    return decorate


def environment_of(flags: Iterable[OptionFlag], values: Mapping[str, Any]) -> dict[str, str]:
    """The variables set by the flags on the command line."""
    chosen = ((flag.environment, values.get(flag.parameter)) for flag in flags)
    return {name: str(value) for name, value in chosen if value is not None}
