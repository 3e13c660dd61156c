"""What changes many messages at once, in bounded steps: expiry, replay, forgetting lanes, retention.

Each costs by what it removes or moves; the caller repeats it until less than the limit came back.
"""

from holdfast.core.circuit import CircuitState
from holdfast.core.message import DeadReason, MessageId, Place, Standing
from holdfast.store import records
from holdfast.store.port import Expire, Forget, Purge, ReplayDead
from holdfast.store.reads import lane_record
from holdfast.store.records import lane_key, unstamp
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


def replay_dead(work: Work, operation: ReplayDead, encoded: None) -> int:
    key = lane_key(operation.lane)
    letters: list[tuple[bytes, str]] = []
    for letter in work.transaction.values(Table.DEAD_LANE, key):
        if unstamp(letter)[0] >= operation.died_before or len(letters) >= operation.limit:
            break
        found = work.message_of(unstamp(letter)[1])
        if found is not None:
            letters.append((letter, found[0].host))
    for letter, host in letters:
        id = unstamp(letter)[1]
        work.transaction.remove(Table.DEAD_LANE, key, letter)
        work.transaction.delete(Table.DEAD, letter)
        work.know_lane(operation.lane, host)
        work.enqueue(id, operation.lane, operation.now)
        attempts = work.place_of(id, Place(Standing.DEAD, 0)).attempts
        work.set_place(id, Place(Standing.WAITING, operation.now, attempts=attempts))
    return len(letters)


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
    letters: list[tuple[bytes, bytes]] = []
    for key, value in work.transaction.scan(Table.DEAD):
        if unstamp(key)[0] >= before or len(letters) >= limit:
            break
        letters.append((key, records.decode_dead(value)[0]))
    for letter, lane in letters:
        id = unstamp(letter)[1]
        work.transaction.delete(Table.DEAD, letter)
        work.transaction.remove(Table.DEAD_LANE, lane, letter)
        work.transaction.delete(Table.PLACES, id)
        work.erase_numbered(Table.ATTEMPTS, id)
        found = work.message_of(id)
        if found is None:
            work.erase_record(id)
        else:
            work.erase(*found)
    return len(letters)


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
