"""A stopped store as JSON lines, and JSON lines back into a store.

Export holds one message in memory at a time. It leaves out and reports what can't be read; `holdfast fsck --repair`
fixes such a store. Import skips and counts what is already there, so an interrupted import is simply repeated. It
encodes a line before its batch is written: a bad line is reported with its number, and nothing of it is stored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from holdfast.core.errors import CorruptRecord, StoreFull
from holdfast.core.message import MessageId, Standing
from holdfast.core.store_rules import StoreRules
from holdfast.store import export_format, maintenance, records
from holdfast.store.embedded import idempotency_keys, reads
from holdfast.store.embedded.attempt_rows import attempts_of, rows_of
from holdfast.store.embedded.group import Group, GroupWork
from holdfast.store.embedded.idempotency_keys import Use
from holdfast.store.embedded.indexes import IndexEntry, index_entries, is_default_place, place_of, summarise
from holdfast.store.embedded.shares import RoomKeeper, claim_of
from holdfast.store.embedded.tables import Engine, Table, Transaction, put_row, walk
from holdfast.store.export_format import Delivered, ExportedKey, Line, Record
from holdfast.store.maintenance import Finding, Imported, framed
from holdfast.store.offline.fsck import NAMES, name_of
from holdfast.store.offline.row_checks import fault_of
from holdfast.store.port import LaneRecord
from holdfast.store.records import lane_key, numbered, stamp
from holdfast.store.transfer import StoredMessage
from holdfast.store.validation import UNREADABLE


def export_lines(engine: Engine, left_out: Callable[[Finding], None]) -> Iterator[bytes]:
    """Yields the whole store, line by line. Calls `left_out` for each record that is left out."""
    return framed(_lines(engine, left_out))


def _lines(engine: Engine, left_out: Callable[[Finding], None]) -> Iterator[Line]:
    for table in _SHAPES:
        for transaction, (key, value) in walk(engine, table):
            try:
                yield _line(transaction, table, key, value)
            except (*UNREADABLE, OverflowError) as error:
                left_out(Finding(NAMES[table], name_of(table, key, value), str(error)))


def _line(transaction: Transaction, table: Table, key: bytes, value: bytes) -> Line:
    fault = fault_of(transaction, table, key, value)
    if fault:
        raise CorruptRecord(fault)
    return _SHAPES[table](transaction, key, value)


def _circuit(transaction: Transaction, key: bytes, value: bytes) -> Line:
    return export_format.circuit_line(records.decode_lane(value))


def _message(transaction: Transaction, id: bytes, value: bytes) -> Line:
    found = reads.message_of(transaction, id)
    assert found is not None
    message = found[0]
    place = place_of(transaction, message)
    reason = reads.dead_reason(transaction, id, place) if place.standing is Standing.DEAD else None
    if place.standing is Standing.DEAD and reason is None:
        raise CorruptRecord("it is dead, and no dead letter says why")
    return export_format.message_line(StoredMessage(message, place, reason, attempts_of(transaction, id)))


def _delivered(transaction: Transaction, id: bytes, value: bytes) -> Line:
    return export_format.delivered_line(Delivered(*records.decode_delivered(id, value), attempts_of(transaction, id)))


def _key(transaction: Transaction, key: bytes, value: bytes) -> Line:
    id, body, at = records.decode_key(value)
    return export_format.key_line(ExportedKey(key[4:], body, id, at))


_SHAPES: dict[Table, Callable[[Transaction, bytes, bytes], Line]] = {
    Table.LANES: _circuit,
    Table.MESSAGES: _message,
    Table.DELIVERED: _delivered,
    Table.KEYS: _key,
}


NEVER_BEFORE = -1


@dataclass(slots=True)
class Piece:
    """One line, encoded: the rows that it adds, and the rows that show it is already there.

    `lane` is the lane whose summary changes. With `waits` the lane needs a record. `holds` is the size of the body,
    which counts for the host's share. An idempotency key is a `use` instead: the store has epochs of its own.
    """

    kind: str
    known_by: list[tuple[Table, bytes]]
    rows: list[IndexEntry]
    host: str = ""
    lane: str = ""
    holds: int | None = None
    waits: bool = False
    finished: tuple[int, MessageId] | None = None
    use: tuple[bytes, Use] | None = None

    @property
    def size(self) -> int:
        return sum(len(key) + len(value) for _, key, value in self.rows)

    def is_known(self, transaction: Transaction) -> bool:
        if self.use is not None:
            return idempotency_keys.find(transaction, self.use[0], NEVER_BEFORE) is not None
        return any(transaction.get(*row) is not None for row in self.known_by)


class Import:
    def __init__(self, engine: Engine, rules: StoreRules, now: int) -> None:
        self._engine = engine
        self._rules = rules
        self._now = now
        self._room = RoomKeeper(rules.host_share, engine.room)

    def run(self, source: Iterable[bytes], bad_line: Callable[[int, str], None]) -> Imported:
        return maintenance.take(source, bad_line, _encoded, self._write)

    def _write(self, batch: list[Piece]) -> "Counter[str]":
        added: Counter[str] = Counter()
        claim = claim_of(sum(piece.holds is not None for piece in batch), sum(piece.size for piece in batch))
        self._engine.extend(claim)
        with (writing := self._engine.write()) as transaction:
            work = GroupWork(transaction, Group([], [], {}, claim, self._now, bytes(16)), self._rules, self._room)
            self._room.begin(claim)
            if self._room.full:
                raise StoreFull("the store is full; raise store.max_size and import the same file again")
            finished: list[tuple[int, MessageId]] = []
            for piece in batch:
                if not piece.is_known(transaction):
                    added[piece.kind] += 1
                    _add(work, piece)
                    finished += [piece.finished] if piece.finished else []
            if finished:
                # One row for the batch, as the ledger writes them. It is swept when the last of them is due.
                key = stamp(max(moment for moment, _ in finished), finished[0][1])
                transaction.put(Table.FINISHED, key, b"".join(id for _, id in finished))
            for lane in work.touched:
                summarise(transaction, lane, self._rules)
            self._room.finish(transaction)
            writing.commit()
        self._room.committed()
        return added


def _add(work: GroupWork, piece: Piece) -> None:
    if piece.waits:
        work.ensure_lane(piece.lane, piece.host)
    if piece.holds is not None:
        work.room.hold(piece.host, piece.holds)
    for row in piece.rows:
        put_row(work.transaction, *row)
    if piece.use is not None:
        idempotency_keys.remember(work.transaction, *piece.use, work.rules.idempotency)
    if piece.lane:
        work.touched.add(piece.lane)


def _encoded(record: Record) -> Piece:
    match record:
        case LaneRecord():
            row = Table.LANES, lane_key(record.key), records.encode_lane(record)
            return Piece("circuit", [row[:2]], [row], lane=record.key)
        case StoredMessage():
            return _message_piece(record)
        case Delivered(message, size, finished_at, success, attempts):
            encoded = records.encode_delivered(message, success, finished_at, size)
            rows = [(Table.DELIVERED, message.id, encoded), *rows_of(message.id, attempts)]
            return Piece("delivered", _known(message.id), rows, finished=(finished_at, message.id))
        case ExportedKey(digest, body, id, at):
            return Piece("key", [], [], use=(digest, Use(id, body, at)))


def _message_piece(stored: StoredMessage) -> Piece:
    message, place, reason, attempts, _ = stored
    record, pieces = records.encode_message(message)
    rows = [
        (Table.MESSAGES, message.id, record),
        *((Table.BODIES, numbered(message.id, number), piece) for number, piece in enumerate(pieces)),
        *rows_of(message.id, attempts),
        *(index_entries(message, place, reason) if reason else index_entries(message, place)),
    ]
    if attempts or not is_default_place(message, place):
        rows.append((Table.PLACES, message.id, records.encode_place(place)))
    waits = place.standing is not Standing.DEAD
    return Piece("message", _known(message.id), rows, message.host, message.lane, len(message.body), waits)


def _known(id: MessageId) -> list[tuple[Table, bytes]]:
    return [(Table.MESSAGES, id), (Table.DELIVERED, id)]
