"""A message: what is carried, where it stands, and what was tried.

A `Message` never changes after it was accepted. Where it stands is its `Place`, and every failed `Attempt` is kept
beside it; so expiring or replaying a million messages rewrites none of them.
"""

import hashlib
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

MessageId = bytes
"""16 bytes that only ever grow: 48 bits of milliseconds, then 80 that make it unique."""

ID_PREFIX = "msg_"
LANE_NAME_LIMIT = 400
ANSWER_KEPT = 1024
"""Bytes of a receiver's answer that are kept of a failed attempt."""
_RANDOM_BITS = 80
_STEP_BITS = 48
_ID = re.compile(ID_PREFIX + "[0-9a-f]{32}")
Headers = tuple[tuple[bytes, bytes], ...]


class MessageState(StrEnum):
    """What an operator is told. `IN_FLIGHT` and `HELD` are seen by whoever runs the lanes, the others on disk."""

    QUEUED = "queued"
    IN_FLIGHT = "in_flight"
    RETRYING = "retrying"
    HELD = "held"
    DELIVERED = "delivered"
    DEAD = "dead"


class DeadReason(StrEnum):
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"


class AttemptKind(StrEnum):
    """Why an attempt is made. A probe uses up no retry number and moves no due time."""

    FIRST = "first"
    RETRY = "retry"
    PROBE = "probe"


class Fault(StrEnum):
    HOST = "host"
    HERE = "here"


class ErrorKind(StrEnum):
    TIMEOUT = "timeout"
    CONNECT = "connect"
    DNS = "dns"
    TLS = "tls"
    RESET = "reset"
    PROTOCOL = "protocol"
    EGRESS_DENIED = "egress_denied"
    PROXY = "proxy"
    SECRET = "secret"
    INTERRUPTED = "interrupted"


class Standing(StrEnum):
    """The index that holds a message."""

    ACTIVE = "active"  # accepted while nothing waited in its lane: could start at once
    WAITING = "waiting"  # behind others of its lane, by the time it was queued
    RETRY = "retry"  # due at a time: a retry, or a first attempt held back by Holdfast-Delay
    DEAD = "dead"


class Place(NamedTuple):
    """Where a message stands.

    `born` is the latest of its first due time and its replay: its age for order, probes and expiry. `held` marks a due
    time that no probe may go before, set by Holdfast-Delay or pushed by Retry-After.
    """

    standing: Standing
    born: int
    due: int = 0
    retry: int = 0
    attempts: int = 0
    held: bool = False


class Message(NamedTuple):
    """One webhook, as it was accepted. Times are milliseconds since 1970; `born` is acceptance plus delay.

    `signed` tells that its route signed when it was accepted: it is never sent without a signature.
    """

    id: MessageId
    lane: str
    host: str
    scheme: str
    authority: str
    path: bytes
    method: str
    headers: Headers
    body: bytes
    accepted_at: int
    born: int
    route: str | None = None
    signed: bool = False

    @property
    def is_delayed(self) -> bool:
        """Whether it was to wait when it was accepted. By no clock: replicas' differ a little."""
        return self.born > self.accepted_at

    @property
    def target(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path.decode('latin-1')}"

    @property
    def masked_target(self) -> str:
        """The target as it may be shown anywhere: webhook URLs are often secrets, so the path is only a digest."""
        return f"{self.scheme}://{self.authority}/#{_short_digest(self.path)}"


class Entry(NamedTuple):
    """A message in memory, with the place that it was read from."""

    message: Message
    place: Place


class Attempt(NamedTuple):
    """One try that ended: times in milliseconds, `answer` the first bytes of the receiver's body."""

    number: int
    kind: AttemptKind
    at: int
    duration: int
    address: str | None = None
    status: int | None = None
    error: ErrorKind | None = None
    detail: str | None = None
    fault: Fault | None = None
    answer: bytes | None = None


def next_id(last: MessageId, now: int, random_bits: int) -> MessageId:
    """The id after `last`: from the clock, or a step after the last if the clock has not moved past it.

    The step is by chance: nobody who knows an id can tell the next one, and hand another message over under it.
    """
    random_bits &= (1 << _RANDOM_BITS) - 1
    candidate = (now << _RANDOM_BITS) | random_bits
    previous = int.from_bytes(last, "big")
    if candidate >> _RANDOM_BITS <= previous >> _RANDOM_BITS:
        candidate = previous + 1 + (random_bits >> _RANDOM_BITS - _STEP_BITS)
    return candidate.to_bytes(16, "big")


def lane_name(circuit_key: str) -> str:
    """A circuit's key as its lane is named:

    a URL may be longer than a store's keys; two long ones differ in their digest.
    """
    if len(circuit_key.encode()) <= LANE_NAME_LIMIT:
        return circuit_key
    digest = hashlib.blake2b(circuit_key.encode(), digest_size=16).hexdigest()
    return circuit_key.encode()[: LANE_NAME_LIMIT - 40].decode(errors="ignore") + "#" + digest


def masked_lane(lane: str) -> str:
    """A lane's name as it may be shown anywhere: of a URL only scheme, host and a digest of the path."""
    scheme, separator, rest = lane.partition("://")
    if not separator:
        return lane
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}/#{_short_digest((slash + path).encode())}"


def _short_digest(path: bytes) -> str:
    return hashlib.blake2b(path, digest_size=4).hexdigest()


def id_text(id: MessageId) -> str:
    return ID_PREFIX + id.hex()


def parse_id(text: str) -> MessageId | None:
    """The id that `text` spells, or None: an unknown id and a misspelled one are the same to whoever asks."""
    return bytes.fromhex(text[len(ID_PREFIX) :]) if _ID.fullmatch(text) else None


def rfc3339(ms: int) -> str:
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03d}Z"
