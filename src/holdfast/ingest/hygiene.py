"""Which headers travel with a message, and which are said to holdfast.

Hop-by-hop headers, those that `Connection` names, `Holdfast-*`, `Proxy-*`, `Host`, and `Content-Length` and
`Expect`, which the courier's own connection decides anew, stay here. Everything else goes on unchanged and
in its order, `Authorization` and repeated headers included. An app's `webhook-id` goes on if it could be
one, else the courier adds the message's own.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.ingest.refusals import BAD_DELAY, BAD_HANDOFF, BAD_HEADER, BAD_KEY, TWO_TARGETS, Refusal, Refused

Pair = tuple[bytes, bytes]

STAYING = frozenset(
    (
        b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"host", b"content-length", b"expect",
    )
)  # fmt: skip

# Headers that are read here; those of the first group also travel.
_READ_AND_TRAVELLING = frozenset((b"idempotency-key", b"webhook-id"))
_READ = frozenset((b"connection", b"holdfast-target", b"holdfast-delay", b"holdfast-handoff")) | _READ_AND_TRAVELLING
_KNOWN = STAYING | _READ

_DIFFERENT: dict[bytes, Refusal] = {
    b"holdfast-target": TWO_TARGETS,
    b"holdfast-delay": BAD_DELAY,
    b"holdfast-handoff": BAD_HANDOFF,
    b"idempotency-key": BAD_KEY,
}
# What most clients say in Connection, and what names no header.
_PLAIN_CONNECTION = frozenset((b"keep-alive", b"close"))
_WEBHOOK_ID = re.compile(rb"[\x21-\x2d\x2f-\x7e]{1,255}")


class Sifted(NamedTuple):
    travelling: list[Pair]
    target: bytes | None
    delay: bytes | None
    key: bytes | None
    handoff: bytes | None = None


def sift(headers: Sequence[Pair]) -> Sifted:
    """Headers with names in lower case, parted into those that travel and those said to holdfast."""
    travelling: list[Pair] = []
    read: list[Pair] = []
    for pair in headers:
        name = pair[0]
        if name in _KNOWN:
            if name in _READ:
                read.append(pair)
                if name in _READ_AND_TRAVELLING:
                    travelling.append(pair)
        elif name[:9] != b"holdfast-" and name[:6] != b"proxy-":
            travelling.append(pair)
    _check_bytes(travelling)
    if not read:
        return Sifted(travelling, None, None, None)
    said, dropped = _read(read)
    if dropped:
        travelling = [pair for pair in travelling if pair[0] not in dropped]
    return Sifted(
        travelling,
        said.get(b"holdfast-target"),
        said.get(b"holdfast-delay"),
        said.get(b"idempotency-key"),
        said.get(b"holdfast-handoff"),
    )


def dress(travelling: list[Pair], route_headers: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """A message's headers: a route's own replace the app's of the same name."""
    if not route_headers:
        return tuple(travelling)
    names = {name for name, _ in route_headers}
    return (*(pair for pair in travelling if pair[0] not in names), *route_headers)


def _read(read: list[Pair]) -> tuple[dict[bytes, bytes], set[bytes]]:
    """What is said to holdfast, by header, and the names that don't travel after all."""
    said: dict[bytes, bytes] = {}
    dropped: set[bytes] = set()
    webhook_ids: list[bytes] = []
    for name, value in read:
        if name == b"connection":
            if value.lower() not in _PLAIN_CONNECTION:
                dropped.update(token.strip(b" \t").lower() for token in value.split(b","))
        elif name == b"webhook-id":
            webhook_ids.append(value)
        elif said.setdefault(name, value) != value:
            header = name.decode("ascii")
            raise Refused(_DIFFERENT[name], f"{header} is given twice with different values; send it once.")
    if webhook_ids and not (len(webhook_ids) == 1 and _WEBHOOK_ID.fullmatch(webhook_ids[0])):
        dropped.add(b"webhook-id")
    return said, dropped


def _check_bytes(travelling: list[Pair]) -> None:
    """The server lets no such bytes in; but what passes here is written into a receiver's connection."""
    flat = b"".join(chain.from_iterable(travelling))
    if b"\r" in flat or b"\n" in flat or b"\0" in flat:
        raise Refused(BAD_HEADER, "A header holds a line break or a NUL; remove it.")
