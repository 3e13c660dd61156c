"""Checks a stopped store: reads every row, and compares every index with the messages.

Each fault is reported once: an index entry of an unreadable message is not a second fault.
"""

from collections import Counter
from collections.abc import Iterator

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import DeadReason, Standing, id_text
from holdfast.core.store_rules import MESSAGE_COST, StoreRules
from holdfast.store import records
from holdfast.store.embedded.idempotency_keys import epochs
from holdfast.store.embedded.indexes import (
    INDEXES,
    entry_id,
    has_entry,
    index_entries,
    place_of,
    rows_of_summary,
    summary_of,
)
from holdfast.store.embedded.shares import known_shares
from holdfast.store.embedded.tables import Engine, Table, Transaction, has_row, prefixed, walk
from holdfast.store.maintenance import Finding, delivered_still_here, unreadable
from holdfast.store.offline.row_checks import fault_of
from holdfast.store.validation import ID, readable_message

DETAILS = (Table.BODIES, Table.PLACES, Table.ATTEMPTS)
SUMMARISED = (Table.SUMMARIES, Table.UNWELL, Table.MOMENTS)
NAMES = {
    Table.MESSAGES: "message",
    Table.BODIES: "body",
    Table.PLACES: "place",
    Table.ATTEMPTS: "attempt",
    Table.DELIVERED: "delivered",
    Table.FINISHED: "delivered",
    Table.LANES: "circuit",
    Table.KEYS: "key",
    Table.SHARES: "share",
    Table.SHIFTS: "share",
    Table.META: "meta",
    **dict.fromkeys(INDEXES, "index"),
    **dict.fromkeys(SUMMARISED, "summary"),
}
UNREADABLE = None
"""Counts unreadable messages among the hosts. While there are any, no share can be checked."""
_BY_ID = (Table.MESSAGES, Table.DELIVERED, Table.ACTIVE, *DETAILS)
_BY_NAME = (Table.LANES, Table.SHARES, Table.META)


def check(engine: Engine, rules: StoreRules) -> Iterator[Finding]:
    """Yields every fault as it is found. The expected moments of lanes depend on `rules`, those of the gateway's
    config.
    """
    for table in Table:
        if table not in (Table.MESSAGES, *SUMMARISED):
            yield from _unreadable(engine, table)
    held: Counter[str | None] = Counter()
    yield from _messages(engine, held)
    for table in (*INDEXES, *DETAILS, Table.KEYS):
        for transaction, row in walk(engine, table):
            what = None if fault_of(transaction, table, *row) else stray(transaction, table, *row)
            if what is not None:
                yield Finding(NAMES[table], name_of(table, *row), what)
    yield from _finished(engine)
    yield from _summaries(engine, rules)
    if not held[UNREADABLE]:
        yield from _shares(engine, held)


def _unreadable(engine: Engine, table: Table) -> Iterator[Finding]:
    for transaction, row in walk(engine, table):
        fault = fault_of(transaction, table, *row)
        if fault:
            yield unreadable(NAMES[table], name_of(table, *row), fault)


def name_of(table: Table, key: bytes, value: bytes) -> str:
    """Returns the name by which people know a row."""
    if table in _BY_NAME:
        return key.decode(errors="backslashreplace")
    id = key[:ID] if table in _BY_ID else entry_id(table, key, value) if table in INDEXES else b""
    return id_text(id) if len(id) == ID else key.hex()


def stray(transaction: Transaction, table: Table, key: bytes, value: bytes) -> str | None:
    """Returns why a readable row should not be there; None if it should."""
    if table in INDEXES:
        return stray_entry(transaction, table, key, value)
    if table is Table.KEYS:
        known = {epoch.number for epoch in epochs(transaction)}
        return None if int.from_bytes(key[:4], "big") in known else "is of an epoch that META does not know"
    return stray_detail(transaction, table, key)


def stray_entry(transaction: Transaction, table: Table, key: bytes, value: bytes) -> str | None:
    """Returns why an index entry should not be there. Faults of the message's own records are reported with those."""
    id = entry_id(table, key, value)
    record = transaction.get(Table.MESSAGES, id)
    if record is None:
        return f"is in {table.name} and has no message"
    stored = readable_message(id, record)
    try:
        entries = index_entries(stored[0], place_of(transaction, stored[0])) if stored else []
        if table is Table.DEAD:
            value = records.encode_dead(records.decode_dead(value)[0], DeadReason.EXHAUSTED)
    except CorruptRecord:
        return None
    if stored is None or (table, key, value) in entries:
        return None
    expected = " and ".join(entry[0].name for entry in entries)
    return f"is in {table.name} and belongs in {expected}, or elsewhere in it"


def stray_detail(transaction: Transaction, table: Table, key: bytes) -> str | None:
    """Returns why a piece of a body, an attempt or a place should not be there."""
    id = key[:ID]
    record = transaction.get(Table.MESSAGES, id)
    if record is None:
        kept = table is Table.ATTEMPTS and transaction.get(Table.DELIVERED, id) is not None
        return None if kept else f"is in {table.name} and has no message"
    stored = readable_message(id, record)
    inside = table is Table.BODIES and stored is not None and not stored[2]
    return "is in BODIES, and its message has its body inside" if inside else None


def _messages(engine: Engine, held: Counter[str | None]) -> Iterator[Finding]:
    """Every message is in its indexes, and its lane has a record. Adds up in `held` what each host holds."""
    for transaction, (id, value) in walk(engine, Table.MESSAGES):
        fault = fault_of(transaction, Table.MESSAGES, id, value)
        if fault:
            yield unreadable("message", name_of(Table.MESSAGES, id, value), fault)
            held[UNREADABLE] += 1
            continue
        message, size, _ = records.decode_message(id, value)
        held[message.host] += MESSAGE_COST + size
        if transaction.get(Table.DELIVERED, id) is not None:
            yield delivered_still_here(id)
        try:
            place = place_of(transaction, message)
        except CorruptRecord:
            continue
        for entry in index_entries(message, place):
            if not has_entry(transaction, entry):
                yield Finding("index", id_text(id), f"belongs in {entry[0].name} and is not there")
        if transaction.get(Table.PLACES, id) is None and any(prefixed(transaction, Table.ATTEMPTS, id)):
            yield Finding("place", id_text(id), "has attempts and no place")
        queued = place.standing in (Standing.WAITING, Standing.RETRY)
        if queued and transaction.get(Table.LANES, records.lane_key(message.lane)) is None:
            yield Finding("circuit", message.lane, f"has no record, and {id_text(id)} waits in it")


def _finished(engine: Engine) -> Iterator[Finding]:
    """FINISHED, from which delivered records are swept, names each of them once."""
    listed = 0
    for transaction, row in walk(engine, Table.FINISHED):
        if fault_of(transaction, Table.FINISHED, *row):
            continue
        for id in ids_of(row[1]):
            listed += 1
            if transaction.get(Table.DELIVERED, id) is None:
                yield Finding("delivered", id_text(id), "is listed in FINISHED and has no record")
    with engine.read() as transaction:
        delivered = transaction.entries(Table.DELIVERED)
    if listed != delivered:
        # Only now: the ids of millions of delivered messages take hundreds of megabytes.
        yield from _unlisted(engine)


def _unlisted(engine: Engine) -> Iterator[Finding]:
    listed = Counter(id for _, (_, ids) in walk(engine, Table.FINISHED) for id in ids_of(ids))
    for _, (id, _) in walk(engine, Table.DELIVERED):
        if listed[id] != 1:
            yield Finding("delivered", id_text(id), f"is listed in FINISHED {listed[id]} times")


def ids_of(value: bytes) -> list[bytes]:
    return [value[start : start + ID] for start in range(0, len(value), ID)]


def _summaries(engine: Engine, rules: StoreRules) -> Iterator[Finding]:
    for transaction, (key, value) in walk(engine, Table.LANES):
        if fault_of(transaction, Table.LANES, key, value):
            continue
        summary = summary_of(transaction, key, rules)
        rows = [(Table.SUMMARIES, key, summary), *rows_of_summary(key, summary)]
        missing = dict.fromkeys(table.name for table, *row in rows if not has_row(transaction, table, *row))
        if missing:
            what = f"{' and '.join(missing)} do not match its circuit and its queue under this config"
            yield Finding("summary", key.decode(), what)
    for table in SUMMARISED:
        for transaction, row in walk(engine, table):
            if stray_summary(transaction, table, row, rules):
                lane = summarised_lane(table, *row)
                yield Finding("summary", lane.decode(errors="backslashreplace"), f"{table.name} has a wrong row")


def summarised_lane(table: Table, key: bytes, value: bytes) -> bytes:
    if table is Table.MOMENTS:
        return key[9:]
    return value if table is Table.UNWELL else key


def stray_summary(transaction: Transaction, table: Table, row: tuple[bytes, bytes], rules: StoreRules) -> bool:
    """Whether a row belongs to no lane, or is not what its lane's summary asks for. A missing or outdated summary is a
    fault of its lane.
    """
    lane = summarised_lane(table, *row)
    record = transaction.get(Table.LANES, lane) if lane else None
    if record is None:
        return True
    if table is Table.SUMMARIES or fault_of(transaction, Table.LANES, lane, record):
        return False
    return (table, *row) not in rows_of_summary(lane, summary_of(transaction, lane, rules))


def _shares(engine: Engine, held: Counter[str | None]) -> Iterator[Finding]:
    counted, _ = known_shares(engine)
    for host in sorted(set(counted) | {host for host in held if host is not None}):
        if counted[host] != held[host]:
            yield Finding("share", host, f"is counted with {counted[host]} bytes and holds {held[host]}")
