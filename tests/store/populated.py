"""A store on disk with a message in every state, built through the ledger and then closed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from holdfast.core.circuit import Circuit, CircuitState, Reason, Window
from holdfast.core.errors import CommitFailed
from holdfast.core.message import Entry, Message, MessageId, Place, Standing
from holdfast.store import records
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table, step
from holdfast.store.offline.offline_store import OfflineStore
from holdfast.store.port import Expire, Fail, RetryNow
from tests.contract.builders import (
    EVER,
    HOUR,
    MINUTE,
    NOW,
    RULES,
    Desk,
    attempt,
    disabled,
    frozen,
    idempotency,
    lane,
    retry_at,
)

SIZE = 256 << 20
TEXT = "größer als ein Datensatz, ".encode() * 4_000
BINARY = bytes(range(256)) * 50
OF_WRONG_TYPES = records.pack([records.VERSION, 5, "h", "https", "h", b"/", "POST", [], NOW, NOW, None, 0, b""])
"""A message's record that decodes, with a number for a lane."""


@dataclass
class Populated:
    """A closed store: which message is in which state, and how to open it again."""

    folder: Path
    by_name: dict[str, Message] = field(default_factory=dict)

    def __getitem__(self, name: str) -> MessageId:
        return self.by_name[name].id

    def open(self) -> LmdbEngine:
        return LmdbEngine(self.folder, SIZE)

    def offline(self) -> OfflineStore:
        return OfflineStore(self.open(), RULES)


def build(folder: Path, *, killed: bool = True) -> Populated:
    """With `killed` the last run ended without shelving what was active."""
    store = Populated(folder)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            desk = Desk(nursery, store.open, RULES)
            await desk.open()
            for fill in (_finished, _queued, _unwell, _active):
                await fill(desk, store.by_name)
            if killed:
                desk.ledger.failed = CommitFailed("killed")
            await desk.close()

    trio.run(run)
    return store


def populate(folder: Path, fill: Callable[[Desk], Awaitable[None]]) -> Populated:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            desk = Desk(nursery, store.open, RULES)
            await desk.open()
            await fill(desk)
            await desk.close()

    store = Populated(folder)
    trio.run(run)
    return store


async def _finished(desk: Desk, named: dict[str, Message]) -> None:
    entry = await desk.accept("done:443", key=idempotency("delivered"))
    await desk.deliver(entry)
    named["delivered"] = entry.message
    entry = await desk.accept("done:443", BINARY, route="billing")
    await desk.fail(entry, retry_at(1, NOW + MINUTE))
    await desk.deliver(Entry(entry.message, Place(Standing.RETRY, entry.message.born, NOW + MINUTE, 1, 1)), 2)
    named["delivered late"] = entry.message
    entry = await desk.accept("done:443", BINARY)
    await desk.add_dead(entry)
    named["exhausted"] = entry.message
    [entry] = await desk.accept_waiting("gone:443")
    await desk.ledger.perform(Expire("gone:443", EVER, NOW + HOUR, 10))
    named["expired"] = entry.message
    entry = await desk.accept("again:443")
    await desk.add_dead(entry)
    desk.clock.at += 5
    await desk.ledger.perform(RetryNow(entry.message.id, desk.clock.at, entry.message.lane, entry.message.host))
    named["replayed"] = entry.message


async def _queued(desk: Desk, named: dict[str, Message]) -> None:
    named["waiting"], named["waiting behind"] = (
        entry.message for entry in await desk.accept_waiting("busy:443", 2, body=TEXT, path=b"/h\xc3\xb6ok?secret=1")
    )
    named["delayed"] = (await desk.accept("busy:443", delay=HOUR, key=idempotency("delayed"))).message
    named["retrying"] = (await desk.retrying(NOW + 7 * MINUTE, lane="busy:443", retry=1)).message
    named["pushed"] = (await desk.retrying(NOW + 8 * MINUTE, lane="busy:443", held=True)).message
    named["empty"] = (
        await desk.accept("busy:443", b"", headers=((b"authorization", b"Bearer s3cret"), (b"x-bin", b"\xff\x00")))
    ).message


async def _unwell(desk: Desk, named: dict[str, Message]) -> None:
    named["held"] = (await desk.accept_waiting("down:443", body=BINARY))[0].message
    entry = await desk.accept("down:443")
    counted = Circuit(
        CircuitState.DISABLED,
        since=NOW,
        reason=Reason.FAILURE_RATE,
        consecutive_failures=123,
        window=Window([[333, 5, 4], [334, 100, 99]]),
        first_attempt_at=NOW - HOUR,
        last_attempt_at=NOW - 1,
        last_success_at=NOW - 2,
        silent_since=NOW - 2,
        enabled_at=NOW - HOUR,
        next_probe_at=NOW + 10 * MINUTE,
        probed=NOW.to_bytes(8, "big") + entry.message.id,
    )
    unwell = replace(lane("down:443", counted), hydrated=True)
    unwell.host.hold_until = NOW + 3 * MINUTE
    await desk.fail(entry, None, on=unwell)
    named["probed"] = entry.message
    await desk.save(disabled("down:443/x"), frozen("ice:443"))
    named["frozen"] = (await desk.accept_waiting("ice:443"))[0].message
    entry = await desk.accept("ice:443")
    binary_answer = attempt()._replace(answer=b"\xff\xfe", duration=1_234)
    await desk.ledger.perform(Fail(entry, binary_answer, retry_at(1, NOW + MINUTE), frozen("ice:443")))
    named["frozen retry"] = entry.message


async def _active(desk: Desk, named: dict[str, Message]) -> None:
    named["active"] = (await desk.accept("new:443", key=idempotency("active"))).message
    entry = await desk.accept("new:443", TEXT)
    await desk.fail(entry, None)
    named["active, tried"] = entry.message


def put(store: Populated, table: Table, key: bytes, value: bytes) -> None:
    with_transaction(store, lambda transaction: transaction.put(table, key, value))


def with_transaction(store: Populated, act) -> None:
    """One raw write, as nothing in holdfast would make it."""
    engine = store.open()
    step(engine, act)
    engine.close()
