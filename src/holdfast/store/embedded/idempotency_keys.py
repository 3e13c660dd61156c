"""Idempotency keys by epochs, so that expired keys are removed together and from one place.

An epoch lasts an eighth of a key's lifetime, but at least a minute. So if keys have to make room, the oldest go first,
to within an eighth. META says when each epoch began and ends; its number means nothing else. So a new value of
`ingest.idempotency` loses no key, and a lookup reads only the epochs that can hold a live key: nine, or a few more for
a while after the lifetime grew.
"""

import struct
from itertools import islice
from typing import NamedTuple

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import MessageId
from holdfast.store import records
from holdfast.store.embedded.tables import META_EPOCH, Table, Transaction, prefixed
from holdfast.store.records import idempotency_key

SHORTEST_EPOCH = 60_000
EPOCHS_A_LIFE = 8

_SPAN = struct.Struct(">QQ")


class Epoch(NamedTuple):
    """`ends` is the first moment of which no key can be in it."""

    number: int
    began: int
    ends: int


class Use(NamedTuple):
    """What a key was used for: the message, the digest of its body, and when."""

    id: MessageId
    body: bytes
    at: int


def epochs(transaction: Transaction) -> list[Epoch]:
    """Returns all epochs, oldest first."""
    return [
        Epoch(int.from_bytes(key[len(META_EPOCH) :], "big"), *_SPAN.unpack(value))
        for key, value in prefixed(transaction, Table.META, META_EPOCH)
        if len(value) == _SPAN.size
    ]


def put_epoch(transaction: Transaction, epoch: Epoch) -> None:
    transaction.put(Table.META, _epoch_key(epoch), _SPAN.pack(epoch.began, epoch.ends))


def find(transaction: Transaction, digest: bytes, since: int, known: list[Epoch] | None = None) -> Use | None:
    """Returns the last use of a key after a moment. `known` are the epochs, if the caller has read them."""
    for epoch in reversed(epochs(transaction) if known is None else known):
        if epoch.ends <= since:
            return None
        value = transaction.get(Table.KEYS, idempotency_key(epoch.number, digest))
        if value is None:
            continue
        try:
            use = Use(*records.decode_key(value))
        except CorruptRecord as error:
            transaction.faults.append((Table.KEYS, idempotency_key(epoch.number, digest), str(error)))
            continue
        if use.at > since:
            return use
    return None


def remember(
    transaction: Transaction, digest: bytes, use: Use, lifetime: int, known: list[Epoch] | None = None
) -> None:
    """Record the use of a key. A new epoch is added to `known`."""
    known = epochs(transaction) if known is None else known
    epoch = known[-1] if known else Epoch(0, 0, 0)
    if use.at >= epoch.ends:
        epoch = Epoch(epoch.number + 1, use.at, use.at + max(lifetime // EPOCHS_A_LIFE, SHORTEST_EPOCH))
        put_epoch(transaction, epoch)
        known.append(epoch)
    transaction.put(Table.KEYS, idempotency_key(epoch.number, digest), records.encode_key(*use))


def forget(transaction: Transaction, digest: bytes) -> None:
    for epoch in epochs(transaction):
        transaction.delete(Table.KEYS, idempotency_key(epoch.number, digest))


def purge(transaction: Transaction, before: int, limit: int) -> int:
    """Remove keys that were used before a moment, by whole epochs, oldest first. Returns how many."""
    removed = 0
    for epoch in epochs(transaction):
        if epoch.ends > before or removed >= limit:
            break
        prefix = idempotency_key(epoch.number, b"")
        doomed = [key for key, _ in islice(prefixed(transaction, Table.KEYS, prefix), limit - removed)]
        for key in doomed:
            transaction.delete(Table.KEYS, key)
        removed += len(doomed)
        if removed < limit:
            transaction.delete(Table.META, _epoch_key(epoch))
    return removed


def oldest_end(transaction: Transaction) -> int | None:
    """Returns when the oldest epoch ends. A lifetime after that its keys can be removed."""
    return min((epoch.ends for epoch in epochs(transaction)), default=None)


def _epoch_key(epoch: Epoch) -> bytes:
    return META_EPOCH + epoch.number.to_bytes(4, "big")
