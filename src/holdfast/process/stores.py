"""Opens the store that the config names, with its clock.

The embedded store is in the folder `store.path`. A store that replicas share is in a database; `store.path` then holds
the control socket and the spool, so two replicas on one machine need two folders.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from holdfast.clock import BootClock, SharedClock
from holdfast.config import Config, DatabaseUrl
from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.core.ownership import Role
from holdfast.core.store_rules import StoreRules
from holdfast.operate.forwarding import Owners
from holdfast.process.lifecycle import StoreHealth
from holdfast.process.random_bits import RandomBits
from holdfast.store.embedded.folder import make_folder, take_folder
from holdfast.store.embedded.ledger import Ledger, last_time
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.spool import SharedDatabase, Spool
from holdfast.store.port import SharedStore, Store


class Running(Protocol):
    """A store or spool that the process runs. `broken` is set when it failed for good."""

    @property
    def failed(self) -> CommitFailed | None: ...

    @property
    def broken(self) -> trio.Event: ...

    def configure(self, rules: StoreRules) -> None: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...


class OpenStore(Store, StoreHealth, Running, Protocol):
    """A store that this process runs."""


class OpenSharedStore(SharedStore, Owners, StoreHealth, Running, Protocol):
    def end_by(self, moment: float) -> None:
        """Wait for nothing after this moment, in trio's time."""

    def step_back(self, steps_back: bool) -> None:
        """Let other replicas deliver while this one drains, or take part again."""


@dataclass(frozen=True, slots=True)
class Opened:
    """`place` says where the store is, without secrets. `volume` is a folder on the store's volume, if that is local.
    `run` is the moment of this start; it tells runs apart.

    `ledger` is `store` if it is the embedded one. If replicas share the store, it is also `shared`; then `spool` is its
    spool, if there is one, and `role` the role of this replica.
    """

    store: OpenStore
    clock: BootClock
    run: int
    place: str
    close: Callable[[], None]
    ledger: Ledger | None = None
    volume: Path | None = None
    shared: OpenSharedStore | None = None
    spool: Spool | None = None
    role: Role | None = None


def open_store(config: Config, role: Role) -> Opened:
    """Raises StoreUnusable and leaves nothing open then."""
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
    ledger = Ledger(engine, config.store_rules(run), clock, RandomBits())
    ledger.open()
    folder = config.store.path
    return Opened(ledger, clock, run, str(folder), engine.close, ledger=ledger, volume=folder)


def _open_shared(config: Config, url: DatabaseUrl, role: Role, undo: ExitStack) -> Opened:
    # A late import: the driver is an extra, and takes 15 MB of memory.
    from holdfast.store.postgres.migration import prepare_database
    from holdfast.store.postgres.store import PostgresStore

    folder = config.store.path
    spools = config.store.spool and role.ingests
    engine = LmdbEngine(folder, config.store.max_size) if spools else None
    undo.callback(_hold(folder) if engine is None else engine.close)
    clock = SharedClock()
    # A pod must not crash in a loop while its database restarts: the store keeps trying.
    with suppress(StoreUnreachable):
        clock.follow(prepare_database(url.whole))
    run = clock.now()
    rules = config.store_rules(run)
    store = PostgresStore(
        url.whole,
        rules,
        clock,
        RandomBits(),
        max_size=config.store.max_size,
        delivers=role.delivers,
        follow_time=clock.follow,
    )
    undo.callback(store.close)
    spool = None if engine is None else _spool(store, engine, rules, clock)
    return Opened(store, clock, run, str(url), undo.pop_all().close, shared=store, spool=spool, role=role)


def _hold(folder: Path) -> Callable[[], None]:
    """Lock a folder against other processes. Call the result to release it."""
    make_folder(folder)
    return partial(os.close, take_folder(folder))


def _spool(store: SharedDatabase, engine: LmdbEngine, rules: StoreRules, clock: BootClock) -> Spool:
    ledger = Ledger(engine, rules, clock, RandomBits())
    ledger.open()
    return Spool(store, ledger, rules, clock)
