"""Operations on many messages, in bounded steps: expiry, replay, removal, forgetting lanes, retention.

A step costs by what it removes or moves. The caller repeats it until fewer than the limit came back.
"""

from itertools import islice

from holdfast.core.circuit import CircuitState
from holdfast.core.message import DeadReason, MessageId, Place, Standing
from holdfast.core.schedule import dead_place, due_at_once, replayed_place
from holdfast.store import records
from holdfast.store.embedded import queries
from holdfast.store.embedded.group import GroupWork
from holdfast.store.embedded.reads import lane_record
from holdfast.store.embedded.tables import META_RULES, Moment, Table, first_value, moment_key
from holdfast.store.port import (
    BulkResult,
    DropDead,
    DropMessages,
    Evicted,
    EvictLanes,
    Expire,
    Forget,
    Purge,
    ReplayDead,
    Retried,
    RetryNow,
    ReviewLanes,
)
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.validation import is_name


def expire(work: GroupWork, operation: Expire, encoded: None) -> list[MessageId]:
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
        work.add_dead(id, operation.lane, dead_place(place, operation.now), DeadReason.EXPIRED)
    return [id for id, _ in expired]


def replay_dead(work: GroupWork, operation: ReplayDead, encoded: None) -> BulkResult:
    found, after = queries.dead_letters(work.transaction, operation.select, operation.limit)
    replayed: list[MessageId] = []
    lanes: dict[str, str] = {}
    for letter, lane in found:
        id = unstamp(letter)[1]
        stored = work.message_of(id)
        if stored is not None:
            _replay(work, letter, lane, stored[0].host, operation.now)
            lanes[lane] = stored[0].host
            replayed.append(id)
    return BulkResult(replayed, lanes, after)


def _replay(work: GroupWork, letter: bytes, lane: str, host: str, now: int) -> None:
    id = unstamp(letter)[1]
    work.remove_dead(letter, lane)
    work.ensure_lane(lane, host)
    place = replayed_place(work.place_of(id, Place(Standing.DEAD, 0)), now)
    work.enqueue(id, lane, place)
    work.set_place(id, place)


def drop_dead(work: GroupWork, operation: DropDead, encoded: None) -> BulkResult:
    found, after = queries.dead_letters(work.transaction, operation.select, operation.limit)
    for letter, lane in found:
        _drop_letter(work, letter, lane)
    return BulkResult([unstamp(letter)[1] for letter, _ in found], {}, after)


def _drop_letter(work: GroupWork, letter: bytes, lane: str) -> None:
    work.remove_dead(letter, lane)
    work.erase_all(unstamp(letter)[1])


def drop_messages(work: GroupWork, operation: DropMessages, encoded: None) -> BulkResult:
    found, after = queries.undelivered(work.transaction, operation.select, operation.limit, operation.skip)
    lanes: dict[str, str] = {}
    for message, place in found:
        if place.standing is Standing.DEAD:
            work.remove_dead(stamp(place.due, message.id), message.lane)
        else:
            work.leave(message.id, message.lane, place)
            lanes[message.lane] = message.host
        work.erase_all(message.id)
    return BulkResult([message.id for message, _ in found], lanes, after)


def retry_now(work: GroupWork, operation: RetryNow, encoded: None) -> Retried:
    """A message in RETRY becomes due. One that waits for its lane's turn is due already."""
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
        work.set_retry(message.id, message.lane, due_at_once(place, operation.now))
    return Retried.DUE


def forget(work: GroupWork, operation: Forget, encoded: None) -> bool:
    key = lane_key(operation.lane)
    value = work.transaction.get(Table.LANES, key)
    if value is None or work.is_known(operation.lane):
        return False
    waits = any(first_value(work.transaction, table, key) for table in (Table.WAITING, Table.RETRY))
    record = lane_record(work.transaction, key)
    if waits or (record is not None and record.circuit.state is not CircuitState.ENABLED):
        return False
    work.transaction.delete(Table.LANES, key)
    work.touched.add(operation.lane)
    return True


def evict_lanes(work: GroupWork, operation: EvictLanes, encoded: None) -> Evicted:
    """In the order of WAKE: for an idle lane that is when it would be forgotten. A step looks at a bounded number of
    lanes.
    """
    prefix = moment_key(Moment.WAKE)[:1]
    start = prefix if operation.after is None else operation.after + b"\0"
    rows = [key for key, _ in islice(work.transaction.scan(Table.MOMENTS, start), operation.limit)]
    evicted: list[str] = []
    for key in rows:
        lane = key[9:]
        if key[:1] == prefix and is_name(lane) and _is_idle(work, lane) and lane.decode() not in operation.skip:
            work.transaction.delete(Table.LANES, lane)
            work.touched.add(lane.decode())
            evicted.append(lane.decode())
    at_end = len(rows) < operation.limit or rows[-1][:1] != prefix
    return Evicted(evicted, None if at_end else rows[-1])


def _is_idle(work: GroupWork, lane: bytes) -> bool:
    if any(first_value(work.transaction, table, lane) for table in (Table.WAITING, Table.RETRY, Table.DEAD_LANE)):
        return False
    record = lane_record(work.transaction, lane)
    return record is not None and record.circuit.state is CircuitState.ENABLED and not work.is_known(record.key)


def review_lanes(work: GroupWork, operation: ReviewLanes, encoded: None) -> bytes | None:
    numbers = records.pack([work.rules.retry.expire_after, work.rules.circuit.forget_after])
    if operation.after is None and work.transaction.get(Table.META, META_RULES) == numbers:
        return None
    start = b"" if operation.after is None else operation.after + b"\0"
    keys_there = [key for key, _ in islice(work.transaction.scan(Table.LANES, start), operation.limit)]
    work.touched.update(key.decode() for key in keys_there if is_name(key))
    if len(keys_there) == operation.limit:
        return keys_there[-1]
    work.transaction.put(Table.META, META_RULES, numbers)
    return None


def purge(work: GroupWork, operation: Purge, encoded: None) -> int:
    removed = _purge_delivered(work, operation.delivered_before, operation.limit)
    removed += _purge_dead(work, operation.dead_before, operation.limit - removed)
    return removed + work.purge_keys(operation.keys_before, operation.limit - removed)


def _purge_delivered(work: GroupWork, before: int, limit: int) -> int:
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


def _purge_dead(work: GroupWork, before: int, limit: int) -> int:
    """Unreadable letters are removed at their time too, or the sweep would meet them again and again."""
    letters: list[tuple[bytes, bytes]] = []
    for letter, value in work.transaction.scan(Table.DEAD):
        if unstamp(letter)[0] >= before or len(letters) >= limit:
            break
        letters.append((letter, value))
    for letter, value in letters:
        stored = work.message_of(unstamp(letter)[1])
        lane = stored[0].lane if stored is not None else value[1:].decode(errors="replace")
        _drop_letter(work, letter, lane)
    return len(letters)
