"""Brings a store of an older version up to date, step by step, before anyone else sees it.

Each step goes from one version to the next in bounded transactions. An interrupted step is repeated from its beginning
at the next start, so each of its transactions leaves a store that the same step can begin with. The version is written
last.

    1 -> 2   idempotency keys by epochs in META, whatever `ingest.idempotency` is; shares exact after a kill
             (message records of version 1 stay as they are: records.py reads both)
    2 -> 3   attempts of a message in two rows; lane records say whether the host answers (old rows are read as they
             are, and written anew when they change)
"""

import logging
from collections.abc import Callable
from itertools import islice

from holdfast.core.errors import CorruptRecord, StoreError, StoreUnusable
from holdfast.store import records
from holdfast.store.embedded import idempotency_keys
from holdfast.store.embedded.idempotency_keys import Epoch
from holdfast.store.embedded.shares import count_shares, write_shares
from holdfast.store.embedded.tables import BATCH, META_LATEST, META_SCHEMA, SCHEMA, Engine, Table, Transaction, step
from holdfast.store.records import idempotency_key, unstamp

_logger = logging.getLogger("holdfast.store")


def migrate(engine: Engine) -> None:
    """Raises StoreUnusable if the store is of a newer version, or there is no room to migrate it."""
    with engine.read() as transaction:
        stored = transaction.get(Table.META, META_SCHEMA)
    version = SCHEMA if stored is None else int.from_bytes(stored, "big")
    if version > SCHEMA:
        raise StoreUnusable(f"the store has schema {version}; this holdfast knows up to {SCHEMA}")
    try:
        if stored is None:
            _write_version(engine, SCHEMA)
        while version < SCHEMA:
            _STEPS[version](engine)
            version += 1
            _write_version(engine, version)
            _logger.info("store_migrated", extra={"fields": {"schema": version}})
    except StoreError as error:
        raise StoreUnusable(f"the store can't be brought from schema {version} to {SCHEMA}: {error}") from error


def _write_version(engine: Engine, version: int) -> None:
    step(engine, lambda transaction: transaction.put(Table.META, META_SCHEMA, version.to_bytes(4, "big")), size=0)


def _to_version_2(engine: Engine) -> None:
    _gather_keys(engine)
    write_shares(engine, count_shares(engine))


def _gather_keys(engine: Engine) -> None:
    """Put all keys into one epoch that has ended: their old epochs came from a setting that may change."""
    with engine.read() as transaction:
        latest = transaction.get(Table.META, META_LATEST)
    ends = 1 + (unstamp(latest)[0] if latest else 0)
    step(engine, lambda transaction: idempotency_keys.put_epoch(transaction, Epoch(0, 0, ends)))
    moved = BATCH
    while moved >= BATCH:
        moved = step(engine, _move_keys)


def _move_keys(transaction: Transaction) -> int:
    rows = list(islice(transaction.scan(Table.KEYS, idempotency_key(1, b"")), BATCH))
    for key, value in rows:
        transaction.delete(Table.KEYS, key)
        there = idempotency_key(0, key[4:])
        if _used_at(value) >= _used_at(transaction.get(Table.KEYS, there)):
            transaction.put(Table.KEYS, there, value)
    return len(rows)


def _used_at(value: bytes | None) -> int:
    try:
        return -1 if value is None else records.decode_key(value)[2]
    except CorruptRecord:
        return -1


def _to_version_3(engine: Engine) -> None:
    """Nothing is rewritten: both forms of these records are read."""


_STEPS: dict[int, Callable[[Engine], None]] = {1: _to_version_2, 2: _to_version_3}
