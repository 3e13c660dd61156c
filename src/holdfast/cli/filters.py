"""Which messages something in bulk is about: times as people write them, an end that is fixed, and a question first."""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.cli.failure import Failure
from holdfast.cli.times import When, parse_when, resolved, spelled_out


def when(text: str) -> When:
    """A moment, or how long ago, as argparse's `type`."""
    try:
        return parse_when(text)
    except ValueError:
        problem = f"{text!r} is no time; write such as 2026-01-31T12:00:00Z, or 30m, 2h, 7d for that long ago"
        raise argparse.ArgumentTypeError(problem) from None


def no_later(moment: When | None, now: datetime) -> str:
    """The end of a filter, fixed before the first step: what comes up meanwhile is not touched."""
    end = now + timedelta(milliseconds=1)
    return spelled_out(end if moment is None else min(resolved(moment, now), end))


def any_given(options: argparse.Namespace, names: Sequence[str]) -> bool:
    # A time may be the moment 0s ago, which is not true.
    return any(getattr(options, name) is not None for name in names)


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask when no filter is given")


def confirm(question: str) -> None:
    """Asks whoever sits at a terminal; anything but yes ends the command."""
    if not sys.stdin.isatty():
        return
    print(f"{question} They are gone for good. [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("nothing was dropped")
