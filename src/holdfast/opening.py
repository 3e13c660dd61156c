"""Which store a gateway is on, and what goes with it: the clock that its times are told by, and where it is.

The embedded one is this machine's. One that replicas share is in a database; the folder of `store.path` then holds the
control socket, so that two replicas on one machine need two of them.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from holdfast.chance import RandomBits
from holdfast.clock import BootClock, SharedClock
from holdfast.config import Config, DatabaseUrl
from holdfast.core.errors import CommitFailed, StoreAway
from holdfast.core.fleet import Role
from holdfast.delivery.service import circuit_rules, retry_rules
from holdfast.lifecycle import Keeping
from holdfast.store.folder import make_folder, take_folder
from holdfast.store.ledger import Ledger, last_time
from holdfast.store.lmdb import LmdbEngine
from holdfast.store.port import SharedStore, Store
from holdfast.store.work import StoreRules


class Kept(Keeping, Protocol):
    """What the process asks of a store that it runs. `broken` is set when it failed for good; `on_failed` is told."""

    on_group: Callable[[int, float], None]
    on_failed: Callable[[CommitFailed], None]
    broken: trio.Event

    def configure(self, rules: StoreRules) -> None: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...


class KeptStore(Store, Kept, Protocol):
    pass


class KeptSharedStore(SharedStore, Kept, Protocol):
    """`on_away` is told when the database went away, and why; by None when it is back."""

    on_away: Callable[[StoreAway | None], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """`place` is where the store is, as it may be shown; `volume` a folder on its volume, if it is on this machine.
    `run` is the moment of this start, by which runs are told apart.

    `ledger` is the embedded store once more, for what needs that one. Where replicas share another, `shared` is that
    one, and `role` what this replica does.
    """

    store: KeptStore
    clock: BootClock
    run: int
    place: str
    close: Callable[[], None]
    ledger: Ledger | None = None
    volume: Path | None = None
    shared: KeptSharedStore | None = None
    role: Role | None = None


def open_store(config: Config, role: Role) -> Opened:
    """Raises StoreUnusable, having left nothing open."""
    with ExitStack() as undo:
        url = config.store.url
        opened = _open_embedded(config, undo) if url is None else _open_shared(config, url, role, undo)
        undo.pop_all()
    return opened


def _open_embedded(config: Config, undo: ExitStack) -> Opened:
    engine = LmdbEngine(config.store.path, config.store.max_size)
    undo.callback(engine.close)
    clock = BootClock(last_time(engine))
    run = clock.now()
    ledger = Ledger(engine, store_rules(config, run), clock, RandomBits())
    ledger.open()
    folder = config.store.path
    return Opened(ledger, clock, run, str(folder), engine.close, ledger=ledger, volume=folder)


def _open_shared(config: Config, url: DatabaseUrl, role: Role, undo: ExitStack) -> Opened:
    # Only where it is wanted: it is an extra, and 15 MB of memory.
    from holdfast.store.postgres.contact import make_contact
    from holdfast.store.postgres.store import PostgresStore

    folder, rules = config.store.path, config.store
    make_folder(folder)
    lock = take_folder(folder)
    undo.callback(os.close, lock)
    clock = SharedClock()
    # A pod must not crash in a loop because its database restarts: the store goes on trying.
    with suppress(StoreAway):
        clock.follow(make_contact(url.whole))
    run = clock.now()
    store = PostgresStore(
        url.whole,
        store_rules(config, run),
        clock,
        RandomBits(),
        max_size=rules.max_size,
        delivers=role.delivers,
    )
    store.on_time = clock.follow

    def close() -> None:
        store.close()
        os.close(lock)

    return Opened(store, clock, run, str(url), close, shared=store, role=role)


def store_rules(config: Config, run: int) -> StoreRules:
    return StoreRules(
        circuit_rules(config),
        retry_rules(config),
        config.ingest.idempotency,
        config.store.host_share,
        config.delivery.per_host,
        run,
    )
