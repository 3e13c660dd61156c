"""The lines of an export back into a store: in batches, each one transaction with everything that belongs to it.

What is already there stays as it is and is counted as skipped, so an import that was interrupted is simply repeated.
A line is encoded before its batch is written: one that can't be is reported with its number, and nothing of it is
stored.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, MessageId, Standing
from holdfast.store import keys, lines, records
from holdfast.store.attempts import rows_of
from holdfast.store.incoming import Imported, batches
from holdfast.store.keys import Use
from holdfast.store.lines import Line
from holdfast.store.records import lane_key, numbered, stamp
from holdfast.store.room import RoomKeeper, claim_of
from holdfast.store.sound import check_attempt, check_lane, check_message, check_moments
from holdfast.store.standing import Seat, is_told_by_default, seats_of
from holdfast.store.summaries import summarise
from holdfast.store.tables import Engine, Table, Transaction
from holdfast.store.walking import put_row
from holdfast.store.work import Group, StoreRules, Work

NEVER_BEFORE = -1


@dataclass(slots=True)
class Piece:
    """One line, encoded: by which rows it is known, and all the rows that it adds.

    `lane` is the one whose summary it changes; `waits` tells that its lane needs a record, `holds` is its body's size
    against the host's share. An idempotency key is a `use` of it instead: the store has its own epochs.
    """

    kind: str
    known_by: list[tuple[Table, bytes]]
    rows: list[Seat]
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
            return keys.find(transaction, self.use[0], NEVER_BEFORE) is not None
        return any(transaction.get(*row) is not None for row in self.known_by)


class Import:
    """One import. `bad_line` hears of each line that could not be taken, with its number."""

    def __init__(self, engine: Engine, rules: StoreRules, now: int, bad_line: Callable[[int, str], None]) -> None:
        self._engine = engine
        self._rules = rules
        self._now = now
        self._bad_line = bad_line
        self._room = RoomKeeper(rules.host_share, engine.room)
        self.done = Imported()

    def run(self, source: Iterable[bytes]) -> Imported:
        """Take the lines after the header."""
        for batch, size in batches(source, _READERS, self.done, self._bad_line):
            self._write(batch, size)
        return self.done

    def _write(self, batch: list[Piece], size: int) -> None:
        """One transaction. Counted only when it is on disk."""
        added: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        claim = claim_of(sum(piece.holds is not None for piece in batch), size)
        self._engine.extend(claim)
        with (writing := self._engine.write()) as transaction:
            work = Work(transaction, Group([], [], {}, claim, self._now, bytes(16)), self._rules, self._room)
            self._room.begin(claim)
            if self._room.full:
                raise StoreFull("the store is full; raise store.max_size and import the same file again")
            finished: list[tuple[int, MessageId]] = []
            for piece in batch:
                if piece.is_known(transaction):
                    skipped[piece.kind] += 1
                    continue
                added[piece.kind] += 1
                _add(work, piece)
                finished += [piece.finished] if piece.finished else []
            if finished:
                # One entry a batch, as the ledger does; it is swept when the last of them is due.
                key = stamp(max(moment for moment, _ in finished), finished[0][1])
                transaction.put(Table.FINISHED, key, b"".join(id for _, id in finished))
            for lane in work.touched:
                summarise(transaction, lane, self._rules)
            self._room.finish(transaction)
            writing.commit()
        self._room.committed()
        self.done.added += added
        self.done.skipped += skipped


def _add(work: Work, piece: Piece) -> None:
    if piece.waits:
        work.know_lane(piece.lane, piece.host)
    if piece.holds is not None:
        work.room.hold(piece.host, piece.holds)
    for row in piece.rows:
        put_row(work.transaction, *row)
    if piece.use is not None:
        keys.remember(work.transaction, *piece.use, work.rules.idempotency)
    if piece.lane:
        work.touched.add(piece.lane)


def _circuit(line: Line) -> Piece:
    record = lines.read_circuit(line)
    check_lane(record)
    key = lane_key(record.key)
    return Piece("circuit", [(Table.LANES, key)], [(Table.LANES, key, records.encode_lane(record))], lane=record.key)


def _message(line: Line) -> Piece:
    message, place, reason, attempts = lines.read_message(line)
    check_message(message, len(message.body))
    record, pieces = records.encode_message(message)
    rows = [
        (Table.MESSAGES, message.id, record),
        *((Table.BODIES, numbered(message.id, number), piece) for number, piece in enumerate(pieces)),
        *_attempt_rows(message.id, attempts),
        *(seats_of(message, place, reason) if reason else seats_of(message, place)),
    ]
    encoded_place = records.encode_place(place)
    if attempts or not is_told_by_default(message, place):
        rows.append((Table.PLACES, message.id, encoded_place))
    waits = place.standing is not Standing.DEAD
    return Piece("message", _known(message.id), rows, message.host, message.lane, len(message.body), waits)


def _delivered(line: Line) -> Piece:
    message, size, finished_at, success, attempts = lines.read_delivered(line)
    check_message(message, size)
    check_attempt(success)
    check_moments((finished_at,))
    record = records.encode_delivered(message, success, finished_at, size)
    rows = [(Table.DELIVERED, message.id, record), *_attempt_rows(message.id, attempts)]
    return Piece("delivered", _known(message.id), rows, finished=(finished_at, message.id))


def _key(line: Line) -> Piece:
    digest, body, id, at = lines.read_key(line)
    check_moments((at,))
    return Piece("key", [], [], use=(digest, Use(id, body, at)))


def _known(id: MessageId) -> list[tuple[Table, bytes]]:
    return [(Table.MESSAGES, id), (Table.DELIVERED, id)]


def _attempt_rows(id: MessageId, attempts: list[Attempt]) -> list[Seat]:
    for attempt in attempts:
        check_attempt(attempt)
    return rows_of(id, attempts)


_READERS: dict[str, Callable[[Line], Piece]] = {
    "circuit": _circuit,
    "message": _message,
    "delivered": _delivered,
    "key": _key,
}
