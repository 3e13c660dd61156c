"""A message, its place in the queues, and its attempts; ids and times as text.

A `Message` never changes after it was accepted. Its `Place` and its failed `Attempt`s are stored beside it, so that
expiring or replaying a million messages rewrites none of them.
"""

import hashlib
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

MessageId = bytes
"""16 bytes that only increase: 48 bits of milliseconds, then 80 that make it unique."""

ID_PREFIX = "msg_"
LANE_NAME_LIMIT = 400
ANSWER_KEPT = 1024
"""Bytes of a receiver's answer that are kept of a failed attempt."""
_RANDOM_BITS = 80
_STEP_BITS = 48
_ID = re.compile(ID_PREFIX + "[0-9a-f]{32}")
Headers = tuple[tuple[bytes, bytes], ...]


class MessageState(StrEnum):
    """The state that operators see. `IN_FLIGHT` and `HELD` are known to the dispatcher, the others are on disk."""

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
    """Why an attempt is made. A probe uses no retry number and moves no due time."""

    FIRST = "first"
    RETRY = "retry"
    PROBE = "probe"


class Fault(StrEnum):
    """Whose fault a failure is: the receiving host's, or this side's."""

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
    """The index of the store that holds a message."""

    ACTIVE = "active"  # accepted while nothing waited in its lane: can start at once
    WAITING = "waiting"  # behind others of its lane, by the time it was queued
    RETRY = "retry"  # due at a time: a retry, or a first attempt held back by Holdfast-Delay
    DEAD = "dead"


class Place(NamedTuple):
    """Where a message is in the queues.

    `born` is the latest of its first due time and its replay: its age for order, probes and expiry. `held` marks a due
    time set by Holdfast-Delay or Retry-After: the message is not sent as a probe before it.
    """

    standing: Standing
    born: int
    due: int = 0
    retry: int = 0
    attempts: int = 0
    held: bool = False


class Message(NamedTuple):
    """One webhook, as it was accepted. Times are milliseconds since 1970; `born` is acceptance plus delay.

    `signed`: its route signed when it was accepted, so it is never sent without a signature.
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
        """Whether it had to wait when it was accepted. Uses no clock: those of replicas differ a little."""
        return self.born > self.accepted_at

    @property
    def target(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path.decode('latin-1')}"

    @property
    def masked_target(self) -> str:
        """The target as it may be shown anywhere. The path is only a digest: webhook URLs are often secrets."""
        return f"{self.scheme}://{self.authority}/#{_short_digest(self.path)}"


class Entry(NamedTuple):
    """A message in memory, with the place that it was read from."""

    message: Message
    place: Place


class Attempt(NamedTuple):
    """One attempt that ended. Times are milliseconds; `answer` is the beginning of the receiver's body."""

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
    """The id after `last`: from the clock, or a step after the last one if the clock has not moved past it.

    The step is random: who knows an id can't guess the next one, and hand another message over under it.
    """
    random_bits &= (1 << _RANDOM_BITS) - 1
    candidate = (now << _RANDOM_BITS) | random_bits
    previous = int.from_bytes(last, "big")
    if candidate >> _RANDOM_BITS <= previous >> _RANDOM_BITS:
        candidate = previous + 1 + (random_bits >> _RANDOM_BITS - _STEP_BITS)
    return candidate.to_bytes(16, "big")


def lane_name(circuit_key: str) -> str:
    """The name of a circuit's lane. A URL may be longer than the keys of a store: it is cut, with a digest."""
    if len(circuit_key.encode()) <= LANE_NAME_LIMIT:
        return circuit_key
    digest = hashlib.blake2b(circuit_key.encode(), digest_size=16).hexdigest()
    return circuit_key.encode()[: LANE_NAME_LIMIT - 40].decode(errors="ignore") + "#" + digest


def masked_lane(lane: str) -> str:
    """A lane's name as it may be shown anywhere: the path of a URL is only a digest."""
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
    """The id that `text` spells, or None: callers treat an unknown id and a misspelled one alike."""
    return bytes.fromhex(text[len(ID_PREFIX) :]) if _ID.fullmatch(text) else None


def rfc3339(ms: int) -> str:
    """UTC with milliseconds: all times that are shown are written like this."""
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03d}Z"
