"""`holdfast completions`: a script that completes commands, actions, options and values, for bash, zsh or fish.

It is generated from the argument parsers, so it agrees with `--help`. It never asks a gateway: Tab has to be instant.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.cli.arguments import DESCRIBE, Described, command_parser
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import load_command


class Value(NamedTuple):
    """The values of an option or an argument: these choices, a file, or anything."""

    choices: tuple[str, ...] = ()
    is_file: bool = False


class Option(NamedTuple):
    """`value` is None for a switch."""

    flags: tuple[str, ...]
    help: str
    value: Value | None


class Node(NamedTuple):
    """A command or one of its actions. `words` are the words to type for it."""

    words: tuple[str, ...]
    summary: str
    options: tuple[Option, ...]
    nodes: tuple["Node", ...]
    value: Value


Tree = list[Node]

_TOP = ("--help", "--version")


def completions(arguments: list[str]) -> int:
    parser = command_parser("completions")
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell that loads the script")
    options = parser.parse_args(arguments)
    print("\n".join(SHELLS[options.shell](command_tree())))
    return 0


def command_tree() -> list[Node]:
    return [
        _node((name,), command_arguments(command.entry_point), command.summary) for name, command in COMMANDS.items()
    ]


def command_arguments(entry_point: str) -> argparse.ArgumentParser:
    try:
        load_command(entry_point)(DESCRIBE)
    except Described as described:
        return described.parser
    raise TypeError(f"{entry_point} does not parse its arguments first")


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


def _each(tree: Tree) -> Iterator[Node]:
    for node in tree:
        yield node
        yield from _each(list(node.nodes))


# -- bash ------------------------------------------------------------------------------------------------------------


def bash(tree: Tree) -> Iterator[str]:
    yield "# bash completion for holdfast. Load it with: source <(holdfast completions bash)"
    yield "_holdfast() {"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at='' words='' files=''"
    yield "    ((COMP_CWORD > 1)) && at=${COMP_WORDS[1]}"
    yield f"    case $at in {'|'.join(node.words[0] for node in tree if node.nodes)})"
    yield '        ((COMP_CWORD > 2)) && at+=" ${COMP_WORDS[2]}" ;;'
    yield "    esac"
    yield '    case "$at:$before" in'
    for node in _each(tree):
        for option in node.options:
            if option.value is not None:
                patterns = "|".join(f'"{" ".join(node.words)}:{flag}"' for flag in option.flags)
                yield f"        {patterns}) {_bash_value(option.value)} ;;"
    yield '        *) case "$at" in'
    yield f'            "") words="{" ".join([*(node.words[0] for node in tree), *_TOP])}" ;;'
    for node in _each(tree):
        yield f'            "{" ".join(node.words)}") {_bash_node(node)} ;;'
    yield "        esac ;;"
    yield "    esac"
    yield "    local IFS=$'\\n'"
    yield '    COMPREPLY=($(compgen -W "${words// /$IFS}" -- "$word"))'
    yield "    if [[ $files && $word != -* ]]; then"
    yield "        compopt -o filenames 2>/dev/null"
    yield '        COMPREPLY+=($(compgen -f -- "$word"))'
    yield "    fi"
    yield "}"
    yield "complete -F _holdfast holdfast"


def _bash_value(value: Value) -> str:
    return "files=1" if value.is_file else f'words="{" ".join(value.choices)}"'


def _bash_node(node: Node) -> str:
    flags = [flag for option in node.options for flag in option.flags]
    words = " ".join([*(each.words[-1] for each in node.nodes), *node.value.choices, *flags])
    return f'words="{words}"' + (" files=1" if node.value.is_file else "")


# -- zsh -------------------------------------------------------------------------------------------------------------


def zsh(tree: Tree) -> Iterator[str]:
    yield "#compdef holdfast"
    yield "# zsh completion for holdfast. Put it into $fpath as _holdfast, or: source <(holdfast completions zsh)"
    yield "_holdfast() {"
    yield from _zsh_level(tree, 2, "    ")
    yield "}"
    yield 'if [[ $funcstack[1] == _holdfast ]]; then _holdfast "$@"; else compdef _holdfast holdfast; fi'


def _zsh_level(nodes: Tree, place: int, indent: str) -> Iterator[str]:
    """Completes the word at this place, or goes on by its value."""
    yield f"{indent}if (( CURRENT == {place} )); then"
    yield f"{indent}    local -a found=("
    for node in nodes:
        yield f"{indent}        {_quoted(f'{node.words[-1]}:{node.summary}')}"
    yield f"{indent}    )"
    yield f"{indent}    _describe command found"
    yield f"{indent}    return"
    yield f"{indent}fi"
    yield f"{indent}case $words[{place}] in"
    for node in nodes:
        yield f"{indent}{node.words[-1]})"
        if node.nodes:
            yield from _zsh_level(list(node.nodes), place + 1, indent + "    ")
        else:
            yield f"{indent}    shift {place - 1} words; (( CURRENT -= {place - 1} ))"
            yield f"{indent}    _arguments -S {' '.join(_zsh_specs(node))}"
        yield f"{indent}    ;;"
    yield f"{indent}esac"


def _zsh_specs(node: Node) -> Iterator[str]:
    for option in node.options:
        help = "".join(f"\\{each}" if each in "[]:\\" else each for each in option.help)
        for flag in option.flags:
            value = "" if option.value is None else f":value:{_zsh_value(option.value)}"
            yield _quoted(f"{flag}[{help}]{value}")
    yield _quoted(f"*:argument:{_zsh_value(node.value)}")


def _zsh_value(value: Value) -> str:
    return "_files" if value.is_file else f"({' '.join(value.choices)})"


# -- fish ------------------------------------------------------------------------------------------------------------


def fish(tree: Tree) -> Iterator[str]:
    yield "# fish completion for holdfast. Put it into ~/.config/fish/completions/holdfast.fish"
    yield "function __holdfast_in --description 'the words so far begin with these'"
    yield "    set -l words (commandline -opc)"
    yield "    set -e words[1]"
    yield "    for word in $argv"
    yield '        test "$words[1]" = $word; or return 1'
    yield "        set -e words[1]"
    yield "    end"
    yield "end"
    yield "function __holdfast_after --description 'the words so far are exactly these'"
    yield "    test (count (commandline -opc)) -eq (math (count $argv) + 1); and __holdfast_in $argv"
    yield "end"
    yield "complete -c holdfast -f"
    for flag in _TOP:
        yield f"complete -c holdfast -n __holdfast_after -l {flag.lstrip('-')}"
    for node in _each(tree):
        *before, word = node.words
        condition = _quoted(" ".join(["__holdfast_after", *before]))
        yield f"complete -c holdfast -n {condition} -a {word} -d {_quoted(node.summary)}"
        condition = _quoted(" ".join(["__holdfast_in", *node.words]))
        for option in () if node.nodes else node.options:
            yield f"complete -c holdfast -n {condition} {_fish_option(option)}"
        if node.value != Value():
            yield f"complete -c holdfast -n {condition} {_fish_value(node.value)}"


def _fish_option(option: Option) -> str:
    flags = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    value = [] if option.value is None else ["-r" if option.value.is_file else "-x", _fish_value(option.value)]
    return " ".join([*flags, "-d", _quoted(option.help), *value])


def _fish_value(value: Value) -> str:
    return "-F" if value.is_file else f"-a {_quoted(' '.join(value.choices))}"


def _quoted(text: str) -> str:
    """Quotes text for any of the three shells."""
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: dict[str, Callable[[Tree], Iterator[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
