"""`holdfast demo`: prints it as a story or as JSON lines."""

import json
import sys
from dataclasses import asdict
from typing import Any

from holdfast.cli.arguments import add_json, command_parser
from holdfast.cli.command_error import CommandError, clean
from holdfast.cli.output import WIDTH, colour_wanted, count, painted, wrapped

SIGNALLED = 128
"""Shells add the number of the signal to this."""

READING_TIME = 0.8
"""Seconds per line on a terminal."""

_DAY = 86_400
_STAMP, _LABEL = 16, 11


def demo(arguments: list[str]) -> int:
    parser = command_parser("demo")
    add_json(parser)
    options = parser.parse_args(arguments)
    output = JsonOutput() if options.json else StoryOutput(colour=colour_wanted(), pauses=sys.stdout.isatty())
    # After the arguments: --help does not need the whole gateway.
    from holdfast.core.errors import StoreUnusable
    from holdfast.demo.narrator import PromiseBroken
    from holdfast.demo.runner import Stopped, run_demo

    try:
        summary = run_demo(output)
    except Stopped as stopped:
        return SIGNALLED + stopped.number
    except PromiseBroken as broken:
        raise CommandError(f"a promise was broken: {broken}") from broken
    except StoreUnusable as error:
        raise CommandError(str(error)) from error
    output.end(asdict(summary))
    return 0


class JsonOutput:
    """Prints the events, without pauses, between a first and a last event of the demo itself."""

    pace = 0.0

    def begin(self, page: str, terms: str) -> None:
        self.event({"event": "demo_begins", "page": page, "terms": terms})

    def heading(self, text: str) -> None:
        pass

    def line(self, at: int, label: str, text: str) -> None:
        pass

    def command(self, text: str) -> None:
        pass

    def event(self, event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    def end(self, summary: dict[str, float]) -> None:
        self.event({"event": "demo_ends", **summary})


class StoryOutput:
    """Prints lines: the demo's time, a state or who acts, and what happens."""

    def __init__(self, *, colour: bool, pauses: bool) -> None:
        self.pace = READING_TIME if pauses else 0.0
        self._colour = colour
        self._headings = 0

    def begin(self, page: str, terms: str) -> None:
        title = "holdfast demo: days in the life of a gateway, in less than a minute. Ctrl-C ends it."
        self._print(title, f"Watch along: {page}", *wrapped(terms, WIDTH))

    def heading(self, text: str) -> None:
        self._headings += 1
        self._print("", f"{self._headings}. {text}")

    def line(self, at: int, label: str, text: str) -> None:
        first, *more = wrapped(clean(text), WIDTH - _STAMP - _LABEL)
        self._print(f"{stamp(at):{_STAMP}}{painted(f'{label:{_LABEL}}', self._colour)}{first}", *map(_indented, more))

    def command(self, text: str) -> None:
        self._print(*map(_indented, wrapped(clean(text), WIDTH - _STAMP - _LABEL)))

    def event(self, event: dict[str, Any]) -> None:
        pass

    def end(self, summary: dict[str, float]) -> None:
        days = f"{summary['simulated'] / _DAY:.1f} days in {summary['took']:.0f} s"
        attempts, probes = count(int(summary["attempts"]), "attempt"), f"{int(summary['probes']):,}"
        self._print(
            "",
            f"{days}: {summary['accepted']} webhooks accepted, {summary['delivered']} delivered, "
            f"by {attempts}, {probes} of them probes.",
            "Nothing was lost.",
        )

    def _print(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)


def stamp(ms: int) -> str:
    """A moment of the demo as "day 1 03:14:05"."""
    day, seconds = divmod(ms // 1000, _DAY)
    return f"day {day + 1} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _indented(line: str) -> str:
    return " " * (_STAMP + _LABEL) + line
