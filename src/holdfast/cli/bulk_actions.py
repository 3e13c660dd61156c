"""Replaying or dropping many messages: the filters, the confirmation, and the requests.

It is done in steps. It is safe to interrupt it between two steps, and to repeat it.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import FrameType

from holdfast.cli.arguments import positive
from holdfast.cli.command_error import CommandError
from holdfast.cli.control_client import BULK_TIMEOUT, ControlClient, Document, segment
from holdfast.cli.output import ProgressBar, When, bar_wanted, count, parse_when, resolved, timestamp

STEP = 250
"""Messages per request: few enough that Ctrl-C takes effect at once, enough that 50,000 take a moment."""


# -- filters ---------------------------------------------------------------------------------------------------------


def when(text: str) -> When:
    """A moment, or how long ago, as argparse's `type`."""
    try:
        return parse_when(text)
    except ValueError:
        problem = f"{text!r} is not a time; write 2026-01-31T12:00:00Z, or 30m, 2h, 7d for that long ago"
        raise argparse.ArgumentTypeError(problem) from None


def add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", metavar="N", type=positive, help="at most this many (default: all)")


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask when no filter is given")


def no_later(moment: When | None, now: datetime) -> str:
    """The end of a filter, now at the latest: messages that come during the steps are not touched."""
    end = now + timedelta(milliseconds=1)
    return timestamp(end if moment is None else min(resolved(moment, now), end))


def any_given(options: argparse.Namespace, names: Sequence[str]) -> bool:
    # Not by truth: "0s ago" is false.
    return any(getattr(options, name) is not None for name in names)


def confirm(question: str) -> None:
    """Asks the user of a terminal; every answer but yes ends the command."""
    if not sys.stdin.isatty():
        return
    print(f"{question} This can't be undone. [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was dropped")


def known_total(client: ControlClient, host: str | None, kinds: Sequence[str], limit: int | None) -> int | None:
    """How many messages of these kinds ("waiting", "dead") there are; None if no bar is shown, or if it is unknown."""
    if not bar_wanted():
        return None
    try:
        numbers = client.get(f"/v1/circuits/{segment(host)}") if host else client.get("/v1/status")["store"]
    except CommandError:  # a forgotten host may have dead messages; any other error comes up again
        return None
    total: int = sum(numbers[kind] for kind in kinds)
    return total if limit is None else min(total, limit)


# -- steps -----------------------------------------------------------------------------------------------------------


@dataclass
class Bulk:
    """A request that is repeated until it is done. `verb` is also the answer's name for the count."""

    path: str
    verb: str
    noun: str
    body: Document
    limit: int | None = None
    count: int = 0
    done: bool = False

    def step(self, client: ControlClient) -> None:
        most = STEP if self.limit is None else min(STEP, self.limit - self.count)
        answer = client.post(self.path, {**self.body, "limit": most}, BULK_TIMEOUT)
        self.count += answer[self.verb]
        self.done = answer["done"] or self.count == self.limit

    def print(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps({self.verb: self.count, "done": self.done}), flush=True)
            return
        rest = "" if self.done else ", then it was interrupted: run the same command again for the rest"
        print(f"{count(self.count, self.noun)} {self.verb}{rest}", flush=True)


def run_bulk(client: ControlClient, bulk: Bulk, total: int | None, as_json: bool) -> None:
    """Runs all steps, or those before Ctrl-C or an error; either way one line says how much was done."""
    try:
        with ProgressBar(bulk.verb, total) as bar, _interrupt_between_steps(bar) as is_interrupted:
            while not bulk.done and not is_interrupted():
                bulk.step(client)
                bar.show(bulk.count)
    except (CommandError, KeyboardInterrupt) as error:
        if bulk.count or isinstance(error, KeyboardInterrupt):
            bulk.print(as_json)
        raise
    bulk.print(as_json)
    if not bulk.done:
        raise KeyboardInterrupt


@contextmanager
def _interrupt_between_steps(bar: ProgressBar) -> Iterator[Callable[[], bool]]:
    """Lets the current step finish after Ctrl-C; a second Ctrl-C ends it. Yields a function: was there a Ctrl-C?"""
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True
        bar.draw("finishing this step; Ctrl-C again ends it at once")

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a background job of a shell: it gets no Ctrl-C
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)
