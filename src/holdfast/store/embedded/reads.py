"""Reads of the tables, each inside one short read transaction. The cost does not depend on how much waits."""

from collections.abc import Container, Iterator

from holdfast.core.budget import HostClass
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import next_probe
from holdfast.core.lane_times import Heads
from holdfast.core.message import DeadReason, Entry, Message, MessageId, Place, Standing
from holdfast.store import records
from holdfast.store.batching import choose_lanes
from holdfast.store.embedded import idempotency_keys
from holdfast.store.embedded.tables import (
    Moment,
    Room,
    Table,
    Transaction,
    first_key,
    first_value,
    moment_key,
    prefixed,
)
from holdfast.store.port import Agenda, CircuitView, LaneQuery, LaneRecord, LaneView, OldestFinished, StoreStatistics
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.validation import check_message, is_name

HELD_SEEN = 10_000
"""Held messages that are passed over in search of a probe. After these the first due message will do."""
HELD_SEEN_BY_WRITER = 64
"""The same while the writer updates a lane's moments and the loop stands still."""


def heads_of(transaction: Transaction, key: bytes, *, probing: bool, writing: bool = False) -> Heads:
    """Returns the first entry of each of a lane's indexes. With `probing` it also finds the first possible probe.

    While `writing` that search is short. If it ends without a result, the lane is woken to look for itself.
    """
    waiting = _first_moment(transaction, Table.WAITING, key)
    due = _first_moment(transaction, Table.RETRY, key)
    aging = _first_moment(transaction, Table.AGING, key)
    ages = [age for age in (waiting, aging) if age is not None]
    most = HELD_SEEN_BY_WRITER if writing else HELD_SEEN
    probe_from = _probe_from(transaction, key, waiting, due, most, 0 if writing else due) if probing else None
    return Heads(waiting, due, min(ages, default=None), probe_from)


def _first_moment(transaction: Transaction, table: Table, key: bytes) -> int | None:
    value = first_value(transaction, table, key)
    return None if value is None else unstamp(value)[0]


def _probe_from(
    transaction: Transaction, key: bytes, waiting: int | None, due: int | None, most: int, otherwise: int | None
) -> int | None:
    """Returns when the first message may be a probe: at any time if it is not held, else when it is due. After `most`
    held ones the result is `otherwise`.
    """
    if waiting is not None:
        return 0
    for number, value in enumerate(transaction.values(Table.AGING, key)):
        if number >= most:
            return otherwise
        try:
            if not place_of(transaction, unstamp(value)[1], Place(Standing.RETRY, 0)).held:
                return 0
        except CorruptRecord:
            continue  # the survey of this lane reports it
    return due


def place_of(transaction: Transaction, id: MessageId, otherwise: Place) -> Place:
    value = transaction.get(Table.PLACES, id)
    return otherwise if value is None else records.decode_place(value)


def message_of(transaction: Transaction, id: MessageId, *, whole: bool = True) -> tuple[Message, int] | None:
    """Returns a stored message and the size of its body. A body kept apart is read only if `whole`."""
    value = transaction.get(Table.MESSAGES, id)
    if value is None:
        return None
    message, size, apart = records.decode_message(id, value)
    if whole and apart and size:
        body = b"".join(piece for _, piece in prefixed(transaction, Table.BODIES, id))
        if len(body) != size:
            raise CorruptRecord(f"message {id.hex()}: {len(body)} of {size} bytes of its body are there")
        message = message._replace(body=body)
    return message, size


def survey(transaction: Transaction, ask: LaneQuery) -> LaneView:
    """Returns one lane: its record, the next entries that `ask` wants, and the heads of its indexes."""
    key = lane_key(ask.lane)
    record = lane_record(transaction, key)
    broken: list[tuple[MessageId, str]] = []
    if record is None and transaction.get(Table.LANES, key) is not None:
        broken.append((bytes(16), f"the record of lane {ask.lane} can't be read: its circuit starts over"))
    fresh, more = _entries(transaction, Table.WAITING, key, ask, ask.fresh, broken, ask.read_to)
    due, next_due = _entries(transaction, Table.RETRY, key, ask, ask.due, broken)
    probing = record is not None and record.circuit.state is CircuitState.DISABLED
    probed = ask.probed or (record.circuit.probed if record is not None else None)

    def oldest(after: bytes | None) -> Iterator[Entry | None]:
        for table in (Table.WAITING, Table.AGING):
            yield _first_probe(transaction, table, key, ask, after, broken)

    probe = next_probe(probed, oldest) if probing else None
    heads = heads_of(transaction, key, probing=probing)
    return LaneView(record, fresh, due, probe, more is not None, next_due, heads, broken)


def _entries(
    transaction: Transaction,
    table: Table,
    key: bytes,
    ask: LaneQuery,
    limit: int,
    broken: list[tuple[MessageId, str]],
    start: bytes = b"",
) -> tuple[list[Entry], int | None]:
    """Returns the next entries of an index from `start` on, and the moment of the first that is left."""
    entries: list[Entry] = []
    size = 0
    standing = Standing.WAITING if table is Table.WAITING else Standing.RETRY
    for value in transaction.values(table, key, start):
        moment, id = unstamp(value)
        if id in ask.skip:
            continue
        later = table is Table.RETRY and moment > ask.now
        if later or len(entries) >= limit or size > ask.most_bytes:
            return entries, moment
        entry = _entry(transaction, id, Place(standing, moment), broken)
        if entry is not None:
            entries.append(entry)
            size += len(entry.message.body)
    return entries, None


def _entry(
    transaction: Transaction, id: MessageId, otherwise: Place, broken: list[tuple[MessageId, str]]
) -> Entry | None:
    try:
        found = message_of(transaction, id)
        if found is None:
            raise CorruptRecord(f"message {id.hex()} is in a queue and has no record")
        check_message(*found)
        place = place_of(transaction, id, otherwise)
        if place.standing is not otherwise.standing or otherwise.born not in (place.born, place.due):
            # Its outcome would not find it there, and it would be sent for ever.
            raise CorruptRecord(f"message {id.hex()} has another place than the queue that it is in")
        return Entry(found[0], place)
    except CorruptRecord as error:
        broken.append((id, str(error)))
        return None


def _first_probe(
    transaction: Transaction,
    table: Table,
    key: bytes,
    ask: LaneQuery,
    after: bytes | None,
    broken: list[tuple[MessageId, str]],
) -> Entry | None:
    """Never returns a held message."""
    standing = Standing.WAITING if table is Table.WAITING else Standing.RETRY
    held = 0
    for value in transaction.values(table, key, after or b""):
        born, id = unstamp(value)
        if value == after or id in ask.skip:
            continue
        if is_held(transaction, id, ask.now):
            held += 1
            if held >= HELD_SEEN:
                return next(iter(_entries(transaction, Table.RETRY, key, ask, 1, broken)[0]), None)
            continue
        entry = _entry(transaction, id, Place(standing, born), broken)
        if entry is not None:
            return entry
    return None


def is_held(transaction: Transaction, id: MessageId, now: int) -> bool:
    """Whether a message may not be a probe before its due time. An unreadable place counts as not held; it is reported
    when the message is read.
    """
    try:
        place = place_of(transaction, id, Place(Standing.WAITING, 0))
    except CorruptRecord:
        return False
    return place.held and place.due > now


def lane_record(transaction: Transaction, key: bytes) -> LaneRecord | None:
    return records.lane_or_none(transaction.get(Table.LANES, key))


def circuit_state(transaction: Transaction, lane: str) -> CircuitState:
    record = lane_record(transaction, lane_key(lane))
    return CircuitState.ENABLED if record is None else record.circuit.state


def agenda(
    transaction: Transaction, now: int, limit: int, skip: Container[str], classes: Container[int], since: int
) -> Agenda:
    def name_of(key: bytes) -> str | None:
        if transaction.get(Table.LANES, key[9:]) is not None and is_name(key[9:]):
            return key[9:].decode()
        transaction.faults.append((Table.MOMENTS, key, "a moment of no lane"))
        return None

    return choose_lanes(_wakes(transaction, since), now, limit, skip, classes, since, name_of)


def _wakes(transaction: Transaction, since: int) -> Iterator[tuple[int, bytes, int]]:
    wake = moment_key(Moment.WAKE)[:1]
    for key, value in transaction.scan(Table.MOMENTS, moment_key(Moment.WAKE, since)):
        if not key.startswith(wake):
            return
        yield int.from_bytes(key[1:9], "big"), key, value[0] if value else HostClass.ANSWERING


def active(transaction: Transaction, limit: int) -> list[Message]:
    """Returns messages that could start at once when the last run ended."""
    found: list[Message] = []
    for id, lane in transaction.scan(Table.ACTIVE):
        if len(found) >= limit:
            break
        try:
            value = transaction.get(Table.MESSAGES, id) or b""
            found.append(records.decode_message(id, value)[0])
        except CorruptRecord as error:
            if is_name(lane):
                found.append(_unreadable(id, lane.decode()))
            else:
                transaction.faults.append((Table.ACTIVE, id, str(error)))
    return found


def _unreadable(id: MessageId, lane: str) -> Message:
    """Enough of a message with a broken record to put it into its lane's queue, where it is found and reported."""
    accepted_at = int.from_bytes(id[:6], "big")
    return Message(id, lane, lane, "", "", b"", "", (), b"", accepted_at, accepted_at)


def dead_reason(transaction: Transaction, id: MessageId, place: Place) -> DeadReason | None:
    key = stamp(place.due, id)
    value = transaction.get(Table.DEAD, key)
    try:
        return None if value is None else records.decode_dead(value)[1]
    except CorruptRecord as error:
        transaction.faults.append((Table.DEAD, key, str(error)))
        return None


def circuit(transaction: Transaction, key: bytes) -> CircuitView | None:
    record = lane_record(transaction, key)
    if record is None:
        return None
    waiting = transaction.count(Table.WAITING, key) + transaction.count(Table.RETRY, key)
    oldest = heads_of(transaction, key, probing=False).oldest
    return CircuitView(record, waiting, transaction.count(Table.DEAD_LANE, key), oldest)


def circuits(
    transaction: Transaction, state: CircuitState | None, after: str | None, limit: int
) -> tuple[list[CircuitView], str | None]:
    """Returns a page of circuits in the order of their keys, and the key to go on after."""
    found: list[CircuitView] = []
    start = lane_key(after) + b"\0" if after is not None else b""
    for key in _lane_keys(transaction, state, start):
        view = circuit(transaction, key)
        if view is None or (state is not None and view.record.circuit.state is not state):
            continue
        if len(found) >= limit:
            return found, found[-1].record.key
        found.append(view)
    return found, None


def _lane_keys(transaction: Transaction, state: CircuitState | None, start: bytes) -> Iterator[bytes]:
    if state is not None and state is not CircuitState.ENABLED:
        yield from transaction.values(Table.UNWELL, state.encode(), start)
    else:
        for key, _ in transaction.scan(Table.LANES, start):
            yield key


def oldest_finished(transaction: Transaction) -> OldestFinished:
    delivered = first_key(transaction, Table.FINISHED)
    dead = first_key(transaction, Table.DEAD)
    return OldestFinished(
        None if delivered is None else unstamp(delivered)[0],
        None if dead is None else unstamp(dead)[0],
        idempotency_keys.oldest_end(transaction),
    )


def statistics(transaction: Transaction, path: str, room: Room, full: bool) -> StoreStatistics:
    unwell: dict[CircuitState, int] = {
        state: transaction.count(Table.UNWELL, state.encode())
        for state in CircuitState
        if state is not CircuitState.ENABLED
    }
    enabled = transaction.entries(Table.LANES) - sum(unwell.values())
    first = transaction.entries(Table.ACTIVE) + transaction.entries(Table.WAITING)
    retry = transaction.entries(Table.RETRY)
    oldest = _first_of(transaction, Moment.OLDEST)
    active_id = first_key(transaction, Table.ACTIVE)
    if active_id is not None:
        since = int.from_bytes(active_id[:6], "big")
        oldest = since if oldest is None else min(oldest, since)
    return StoreStatistics(
        path=path,
        used_bytes=room.used,
        reserved_bytes=room.reserved,
        max_bytes=room.limit,
        waiting=first + retry,
        dead=transaction.entries(Table.DEAD),
        first=first,
        retry=retry,
        circuits={CircuitState.ENABLED: enabled, **unwell},
        oldest_waiting_at=oldest,
        next_due_at=_first_of(transaction, Moment.DUE),
        earliest_expiry_at=_first_of(transaction, Moment.EXPIRY),
        full=full,
    )


def _first_of(transaction: Transaction, moment: Moment) -> int | None:
    prefix = moment_key(moment)[:1]
    key = first_key(transaction, Table.MOMENTS, prefix)
    return int.from_bytes(key[1:9], "big") if key is not None and key.startswith(prefix) else None
