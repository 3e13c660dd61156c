"""Messages that come from a machine's own store: whole, with their places, attempts and keys, in one transaction.

One that is here, or was within the lifetime of a key, is known by its id and left as it is. The key that its app gave
it goes on answering from here; where that was used here too, for the same body and about the same time, the message is
the one that it was used for, as it would have been had both been accepted here.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import StoreFull
from holdfast.core.handoff import handoff_digest
from holdfast.core.idempotency import body_digest
from holdfast.store.moving import Moving
from holdfast.store.port import Accept, Accepted, Duplicate, IdempotencyKey
from holdfast.store.postgres import accepting, rows
from holdfast.store.postgres.accepting import Arrival, Look, Room, Wanted
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.outcomes import insert_attempts
from holdfast.store.postgres.terms import Terms


def take(connection: Connection, page: Sequence[Moving], room: Room, terms: Terms) -> list[Any]:
    """Results as those of an Accept."""
    arrivals = [_arrival(each) for each in page]
    look = Look(connection, arrivals, room, terms)
    results: list[Any] = [*_judge(page, arrivals, look, _used(connection, page), terms)]
    chosen = [index for index, result in enumerate(results) if result is None]
    accepting.take_keys(connection, _wanted([(page[index], arrivals[index]) for index in chosen], terms), terms)
    # Once more, with its key in hand: it may have come just now, by a connection that was taken for dead.
    there = _here(connection, [page[index] for index in chosen])
    for index in chosen:
        id = page[index].message.id
        results[index] = Duplicate(id) if id in there else Accepted(active=False)
    stored = [index for index in chosen if page[index].message.id not in there]
    insert_attempts(
        connection, [(page[index].message.id, attempt) for index in stored for attempt in page[index].attempts]
    )
    accepting.insert(
        connection,
        [arrivals[index] for index in stored],
        [rows.number_of(page[index].reason) for index in stored],
        terms,
    )
    connection.commit()
    room.used += look.added
    return results


def _arrival(each: Moving) -> Arrival:
    message = each.message
    key = IdempotencyKey(handoff_digest(message.id), body_digest(message.body))
    return Arrival(Accept(message, key, each.place), *rows.encode(message))


def _judge(page: Sequence[Moving], arrivals: Sequence[Arrival], look: Look, used: Wanted, terms: Terms) -> list[Any]:
    """What keeps each from being stored. Behind one that there is no room for, no other of its host goes first."""
    results: list[Any] = []
    full: dict[str, StoreFull] = {}
    for each, arrival in zip(page, arrivals, strict=True):
        host = each.message.host
        result = full.get(host) or _same_webhook(each, used, terms) or look.judge(arrival)
        if isinstance(result, StoreFull):
            full[host] = result
        results.append(result)
    return results


def _used(connection: Connection, page: Sequence[Moving]) -> Wanted:
    """What the apps' keys are used for here."""
    digests = [each.key.digest for each in page if each.key is not None]
    found = connection.execute(accepting.USES, (digests,)).fetchall() if digests else []
    return {digest: (id, body, used) for digest, id, body, used in found}


def _same_webhook(each: Moving, used: Wanted, terms: Terms) -> Duplicate | None:
    if each.key is None or each.key.digest not in used:
        return None
    id, body, at = used[each.key.digest]
    is_same = body == each.key.body and abs(at - each.key.at) < terms.rules.idempotency
    return Duplicate(id) if is_same and id != each.message.id else None


def _wanted(chosen: Sequence[tuple[Moving, Arrival]], terms: Terms) -> Wanted:
    """Each message's own key, used now, and the one that its app gave it if that is still alive."""
    wanted: Wanted = {}
    for each, arrival in chosen:
        id, key = each.message.id, arrival.operation.key
        assert key is not None
        wanted[key.digest] = id, key.body, accepting.used_at(arrival.operation, terms)
        if each.key is not None and each.key.at > terms.now - terms.rules.idempotency:
            wanted[each.key.digest] = id, each.key.body, each.key.at
    return wanted


def _here(connection: Connection, chosen: Sequence[Moving]) -> set[bytes]:
    ids = [each.message.id for each in chosen]
    return {row[0] for row in connection.execute(accepting.HERE, (ids, ids)).fetchall()}
