"""From the embedded store into a database and back: nothing is lost or changed on the way, whatever a fleet does."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import randbits
from typing import Any

import psycopg
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch, TempPathFactory, fixture, mark, raises

from holdfast.core.errors import StoreFull, StoreUnreachable, StoreUnusable
from holdfast.core.message import Message, id_text
from holdfast.store import maintenance
from holdfast.store.embedded.tables import Table
from holdfast.store.maintenance import Finding, Imported, Maintained
from holdfast.store.offline.offline_store import open_database
from holdfast.store.port import Accept, Deliver, Duplicate, LaneQuery
from holdfast.store.postgres import transactions
from holdfast.store.postgres.store import PostgresStore
from tests.contract.builders import DAY, EVER, HOST, NOW, RULES, HandClock, active, idempotency, success
from tests.store.fleets import every_host_is_owned
from tests.store.offline.test_export_and_restore import ANYTHING, NOT_THE_SAME, contents, line_of
from tests.store.offline.test_export_and_restore import export as export_embedded
from tests.store.offline.test_export_and_restore import take as take_embedded
from tests.store.populated import SIZE, Populated, build
from tests.support.ports import refusing_port
from tests.support.repetitions import amount


@fixture(scope="module")
def original(tmp_path_factory: TempPathFactory) -> Populated:
    """Nothing in it is active: what was went to its queue when the gateway ended."""
    return build(tmp_path_factory.mktemp("original") / "store", killed=False)


@fixture(scope="module")
def exported(original: Populated) -> list[bytes]:
    return export_embedded(original)


@contextmanager
def opened(url: str, max_size: int = SIZE, **rules: Any) -> Iterator[Maintained]:
    with open_database(url, max_size, replace(RULES, **rules), create=True) as database:
        yield database


def take(url: str, lines: list[bytes], **options: Any) -> tuple[Imported, list[tuple[int, str]]]:
    bad: list[tuple[int, str]] = []
    with opened(url, **options) as database:
        done = database.take(lines[1:], lambda number, what: bad.append((number, what)))
        assert list(database.check()) == []
    return done, bad


def export(url: str) -> list[bytes]:
    left_out: list[Finding] = []
    with opened(url) as database:
        lines = list(database.export(left_out.append))
    assert left_out == []
    return lines


def execute(url: str, statement: str, *values: object) -> list[Any]:
    """As nothing in holdfast would do it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path TO holdfast")
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


async def a_replica(nursery: trio.Nursery, url: str, at: int = NOW) -> PostgresStore:
    store = PostgresStore(url, RULES, HandClock(at), randbits, max_size=SIZE)
    await nursery.start(store.run)
    await every_host_is_owned(store)
    return store


def message(id: bytes, body: bytes = b"{}") -> Message:
    return Message(id, HOST, HOST, "https", HOST, b"/hook", "POST", (), body, NOW, NOW)


# -- there and back ----------------------------------------------------------------------------------------------------


@mark.parametrize("batch", [1, 4, 500])
def test_a_store_that_went_through_a_database_is_the_same(
    original: Populated,
    exported: list[bytes],
    database: str,
    tmp_path: Path,
    monkeypatch: MonkeyPatch,
    batch: int,
) -> None:
    monkeypatch.setattr(maintenance, "BATCH", batch)
    monkeypatch.setattr(transactions, "PAGE", batch)
    done, bad = take(database, exported)
    assert (done.complete, bad, done.skipped.total()) == (True, [], 0)
    through = export(database)
    assert through == exported
    copy = Populated(tmp_path / "copy")
    take_embedded(copy, through)
    before, after = contents(original), contents(copy)
    same = [table for table in Table if table not in NOT_THE_SAME]
    assert {table: after[table] for table in same} == {table: before[table] for table in same}


def test_what_was_active_waits_where_nobody_has_it(tmp_path: Path, database: str) -> None:
    lines = export_embedded(build(tmp_path / "store"))
    take(database, lines)
    assert export(database) == [line.replace(b'"state": "active"', b'"state": "waiting"') for line in lines]


async def test_a_fleet_delivers_what_was_imported(exported: list[bytes], database: str) -> None:
    take(database, exported)
    async with trio.open_nursery() as nursery:
        store = await a_replica(nursery, database, NOW + DAY)
        assert {"again:443", "busy:443", "new:443"} < set((await store.agenda(EVER, 10, ())).lanes)
        [view] = await store.survey([LaneQuery("busy:443", NOW + DAY, 10, 10, None, frozenset())])
        assert (len(view.fresh), len(view.due)) == (3, 3)
        statistics = await store.statistics()
        assert (statistics.waiting, statistics.dead) == (13, 2)
        nursery.cancel_scope.cancel()


async def test_an_imported_key_still_answers(original: Populated, exported: list[bytes], database: str) -> None:
    take(database, exported)
    async with trio.open_nursery() as nursery:
        store = await a_replica(nursery, database)
        again = await store.perform(Accept(message(store.mint(NOW)), idempotency("delivered")))
        assert again == Duplicate(original["delivered"])
        nursery.cancel_scope.cancel()


async def test_a_message_that_is_under_way_is_exported_as_one_that_waits(database: str) -> None:
    async with trio.open_nursery() as nursery:
        store = await a_replica(nursery, database)
        taken = message(store.mint(NOW))
        await store.perform(Accept(taken))
        lines = export(database)
        await store.perform(Deliver(active(taken), success(), None))
        assert [json.loads(line)["kind"] for line in export(database)[1:-1]] == ["delivered"]
        nursery.cancel_scope.cancel()
    assert json.loads(lines[1])["place"]["state"] == "waiting"


def test_an_export_is_of_one_moment(exported: list[bytes], database: str, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PAGE", 1)
    take(database, exported)
    with opened(database) as here:
        lines = here.export(lambda finding: None)
        first = [next(lines) for _ in range(3)]
        execute(database, "DELETE FROM messages")
        execute(database, "DELETE FROM attempts")
        assert [*first, *lines] == exported


# -- beside what is there ----------------------------------------------------------------------------------------------


def test_repeating_an_import_skips_what_is_there(exported: list[bytes], database: str) -> None:
    first, _ = take(database, exported)
    again, bad = take(database, exported)
    assert (again.added.total(), again.skipped, bad) == (0, first.added, [])
    assert export(database) == exported


def test_an_interrupted_import_is_completed_by_repeating_it(
    exported: list[bytes], database: str, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 3)

    def torn() -> Iterator[bytes]:
        yield from exported[1:20]
        raise KeyboardInterrupt

    with opened(database) as here, raises(KeyboardInterrupt):
        here.take(torn(), lambda number, what: None)
    [[some]] = execute(database, "SELECT count(*) FROM messages")
    assert 0 < some < 15
    done, _ = take(database, exported)
    assert done.skipped["message"] == some
    assert export(database) == exported


def test_the_first_of_two_lines_about_one_message_counts(
    original: Populated, exported: list[bytes], database: str
) -> None:
    waiting = line_of(exported, original, "waiting")
    finished = {**line_of(exported, original, "delivered"), "id": waiting["id"]}
    other = {**waiting, "method": "PUT"}
    done, _ = take(database, [b"", *(json.dumps(line).encode() for line in (waiting, finished, other))])
    assert (done.added, done.skipped) == ({"message": 1}, {"message": 1, "delivered": 1})
    assert execute(database, "SELECT count(*) FROM delivered") == [(0,)]


def test_a_message_that_was_delivered_meanwhile_does_not_come_back(
    original: Populated, exported: list[bytes], database: str
) -> None:
    take(database, [line for line in exported if b'"kind": "message"' not in line])
    waiting = {**line_of(exported, original, "waiting"), "id": id_text(original["delivered"])}
    done, _ = take(database, [exported[0], json.dumps(waiting).encode()])
    assert (done.added.total(), done.skipped) == (0, {"message": 1})


def test_a_circuit_that_is_there_stays_as_it_is(exported: list[bytes], database: str) -> None:
    take(database, exported)
    [line] = [line for line in map(json.loads, exported) if line.get("key") == "down:443"]
    done, _ = take(database, [exported[0], json.dumps({**line, "state": "enabled", "limit": 1}).encode()])
    assert (done.added.total(), done.skipped) == (0, {"circuit": 1})
    assert export(database) == exported


def test_a_circuit_that_comes_is_looked_at_by_its_owner_at_once(
    original: Populated, exported: list[bytes], database: str
) -> None:
    """So what waits in a frozen one expires in time, whatever comes before what."""
    take(database, [exported[0], *(line for line in exported if b'"key": "ice:443"' in line)])
    for name in ("frozen retry", "frozen"):
        take(database, [exported[0], json.dumps(line_of(exported, original, name)).encode()])
    [[now]] = execute(database, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    [[at]] = execute(database, "SELECT wake_at FROM lanes WHERE lane = 'ice:443'")
    assert 0 < at <= now


def test_a_limit_that_still_grows_goes_on_growing(exported: list[bytes], database: str) -> None:
    [line] = [line for line in map(json.loads, exported) if line.get("key") == "down:443"]
    changed = json.dumps({**line, "limit": 4}, ensure_ascii=False).encode()
    take(database, [exported[0], changed])
    assert json.loads(export(database)[1]) == json.loads(changed)


@mark.parametrize(("day", "kept"), [("2024-10-05T09:59:59.999Z", 0), ("2024-10-05T10:00:00.000Z", 1)])
def test_a_key_is_replaced_by_a_use_after_its_time(database: str, day: str, kept: int) -> None:
    def use(id: int, at: str) -> list[bytes]:
        line = {"kind": "key", "digest": "a" * 32, "body": "b" * 32, "id": f"msg_{id:032x}", "at": at}
        return [b"", json.dumps(line).encode()]

    take(database, use(0, "2024-10-04T10:00:00.000Z"))
    done, _ = take(database, use(1, day))
    assert (done.added["key"], done.skipped["key"]) == (kept, 1 - kept)
    assert execute(database, "SELECT id FROM keys") == [(kept.to_bytes(16, "big"),)]


def test_a_store_that_is_too_small_says_so_and_takes_the_rest_later(
    original: Populated, exported: list[bytes], database: str
) -> None:
    template = line_of(exported, original, "held")
    lines = [
        json.dumps({**template, "id": f"msg_{number:032x}", "body": "x" * 900_000}).encode() for number in range(1, 30)
    ]
    with opened(database, 8 << 20) as small, raises(StoreFull, match="max_size"):
        small.take(lines, lambda number, what: None)
    [[some]] = execute(database, "SELECT count(*) FROM messages")
    assert 0 < some < 29
    done, bad = take(database, [exported[0], *lines])
    assert (done.skipped["message"], done.added["message"], bad) == (some, 29 - some, [])


# -- what can't be taken or told ---------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]


@mark.parametrize(
    "change",
    [
        lambda line: line.pop("lane"),
        lambda line: line.update(lane="zero\0byte"),
        lambda line: line.update(host="zero\0byte"),
        lambda line: line.update(lane="\ud800"),
        lambda line: line.update(lane="x" * 401),
        lambda line: line.update(born="1969-12-31T23:59:59.000Z"),
        lambda line: line["place"].update(retry=40_000),
        lambda line: line["place"].update(attempts=1 << 31),
        lambda line: line["place"].update(born="1969-12-31T23:59:59.000Z"),
        lambda line: line["attempts"][0].update(number=1 << 31),
        lambda line: line["attempts"][0].update(detail="\ud800"),
    ],
)
def test_nothing_of_a_bad_line_is_stored_and_the_others_are(
    original: Populated, exported: list[bytes], database: str, change: Change
) -> None:
    line = line_of(exported, original, "retrying")
    change(line)
    number = next(number for number, text in enumerate(exported) if id_text(original["retrying"]).encode() in text)
    done, bad = take(database, [*exported[:number], json.dumps(line).encode(), *exported[number + 1 :]])
    assert [at for at, _ in bad] == [number + 1]
    assert (done.bad, done.added["message"], done.complete) == (1, 14, True)
    assert execute(database, "SELECT count(*) FROM attempts WHERE id = %s", original["retrying"]) == [(0,)]


@fixture(scope="module")
def one_database(postgres: Any) -> Iterator[str]:
    url = postgres.fresh_database()
    yield url
    postgres.drop(url)


@settings(max_examples=amount(20, 100), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_a_line_says_the_database_stays_consistent(
    exported: list[bytes], one_database: str, data: st.DataObject
) -> None:
    line = json.loads(data.draw(st.sampled_from(exported[1:-1])))
    target = line
    while True:
        name = data.draw(st.sampled_from(sorted(target)))
        inner = target[name][0] if isinstance(target[name], list) and target[name] else target[name]
        if not isinstance(inner, dict) or data.draw(st.booleans()):
            break
        target = inner
    target[name] = data.draw(ANYTHING)
    take(one_database, [exported[0], json.dumps(line).encode()])
    export(one_database)


def test_unreadable_records_are_left_out_and_reported(
    original: Populated, exported: list[bytes], database: str
) -> None:
    take(database, exported)
    execute(database, "UPDATE messages SET record = %s WHERE id = %s", b"\xc1", original["waiting"])
    execute(database, "UPDATE messages SET body = 'short' WHERE id = %s", original["waiting behind"])
    execute(database, "UPDATE messages SET reason = NULL WHERE id = %s", original["expired"])
    execute(database, "UPDATE lanes SET record = %s WHERE lane = 'ice:443'", b"\xc1")
    execute(database, "UPDATE delivered SET record = %s WHERE id = %s", b"\xc1", original["delivered"])
    execute(database, "UPDATE attempts SET record = %s WHERE id = %s", b"\xc1", original["retrying"])
    left_out: list[Finding] = []
    with opened(database) as here:
        lines = list(here.export(left_out.append))
    assert [(each.kind, each.id) for each in left_out] == [
        ("circuit", "ice:443"),
        ("attempt", id_text(original["retrying"])),
        ("message", id_text(original["expired"])),
        ("message", id_text(original["waiting"])),
        ("message", id_text(original["waiting behind"])),
        ("delivered", id_text(original["delivered"])),
    ]
    assert json.loads(lines[-1]) == {"kind": "end", "lines": len(exported) - 1 - 5}


def test_where_no_tables_are_none_are_made(database: str) -> None:
    with (
        raises(StoreUnusable, match="there is no store in postgresql://") as told,
        open_database(database, SIZE, RULES),
    ):
        pass
    assert "not-to-be-shown" not in str(told.value)
    assert execute(database, "SELECT to_regnamespace('holdfast')::text") == [(None,)]


def test_a_database_that_is_away_says_so() -> None:
    url = f"postgresql://holdfast:not-to-be-shown@127.0.0.1:{refusing_port()}/none"
    with raises(StoreUnreachable) as told, opened(url):
        pass
    assert "not-to-be-shown" not in str(told.value)
