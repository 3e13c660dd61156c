"""`holdfast completions`: a script that makes a shell complete commands, actions, options and their values.

It is made from the parsers themselves, so it can't say anything else than `--help` does.
"""

import argparse
from importlib import import_module

from holdfast.cli.commands import COMMANDS
from holdfast.cli.parsing import DESCRIBE, Described, command_parser
from holdfast.cli.shells import SHELLS, Node, Option, Value


def completions(arguments: list[str]) -> int:
    parser = command_parser("completions")
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell that is to load it")
    options = parser.parse_args(arguments)
    print("\n".join(SHELLS[options.shell](tree())))
    return 0


def tree() -> list[Node]:
    """Every command with what it takes."""
    return [_node((name,), described(command.place), command.summary) for name, command in COMMANDS.items()]


def described(place: str) -> argparse.ArgumentParser:
    module, _, function = place.partition(":")
    try:
        getattr(import_module(f"holdfast.cli.{module}"), function)(DESCRIBE)
    except Described as description:
        return description.parser
    raise TypeError(f"{place} does not begin by parsing its arguments")


def _node(words: tuple[str, ...], parser: argparse.ArgumentParser, summary: str) -> Node:
    options: list[Option] = []
    nodes: list[Node] = []
    value = Value()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            nodes = [_node((*words, name), each, summaries[name]) for name, each in action.choices.items()]
        elif action.option_strings:
            options.append(_option(action))
        else:
            value = _value(action)
    return Node(words, summary, tuple(options), tuple(nodes), value)


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    help = (action.help or "").replace("%%", "%")
    return Option(tuple(action.option_strings), help, _value(action) if takes_value else None)


def _value(action: argparse.Action) -> Value:
    is_file = action.metavar in ("FILE", "PATH")
    return Value(tuple(map(str, action.choices or ())), is_file)
