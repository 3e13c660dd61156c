"""What a receiver's answer must not give away: many quote the request that they refuse.

Answers are kept and shown, and what they quote of the request's secrets is not: credentials, cookies and tokens by the
names of their headers, and what makes a webhook's URL secret. Whatever is quoted otherwise than letter by letter is
beyond this.
"""

import re
from collections.abc import Iterator

from holdfast.core.message import Message
from holdfast.core.outcome import ANSWER_KEPT

REDACTED = b"[redacted]"
SHORTEST_SECRET = 8
SHORTEST_SECRET_PART = 16
"""Of a path or query, and of bodies: shorter ones are words that an answer may hold by itself."""

_SECRET_NAME = re.compile(rb"auth|cookie|token|secret|key|password|signature|session|credential")
_IN_A_VALUE = re.compile(rb"[^\s,;=\"]+=*")
_IN_A_PATH = re.compile(rb"[^/?&=]+")


def without_secrets(answer: bytes | None, message: Message) -> bytes | None:
    """The answer with everything secret of the message's own that it quotes struck out."""
    if not answer:
        return answer
    was_cut = len(answer) >= ANSWER_KEPT
    for secret in _secrets(message):
        if len(secret) >= SHORTEST_SECRET:
            answer = answer.replace(secret, REDACTED)
            if was_cut:
                answer = _struck_at_the_end(answer, secret)
    return answer


def _struck_at_the_end(answer: bytes, secret: bytes) -> bytes:
    """The cut may have gone through the middle of a secret."""
    start = answer.find(secret[:SHORTEST_SECRET])
    while start >= 0:
        if secret.startswith(answer[start:]):
            return answer[:start] + REDACTED
        start = answer.find(secret[:SHORTEST_SECRET], start + 1)
    return answer


def _secrets(message: Message) -> Iterator[bytes]:
    """The whole of each before its parts: what is left after a part is struck out would still tell."""
    for name, value in message.headers:
        if _SECRET_NAME.search(name):
            yield value
            yield from sorted(_IN_A_VALUE.findall(value), key=len, reverse=True)
    if len(message.path) > 1:
        yield message.path
        path, _, query = message.path.partition(b"?")
        yield query
        yield path
        yield from (part for part in _IN_A_PATH.findall(message.path) if len(part) >= SHORTEST_SECRET_PART)
    if len(message.body) >= SHORTEST_SECRET_PART:
        yield message.body
