"""The first word picks the command, which alone is then imported; every command ends here, however it ends.

Exit statuses: 0; 1 the gateway says no or is not there; 2 wrong usage or a bad config; 130 after Ctrl-C and 141 when
nobody reads the output any more, as shells count the signals behind them. `holdfast run` has more, which are the
gateway's.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from holdfast.cli.commands import COMMANDS
from holdfast.cli.failure import MISUSED, Failure

INTERRUPTED = 130
NOBODY_READS = 141

_HELP = ("--help", "-h", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (this process's own if none is given) and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _end_of(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED


def _end_of(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A receiver's words may hold what this terminal can't show.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        return _dispatch(words)
    except Failure as failure:
        from holdfast.cli.text import clean

        for line in failure.lines:
            print(f"holdfast: {clean(line)}", file=sys.stderr)
        return failure.status
    except SystemExit as end:  # argparse, after a usage error or --help
        return end.code if isinstance(end.code, int) else MISUSED


def _dispatch(words: list[str]) -> int:
    first, rest = (words[0], words[1:]) if words else ("", [])
    if first in COMMANDS:
        return _load(COMMANDS[first].place)(rest)
    if first in _HELP:
        print(_help_text())
        return 0
    if first == "--version":
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    if not first:
        print(_help_text(), file=sys.stderr)
        return MISUSED
    raise Failure(_unknown(first), status=MISUSED)


def _load(place: str) -> Callable[[list[str]], int]:
    module, _, function = place.partition(":")
    command: Callable[[list[str]], int] = getattr(import_module(f"holdfast.cli.{module}"), function)
    return command


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return f"there is no option {word} here; options come after the command, see holdfast --help"
    from difflib import get_close_matches

    nearest = get_close_matches(word, COMMANDS, 1)
    hint = f'did you mean "{nearest[0]}"?' if nearest else f"the commands are {', '.join(COMMANDS)}"
    return f'there is no command "{word}"; {hint}'


def _help_text() -> str:
    width = max(map(len, COMMANDS))
    commands = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    examples = [f"  {command.examples[0]}" for command in COMMANDS.values()]
    return "\n".join(
        [
            "usage: holdfast COMMAND [options]",
            "",
            "A sidecar that delivers outbound webhooks and never loses one silently.",
            "",
            "commands:",
            *commands,
            "",
            "examples:",
            *examples,
            "",
            "holdfast COMMAND --help explains a command; holdfast --version tells the version.",
        ]
    )
