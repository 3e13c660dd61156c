"""What the process says of itself in the log: how it starts, what is odd about that, how the store failed, the end."""

import logging

from holdfast import __version__
from holdfast.clock import BootClock
from holdfast.config import Config
from holdfast.core.errors import CommitFailed
from holdfast.core.message import masked_lane
from holdfast.credentials import Credentials
from holdfast.delivery.signing import STRONG
from holdfast.descriptors import room_for
from holdfast.log import event
from holdfast.store.port import Store

HOSTS_REPORTED = 20

_logger = logging.getLogger("holdfast")


def tell_start(config: Config, credentials: Credentials, clock: BootClock) -> None:
    event(_logger, logging.INFO, "start", version=__version__, store=str(config.store.path))
    if clock.behind:
        event(_logger, logging.WARNING, "clock_behind", seconds=clock.behind / 1000)
    tell_oddities(config, credentials)


def tell_oddities(config: Config, credentials: Credentials) -> None:
    """What works and is not as it should be, of a config that is taken over."""
    if config.egress.allow_loopback:
        event(_logger, logging.WARNING, "loopback_allowed", detail="targets on this machine may be dialled")
    room = room_for(config)
    if room.ingest < config.ingest.max_connections:
        detail = "the system allows few file descriptors; raise LimitNOFILE or ulimit -n for ingest.max_connections"
        event(_logger, logging.WARNING, "few_descriptors", max_connections=room.ingest, detail=detail)
    for route, signer in credentials.route_keys.signers.items():
        if signer.is_weak:
            detail = f"Standard Webhooks asks for {STRONG} bytes at least"
            event(_logger, logging.WARNING, "weak_secret", route=route, detail=detail)


def tell_jump(seconds: float) -> None:
    detail = "the wall clock jumped and is not followed until the next start"
    event(_logger, logging.WARNING, "clock_jumped", seconds=seconds, detail=detail)


def tell_failure(error: CommitFailed) -> None:
    event(_logger, logging.CRITICAL, "store_failed", detail=str(error))


async def tell_end(ledger: Store) -> None:
    """How many wait on disk, by host; the hosts that hold most first."""
    store = await ledger.statistics()
    waiting: dict[str, int] = {}
    after: str | None = None
    while store.waiting:
        page, after = await ledger.circuits(None, after, 1_000)
        waiting |= {masked_lane(view.record.key): view.waiting for view in page if view.waiting}
        if after is None:
            break
    most = sorted(waiting.items(), key=lambda item: -item[1])[:HOSTS_REPORTED]
    event(_logger, logging.INFO, "exit", waiting=store.waiting, dead=store.dead, waiting_by_host=dict(most))
