"""Entry point: the first word picks the command, and only that command is imported.

Exit statuses of every command: 0; 1 if the gateway refuses or cannot be reached; 2 for wrong usage or an invalid
config; 130 after Ctrl-C and 141 after a closed pipe, as shells count signals. `holdfast run` adds the gateway's own.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from holdfast.cli.command_error import MISUSED, CommandError, warn
from holdfast.cli.commands import COMMANDS

INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (by default that of this process) and returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes stdout again at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def load_command(entry_point: str) -> Callable[[list[str]], int]:
    """Imports the function behind `module:function`."""
    module, _, function = entry_point.partition(":")
    command: Callable[[list[str]], int] = getattr(import_module(f"holdfast.cli.{module}"), function)
    return command


def _run(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # The text of a receiver may hold characters that this terminal cannot show.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        return _dispatch(words)
    except CommandError as error:
        for line in error.lines:
            warn(line)
        return error.status
    except SystemExit as end:  # argparse, after a usage error or --help
        return end.code if isinstance(end.code, int) else MISUSED


def _dispatch(words: list[str]) -> int:
    first, rest = (words[0], words[1:]) if words else ("", [])
    if first in COMMANDS:
        return load_command(COMMANDS[first].entry_point)(rest)
    if first in ("--help", "-h", "help"):
        print(_help_text())
        return 0
    if first == "--version":
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    if not first:
        print(_help_text(), file=sys.stderr)
        return MISUSED
    raise CommandError(_unknown(first), status=MISUSED)


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return f"there is no option {word} here; options come after the command, see holdfast --help"
    from difflib import get_close_matches

    nearest = get_close_matches(word, COMMANDS, 1)
    hint = f'did you mean "{nearest[0]}"?' if nearest else f"the commands are {', '.join(COMMANDS)}"
    return f'there is no command "{word}"; {hint}'


def _help_text() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: holdfast COMMAND [options]",
            "",
            "A sidecar that delivers outbound webhooks and never loses one silently.",
            "",
            "commands:",
            *(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()),
            "",
            "examples:",
            *(f"  {command.examples[0]}" for command in COMMANDS.values()),
            "",
            "holdfast COMMAND --help explains a command; --version prints the version.",
        ]
    )
