"""Messages that come from a machine's own store: with their places, attempts and keys, in one transaction.

A message that is here, or was within the lifetime of a key, is known by its id and stays as it is. The key that its app
gave it keeps answering from here. If that was used here too, for the same body and at about the same time, both are
the same message, as if both had been accepted here.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import StoreFull
from holdfast.core.idempotency import body_digest, handoff_digest
from holdfast.core.message import Message
from holdfast.store.port import Accepted, Duplicate, IdempotencyKey
from holdfast.store.postgres import admission
from holdfast.store.postgres.accept import insert
from holdfast.store.postgres.admission import Admission, NewMessage, Uses
from holdfast.store.postgres.rows import Terms
from holdfast.store.postgres.state import Room
from holdfast.store.postgres.transactions import Connection
from holdfast.store.transfer import StoredMessage


def take(connection: Connection, page: Sequence[StoredMessage], room: Room, terms: Terms) -> list[Any]:
    """Stores a page. Returns results as those of an Accept."""
    arrivals = [admission.moved_message(each, _own_key(each.message)) for each in page]
    judge = Admission(connection, arrivals, room, terms)
    used = admission.uses_of(connection, [each.key.digest for each in page if each.key is not None])
    results = _judge(page, arrivals, judge, used, terms)
    chosen = [index for index, result in enumerate(results) if result is None]
    own_keys = admission.uses_by([arrivals[index].operation for index in chosen], terms)
    admission.take_keys(connection, own_keys | _apps_keys([page[index] for index in chosen], terms), terms)
    # Again, now that their keys are taken: a connection that was given up may just have stored some.
    there = admission.stored(connection, [page[index].message.id for index in chosen])
    for index in chosen:
        id = page[index].message.id
        results[index] = Duplicate(id) if id in there else Accepted(active=False)
    insert(connection, [arrivals[index] for index in chosen if page[index].message.id not in there], terms)
    connection.commit()
    room.used += judge.added
    return results


def _own_key(message: Message) -> IdempotencyKey:
    return IdempotencyKey(handoff_digest(message.id), body_digest(message.body))


def _judge(
    page: Sequence[StoredMessage], arrivals: Sequence[NewMessage], admission: Admission, used: Uses, terms: Terms
) -> list[Any]:
    """Why each message is not stored. Once there is no room for one, no later one of its host is stored."""
    results: list[Any] = []
    full: dict[str, StoreFull] = {}
    for each, arrival in zip(page, arrivals, strict=True):
        host = each.message.host
        result = full.get(host) or _same_webhook(each, used, terms) or admission.judge(arrival)
        if isinstance(result, StoreFull):
            full[host] = result
        results.append(result)
    return results


def _same_webhook(each: StoredMessage, used: Uses, terms: Terms) -> Duplicate | None:
    if each.key is None or each.key.digest not in used:
        return None
    id, body, at = used[each.key.digest]
    is_same = body == each.key.body and abs(at - each.key.at) < terms.rules.idempotency
    return Duplicate(id) if is_same and id != each.message.id else None


def _apps_keys(chosen: Sequence[StoredMessage], terms: Terms) -> Uses:
    """The keys of messages, as far as they have not expired."""
    since = terms.now - terms.rules.idempotency
    given = [(each.message.id, each.key) for each in chosen if each.key is not None]
    return {key.digest: (id, key.body, key.at) for id, key in given if key.at > since}
