"""Which store a gateway is on, and what goes with it: the clock that its times are told by, and where it is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from holdfast.chance import RandomBits
from holdfast.clock import BootClock
from holdfast.config import Config
from holdfast.core.errors import CommitFailed
from holdfast.core.fleet import Role
from holdfast.delivery.service import circuit_rules, retry_rules
from holdfast.lifecycle import Keeping
from holdfast.store.ledger import Ledger, last_time
from holdfast.store.lmdb import LmdbEngine
from holdfast.store.port import Store
from holdfast.store.work import StoreRules


class KeptStore(Store, Keeping, Protocol):
    """A store as the process runs it. `broken` is set when it failed for good; `on_failed` is told of it."""

    on_group: Callable[[int, float], None]
    on_failed: Callable[[CommitFailed], None]
    broken: trio.Event

    def configure(self, rules: StoreRules) -> None: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """`place` is where the store is, as it may be shown; `volume` a folder on its volume, if it is on this machine.
    `run` is the moment of this start, by which runs are told apart. `ledger` is the embedded store once more, for what
    needs that one; None where replicas share another, and then `role` is what this one does.
    """

    store: KeptStore
    ledger: Ledger | None
    clock: BootClock
    run: int
    place: str
    volume: Path | None
    role: Role | None
    close: Callable[[], None]


def open_store(config: Config, role: Role) -> Opened:
    """Raises StoreUnusable, having left nothing open."""
    engine = LmdbEngine(config.store.path, config.store.max_size)
    try:
        clock = BootClock(last_time(engine))
        run = clock.now()
        ledger = Ledger(engine, store_rules(config, run), clock, RandomBits())
        ledger.open()
    except BaseException:
        engine.close()
        raise
    return Opened(ledger, ledger, clock, run, str(config.store.path), config.store.path, None, engine.close)


def store_rules(config: Config, run: int) -> StoreRules:
    return StoreRules(
        circuit_rules(config),
        retry_rules(config),
        config.ingest.idempotency,
        config.store.host_share,
        config.delivery.per_host,
        run,
    )
