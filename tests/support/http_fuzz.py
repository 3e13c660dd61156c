"""Feeds the same bytes to both HTTP engines, whole and in pieces, and compares verdicts, values and message ends.

A seed stands for a fixed round of inputs. `python -m tests.support.http_fuzz` runs rounds until it is stopped or the
engines differ; with `--seed` it runs only that round. It prints the smallest input that shows a difference.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from random import Random, SystemRandom
from typing import NamedTuple

from holdfast.http.codec import ENGINES, HeadEngine, RequestParser, ResponseParser, engine
from holdfast.http.exceptions import BadAnswer, ProtocolError
from holdfast.http.request_response import Headers
from tests.support.http_fuzz_inputs import Input, draw

ROUND = 20_000
SEEDS = 1 << 32
BOTH = [engine(name) for name in ENGINES]

# -- reading ----------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """All of an answer's head."""

    status: int
    http_version: str
    keep_alive: bool
    content_length: int | None
    chunked: bool
    headers: Headers


def head_of(parser: ResponseParser) -> Head | None:
    return Head(*parser.head[:5], parser.headers) if parser.head is not None else None


def read_requests(
    engine: HeadEngine, pieces: Iterable[bytes], max_head: int = 4096, max_body: int = 4096
) -> list[object]:
    """Everything that one connection's bytes mean: requests in order, and a refusal or what is missing at the end."""
    parser = RequestParser(engine, max_head=max_head, max_headers=20, max_body=max_body)
    outcome: list[object] = []
    try:
        for piece in pieces:
            parser.feed(piece)
            while parser.complete:
                outcome.append((parser.head, parser.body))
                parser.next_message()
    except ProtocolError as error:
        outcome.append((error.status, error.detail))
    else:
        outcome.append("started" if parser.started else "idle")
    return outcome


def read_response(
    engine: HeadEngine, pieces: Iterable[bytes], end: bool = False, to_head_request: bool = False
) -> tuple[object, ...]:
    """What one answer's bytes mean, with or without the end of the connection after them."""
    parser = ResponseParser(engine, max_body=4096, to_head_request=to_head_request)
    try:
        for piece in pieces:
            parser.feed(piece)
        if end:
            parser.feed_end()
    except BadAnswer as error:
        return ("bad", error.detail)
    leftover = parser.leftover if parser.complete else b""
    return (head_of(parser), parser.body, parser.complete, parser.broken, leftover, parser.reusable)


# -- judging ----------------------------------------------------------------------------------------------------------


def readings(given: Input, engines: Sequence[HeadEngine]) -> dict[str, object]:
    """By engine, and by how the bytes were fed to it."""
    read: Callable[..., object] = read_response if given.is_answer else read_requests
    found: dict[str, object] = {}
    for each in engines:
        for way, feed in zip(("whole", "in pieces", "a byte at a time"), given.feeds, strict=False):
            try:
                found[f"{each.name}, {way}"] = read(each, feed, **given.options)
            except Exception as error:
                found[f"{each.name}, {way}"] = f"it broke: {error!r}"
    return found


def fault(given: Input, engines: Sequence[HeadEngine]) -> str | None:
    """What is wrong with the readings of an input; None: they are all the same."""
    found = readings(given, engines)
    first, *others = found.values()
    if any(other != first for other in others) or isinstance(first, str):
        return "\n".join(f"  {way}: {reading!r}" for way, reading in found.items())
    if not given.is_answer and isinstance(first, list) and not ends_where_it_says(given.raw, first):
        return f"  framed otherwise than it says: {first!r}"
    return None


def ends_where_it_says(raw: bytes, requests: list[object]) -> bool:
    """As long as bodies have a length: leading blank lines aside, what was read is what the bytes began with."""
    for each in requests[:-1]:
        assert isinstance(each, tuple)
        head, content = each
        if head.chunked:
            return head.content_length is None
        length = head.content_length or 0
        raw = raw[raw.index(b" HTTP/1.") :]
        end = raw.index(b"\r\n\r\n") + 4
        if content != raw[end : end + length] or len(content) != length:
            return False
        raw = raw[end + length :]
    return True


def smallest(given: Input, engines: Sequence[HeadEngine]) -> Input:
    """With as much left out as can be while something is wrong with it."""
    size = len(given.raw) // 2
    while size:
        place = 0
        while place < len(given.raw):
            shorter = given._replace(raw=given.raw[:place] + given.raw[place + size :])
            if fault(shorter, engines):
                given = shorter
            else:
                place += size
        size //= 2
    return given


def run_round(seed: int, engines: Sequence[HeadEngine] = BOTH) -> str | None:
    """A report of the first difference of this seed; None: there is none."""
    dice = Random(seed)
    for number in range(ROUND):
        given = draw(dice)
        if fault(given, engines):
            small = smallest(given, engines)
            kind = "answer" if small.is_answer else "request"
            return (
                f"engines differ at input {number} of seed {seed}; alone: make fuzz SEED={seed}\n"
                f"{kind} {small.raw!r}, cut at {small.cuts}, {small.options}\n{fault(small, engines)}"
            )
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this round alone")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    chance = SystemRandom()
    for rounds in count(1):
        seed = options.seed if options.seed is not None else chance.randrange(SEEDS)
        print(f"seed {seed}: ", end="", flush=True)
        report = run_round(seed)
        print(report or f"{ROUND:,} inputs, {rounds * ROUND:,} in all, no difference", flush=True)
        if report or options.seed is not None:
            return 1 if report else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
