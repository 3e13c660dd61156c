"""The channel between the gateway's process and the ingest process: frames of msgpack over a socketpair.

    frame     4 length of the rest | msgpack [kind, content]

    to the ingest process
    START     a Start, pickled; the first frame of all
    SETTINGS  Settings, pickled
    RESULTS   one for each message of ACCEPTS, in the same order:
              true or false (Accepted, active or not), bytes (Duplicate, with its id), nil (Conflict),
              [detail, host or nil] (StoreFull)
    FAILED    the reason why no further message gets a result
    COUNT     asks for COUNTS
    STOP      accept no more connections, answer the open requests, end

    from the ingest process
    APPLIED   START or SETTINGS are in effect
    ACCEPTS   messages: [id, record, pieces of the body, digest of the key or nil, digest of the body or nil,
              place or nil (a message that another holdfast hands over)]
    COUNTS    [refusals by slug, counts of ack_seconds, their total, open connections]

Both ends are the same program of the same user, and nobody else holds the socketpair, so the config is simply pickled.
Only the ingest process unpickles. It reads requests of strangers, so its frames must not become code in the process
that owns the store. A message is sent as the record of the store (store/records.py), which only the ingest process
encodes.
"""

import pickle
import socket
import struct
from collections import Counter
from enum import IntEnum
from typing import Any, NamedTuple

import trio

from holdfast.config import Address, Config
from holdfast.core.counters import Counters
from holdfast.core.errors import CorruptRecord, StoreFull
from holdfast.core.message import MessageId
from holdfast.http.wire import Wire
from holdfast.store.port import Accept, Accepted, Conflict, Duplicate, IdempotencyKey
from holdfast.store.records import decode_message, decode_place, encode_message, encode_place, pack, unpack

READ_SIZE = 64 << 10
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, struct.error, CorruptRecord)
"""The errors of reading or decoding a malformed frame."""

_LENGTH = struct.Struct(">I")
_ACCEPTED = {active: Accepted(active) for active in (True, False)}


class Kind(IntEnum):
    START = 0
    SETTINGS = 1
    RESULTS = 2
    FAILED = 3
    COUNT = 4
    STOP = 5
    APPLIED = 6
    ACCEPTS = 7
    COUNTS = 8


Frame = tuple[Kind, Any]


class Settings(NamedTuple):
    """The settings that a reload may change."""

    config: Config
    token: bytes | None


class IngestStart(NamedTuple):
    """`own` are holdfast's own listeners, `listening` is the one for ingest, `booted_at` comes from the gateway."""

    settings: Settings
    listening: Address
    own: frozenset[tuple[str, int]]
    booted_at: int
    last_id: MessageId


class Channel:
    """One end of the socketpair. `collected` is the kind of frame that `add` fills. The order is kept.

    Items that are added in one pass of the scheduler become one frame, and all frames of a pass one system call. So
    under load a message costs neither a system call nor a task of its own.
    """

    def __init__(self, sock: socket.socket, collected: Kind) -> None:
        self._wire = Wire(sock)
        self._collected = collected
        self._items: list[Any] = []
        self._frames: list[bytes] = []
        self._not_empty = trio.Event()
        self._received = bytearray()

    def add(self, item: Any) -> None:
        self._items.append(item)
        self._not_empty.set()

    def post(self, kind: Kind, content: Any = None) -> None:
        self._frame_items()
        self._frames.append(encode_frame(kind, content))
        self._not_empty.set()

    async def send(self) -> None:
        """Sends everything added and posted, until the other side is gone."""
        try:
            while True:
                await self._not_empty.wait()
                self._not_empty = trio.Event()
                self._frame_items()
                data, self._frames = b"".join(self._frames), []
                await self._wire.send_all(data)
        except OSError:
            # `receive` notices that the other side is gone.
            pass

    async def receive(self) -> list[Frame]:
        """Returns the next frames, or none if the other side is gone. Drops an incomplete frame at the end."""
        while True:
            try:
                data = await self._wire.receive(READ_SIZE)
            except OSError:
                return []
            if not data:
                return []
            self._received += data
            if frames := take_frames(self._received):
                return frames

    def close(self) -> None:
        self._wire.close()

    def _frame_items(self) -> None:
        if self._items:
            self._frames.append(encode_frame(self._collected, self._items))
            self._items = []


def encode_frame(kind: Kind, content: Any = None) -> bytes:
    if isinstance(content, Settings | IngestStart):
        content = pickle.dumps(content)
    packed = pack([kind, content])
    return _LENGTH.pack(len(packed)) + packed


def take_frames(received: bytearray) -> list[Frame]:
    """Removes the complete frames from the front of `received` and returns them. Raises one of MALFORMED."""
    frames: list[Frame] = []
    place = 0
    with memoryview(received) as view:
        while len(received) - place >= _LENGTH.size:
            start = place + _LENGTH.size
            end = start + _LENGTH.unpack_from(received, place)[0]
            if end > len(received):
                break
            number, content = unpack(view[start:end])
            frames.append((Kind(number), content))
            place = end
    del received[:place]
    return frames


def unpickle(content: bytes) -> Any:
    """Reads the content of START and SETTINGS. For the ingest process only."""
    return pickle.loads(content)


def encode_accept(accept: Accept) -> list[Any]:
    record, pieces = encode_message(accept.message)
    digest, body = accept.key if accept.key is not None else (None, None)
    place = None if accept.place is None else encode_place(accept.place)
    return [accept.message.id, record, pieces, digest, body, place]


def decode_accept(fields: list[Any]) -> Accept:
    """Keeps the record as received, so that it is not encoded again."""
    id, record, pieces, digest, body, place = fields
    message, _, is_apart = decode_message(id, record)
    if is_apart:
        message = message._replace(body=b"".join(pieces))
    key = None if digest is None else IdempotencyKey(digest, body)
    return Accept(message, key, None if place is None else decode_place(place), (record, pieces))


def encode_result(result: Any) -> Any:
    match result:
        case Accepted(active):
            return active
        case Duplicate(id):
            return id
        case Conflict():
            return None
        case StoreFull():
            return [str(result), result.host]
    raise TypeError(f"not the result of a new message: {result!r}")


def decode_result(encoded: Any) -> Accepted | Duplicate | Conflict | StoreFull:
    if isinstance(encoded, bool):
        return _ACCEPTED[encoded]
    if isinstance(encoded, bytes):
        return Duplicate(encoded)
    if encoded is None:
        return Conflict()
    detail, host = encoded
    return StoreFull(detail, host=host)


def encode_counts(counters: Counters, connections: int) -> list[Any]:
    return [dict(counters.refused), counters.ack_seconds.counts, counters.ack_seconds.total, connections]


def decode_counts(encoded: list[Any], counters: Counters) -> int:
    """Stores the counts in `counters`. Returns the number of open connections."""
    refused, counts, total, connections = encoded
    counters.refused = Counter(refused)
    counters.ack_seconds.counts, counters.ack_seconds.total = counts, total
    return int(connections)
