"""Argument parsers with the same look, the options that many commands share, and the values behind those options.

Only argparse is imported at the top: `holdfast health` uses this file, and an exec probe runs it every few seconds.
"""

import argparse
import os
from collections.abc import Mapping

from holdfast.cli.command_error import MISUSED, CommandError
from holdfast.cli.commands import COMMANDS

TYPE_CHECKING = False  # typing's own would import typing
if TYPE_CHECKING:
    from typing import Any

    from holdfast.config import Config

DESCRIBE = ["--describe"]
"""A command that gets this very list as its arguments raises `Described` with its parser, and does nothing else."""

_WIDTH = 80
_LISTENS_ON_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Described(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Every command parses its arguments first, so this is where `DESCRIBE` takes effect."""

    def parse_args(self, args: list[str], namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        if args is DESCRIBE:
            raise Described(self)
        return super().parse_args(args, namespace)


# -- parsers ---------------------------------------------------------------------------------------------------------


def command_parser(name: str) -> Parser:
    command = COMMANDS[name]
    return Parser(prog=f"holdfast {name}", **_look(command.summary, command.examples))


def add_action(actions: "argparse._SubParsersAction[Parser]", name: str, summary: str, *examples: str) -> Parser:
    """Adds the parser of a command's second word."""
    return actions.add_parser(name, help=summary, **_look(summary, examples))


def _look(summary: str, examples: tuple[str, ...]) -> dict[str, "Any"]:
    heading = "examples:" if len(examples) > 1 else "example:"
    return {
        "description": summary[0].upper() + summary[1:] + ".",
        "epilog": "\n".join([heading, *(f"  {example}" for example in examples)]),
        # Without a width argparse imports shutil to ask the terminal, for every option of every command.
        "formatter_class": lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH),
        # The meaning of an abbreviation would change on the day that a longer option is added.
        "allow_abbrev": False,
    }


# -- shared options --------------------------------------------------------------------------------------------------


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="the gateway's config file (default: $HOLDFAST_CONFIG)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON; for a list, one object per line")


def add_control(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every command that uses the control socket."""
    add_json(parser)
    parser.add_argument("--socket", metavar="PATH", help="the control socket (default: listen.control of the config)")
    add_config(parser)


def add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="repeat every 2 s, until Ctrl-C")


def load_config(file: str | None, flags: Mapping[str, str] | None = None) -> "Config":
    from holdfast.config import ConfigError, load

    try:
        return load(file, os.environ, flags or {})
    except ConfigError as error:
        raise CommandError(*map(str, error.faults), status=MISUSED) from error


# -- values ----------------------------------------------------------------------------------------------------------


def non_empty(text: str) -> str:
    """A host or an id, as argparse's `type`. An empty one (an unset variable of a script) must not mean "all"."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def positive(text: str) -> int:
    """A number from 1 on, as argparse's `type`."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def parse_address(address: str) -> tuple[str, int]:
    """The host and port to dial for "HOST:PORT" or "[IPV6]:PORT"; ValueError if it is neither.

    A listener on every address is dialled on loopback.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536
    is_host = all(each.isascii() and (each.isalnum() or each in "-._:%") for each in bare)
    if not is_port or not is_host or (":" in bare and bare == host):
        raise ValueError(f'"{address}" is not an address; write HOST:PORT, such as 127.0.0.1:8800')
    return _LISTENS_ON_ALL.get(bare, bare), int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
