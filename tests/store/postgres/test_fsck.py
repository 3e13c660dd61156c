"""fsck of a database finds each kind of damage and nothing else; a repair mends what is computed, whatever happens
meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from pytest import MonkeyPatch, TempPathFactory, fixture, mark

from holdfast.core.message import id_text
from holdfast.store.maintenance import Finding, Maintained, Repaired
from holdfast.store.offline.offline_store import open_database
from holdfast.store.port import Accept, Deliver
from holdfast.store.postgres import fsck, transactions
from tests.contract.builders import EVER, NOW, RULES, active, success
from tests.store.offline.test_export_and_restore import export as export_embedded
from tests.store.populated import SIZE, Populated, build
from tests.store.postgres.test_export_and_restore import a_replica, execute, message, take

GARBAGE = b"\xc1garbage"


@fixture(scope="module")
def original(tmp_path_factory: TempPathFactory) -> Populated:
    return build(tmp_path_factory.mktemp("original") / "store", killed=False)


@fixture
def filled(original: Populated, database: str) -> str:
    """A database with a message in every state, and its circuits with the moments of long ago."""
    take(database, export_embedded(original))
    trio.run(owned, database)
    execute(database, "UPDATE lanes SET wake_at = 1 WHERE wake_at > 0")
    return database


async def owned(url: str) -> None:
    """What was imported has been taken in by a replica."""
    async with trio.open_nursery() as nursery:
        await a_replica(nursery, url)
        nursery.cancel_scope.cancel()


@contextmanager
def opened(url: str) -> Iterator[Maintained]:
    with open_database(url, SIZE, RULES) as database:
        yield database


def findings(url: str) -> list[Finding]:
    with opened(url) as database:
        return list(database.check())


def repair(url: str) -> Repaired:
    with opened(url) as database:
        return database.repair()


# -- what is computed: found, and mended -------------------------------------------------------------------------------

MENDABLE = {
    "a count is off": (
        "UPDATE counters SET first = first + 2, bytes = bytes - 1 WHERE lane = 'busy:443'",
        [("share", "busy:443")],
        Repaired(shares=1),
    ),
    "a count is missing": ("DELETE FROM counters WHERE lane = 'done:443'", [("share", "done:443")], Repaired(shares=1)),
    "a count is of nothing": (
        "INSERT INTO counters VALUES ('x:443', 'x:443', 7, 1, 0, 0, 4096)",
        [("share", "x:443")],
        Repaired(shares=1),
    ),
    "a moment is missing": (
        "UPDATE lanes SET wake_at = 0 WHERE lane = 'ice:443'",
        [("summary", "ice:443")],
        Repaired(summaries=1),
    ),
    "a moment is late": (
        "UPDATE lanes SET wake_at = 1::bigint << 60 WHERE lane = 'busy:443'",
        [("summary", "busy:443")],
        Repaired(summaries=1),
    ),
    "a circuit is listed elsewhere": (
        "UPDATE lanes SET state = 0 WHERE lane = 'ice:443'",
        [("circuit", "ice:443")],
        Repaired(summaries=1),
    ),
    "a circuit is in another shard": (
        "UPDATE lanes SET shard = 255 - shard WHERE lane = 'ice:443'",
        [("circuit", "ice:443")],
        Repaired(summaries=1),
    ),
    "a circuit is gone": (
        "DELETE FROM lanes WHERE lane = 'again:443'",
        [("circuit", "again:443")],
        Repaired(circuits=1),
    ),
    "arrived where no owner looks": (
        "UPDATE messages SET standing = 0, shard = -1 WHERE lane = 'again:443'",
        [("index", "replayed")],
        Repaired(entries=1),
    ),
}


@mark.parametrize("page", [1, 500])
@mark.parametrize("name", MENDABLE)
def test_what_is_computed_is_mended(
    filled: str, original: Populated, monkeypatch: MonkeyPatch, name: str, page: int
) -> None:
    statement, expected, done = MENDABLE[name]
    assert findings(filled) == []
    execute(filled, statement)
    monkeypatch.setattr(transactions, "PAGE", page)
    monkeypatch.setattr(fsck, "AT_ONCE", page)
    names = {known: id_text(original[known]) for known in original.by_name}
    assert [(each.kind, each.id) for each in findings(filled)] == [(kind, names.get(id, id)) for kind, id in expected]
    assert repair(filled) == done
    assert findings(filled) == []


def test_a_moment_may_be_early(filled: str) -> None:
    execute(filled, "UPDATE lanes SET wake_at = 1")
    assert findings(filled) == []


async def test_what_nobody_had_is_delivered_after_a_repair(filled: str, original: Populated) -> None:
    execute(filled, "UPDATE messages SET standing = 0, shard = -1 WHERE lane = 'again:443'")
    execute(filled, "UPDATE lanes SET wake_at = 0")
    repair(filled)
    async with trio.open_nursery() as nursery:
        store = await a_replica(nursery, filled)
        assert "again:443" in (await store.agenda(EVER, 10, ())).lanes
        nursery.cancel_scope.cancel()


async def test_a_fleet_at_work_has_nothing_wrong_with_it(database: str) -> None:
    async with trio.open_nursery() as nursery:
        store = await a_replica(nursery, database)
        taken = [message(store.mint(NOW)) for _ in range(3)]
        for each in taken:
            await store.perform(Accept(each))
        assert findings(database) == []
        await store.perform(Deliver(active(taken[0]), success(), None))
        assert findings(database) == []
        nursery.cancel_scope.cancel()
    assert findings(database) == []


async def test_counts_are_mended_by_what_they_were_off(database: str, monkeypatch: MonkeyPatch) -> None:
    """What the fleet counts between the look and the mending stays counted."""
    async with trio.open_nursery() as nursery:
        store = await a_replica(nursery, database)
        await store.perform(Accept(message(store.mint(NOW))))
        execute(database, "UPDATE counters SET first = 10")
        with opened(database) as here:
            token = trio.lowlevel.current_trio_token()
            set_right = fsck._set_right

            def after_another_one(*arguments: Any, **named: Any) -> set[str]:
                trio.from_thread.run(store.perform, Accept(message(store.mint(NOW))), trio_token=token)
                return set_right(*arguments, **named)

            monkeypatch.setattr(fsck, "_set_right", after_another_one)
            await trio.to_thread.run_sync(here.repair)
        assert (await store.statistics()).first == 2
        nursery.cancel_scope.cancel()
    assert findings(database) == []


# -- records: found, and left where they are ---------------------------------------------------------------------------

Damage = Callable[[str, Populated], object]
RECORDS: dict[str, tuple[Damage, list[tuple[str, str]]]] = {
    "message": (
        lambda url, store: execute(url, "UPDATE messages SET record = %s WHERE id = %s", GARBAGE, store["waiting"]),
        [("message", "waiting")],
    ),
    "body": (
        lambda url, store: execute(url, "UPDATE messages SET body = NULL WHERE id = %s", store["waiting"]),
        [("message", "waiting")],
    ),
    "reason": (
        lambda url, store: execute(url, "UPDATE messages SET reason = 9 WHERE id = %s", store["expired"]),
        [("message", "expired")],
    ),
    "attempt": (
        lambda url, store: execute(url, "UPDATE attempts SET record = %s WHERE id = %s", GARBAGE, store["retrying"]),
        [("attempt", "retrying")],
    ),
    "stray attempt": (
        lambda url, store: execute(url, "DELETE FROM delivered WHERE id = %s", store["delivered late"]),
        [("attempt", "delivered late")],
    ),
    "delivered": (
        lambda url, store: execute(url, "UPDATE delivered SET record = %s WHERE id = %s", GARBAGE, store["delivered"]),
        [("delivered", "delivered")],
    ),
    "delivered and not": (
        lambda url, store: execute(url, "INSERT INTO delivered SELECT %s, 1, record FROM delivered", store["empty"]),
        [("message", "empty")],
    ),
    "circuit": (
        lambda url, store: execute(url, "UPDATE lanes SET record = %s WHERE lane = 'busy:443'", GARBAGE),
        [("circuit", "busy:443")],
    ),
    "another's circuit": (
        lambda url, store: execute(
            url, "UPDATE lanes SET record = (SELECT record FROM lanes WHERE lane = 'again:443') WHERE lane = 'busy:443'"
        ),
        [("circuit", "busy:443")],
    ),
    "key": (
        lambda url, store: execute(url, "UPDATE keys SET body = 'short' WHERE id = %s", store["delayed"]),
        [("key", "")],
    ),
}


@mark.parametrize("name", RECORDS)
def test_what_can_not_be_read_is_told_and_stays(filled: str, original: Populated, name: str) -> None:
    damage, expected = RECORDS[name]
    if name == "delivered and not":
        execute(filled, "DELETE FROM delivered WHERE id <> %s", original["delivered"])
        execute(filled, "DELETE FROM attempts WHERE id = %s", original["delivered late"])
    damage(filled, original)
    names = {known: id_text(original[known]) for known in original.by_name}
    told = findings(filled)
    assert [each.kind for each in told] == [kind for kind, _ in expected]
    assert [each.id for each in told if each.kind != "key"] == [
        names.get(id, id) for kind, id in expected if kind != "key"
    ]
    assert repair(filled) == Repaired()
    assert findings(filled) == told
