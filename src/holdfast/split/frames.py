"""What the two processes say to each other: frames of msgpack, each a kind and what it carries.

    frame    4 length of the rest | msgpack [kind, content]

    to ingest
    BEGIN     a Beginning, pickled; the first frame of all
    SETTINGS  Settings, pickled; answered by TAKEN once they hold
    ANSWERS   one for each message of ACCEPTS, in the order of these:
              true or false (Accepted, active or not), bytes (Duplicate, of this id), nil (Conflict),
              [detail, host or nil] (StoreFull)
    FAILED    why no message will be answered any more
    COUNT     answered by COUNTS
    STOP      take no more connections, answer what is under way, end

    from ingest
    TAKEN     BEGIN or SETTINGS hold now
    ACCEPTS   messages: [id, record, pieces of the body, digest of the key or nil, digest of the body or nil,
              place or nil (one that another holdfast hands over)]
    COUNTS    [refusals by slug, counts of ack_seconds, their total, open connections]

Both ends are the same program of the same user, and nobody else holds the socketpair, so the config needs no second
spelling than pickle's. Only the ingest process unpickles: it reads what strangers send, and what it says must not
become code in the process that has the store. A message travels as the record that the store keeps
(store/records.py), encoded by the ingest process alone.
"""

import pickle
import struct
from collections import Counter
from enum import IntEnum
from typing import Any, NamedTuple

from holdfast.config import Address, Config
from holdfast.core.counters import Counters
from holdfast.core.errors import CorruptRecord, StoreFull
from holdfast.core.message import MessageId
from holdfast.store.port import Accept, Accepted, Conflict, Duplicate, IdempotencyKey
from holdfast.store.records import decode_message, decode_place, encode_message, encode_place, pack, unpack

_LENGTH = struct.Struct(">I")
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, struct.error, CorruptRecord)
"""What reading or decoding a frame may raise, if the other side is not as it should be."""
_ACCEPTED = {active: Accepted(active) for active in (True, False)}


class Kind(IntEnum):
    BEGIN = 0
    SETTINGS = 1
    ANSWERS = 2
    FAILED = 3
    COUNT = 4
    STOP = 5
    TAKEN = 6
    ACCEPTS = 7
    COUNTS = 8


Frame = tuple[Kind, Any]


class Settings(NamedTuple):
    """What a reload may change."""

    config: Config
    token: bytes | None


class Beginning(NamedTuple):
    """What ingest goes on from. `own` are holdfast's own listeners, `booted_at` is its clock's."""

    settings: Settings
    listening: Address
    own: frozenset[tuple[str, int]]
    booted_at: int
    last_id: MessageId


def frame(kind: Kind, content: Any = None) -> bytes:
    if isinstance(content, Settings | Beginning):
        content = pickle.dumps(content)
    packed = pack([kind, content])
    return _LENGTH.pack(len(packed)) + packed


def cut(received: bytearray) -> list[Frame]:
    """Take the complete frames from the front. Raises one of MALFORMED for what is no frame."""
    frames: list[Frame] = []
    place = 0
    with memoryview(received) as view:
        while len(received) - place >= _LENGTH.size:
            start = place + _LENGTH.size
            end = start + _LENGTH.unpack_from(received, place)[0]
            if end > len(received):
                break
            frames.append(_read(view[start:end]))
            place = end
    del received[:place]
    return frames


def _read(packed: memoryview) -> Frame:
    number, content = unpack(packed)
    return Kind(number), content


def unpickled(content: bytes) -> Any:
    """What BEGIN and SETTINGS carry. For the ingest process alone."""
    return pickle.loads(content)


# -- what is inside ----------------------------------------------------------------------------------------------------


def encode_accept(accept: Accept) -> list[Any]:
    record, pieces = encode_message(accept.message)
    digest, body = accept.key if accept.key is not None else (None, None)
    place = None if accept.place is None else encode_place(accept.place)
    return [accept.message.id, record, pieces, digest, body, place]


def decode_accept(fields: list[Any]) -> Accept:
    """With the record as it came, so that nobody encodes it again."""
    id, record, pieces, digest, body, place = fields
    message, _, is_apart = decode_message(id, record)
    if is_apart:
        message = message._replace(body=b"".join(pieces))
    key = None if digest is None else IdempotencyKey(digest, body)
    return Accept(message, key, None if place is None else decode_place(place), (record, pieces))


def encode_answer(result: Any) -> Any:
    match result:
        case Accepted(active):
            return active
        case Duplicate(id):
            return id
        case Conflict():
            return None
        case StoreFull():
            return [str(result), result.host]
    raise TypeError(f"no answer to a new message: {result!r}")


def decode_answer(told: Any) -> Accepted | Duplicate | Conflict | StoreFull:
    if isinstance(told, bool):
        return _ACCEPTED[told]
    if isinstance(told, bytes):
        return Duplicate(told)
    if told is None:
        return Conflict()
    detail, host = told
    return StoreFull(detail, host=host)


def encode_counts(counters: Counters, connections: int) -> list[Any]:
    return [dict(counters.refused), counters.ack_seconds.counts, counters.ack_seconds.total, connections]


def decode_counts(told: list[Any], counters: Counters) -> int:
    """Puts them into the counters; returns the open connections."""
    refused, counts, total, connections = told
    counters.refused = Counter(refused)
    counters.ack_seconds.counts, counters.ack_seconds.total = counts, total
    return int(connections)
