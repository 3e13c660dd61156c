"""Fixes what fsck finds: sets aside what can't be read, makes the indexes follow the messages, then computes summaries
and shares anew.

Every step is a walk in bounded transactions and can be repeated: an interrupted repair is simply run again. Nothing is
lost. Every row that is removed, unless it is computed from others, is in the set-aside file first.
"""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from holdfast.core.message import Attempt, AttemptKind, DeadReason, Message, MessageId, Place, Standing, rfc3339
from holdfast.core.store_rules import StoreRules
from holdfast.store import records
from holdfast.store.embedded.attempt_rows import attempts_of
from holdfast.store.embedded.folder import SET_ASIDE
from holdfast.store.embedded.group import Group, GroupWork
from holdfast.store.embedded.indexes import (
    INDEXES,
    entry_id,
    has_entry,
    index_entries,
    is_default_place,
    place_of,
    rows_of_summary,
    summary_of,
)
from holdfast.store.embedded.shares import RoomKeeper, count_shares, write_shares
from holdfast.store.embedded.tables import (
    STEP_BYTES,
    Engine,
    Table,
    Transaction,
    has_row,
    put_row,
    remove_row,
    rows_after,
    walk,
)
from holdfast.store.maintenance import Repaired
from holdfast.store.offline.fsck import DETAILS, SUMMARISED, ids_of, stray, stray_summary
from holdfast.store.offline.row_checks import fault_of
from holdfast.store.private_files import open_private, sync_folder
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.validation import readable_message

_COMPUTED = (*SUMMARISED, Table.SHARES, Table.SHIFTS)
Act = Callable[[Transaction, bytes, bytes], None]
IndexMoments = Mapping[Table, int]
"""The moments under which indexes hold a message."""


class Repair:
    """One repair. `now` names the set-aside file and dates new circuits."""

    def __init__(self, engine: Engine, rules: StoreRules, now: int) -> None:
        self._engine = engine
        self._rules = rules
        self._group = Group([], [], {}, 0, now, bytes(16))
        self._room = RoomKeeper(rules.host_share, engine.room)
        self._aside = SetAside(Path(engine.path), now)
        self._index_moments: dict[MessageId, IndexMoments] = {}
        self._done = Repaired()

    def run(self) -> Repaired:
        # Delivered records first: an unreadable one must not remove its message.
        for table in (Table.DELIVERED, *(table for table in Table if table not in (Table.DELIVERED, *_COMPUTED))):
            self._each(table, partial(self._set_aside_unreadable, table))
        self._each(Table.MESSAGES, self._set_aside_delivered)
        self._index_moments = index_moments(self._engine)
        self._each(Table.MESSAGES, self._give_place)
        for table in (*INDEXES, *DETAILS, Table.KEYS):
            self._each(table, partial(self._set_aside_stray, table))
        self._each(Table.MESSAGES, self._add_entries)
        self._list_delivered()
        for table in SUMMARISED:
            self._each(table, partial(self._drop_summary, table))
        self._each(Table.LANES, self._summarise)
        self._done.shares = write_shares(self._engine, count_shares(self._engine))
        self._done.set_aside = self._aside.count
        self._done.file = self._aside.path if self._aside.count else None
        return self._done

    def _each(self, table: Table, act: Act) -> None:
        """Act on every row of a table, in bounded transactions."""
        last = None
        while True:
            self._engine.extend(STEP_BYTES)
            with (writing := self._engine.write()) as transaction:
                rows = rows_after(transaction, table, last)
                if not rows:
                    return
                for row in rows:
                    act(transaction, *row)
                self._aside.flush()
                writing.commit()
            last = rows[-1]

    # -- setting aside -----------------------------------------------------------------------------------------------

    def _set_aside(self, transaction: Transaction, table: Table, key: bytes, value: bytes, why: str) -> None:
        self._aside.add(table, key, value, why)
        remove_row(transaction, table, key, value)

    def _set_aside_unreadable(self, table: Table, transaction: Transaction, key: bytes, value: bytes) -> None:
        fault = fault_of(transaction, table, key, value)
        if fault:
            self._set_aside(transaction, table, key, value, f"can't be read: {fault}")

    def _set_aside_delivered(self, transaction: Transaction, key: bytes, value: bytes) -> None:
        if transaction.get(Table.DELIVERED, key) is not None:
            self._set_aside(transaction, Table.MESSAGES, key, value, "was delivered")

    def _set_aside_stray(self, table: Table, transaction: Transaction, key: bytes, value: bytes) -> None:
        why = stray(transaction, table, key, value)
        if why:
            self._set_aside(transaction, table, key, value, why)

    # -- messages and their indexes ----------------------------------------------------------------------------------

    def _give_place(self, transaction: Transaction, id: bytes, value: bytes) -> None:
        if transaction.get(Table.PLACES, id) is not None:
            return
        message = records.decode_message(id, value)[0]
        place = recovered_place(transaction, message, self._index_moments.get(id, {}))
        if not is_default_place(message, place):
            transaction.put(Table.PLACES, id, records.encode_place(place))
            self._done.places += 1

    def _add_entries(self, transaction: Transaction, id: bytes, value: bytes) -> None:
        message = records.decode_message(id, value)[0]
        place = place_of(transaction, message)
        for entry in index_entries(message, place):
            if has_entry(transaction, entry):
                continue
            if entry[0] is Table.DEAD:
                entry = index_entries(message, place, recovered_reason(transaction, id, place))[0]
            put_row(transaction, *entry)
            self._done.entries += 1
        if place.standing in (Standing.WAITING, Standing.RETRY):
            work = GroupWork(transaction, self._group, self._rules, self._room)
            work.ensure_lane(message.lane, message.host)
            self._done.circuits += len(work.touched)

    # -- delivered records -------------------------------------------------------------------------------------------

    def _list_delivered(self) -> None:
        """Make FINISHED name every delivered record once. Which ones it names is read only if the numbers differ."""
        self._each(Table.FINISHED, self._relist(_is_delivered))
        listed = sum(len(ids_of(ids)) for _, (_, ids) in walk(self._engine, Table.FINISHED))
        with self._engine.read() as transaction:
            delivered = transaction.entries(Table.DELIVERED)
        if listed == delivered:
            return
        seen: set[MessageId] = set()

        def is_new(transaction: Transaction, id: MessageId) -> bool:
            new = id not in seen
            seen.add(id)
            return new

        def add(transaction: Transaction, id: bytes, value: bytes) -> None:
            if id not in seen:
                key = stamp(records.decode_delivered(id, value)[2], id)
                transaction.put(Table.FINISHED, key, (transaction.get(Table.FINISHED, key) or b"") + id)
                self._done.listed += 1

        self._each(Table.FINISHED, self._relist(is_new))
        self._each(Table.DELIVERED, add)

    def _relist(self, keep: Callable[[Transaction, MessageId], bool]) -> Act:
        def act(transaction: Transaction, key: bytes, value: bytes) -> None:
            kept = b"".join(id for id in ids_of(value) if keep(transaction, id))
            if kept == value:
                return
            self._done.listed += (len(value) - len(kept)) // 16
            if kept:
                transaction.put(Table.FINISHED, key, kept)
            else:
                transaction.delete(Table.FINISHED, key)

        return act

    # -- what is computed --------------------------------------------------------------------------------------------

    def _drop_summary(self, table: Table, transaction: Transaction, key: bytes, value: bytes) -> None:
        if stray_summary(transaction, table, (key, value), self._rules):
            remove_row(transaction, table, key, value)
            self._done.summaries += 1

    def _summarise(self, transaction: Transaction, key: bytes, value: bytes) -> None:
        summary = summary_of(transaction, key, self._rules)
        for row in ((Table.SUMMARIES, key, summary), *rows_of_summary(key, summary)):
            if not has_row(transaction, *row):
                put_row(transaction, *row)
                self._done.summaries += 1


def _is_delivered(transaction: Transaction, id: MessageId) -> bool:
    return transaction.get(Table.DELIVERED, id) is not None


def index_moments(engine: Engine) -> dict[MessageId, IndexMoments]:
    """Returns the index entries of messages that have no place, except those that wait since they were born."""
    found: dict[MessageId, dict[Table, int]] = {}
    for table in (Table.DEAD, Table.RETRY, Table.AGING, Table.WAITING):
        for transaction, (key, value) in walk(engine, table):
            id = entry_id(table, key, value)
            if transaction.get(Table.PLACES, id) is not None:
                continue
            stored = readable_message(id, transaction.get(Table.MESSAGES, id) or b"")
            lane = records.decode_dead(value)[0] if table is Table.DEAD else key
            moment = unstamp(key if table is Table.DEAD else value)[0]
            if stored is None or lane_key(stored[0].lane) != lane:
                continue
            if table is not Table.WAITING or moment != stored[0].born:
                found.setdefault(id, {})[table] = moment
    return dict(found)


def recovered_place(transaction: Transaction, message: Message, moments: IndexMoments) -> Place:
    """Returns the place of a message that has none in PLACES: where it is active or queued, else where indexes hold it,
    else in its lane's queue.

    One lost record must neither revive a dead message nor send a retry too early.
    """
    attempts = attempts_of(transaction, message.id)
    number = attempts[-1].number if attempts else 0
    if transaction.get(Table.ACTIVE, message.id) is not None:
        return Place(Standing.ACTIVE, message.born, attempts=number)
    queued = has_row(transaction, Table.WAITING, lane_key(message.lane), stamp(message.born, message.id))
    tried = _tried(attempts)
    if not queued and Table.DEAD in moments:
        return Place(Standing.DEAD, message.born, moments[Table.DEAD], max(0, tried - 1), number)
    if not queued and Table.RETRY in moments:
        born = moments.get(Table.AGING, message.born)
        # Without attempts it is there because of its delay: no probe may go before that.
        return Place(Standing.RETRY, born, moments[Table.RETRY], tried, number, held=not attempts)
    born = message.born if queued else moments.get(Table.WAITING, message.born)
    return Place(Standing.WAITING, born, attempts=number)


def _tried(attempts: list[Attempt]) -> int:
    """Counts the first attempt and the retries since the message was last replayed."""
    tried = 0
    for attempt in attempts:
        tried = 1 if attempt.kind is AttemptKind.FIRST else tried + (attempt.kind is AttemptKind.RETRY)
    return tried


def recovered_reason(transaction: Transaction, id: MessageId, place: Place) -> DeadReason:
    """Returns why a message without a dead letter died. If an attempt ended at that moment, it was the last one."""
    ends = [attempt.at + attempt.duration for attempt in attempts_of(transaction, id)]
    return DeadReason.EXHAUSTED if place.due in ends else DeadReason.EXPIRED


class SetAside:
    """The file with the rows that a repair removes: a JSON line for each row, its bytes in hex. It is made with its
    first row.
    """

    def __init__(self, folder: Path, now: int) -> None:
        moment = rfc3339(now).replace("-", "").replace(":", "")
        self.path = folder / f"{SET_ASIDE}{moment}.jsonl"
        self.count = 0
        self._lines: list[bytes] = []

    def add(self, table: Table, key: bytes, value: bytes, why: str) -> None:
        row = {"table": table.name.lower(), "key": key.hex(), "value": value.hex(), "why": why}
        self._lines.append(json.dumps(row).encode() + b"\n")

    def flush(self) -> None:
        """Write all rows so far to disk; called before the commit that removes them."""
        if not self._lines:
            return
        with open_private(self.path, "ab" if self.count else "xb") as file:
            file.writelines(self._lines)
            file.flush()
            os.fsync(file.fileno())
        if not self.count:
            sync_folder(self.path.parent)
        self.count += len(self._lines)
        self._lines = []
