"""Removes the secrets of a request from the receiver's answer: many receivers quote the request that they refuse.

Answers are stored and shown. Secrets of a request are:

- a header whose name suggests one: its whole value, and the parts between white space, commas, semicolons, quotes and
  equals signs;
- path and query: both whole, the segments of the path, and the names and values of the query, as they are written and
  percent-decoded;
- the whole body.

A part that may be a word (letters of one case, hyphens, dots) counts from 8 bytes on in a header, at the end of a path
and as a value of a query, and from 16 bytes on elsewhere. Any other part, with a digit or mixed case, counts from 4
bytes on. In a part with characters that JSON, HTML or a URL write differently, the pieces between these characters
count too, so that most of it is found in any encoding. Shorter parts, and quotes in yet another encoding, are not
found.
"""

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from holdfast.core.message import ANSWER_KEPT, Message

REDACTED = b"[redacted]"
SHORTEST_SECRET = 4
SHORTEST_WORD = 8
SHORTEST_PLAIN_WORD = 16
"""For segments in the middle of a path, names in a query, and bodies: receivers use such words themselves."""
MOST_SECRETS = 64
"""Distinct secrets of a message that are searched for. With more, the whole answer is dropped: the search is bounded,
whatever the request and the answer are.
"""

_SECRET_NAME = re.compile(
    rb"auth|cookie|token|secret|key|pass|pwd|signature|session|credential|bearer|hmac|jwt|csrf|xsrf"
    rb"|(?<![a-z])(?:pin|otp|totp|mfa|code|sig|sign|sid|nonce|ticket|private)(?![a-z])"
)
_IN_A_VALUE = re.compile(rb"[^\s,;=\"]+=*")
_NEVER_ENCODED = re.compile(rb"[A-Za-z0-9._~-]+")
_WORD = re.compile(rb"[.-]*(?:[A-Z]?[a-z]+|[A-Z]+)(?:[._-]+(?:[A-Z]?[a-z]+|[A-Z]+))*[.-]*")


def without_secrets(answer: bytes | None, message: Message) -> bytes | None:
    """At most ANSWER_KEPT bytes of the answer, without the secrets of the message that it quotes."""
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
    return _redacted(kept, quoted)[:ANSWER_KEPT] if quoted else kept


def _redacted(answer: bytes, quoted: dict[bytes, list[bytes]]) -> bytes:
    """The answer with each run of overlapping secrets replaced once."""
    pieces: list[bytes] = []
    covered = 0
    for at, end in sorted(_quoted_at(answer, quoted)):
        if at > covered or not pieces:
            pieces += (answer[covered:at], REDACTED)
        covered = max(covered, end)
    return b"".join((*pieces, answer[covered:]))


def _quoted_at(answer: bytes, quoted: dict[bytes, list[bytes]]) -> Iterator[tuple[int, int]]:
    """Start and end of each quoted secret; of the longest, if several start there."""
    for start, secrets in quoted.items():
        longest_first = tuple(sorted(secrets, key=len, reverse=True))
        at = answer.find(start)
        while at >= 0:
            # One call for all of them first: most places have none.
            if answer.startswith(longest_first, at):
                yield at, at + next(len(secret) for secret in longest_first if answer.startswith(secret, at))
            at = answer.find(start, at + 1)
        yield from _cut_short(answer, start, longest_first)


def _cut_short(answer: bytes, start: bytes, longest_first: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """The beginning of a secret at the end of the answer. An answer of the full size was certainly cut; a shorter one
    may have been cut by the receiver or by another limit.
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
    """The secrets to search for, each of SHORTEST_SECRET bytes at least. Unordered, and may repeat."""
    for name, value in message.headers:
        if _SECRET_NAME.search(name):
            if len(value) >= SHORTEST_SECRET:
                yield value
            for found in _IN_A_VALUE.finditer(value):
                yield from _part(found[0], SHORTEST_WORD)
    if len(message.path) > SHORTEST_SECRET:
        yield from _in_a_target(message.path)
    if len(message.body) >= SHORTEST_PLAIN_WORD:
        yield message.body[: ANSWER_KEPT + 1]  # a longer quote does not fit


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
    """The part and its pieces without characters that are encoded, if they are secrets."""
    if _is_secret(part, shortest_word):
        yield part
    if _NEVER_ENCODED.fullmatch(part):
        return
    for text in (part, unquote_to_bytes(part)) if b"%" in part else (part,):
        for piece in _NEVER_ENCODED.finditer(text):
            if _is_secret(piece[0], shortest_word):
                yield piece[0]


def _is_secret(part: bytes, shortest_word: int) -> bool:
    if len(part) < SHORTEST_SECRET:
        return False
    return len(part) >= shortest_word or _WORD.fullmatch(part) is None
