"""Argument parsers that look alike: summary and examples in --help, and the options that many commands share."""

import argparse

from holdfast.cli.commands import COMMANDS

DESCRIBE = ["--describe"]
"""Given this very list as its arguments, a command hands over its parser instead of doing anything."""

_WIDTH = 100


class Described(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Every command parses its arguments before anything else, so here is where one is asked what it takes."""

    def parse_args(self, args: list[str], namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        if args is DESCRIBE:
            raise Described(self)
        return super().parse_args(args, namespace)


def command_parser(name: str) -> Parser:
    command = COMMANDS[name]
    return Parser(
        prog=f"holdfast {name}",
        description=_sentence(command.summary),
        epilog=_epilog(*command.examples),
        formatter_class=_formatter,
        # A shortened option would change its meaning on the day that a longer one is added.
        allow_abbrev=False,
    )


def add_action(actions: "argparse._SubParsersAction[Parser]", name: str, summary: str, *examples: str) -> Parser:
    """The parser of a command's second word."""
    return actions.add_parser(
        name,
        help=summary,
        description=_sentence(summary),
        epilog=_epilog(*examples),
        formatter_class=_formatter,
        allow_abbrev=False,
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="the gateway's config file (default: $HOLDFAST_CONFIG)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON; of a list, one object a line")


def add_control(parser: argparse.ArgumentParser) -> None:
    """What every command over the control socket takes."""
    add_json(parser)
    parser.add_argument("--socket", metavar="PATH", help="the control socket (default: listen.control of the config)")
    add_config(parser)


def add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="show it again every 2 s, until Ctrl-C")


def name(text: str) -> str:
    """A host or an id, as argparse's `type`. An empty one (a variable of a script, not set) must not mean "all"."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def positive(text: str) -> int:
    """A number from 1 on, as argparse's `type`."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Without a width argparse imports shutil to ask the terminal, for every option of every command.
    return argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH)


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _epilog(*examples: str) -> str:
    return "\n".join(["examples:" if len(examples) > 1 else "example:", *(f"  {example}" for example in examples)])
