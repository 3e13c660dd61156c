"""The lines of an export into a database: in batches, each one transaction with everything that belongs to it, while
the fleet goes on.

What is already there stays as it is and is counted as skipped, so an import that was interrupted is simply repeated.
What was active where it comes from waits here: nobody has it in memory.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, Message, MessageId, Place, Standing
from holdfast.store import lines, records
from holdfast.store.lines import Key, Line
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import counting, rows, waking
from holdfast.store.postgres.accepting import know_lanes
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.rows import NUMBERS, REASONS, STATE_NUMBERS
from holdfast.store.postgres.terms import Terms
from holdfast.store.postgres.walking import repeated
from holdfast.store.records import numbered
from holdfast.store.room import WATERMARK
from holdfast.store.shares import MESSAGE_COST
from holdfast.store.sound import check_attempt, check_lane, check_message, check_moments
from holdfast.store.taking import Imported, batches

MOST_RETRIES, MOST_ATTEMPTS = (1 << 15) - 1, (1 << 31) - 1
"""What the columns hold."""


class _Waiting(NamedTuple):
    message: Message
    place: Place
    reason: int | None
    record: bytes
    body: bytes | None


class _Finished(NamedTuple):
    id: MessageId
    at: int
    record: bytes


class Piece(NamedTuple):
    """One line, encoded, with the rows of its attempts. `key` is what it is known by, `size` about what it adds."""

    kind: str
    key: Any
    what: Any
    size: int
    attempts: Sequence[tuple[Any, ...]] = ()


class Import:
    """One import. `bad_line` hears of each line that could not be taken, with its number."""

    def __init__(self, connection: Connection, terms: Terms, bad_line: Callable[[int, str], None]) -> None:
        self._connection = connection
        self._terms = terms
        self._bad_line = bad_line
        self.done = Imported()

    def run(self, source: Iterable[bytes]) -> Imported:
        """Take the lines after the header."""
        for batch, _ in batches(source, _READERS, self.done, self._bad_line):
            added = repeated(self._connection, partial(_write, batch=batch, terms=self._terms))
            self.done.added += added
            self.done.skipped += Counter(piece.kind for piece in batch) - added
        return self.done


def _write(connection: Connection, batch: Sequence[Piece], terms: Terms) -> "Counter[str]":
    """One transaction. Returns how many lines of each kind it added."""
    fresh = _unknown(connection, [piece for piece in batch if piece.kind in ("message", "delivered")])
    waiting = _put_messages(connection, [piece.what for piece in fresh if piece.kind == "message"], terms)
    finished = _put_delivered(connection, [piece.what for piece in fresh if piece.kind == "delivered"])
    there = {each.message.id for each in waiting} | finished
    _put_attempts(connection, [row for piece in fresh if piece.key in there for row in piece.attempts])
    circuits = _put_circuits(connection, [piece.what for piece in batch if piece.kind == "circuit"], terms)
    keys = _put_keys(connection, [piece.what for piece in batch if piece.kind == "key"], terms)
    lanes = {each.message.lane: each.message.host for each in waiting if each.reason is None}
    if lanes:
        know_lanes(connection, lanes, terms)
    # Not only lowered: what comes may be older, and expire sooner, than what is there.
    waking.review(connection, lanes.keys() | circuits, terms)
    waking.hint(connection, sorted(lanes), terms)
    return Counter(message=len(waiting), delivered=len(finished), circuit=len(circuits), key=keys)


def _unknown(connection: Connection, pieces: Sequence[Piece]) -> list[Piece]:
    """Those whose id is here neither waiting nor dead nor delivered; the first of each."""
    first = {piece.key: piece for piece in reversed(pieces)}
    ids = list(first)
    known = connection.execute(
        """SELECT id FROM messages WHERE id = ANY(%s::bytea[]) UNION ALL
        SELECT id FROM delivered WHERE id = ANY(%s::bytea[])""",
        (ids, ids),
    )
    for (id,) in known:
        first.pop(id, None)
    return list(first.values())


def _put_messages(connection: Connection, coming: Sequence[_Waiting], terms: Terms) -> list[_Waiting]:
    """Returns those that were put: another import may be under way."""
    if not coming:
        return []
    adds = sum(MESSAGE_COST + len(each.message.body) for each in coming)
    if counting.total(connection).bytes + adds > WATERMARK * terms.max_size:
        raise StoreFull("the store is full; raise store.max_size and import the same file again")
    put = connection.execute(
        """INSERT INTO messages (id, lane, standing, born, due, retry, attempts, held, reason, size, record, body)
        SELECT * FROM unnest(%s::bytea[], %s::text[], %s::smallint[], %s::bigint[], %s::bigint[], %s::smallint[],
            %s::integer[], %s::boolean[], %s::smallint[], %s::integer[], %s::bytea[], %s::bytea[])
        ON CONFLICT (id) DO NOTHING RETURNING id""",
        _columns([_message_row(each) for each in sorted(coming)]),
    )
    there = {id for (id,) in put}
    counts = counting.Counts()
    for each in coming:
        if each.message.id in there:
            message = each.message
            counts.add(message.host, message.lane, NUMBERS[each.place.standing], len(message.body))
    counts.write(connection, terms.writer)
    return [each for each in coming if each.message.id in there]


def _message_row(each: _Waiting) -> tuple[Any, ...]:
    message, (standing, *place), reason, record, body = each
    return (message.id, message.lane, NUMBERS[standing], *place, reason, len(message.body), record, body)


def _put_delivered(connection: Connection, coming: Sequence[_Finished]) -> set[MessageId]:
    if not coming:
        return set()
    put = connection.execute(
        """INSERT INTO delivered (id, at, record) SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[])
        ON CONFLICT (id) DO NOTHING RETURNING id""",
        _columns(sorted(coming)),
    )
    return {id for (id,) in put}


def _put_attempts(connection: Connection, attempts: Sequence[tuple[Any, ...]]) -> None:
    if attempts:
        connection.execute(
            """INSERT INTO attempts (id, number, record, answer)
            SELECT * FROM unnest(%s::bytea[], %s::integer[], %s::bytea[], %s::bytea[])
            ON CONFLICT (id, number) DO NOTHING""",
            _columns(attempts),
        )


def _put_circuits(connection: Connection, coming: Sequence[LaneRecord], terms: Terms) -> set[str]:
    """As if they had changed just now, so that replicas hear of them. Hosts that are known stay as they are."""
    if not coming:
        return set()
    first = {each.key: each for each in reversed(coming)}
    put = connection.execute(
        """INSERT INTO lanes (lane, host, state, spell, changed_at, record)
        SELECT v.lane, v.host, v.state, 0, %s::bigint, v.record
        FROM unnest(%s::text[], %s::text[], %s::smallint[], %s::bytea[]) AS v(lane, host, state, record)
        ON CONFLICT (lane) DO NOTHING RETURNING lane""",
        (terms.now, *_columns([_circuit_row(first[key]) for key in sorted(first)])),
    )
    there = {lane for (lane,) in put}
    hosts = {each.host: _host_row(each, terms) for each in first.values()}
    connection.execute(
        """INSERT INTO hosts (host, most, streak, hold_until, run)
        SELECT v.host, v.most, 0, v.hold_until, v.run
        FROM unnest(%s::text[], %s::integer[], %s::bigint[], %s::bigint[]) AS v(host, most, hold_until, run)
        ON CONFLICT (host) DO NOTHING""",
        _columns([hosts[host] for host in sorted(hosts)]),
    )
    return there


def _circuit_row(record: LaneRecord) -> tuple[Any, ...]:
    key, host, circuit = record[:3]
    return key, host, STATE_NUMBERS[circuit.state], rows.encode_circuit(key, host, circuit)


def _host_row(record: LaneRecord, terms: Terms) -> tuple[Any, ...]:
    full = record.limit >= terms.rules.per_host
    return record.host, 0 if full else max(1, record.limit), record.hold_until, record.run


def _put_keys(connection: Connection, coming: Sequence[Key], terms: Terms) -> int:
    """The last use of each. One that is known stays, unless it was over when the other was used."""
    if not coming:
        return 0
    last = {each.digest: each for each in sorted(coming, key=lambda key: key.at)}
    put = connection.execute(
        """INSERT INTO keys AS k (digest, body, id, used)
        SELECT * FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[])
        ON CONFLICT (digest) DO UPDATE SET id = excluded.id, body = excluded.body, used = excluded.used
        WHERE k.used <= excluded.used - %s::bigint""",
        (*_columns([last[digest] for digest in sorted(last)]), terms.rules.idempotency),
    )
    return put.rowcount


def _columns(found: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*found, strict=True)]


# -- one reader a kind of line: what can't be stored raises, as lines.py tells ---------------------------------------


def _circuit(line: Line) -> Piece:
    record = lines.read_circuit(line)
    check_lane(record)
    _check_names(record.key, record.host)
    return Piece("circuit", record.key, record, len(records.encode_lane(record)))


def _message(line: Line) -> Piece:
    message, place, reason, attempts = lines.read_message(line)
    check_message(message, len(message.body))
    _check_names(message.lane, message.host)
    record, body = rows.encode(message)
    waiting = _Waiting(message, _seat(place), None if reason is None else REASONS.index(reason), record, body)
    return Piece("message", message.id, waiting, len(record) + len(message.body), _attempt_rows(message.id, attempts))


def _seat(place: Place) -> Place:
    """The place as numbers that the columns hold."""
    plain = records.decode_place(records.encode_place(place))
    if plain.retry > MOST_RETRIES or plain.attempts > MOST_ATTEMPTS:
        raise ValueError("more retries or attempts than a message can have")
    return plain._replace(standing=Standing.WAITING) if plain.standing is Standing.ACTIVE else plain


def _delivered(line: Line) -> Piece:
    message, size, finished_at, success, attempts = lines.read_delivered(line)
    check_message(message, size)
    check_attempt(success)
    check_moments((finished_at,))
    record = records.encode_delivered(message, success, finished_at, size)
    finished = _Finished(message.id, finished_at, record)
    return Piece("delivered", message.id, finished, len(record), _attempt_rows(message.id, attempts))


def _key(line: Line) -> Piece:
    key = lines.read_key(line)
    check_moments((key.at,))
    return Piece("key", key.digest, key, len(key.digest) + len(key.body))


def _attempt_rows(id: MessageId, attempts: list[Attempt]) -> list[tuple[Any, ...]]:
    for attempt in attempts:
        check_attempt(attempt)
        numbered(id, attempt.number)
    return [
        (id, int(attempt.number), records.encode_attempt(attempt._replace(answer=None)), attempt.answer)
        for attempt in attempts
    ]


def _check_names(*names: str) -> None:
    if any("\0" in name for name in names):
        raise ValueError("a name with a zero byte")


_READERS: dict[str, Callable[[Line], Piece]] = {
    "circuit": _circuit,
    "message": _message,
    "delivered": _delivered,
    "key": _key,
}
