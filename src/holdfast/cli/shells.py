"""Completion scripts for bash, zsh and fish, from a tree of commands. No gateway is asked: Tab has to be instant."""

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Value(NamedTuple):
    """What an option or an argument may be: one of these, a file, or anything."""

    choices: tuple[str, ...] = ()
    is_file: bool = False


class Option(NamedTuple):
    """`value` is None for a switch."""

    flags: tuple[str, ...]
    help: str
    value: Value | None


class Node(NamedTuple):
    """A command, or the action of one: `words` are what is typed to get there."""

    words: tuple[str, ...]
    summary: str
    options: tuple[Option, ...]
    nodes: tuple["Node", ...]
    value: Value


Tree = list[Node]

_TOP = ("--help", "--version")


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
    """Completes the word at this place, or goes on with what it was."""
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
    yield "function __holdfast_after --description 'the words so far are just these'"
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
    """For all three shells alike."""
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: dict[str, Callable[[Tree], Iterator[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
