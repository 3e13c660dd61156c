"""The lines of an export into a database: in batches, each one transaction with everything that belongs to it, while
the fleet goes on.

What is already there stays as it is and is counted as skipped, so an import that was interrupted is simply repeated.
What waits arrives here anew, with its place and its attempts, and its owner takes it in.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.core.errors import StoreFull
from holdfast.core.handoff import MOST_ATTEMPTS
from holdfast.core.history import bounded
from holdfast.core.message import Attempt, MessageId, Place
from holdfast.core.room import MESSAGE_COST, WATERMARK
from holdfast.store import lines, records
from holdfast.store.incoming import Imported, batches
from holdfast.store.lines import Key, Line
from holdfast.store.port import Accept
from holdfast.store.postgres import rows, shares
from holdfast.store.postgres.accepting import HERE, USES, Arrival, insert, take_keys
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.lanes import put_circuits
from holdfast.store.postgres.outcomes import columns, insert_attempts
from holdfast.store.postgres.terms import Terms
from holdfast.store.postgres.walking import repeated
from holdfast.store.sound import check_attempt, check_lane, check_message, check_moments

MOST_RETRIES = (1 << 15) - 1
"""What the column holds."""


class _Finished(NamedTuple):
    id: MessageId
    at: int
    record: bytes


class Piece(NamedTuple):
    """One line, encoded, with the attempts that it tells of. `key` is what it is known by, `size` about what it adds;
    `reason` is the number of what a dead message died of.
    """

    kind: str
    key: Any
    what: Any
    size: int
    attempts: Sequence[Attempt] = ()
    reason: int | None = None


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
    messages = [piece for piece in fresh if piece.kind == "message"]
    _refuse_if_full(connection, messages, terms)
    keys = _put_keys(connection, [piece.what for piece in batch if piece.kind == "key"], terms)
    finished = _put_delivered(connection, [piece.what for piece in fresh if piece.kind == "delivered"])
    insert_attempts(connection, [(piece.key, attempt) for piece in fresh for attempt in piece.attempts])
    _put_messages(connection, messages, terms)
    # Last, since others wait for them: the owner of a host may just write its first record.
    circuits = put_circuits(connection, [piece.what for piece in batch if piece.kind == "circuit"], terms)
    return Counter(message=len(messages), delivered=finished, circuit=len(circuits), key=keys)


def _unknown(connection: Connection, pieces: Sequence[Piece]) -> list[Piece]:
    """Those whose id is here neither waiting nor dead nor delivered; the first of each."""
    first = {piece.key: piece for piece in reversed(pieces)}
    ids = sorted(first)
    known = {id for (id,) in connection.execute(HERE, (ids, ids))} if ids else set()
    return [first[id] for id in ids if id not in known]


def _refuse_if_full(connection: Connection, messages: Sequence[Piece], terms: Terms) -> None:
    adds = sum(MESSAGE_COST + len(piece.what.message.body) for piece in messages)
    if adds and shares.total(connection).bytes + adds > WATERMARK * terms.max_size:
        raise StoreFull("the store is full; raise store.max_size and import the same file again")


def _put_messages(connection: Connection, messages: Sequence[Piece], terms: Terms) -> None:
    arrivals: list[Arrival] = [piece.what for piece in messages]
    insert(connection, arrivals, [piece.reason for piece in messages], terms)


def _put_delivered(connection: Connection, coming: Sequence[_Finished]) -> int:
    if coming:
        connection.execute(
            "INSERT INTO delivered (id, at, record) SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[])",
            columns(coming),
        )
    return len(coming)


def _put_keys(connection: Connection, coming: Sequence[Key], terms: Terms) -> int:
    """The last use of each. One that is known stays, unless it was over when the other was used."""
    if not coming:
        return 0
    last = {each.digest: each for each in sorted(coming, key=lambda key: key.at)}
    used = {digest: at for digest, _, _, at in connection.execute(USES, (sorted(last),))}
    over = {digest: at + terms.rules.idempotency for digest, at in used.items()}
    wanted = {key.digest: (key.id, key.body, key.at) for key in last.values() if over.get(key.digest, 0) <= key.at}
    take_keys(connection, wanted, terms)
    return len(wanted)


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
    arrival = Arrival(Accept(message, place=_plain(place)), record, body)
    size = len(record) + len(message.body)
    return Piece("message", message.id, arrival, size, _checked(attempts), rows.number_of(reason))


def _plain(place: Place) -> Place:
    """A place of numbers that the columns hold."""
    plain = records.decode_place(records.encode_place(place))
    if plain.retry > MOST_RETRIES or plain.attempts > MOST_ATTEMPTS:
        raise ValueError("more retries or attempts than a message can have")
    return plain


def _delivered(line: Line) -> Piece:
    message, size, finished_at, success, attempts = lines.read_delivered(line)
    check_message(message, size)
    check_attempt(success)
    check_moments((finished_at,))
    record = records.encode_delivered(message, success, finished_at, size)
    finished = _Finished(message.id, finished_at, record)
    return Piece("delivered", message.id, finished, len(record), _checked(attempts))


def _key(line: Line) -> Piece:
    key = lines.read_key(line)
    check_moments((key.at,))
    return Piece("key", key.digest, key, len(key.digest) + len(key.body))


def _checked(attempts: list[Attempt]) -> list[Attempt]:
    for attempt in attempts:
        check_attempt(attempt)
        if attempt.number > MOST_ATTEMPTS:
            raise ValueError("more attempts than a message can have")
    return bounded(attempts)


def _check_names(*names: str) -> None:
    if any("\0" in name for name in names):
        raise ValueError("a name with a zero byte")


_READERS: dict[str, Callable[[Line], Piece]] = {
    "circuit": _circuit,
    "message": _message,
    "delivered": _delivered,
    "key": _key,
}
