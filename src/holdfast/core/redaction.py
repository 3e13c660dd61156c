"""What a receiver's answer must not give away: many quote the request that they refuse.

Answers are kept and shown; what they quote of the request's secrets is not. Secrets are:

- a header whose name speaks of one: its whole value, and the parts between white space, commas, semicolons, quotes and
  equals signs;
- path and query: both whole, the segments of the path, and the names and values of the query, as they are written and
  percent-decoded;
- the whole body.

A part that may be a word (letters of one case, hyphens, dots) counts from 8 bytes on in a header, at the end of a path
and as a value of a query, and from 16 bytes on elsewhere. Any other part, with a digit or a mixed case, counts from 4
bytes on. Of a part with characters that JSON, HTML or a URL write differently, the pieces between these count by
themselves, so that most of it is found in any spelling. What is shorter, or quoted in yet another way, is beyond this.
"""

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from holdfast.core.message import ANSWER_KEPT, Message

REDACTED = b"[redacted]"
SHORTEST_SECRET = 4
SHORTEST_WORD = 8
SHORTEST_PLAIN_WORD = 16
"""Of segments in the middle of a path, names in a query, and bodies: receivers use such words by themselves."""
MOST_SECRETS = 64
"""Distinct ones of a message that are searched for: with more, the whole answer goes. So a search is bounded by this
and the size of what is kept, whatever the request and the answer are.
"""

_SECRET_NAME = re.compile(
    rb"auth|cookie|token|secret|key|pass|pwd|signature|session|credential|bearer|hmac|jwt|csrf|xsrf"
    rb"|(?<![a-z])(?:pin|otp|totp|mfa|code|sig|sign|sid|nonce|ticket|private)(?![a-z])"
)
_IN_A_VALUE = re.compile(rb"[^\s,;=\"]+=*")
_SPELLED_ALIKE = re.compile(rb"[A-Za-z0-9._~-]+")
_WORD = re.compile(rb"[.-]*(?:[A-Z]?[a-z]+|[A-Z]+)(?:[._-]+(?:[A-Z]?[a-z]+|[A-Z]+))*[.-]*")


def without_secrets(answer: bytes | None, message: Message) -> bytes | None:
    """At most ANSWER_KEPT bytes of the answer, with everything secret of the message's that it quotes struck out."""
    if not answer:
        return answer
    kept = answer[:ANSWER_KEPT]
    secrets: set[bytes] = set()
    for secret in _secrets(message):
        secrets.add(secret)
        if len(secrets) > MOST_SECRETS:
            return REDACTED
    quoted: dict[bytes, list[bytes]] = {}
    for secret in secrets:
        if (start := secret[:SHORTEST_SECRET]) in kept:
            quoted.setdefault(start, []).append(secret)
    return _struck_out(kept, quoted)[:ANSWER_KEPT] if quoted else kept


def _struck_out(answer: bytes, quoted: dict[bytes, list[bytes]]) -> bytes:
    """The answer with each stretch that secrets cover replaced once, however they overlap in it."""
    pieces: list[bytes] = []
    covered = 0
    for at, end in sorted(_places(answer, quoted)):
        if at > covered or not pieces:
            pieces += (answer[covered:at], REDACTED)
        covered = max(covered, end)
    return b"".join((*pieces, answer[covered:]))


def _places(answer: bytes, quoted: dict[bytes, list[bytes]]) -> Iterator[tuple[int, int]]:
    """Where a secret begins and ends; the longest where several begin."""
    for start, secrets in quoted.items():
        longest_first = tuple(sorted(secrets, key=len, reverse=True))
        at = answer.find(start)
        while at >= 0:
            # All of them in one call first: most places have none.
            if answer.startswith(longest_first, at):
                yield at, at + next(len(secret) for secret in longest_first if answer.startswith(secret, at))
            at = answer.find(start, at + 1)
        yield from _cut_short(answer, start, longest_first)


def _cut_short(answer: bytes, start: bytes, longest_first: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """The beginning of a secret at the end of the answer. Where no more is kept it was cut for sure; a receiver or a
    limit may have ended it elsewhere.
    """
    shortest = SHORTEST_SECRET if len(answer) >= ANSWER_KEPT else SHORTEST_WORD
    at = answer.find(start, max(0, len(answer) - len(longest_first[0])))
    while 0 <= at <= len(answer) - shortest:
        rest = answer[at:]
        if any(secret.startswith(rest) for secret in longest_first):
            yield at, len(answer)
            return
        at = answer.find(start, at + 1)


def _secrets(message: Message) -> Iterator[bytes]:
    """Everything to search for, of SHORTEST_SECRET bytes at least. In no order, and some of it more than once."""
    for name, value in message.headers:
        if _SECRET_NAME.search(name):
            if len(value) >= SHORTEST_SECRET:
                yield value
            for found in _IN_A_VALUE.finditer(value):
                yield from _part(found[0], SHORTEST_WORD)
    if len(message.path) > SHORTEST_SECRET:
        yield from _in_a_target(message.path)
    if len(message.body) >= SHORTEST_PLAIN_WORD:
        yield message.body[: ANSWER_KEPT + 1]  # no longer one fits


def _in_a_target(target: bytes) -> Iterator[bytes]:
    path, _, query = target.partition(b"?")
    yield from (whole for whole in (target, path, query) if len(whole) >= SHORTEST_WORD)
    *segments, last = path.rstrip(b"/").split(b"/")
    for segment in segments:
        yield from _part(segment, SHORTEST_PLAIN_WORD)
    yield from _part(last, SHORTEST_WORD)
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        yield from _part(name, SHORTEST_PLAIN_WORD)
        yield from _part(value, SHORTEST_WORD)


def _part(part: bytes, shortest_word: int) -> Iterator[bytes]:
    """The part, and its pieces that are spelled alike everywhere, as far as they are secrets."""
    if _tells(part, shortest_word):
        yield part
    if _SPELLED_ALIKE.fullmatch(part):
        return
    for text in (part, unquote_to_bytes(part)) if b"%" in part else (part,):
        for piece in _SPELLED_ALIKE.finditer(text):
            if _tells(piece[0], shortest_word):
                yield piece[0]


def _tells(part: bytes, shortest_word: int) -> bool:
    if len(part) < SHORTEST_SECRET:
        return False
    return len(part) >= shortest_word or _WORD.fullmatch(part) is None
