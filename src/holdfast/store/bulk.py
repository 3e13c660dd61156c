"""What changes many messages at once, in bounded steps: expiry, replay, forgetting lanes, retention.

Each costs by what it removes or moves; the caller repeats it until less than the limit came back.
"""

from holdfast.core.circuit import CircuitState
from holdfast.core.message import DeadReason, MessageId, Place, Standing
from holdfast.store import choosing, records
from holdfast.store.port import (
    DeadFilter,
    DropDead,
    DropMessages,
    Expire,
    Forget,
    Purge,
    ReplayDead,
    Retried,
    RetryNow,
    Swept,
)
from holdfast.store.reads import lane_record
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.tables import Table, first_value
from holdfast.store.work import Work


def expire(work: Work, operation: Expire, encoded: None) -> list[MessageId]:
    key = lane_key(operation.lane)
    expired: list[tuple[MessageId, Place]] = []
    for table, standing in ((Table.WAITING, Standing.WAITING), (Table.AGING, Standing.RETRY)):
        for value in work.transaction.values(table, key):
            born, id = unstamp(value)
            if born >= operation.born_before or len(expired) >= operation.limit:
                break
            if id not in operation.skip:
                expired.append((id, Place(standing, born)))
    for id, standing_there in expired:
        place = work.place_of(id, standing_there)
        work.leave(id, operation.lane, place)
        work.bury(id, operation.lane, place, operation.now, DeadReason.EXPIRED)
    return [id for id, _ in expired]


def replay_dead(work: Work, operation: ReplayDead, encoded: None) -> Swept:
    found, after = choosing.dead_letters(work.transaction, operation.select, operation.limit)
    replayed: list[MessageId] = []
    lanes: dict[str, str] = {}
    for letter, lane in found:
        id = unstamp(letter)[1]
        stored = work.message_of(id)
        if stored is not None:
            _replay(work, letter, lane, stored[0].host, operation.now)
            lanes[lane] = stored[0].host
            replayed.append(id)
    return Swept(replayed, lanes, after)


def _replay(work: Work, letter: bytes, lane: str, host: str, now: int) -> None:
    id = unstamp(letter)[1]
    work.exhume(letter, lane)
    work.know_lane(lane, host)
    work.enqueue(id, lane, now)
    attempts = work.place_of(id, Place(Standing.DEAD, 0)).attempts
    work.set_place(id, Place(Standing.WAITING, now, attempts=attempts))


def drop_dead(work: Work, operation: DropDead, encoded: None) -> Swept:
    found, after = choosing.dead_letters(work.transaction, operation.select, operation.limit)
    for letter, lane in found:
        _drop_letter(work, letter, lane)
    return Swept([unstamp(letter)[1] for letter, _ in found], {}, after)


def _drop_letter(work: Work, letter: bytes, lane: str) -> None:
    work.exhume(letter, lane)
    work.erase_all(unstamp(letter)[1])


def drop_messages(work: Work, operation: DropMessages, encoded: None) -> Swept:
    found, after = choosing.undelivered(work.transaction, operation.select, operation.limit, operation.skip)
    lanes: dict[str, str] = {}
    for message, place in found:
        if place.standing is Standing.DEAD:
            work.exhume(stamp(place.due, message.id), message.lane)
        else:
            work.leave(message.id, message.lane, place)
            lanes[message.lane] = message.host
        work.erase_all(message.id)
    return Swept([message.id for message, _ in found], lanes, after)


def retry_now(work: Work, operation: RetryNow, encoded: None) -> Retried:
    """A message whose turn only its lane decides is due already; one that waits for a time no longer does."""
    stored = work.message_of(operation.id)
    if stored is None:
        known = work.transaction.get(Table.DELIVERED, operation.id) is not None
        return Retried.DELIVERED if known else Retried.UNKNOWN
    message = stored[0]
    place = work.place_of(message.id, Place(Standing.WAITING, message.born))
    if place.standing is Standing.DEAD:
        _replay(work, stamp(place.due, message.id), message.lane, message.host, operation.now)
        return Retried.REPLAYED
    if place.standing is Standing.RETRY:
        work.leave(message.id, message.lane, place)
        sooner = place._replace(due=operation.now, born=min(place.born, operation.now), held=False)
        work.set_retry(message.id, message.lane, sooner)
    return Retried.DUE


def forget(work: Work, operation: Forget, encoded: None) -> bool:
    key = lane_key(operation.lane)
    value = work.transaction.get(Table.LANES, key)
    if value is None or work.has_met(operation.lane):
        return False
    waits = any(first_value(work.transaction, table, key) for table in (Table.WAITING, Table.RETRY))
    record = lane_record(work.transaction, key)
    if waits or (record is not None and record.circuit.state is not CircuitState.ENABLED):
        return False
    work.transaction.delete(Table.LANES, key)
    work.touched.add(operation.lane)
    return True


def purge(work: Work, operation: Purge, encoded: None) -> int:
    removed = _purge_delivered(work, operation.delivered_before, operation.limit)
    removed += _purge_dead(work, operation.dead_before, operation.limit - removed)
    return removed + _purge_keys(work, operation.keys_before, operation.limit - removed)


def _purge_delivered(work: Work, before: int, limit: int) -> int:
    groups = []
    removed = 0
    for key, ids in work.transaction.scan(Table.FINISHED):
        if unstamp(key)[0] >= before or removed >= limit:
            break
        groups.append((key, ids))
        removed += len(ids) // 16
    for key, ids in groups:
        work.transaction.delete(Table.FINISHED, key)
        for start in range(0, len(ids), 16):
            id = ids[start : start + 16]
            work.transaction.delete(Table.DELIVERED, id)
            work.erase_numbered(Table.ATTEMPTS, id)
    return removed


def _purge_dead(work: Work, before: int, limit: int) -> int:
    found, _ = choosing.dead_letters(work.transaction, DeadFilter(until=before), max(0, limit))
    for letter, lane in found:
        _drop_letter(work, letter, lane)
    return len(found)


def _purge_keys(work: Work, before: int, limit: int) -> int:
    oldest_kept = records.key_epoch(before, work.rules.idempotency)
    keys: list[bytes] = []
    for key, _ in work.transaction.scan(Table.KEYS):
        if int.from_bytes(key[:4], "big") >= oldest_kept or len(keys) >= limit:
            break
        keys.append(key)
    for key in keys:
        work.transaction.delete(Table.KEYS, key)
    return len(keys)
