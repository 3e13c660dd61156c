"""`holdfast demo`: how it is told, as a story or as JSON lines."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from holdfast.cli.arguments import add_json, command_parser
from holdfast.cli.errors import CommandError, clean
from holdfast.cli.output import WIDTH, colour_wanted, count, painted, wrapped

SIGNALLED = 128
"""Shells add the signal's number to this."""

READING = 0.8
"""Seconds for a line; where nobody watches, none."""

_DAY = 86_400
_STAMP, _ABOUT = 16, 11


def demo(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    teller = JsonTeller() if options.json else StoryTeller(colour=colour_wanted(), watched=sys.stdout.isatty())
    # Only now: --help does not need the whole gateway.
    from holdfast.core.errors import StoreUnusable
    from holdfast.demo.play import Stopped, play
    from holdfast.demo.promise import PromiseBroken

    try:
        summary = play(teller)
    except Stopped as stopped:
        return SIGNALLED + stopped.number
    except PromiseBroken as broken:
        raise CommandError(f"a promise was broken: {broken}") from broken
    except StoreUnusable as error:
        raise CommandError(str(error)) from error
    teller.end(asdict(summary))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("demo")
    add_json(parser)
    return parser


class JsonTeller:
    """The events alone, without pauses, between one that begins and one that ends."""

    pace = 0.0

    def begin(self, page: str, terms: str) -> None:
        self.event({"event": "demo_begins", "page": page, "terms": terms})

    def heading(self, text: str) -> None:
        pass

    def line(self, at: int, about: str, text: str) -> None:
        pass

    def command(self, text: str) -> None:
        pass

    def event(self, event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    def end(self, summary: dict[str, float]) -> None:
        self.event({"event": "demo_ends", **summary})


class StoryTeller:
    """Plain lines: the demo's time, a state or who acts, and what happens."""

    def __init__(self, *, colour: bool, watched: bool) -> None:
        self.pace = READING if watched else 0.0
        self._colour = colour
        self._headings = 0

    def begin(self, page: str, terms: str) -> None:
        self._print("holdfast demo: days in the life of a gateway, in less than a minute. Ctrl-C ends it.")
        self._print(f"Watch along: {page}")
        self._print(*wrapped(terms, WIDTH))

    def heading(self, text: str) -> None:
        self._headings += 1
        self._print("", f"{self._headings}. {text}")

    def line(self, at: int, about: str, text: str) -> None:
        first, *more = wrapped(clean(text), WIDTH - _STAMP - _ABOUT)
        self._print(f"{stamp(at):{_STAMP}}{painted(f'{about:{_ABOUT}}', self._colour)}{first}", *map(_indented, more))

    def command(self, text: str) -> None:
        self._print(*map(_indented, wrapped(clean(text), WIDTH - _STAMP - _ABOUT)))

    def event(self, event: dict[str, Any]) -> None:
        pass

    def end(self, summary: dict[str, float]) -> None:
        days = f"{summary['simulated'] / _DAY:.1f} days in {summary['took']:.0f} s"
        attempts, probes = count(int(summary["attempts"]), "attempt"), count(int(summary["probes"]), "probe")
        self._print(
            "",
            f"{days}: {summary['accepted']} webhooks accepted, {summary['delivered']} delivered, "
            f"by {attempts}, {probes} among them.",
            "Nothing was lost.",
        )

    def _print(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)


def stamp(ms: int) -> str:
    """A moment of the demo: "day 1 03:14:05"."""
    day, seconds = divmod(ms // 1000, _DAY)
    return f"day {day + 1} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _indented(line: str) -> str:
    return " " * (_STAMP + _ABOUT) + line
