"""Which headers of a request are forwarded with its message, and which are read by holdfast.

These are not forwarded: hop-by-hop headers and those that `Connection` names, `Holdfast-*`, `Proxy-*`, `Host`, and
`Content-Length` and `Expect`, which the courier sets anew. All others are forwarded unchanged and in order, including
`Authorization` and repeated headers. An app's `webhook-id` is forwarded if it is valid. Otherwise the courier adds the
message's own.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.config import format_duration, parse_duration
from holdfast.core.idempotency import body_digest, key_digest
from holdfast.ingest.refusals import BAD_DELAY, BAD_HANDOFF, BAD_HEADER, BAD_KEY, TWO_TARGETS, Refusal, Refused
from holdfast.store.port import IdempotencyKey

Pair = tuple[bytes, bytes]

MAX_KEY = 255

_NOT_FORWARDED = frozenset(
    (
        b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"host", b"content-length", b"expect",
    )
)  # fmt: skip
_READ_AND_FORWARDED = frozenset((b"idempotency-key", b"webhook-id"))
_READ = frozenset((b"connection", b"holdfast-target", b"holdfast-delay", b"holdfast-handoff")) | _READ_AND_FORWARDED
_KNOWN = _NOT_FORWARDED | _READ

_IF_DIFFERENT: dict[bytes, Refusal] = {
    b"holdfast-target": TWO_TARGETS,
    b"holdfast-delay": BAD_DELAY,
    b"holdfast-handoff": BAD_HANDOFF,
    b"idempotency-key": BAD_KEY,
}
# The usual values of Connection, which name no header.
_PLAIN_CONNECTION = frozenset((b"keep-alive", b"close"))
_WEBHOOK_ID = re.compile(rb"[\x21-\x2d\x2f-\x7e]{1,255}")


class SplitHeaders(NamedTuple):
    forwarded: list[Pair]
    target: bytes | None
    delay: bytes | None
    key: bytes | None
    handoff: bytes | None = None


def split_headers(headers: Sequence[Pair]) -> SplitHeaders:
    """Splits headers, with names in lower case, into those that are forwarded and those for holdfast."""
    forwarded: list[Pair] = []
    read: list[Pair] = []
    for pair in headers:
        name = pair[0]
        if name in _KNOWN:
            if name in _READ:
                read.append(pair)
                if name in _READ_AND_FORWARDED:
                    forwarded.append(pair)
        elif name[:9] != b"holdfast-" and name[:6] != b"proxy-":
            forwarded.append(pair)
    _check_bytes(forwarded)
    if not read:
        return SplitHeaders(forwarded, None, None, None)
    values, dropped = _read(read)
    if dropped:
        forwarded = [pair for pair in forwarded if pair[0] not in dropped]
    return SplitHeaders(
        forwarded,
        values.get(b"holdfast-target"),
        values.get(b"holdfast-delay"),
        values.get(b"idempotency-key"),
        values.get(b"holdfast-handoff"),
    )


def message_headers(forwarded: list[Pair], route_headers: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """The headers of a message. Those of a route replace the app's of the same name."""
    if not route_headers:
        return tuple(forwarded)
    names = {name for name, _ in route_headers}
    return (*(pair for pair in forwarded if pair[0] not in names), *route_headers)


def parse_delay(value: bytes, maximum: int) -> int:
    """Returns the milliseconds of a `Holdfast-Delay` such as `30s`: the time before the first attempt."""
    try:
        delay = parse_duration(value.decode("latin-1"))
    except ValueError as error:
        detail = f'Holdfast-Delay: {error}; write a number with ms, s, m, h or d, such as "30s".'
        raise Refused(BAD_DELAY, detail) from None
    if delay > maximum:
        detail = f"Holdfast-Delay is longer than ingest.max_delay, which is {format_duration(maximum)}."
        raise Refused(BAD_DELAY, detail)
    return delay


def idempotency_key(key: bytes, method: str, url: str, route: str | None, body: bytes) -> IdempotencyKey:
    """A key from `Idempotency-Key`. The same value is another key for another method, target or route."""
    if not key:
        raise Refused(BAD_KEY, "Idempotency-Key is empty; give it a value or leave it out.")
    if len(key) > MAX_KEY:
        raise Refused(BAD_KEY, f"Idempotency-Key has {len(key)} bytes; at most {MAX_KEY} are allowed.")
    return IdempotencyKey(key_digest(key, method, url, route), body_digest(body))


def _read(read: list[Pair]) -> tuple[dict[bytes, bytes], set[bytes]]:
    """Returns the values for holdfast by header, and the names that are not forwarded after all."""
    values: dict[bytes, bytes] = {}
    dropped: set[bytes] = set()
    webhook_ids: list[bytes] = []
    for name, value in read:
        if name == b"connection":
            if value.lower() not in _PLAIN_CONNECTION:
                dropped.update(token.strip(b" \t").lower() for token in value.split(b","))
        elif name == b"webhook-id":
            webhook_ids.append(value)
        elif values.setdefault(name, value) != value:
            header = name.decode("ascii")
            raise Refused(_IF_DIFFERENT[name], f"{header} is given twice with different values; send it once.")
    if webhook_ids and not (len(webhook_ids) == 1 and _WEBHOOK_ID.fullmatch(webhook_ids[0])):
        dropped.add(b"webhook-id")
    return values, dropped


def _check_bytes(forwarded: list[Pair]) -> None:
    """The server refuses such bytes already. But headers that pass here are written to a receiver's connection."""
    flat = b"".join(chain.from_iterable(forwarded))
    if b"\r" in flat or b"\n" in flat or b"\0" in flat:
        raise Refused(BAD_HEADER, "A header holds a line break or a NUL; remove it.")
