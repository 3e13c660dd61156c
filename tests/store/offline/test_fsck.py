"""fsck finds each kind of damage and nothing else; a repair fixes it and keeps what it removes."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch, TempPathFactory, fixture, mark

from holdfast.core.circuit import CircuitState
from holdfast.core.message import DeadReason, Place, Standing, id_text
from holdfast.store import records
from holdfast.store.embedded import tables
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.queries import message_view
from holdfast.store.embedded.tables import DUPLICATES, META_EPOCH, META_LATEST, Moment, Table, Transaction, moment_key
from holdfast.store.maintenance import Finding, Repaired
from holdfast.store.offline.repair import Repair
from holdfast.store.port import LaneRecord
from holdfast.store.records import numbered, stamp
from tests.contract.builders import NOW, RULES, attempt, dump, idempotency, lane
from tests.contract.consistency import check as assert_consistent
from tests.contract.consistency import check_shares as assert_shares
from tests.store.populated import OF_WRONG_TYPES, Populated, build, populate, with_transaction
from tests.support.repetitions import amount

GARBAGE = b"\xc1garbage"
BUSY = b"busy:443"
FIRST_EPOCH = b"\0\0\0\1"
KEYS = [FIRST_EPOCH + idempotency(name).digest for name in ("active", "delayed", "delivered")]
UNKNOWN = bytes.fromhex("019256f8d1ff") + bytes(10)
ANY_PLACE = records.encode_place(Place(Standing.RETRY, NOW, NOW))
ANY_ATTEMPT = records.encode_attempt(attempt())
ANY_LANE = records.encode_lane(LaneRecord("x", "x", lane().circuit, 1, 0, 0))


@fixture(scope="module")
def original(tmp_path_factory: TempPathFactory) -> Populated:
    return build(tmp_path_factory.mktemp("original") / "store")


@fixture
def store(original: Populated, tmp_path: Path) -> Populated:
    """A copy of its own for each test."""
    shutil.copytree(original.folder, tmp_path / "store")
    return Populated(tmp_path / "store", original.by_name)


def findings(store: Populated) -> list[Finding]:
    with store.offline() as offline:
        return list(offline.check())


def repair(store: Populated) -> Repaired:
    with store.offline() as offline:
        return offline.repair()


def contents(store: Populated) -> dict[Table, list[tuple[bytes, bytes]]]:
    engine = store.open()
    try:
        return dump(engine)
    finally:
        engine.close()


def told(store: Populated, name: str):
    engine = store.open()
    with engine.read() as transaction:
        found = message_view(transaction, store[name])
    engine.close()
    return found


# -- damage: what is done to the tables, and the kind and name of each finding ----------------------------------------

Damage = Callable[[Transaction, Populated], None]
Expected = Callable[[Populated], list[tuple[str, str]]]


def message(kind: str, *names: str) -> Expected:
    return lambda store: [(kind, id_text(store[name])) for name in names]


def named(kind: str, *names: str) -> Expected:
    return lambda store: [(kind, name) for name in names]


def spoil(table: Table, name: str, suffix: bytes = b"", value: bytes = GARBAGE) -> Damage:
    return lambda transaction, store: transaction.put(table, store[name] + suffix, value)


def remove(table: Table, name: str, suffix: bytes = b"") -> Damage:
    def act(transaction: Transaction, store: Populated) -> None:
        assert transaction.delete(table, store[name] + suffix)

    return act


def remove_entry(table: Table, lane_name: bytes, name: str) -> Damage:
    """Take a message out of an index of its lane."""

    def act(transaction: Transaction, store: Populated) -> None:
        [entry] = [value for value in transaction.values(table, lane_name) if value[8:] == store[name]]
        assert transaction.remove(table, lane_name, entry)

    return act


def move_piece(transaction: Transaction, store: Populated) -> None:
    """All the bytes are there, and not where they belong."""
    piece = transaction.get(Table.BODIES, store["held"] + b"\0\1") or b""
    transaction.delete(Table.BODIES, store["held"] + b"\0\1")
    transaction.put(Table.BODIES, store["held"] + b"\0\7", piece)


def letter(transaction: Transaction, store: Populated, name: str) -> bytes:
    [key] = [key for key, _ in transaction.scan(Table.DEAD) if key[8:] == store[name]]
    return key


def drop_letter(name: str) -> Damage:
    return lambda transaction, store: transaction.delete(Table.DEAD, letter(transaction, store, name))


def spoil_letter(transaction: Transaction, store: Populated) -> None:
    transaction.put(Table.DEAD, letter(transaction, store, "exhausted"), b"\x07done:443")


def add_entry(table: Table, lane_name: bytes, name: str) -> Damage:
    return lambda transaction, store: transaction.add(table, lane_name, stamp(NOW + 1, store[name]))


def lose_place_and_seats(transaction: Transaction, store: Populated) -> None:
    transaction.delete(Table.PLACES, store["retrying"])
    remove_entry(Table.RETRY, BUSY, "retrying")(transaction, store)
    remove_entry(Table.AGING, BUSY, "retrying")(transaction, store)


def deliver_twice(transaction: Transaction, store: Populated) -> None:
    transaction.put(Table.DELIVERED, store["empty"], transaction.get(Table.DELIVERED, store["delivered"]) or b"")
    transaction.put(Table.FINISHED, stamp(NOW, store["empty"]), store["empty"])


def unlist(transaction: Transaction, store: Populated) -> None:
    [key] = [key for key, value in transaction.scan(Table.FINISHED) if value == store["delivered"]]
    transaction.delete(Table.FINISHED, key)


def list_twice(transaction: Transaction, store: Populated) -> None:
    transaction.put(Table.FINISHED, stamp(NOW + 1, store["delivered"]), store["delivered"])


def list_unknown(transaction: Transaction, store: Populated) -> None:
    [key] = [key for key, value in transaction.scan(Table.FINISHED) if value == store["delivered"]]
    transaction.put(Table.FINISHED, key, store["delivered"] + UNKNOWN)


def raw(table: Table, key: bytes, value: bytes = GARBAGE) -> Damage:
    def act(transaction: Transaction, store: Populated) -> None:
        (transaction.add if table in DUPLICATES else transaction.put)(table, key, value)

    return act


def raw_delete(table: Table, key: bytes) -> Damage:
    def act(transaction: Transaction, store: Populated) -> None:
        assert transaction.delete(table, key)

    return act


def lose_moment(transaction: Transaction, store: Populated) -> None:
    [key] = [key for key, _ in transaction.scan(Table.MOMENTS) if key[:1] == b"\0" and key[9:] == b"busy:443"]
    transaction.delete(Table.MOMENTS, key)


def heal_unnoticed(transaction: Transaction, store: Populated) -> None:
    assert transaction.remove(Table.UNWELL, b"disabled", b"down:443")


def share(size: int) -> Damage:
    return raw(Table.SHIFTS, (1 << 40).to_bytes(8, "big"), records.encode_sums({"down:443": size}))


def lose_epoch(transaction: Transaction, store: Populated) -> None:
    assert transaction.delete(Table.META, META_EPOCH + FIRST_EPOCH)


DAMAGE: dict[str, tuple[Damage, Expected]] = {
    "a message is garbage": (spoil(Table.MESSAGES, "waiting"), message("message", "waiting")),
    "a retry is garbage": (spoil(Table.MESSAGES, "retrying"), message("message", "retrying")),
    "a message of wrong types": (
        spoil(Table.MESSAGES, "empty", value=OF_WRONG_TYPES),
        message("message", "empty"),
    ),
    "a body lacks a piece": (remove(Table.BODIES, "held", b"\0\1"), message("message", "held")),
    "a body lacks its last piece": (remove(Table.BODIES, "held", b"\0\3"), message("message", "held")),
    "a piece is in the wrong place": (move_piece, message("message", "held")),
    "a piece has no message": (raw(Table.BODIES, numbered(UNKNOWN, 0)), named("body", id_text(UNKNOWN))),
    "a piece of one that is inside": (spoil(Table.BODIES, "delayed", b"\0\0"), message("body", "delayed")),
    "a waiting one is in no index": (remove_entry(Table.WAITING, BUSY, "waiting"), message("index", "waiting")),
    "a replayed one is in no index": (
        remove_entry(Table.WAITING, b"again:443", "replayed"),
        message("index", "replayed"),
    ),
    "an active one is in no index": (remove(Table.ACTIVE, "active"), message("index", "active")),
    "a retry is in AGING only": (remove_entry(Table.RETRY, BUSY, "retrying"), message("index", "retrying")),
    "a retry is in RETRY only": (remove_entry(Table.AGING, BUSY, "retrying"), message("index", "retrying")),
    "a retry lost everything": (
        lose_place_and_seats,
        lambda store: [*message("index", "retrying")(store), *message("place", "retrying")(store)],
    ),
    "one is in two lanes": (add_entry(Table.WAITING, b"ice:443", "waiting"), message("index", "waiting")),
    "one is in two indexes": (add_entry(Table.RETRY, BUSY, "waiting"), message("index", "waiting")),
    "an entry has no message": (raw(Table.ACTIVE, UNKNOWN, b"new:443"), named("index", id_text(UNKNOWN))),
    "a place is garbage": (spoil(Table.PLACES, "retrying"), message("place", "retrying")),
    "a place has no message": (raw(Table.PLACES, UNKNOWN, ANY_PLACE), named("place", id_text(UNKNOWN))),
    "a tried one lost its place": (remove(Table.PLACES, "active, tried"), message("place", "active, tried")),
    "a dead letter lost its row": (drop_letter("expired"), message("index", "expired")),
    "a dead letter lost its lane": (
        remove_entry(Table.DEAD_LANE, b"done:443", "exhausted"),
        message("index", "exhausted"),
    ),
    "a dead letter is garbage": (spoil_letter, message("index", "exhausted")),
    "an attempt is garbage": (spoil(Table.ATTEMPTS, "retrying", b"\0\1"), message("attempt", "retrying")),
    "attempts are garbage": (spoil(Table.ATTEMPTS, "retrying"), message("attempt", "retrying")),
    "attempts are no list": (
        spoil(Table.ATTEMPTS, "retrying", value=records.pack([1, 7])),
        message("attempt", "retrying"),
    ),
    "answers are garbage": (spoil(Table.ATTEMPTS, "retrying", b"\xff"), message("attempt", "retrying")),
    "a key of an attempt is too long": (
        spoil(Table.ATTEMPTS, "retrying", b"\0\0\0\0\0\1", ANY_ATTEMPT),
        message("attempt", "retrying"),
    ),
    "an attempt has no message": (
        raw(Table.ATTEMPTS, UNKNOWN + b"\0\1", ANY_ATTEMPT),
        named("attempt", id_text(UNKNOWN)),
    ),
    "a delivered record is garbage": (spoil(Table.DELIVERED, "delivered"), message("delivered", "delivered")),
    "a delivered message is still there": (deliver_twice, message("message", "empty")),
    "a delivered record is not listed": (unlist, message("delivered", "delivered")),
    "a delivered record is listed twice": (list_twice, message("delivered", "delivered")),
    "one is listed and not delivered": (list_unknown, named("delivered", id_text(UNKNOWN))),
    "a circuit is garbage": (raw(Table.LANES, b"down:443"), named("circuit", "down:443")),
    "a circuit is another's": (raw(Table.LANES, b"down:443", ANY_LANE), named("circuit", "down:443")),
    "a circuit is gone": (raw_delete(Table.LANES, b"again:443"), named("circuit", "again:443")),
    "a summary is garbage": (raw(Table.SUMMARIES, b"down:443"), named("summary", "down:443")),
    "a summary of no circuit": (raw(Table.SUMMARIES, b"x"), named("summary", "x")),
    "a moment is missing": (lose_moment, named("summary", "busy:443")),
    "a moment too many": (raw(Table.MOMENTS, moment_key(Moment.WAKE, 5) + BUSY, b""), named("summary", "busy:443")),
    "an unwell circuit is not among them": (heal_unnoticed, named("summary", "down:443")),
    "a well circuit is among the unwell": (raw(Table.UNWELL, b"frozen", b"busy:443"), named("summary", "busy:443")),
    "a share is far off": (share(9 << 20), named("share", "down:443")),
    "a share is garbage": (raw(Table.SHARES, b"down:443", b"garbage"), named("share", "down:443")),
    "a shift is garbage": (raw(Table.SHIFTS, bytes(8)), named("share", bytes(8).hex())),
    "an epoch is lost": (lose_epoch, lambda store: [("key", key.hex()) for key in KEYS]),
    "a key is garbage": (raw(Table.KEYS, bytes(20)), named("key", bytes(20).hex())),
    "the latest moment is garbage": (raw(Table.META, META_LATEST), named("meta", "latest")),
}


@mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_repaired(store: Populated, damage: str) -> None:
    act, expected = DAMAGE[damage]
    with_transaction(store, lambda transaction: act(transaction, store))
    wanted = expected(store)
    found = findings(store)
    # An index that lost an entry changes what its lane's summary has to be.
    indirect = [each for each in found if each.kind == "summary" and ("summary", each.id) not in wanted]
    assert [(each.kind, each.id) for each in found if each not in indirect] == wanted
    assert all("config" in each.what or "wrong row" in each.what for each in indirect)
    repair(store)
    assert findings(store) == []
    after = contents(store)
    assert_consistent(after, RULES)
    assert_shares(after)


@mark.parametrize("killed", [True, False])
def test_a_store_of_every_state_is_clean_and_a_repair_changes_nothing(tmp_path: Path, killed: bool) -> None:
    store = build(tmp_path / "store", killed=killed)
    assert findings(store) == []
    before = contents(store)
    assert repair(store).file is None
    after = contents(store)
    assert_shares(after)
    assert {table for table in Table if before[table] != after[table]} == set()


def test_a_batch_that_ends_anywhere_leaves_nothing_out(store: Populated, monkeypatch: MonkeyPatch) -> None:
    """Also among the values of one key."""
    engine = store.open()
    everything = dump(engine)
    for size in (1, 2, 3):
        monkeypatch.setattr(tables, "BATCH", size)
        assert {table: [row for _, row in tables.walk(engine, table)] for table in Table} == everything
    engine.close()


@mark.parametrize("batch", [1, 3])
def test_a_repair_goes_in_bounded_transactions(
    store: Populated, tmp_path: Path, monkeypatch: MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(tables, "BATCH", batch)
    removed: list[int] = []

    class Watched(LmdbEngine):
        def write(self):
            with self.read() as transaction:
                removed.append(transaction.entries(Table.WAITING))
            return super().write()

    with_transaction(
        store,
        lambda transaction: [
            add_entry(Table.WAITING, b"ice:443", name)(transaction, store)
            for name in ("waiting", "waiting behind", "delayed", "retrying", "pushed", "empty", "held")
        ],
    )
    engine = Watched(store.folder, 64 << 20)
    assert Repair(engine, RULES, NOW).run().set_aside == 7
    engine.close()
    assert max(abs(later - earlier) for earlier, later in pairwise(removed)) <= batch
    assert findings(store) == []


def test_unreadable_rows_are_kept_byte_by_byte(store: Populated) -> None:
    value = GARBAGE + bytes(range(256))
    with_transaction(store, lambda transaction: transaction.put(Table.MESSAGES, store["held"], value))
    before = contents(store)
    previous = os.umask(0)
    try:
        done = repair(store)
    finally:
        os.umask(previous)
    assert done.file is not None
    assert done.file.parent == store.folder
    assert done.file.name.startswith("set-aside-20241004T100000")
    assert stat.S_IMODE(done.file.stat().st_mode) == 0o600
    rows = [json.loads(line) for line in done.file.read_text().splitlines()]
    assert len(rows) == done.set_aside
    kept = {(row["table"], bytes.fromhex(row["key"]), bytes.fromhex(row["value"])) for row in rows}
    of_it = {
        (table.name.lower(), key, content)
        for table in (Table.MESSAGES, Table.BODIES, Table.WAITING)
        for key, content in before[table]
        if store["held"] in (key[:16], content[8:])
    }
    assert kept == of_it
    assert not any(store["held"] in key + content for rows in contents(store).values() for key, content in rows)


def test_a_lost_place_is_found_again_by_the_indexes(store: Populated) -> None:
    """A retry keeps its time, a delay is still one, and a replayed message does not get old at once."""
    names = ("retrying", "delayed", "replayed", "active, tried")
    before = {name: told(store, name) for name in names}
    with_transaction(store, lambda transaction: [transaction.delete(Table.PLACES, store[name]) for name in names])
    assert {each.kind for each in findings(store)} >= {"index", "place"}
    repair(store)
    assert {name: told(store, name) for name in before} == before


@mark.parametrize(("name", "reason"), [("exhausted", DeadReason.EXHAUSTED), ("expired", DeadReason.EXPIRED)])
@mark.parametrize("lost", [Table.PLACES, Table.DEAD])
def test_the_dead_stay_dead_and_keep_their_reason(store: Populated, name: str, reason: DeadReason, lost: Table) -> None:
    before = told(store, name)
    act = remove(lost, name) if lost is Table.PLACES else drop_letter(name)
    with_transaction(store, lambda transaction: act(transaction, store))
    repair(store)
    assert told(store, name) == before
    assert before.dead_reason is reason


def test_a_message_in_no_index_goes_to_its_place_or_to_its_lanes_queue(store: Populated) -> None:
    places = dict(contents(store)[Table.PLACES])

    def lose_indexes(transaction: Transaction) -> None:
        for table in (Table.ACTIVE, Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD_LANE):
            for key, value in list(transaction.scan(table)):
                (transaction.remove(table, key, value) if table in DUPLICATES else transaction.delete(table, key))

    with_transaction(store, lose_indexes)
    repair(store)
    after = contents(store)
    assert_consistent(after, RULES)
    assert dict(after[Table.PLACES]) == places
    queue = [value[8:] for lane_key, value in after[Table.WAITING] if lane_key == b"new:443"]
    assert queue == [store["active"]]
    assert [id for id, _ in after[Table.ACTIVE]] == [store["active, tried"]]


def test_a_circuit_that_can_not_be_read_begins_anew(store: Populated) -> None:
    with_transaction(store, lambda transaction: transaction.put(Table.LANES, b"down:443", GARBAGE))
    done = repair(store)
    assert (done.circuits, done.set_aside) == (1, 1)
    record = records.decode_lane(dict(contents(store)[Table.LANES])[b"down:443"])
    assert (record.circuit.state, record.circuit.since) == (CircuitState.ENABLED, NOW)


def test_a_message_that_comes_back_can_be_sent(store: Populated) -> None:
    """After a repair the ledger finds in the queue what had been lost from it."""
    with_transaction(store, lambda transaction: remove_entry(Table.WAITING, BUSY, "waiting")(transaction, store))
    repair(store)

    async def look(desk) -> None:
        view = await desk.look("busy:443")
        assert store["waiting"] in [entry.message.id for entry in view.fresh]
        assert view.broken == []

    populate(store.folder, look)


@settings(
    max_examples=amount(25, 150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_happened_a_repair_ends_in_a_clean_store(
    original: Populated, tmp_path_factory: TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any") / "store"
    shutil.copytree(original.folder, folder)
    store = Populated(folder, original.by_name)
    rows = [(table, *row) for table, rows in contents(store).items() for row in rows if row[0] != b"schema"]
    for table, key, value in data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=6)):
        spoilt = data.draw(st.none() | st.binary(max_size=40) | _changed(value))
        with_transaction(store, lambda transaction: _damage(transaction, table, key, value, spoilt))  # noqa: B023
    repair(store)
    assert findings(store) == []
    after = contents(store)
    assert_consistent(after, RULES)
    assert_shares(after)
    shutil.rmtree(folder)


def _changed(value: bytes) -> st.SearchStrategy[bytes]:
    """The same with one byte changed."""
    if not value:
        return st.just(b"")
    return st.builds(
        lambda place, byte: value[:place] + bytes([byte]) + value[place + 1 :],
        st.integers(0, len(value) - 1),
        st.integers(0, 255),
    )


def _damage(transaction: Transaction, table: Table, key: bytes, value: bytes, spoilt: bytes | None) -> None:
    if table not in DUPLICATES:
        transaction.delete(table, key) if spoilt is None else transaction.put(table, key, spoilt)
        return
    transaction.remove(table, key, value)
    if spoilt:
        # LMDB itself holds the values of these tables to one length, but for the names among the unwell.
        transaction.add(table, key, spoilt if table is Table.UNWELL else spoilt.ljust(24, b"x")[:24])
