"""What the process logs about itself: start, config warnings, the state of the store, exit."""

import json
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.clock import is_off
from holdfast.config import Address, Config, is_loopback
from holdfast.config.hosts import DENIED_BY_NAME, names_among
from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.core.message import masked_lane
from holdfast.core.ownership import Role
from holdfast.delivery.outgoing_handoff import HandoffReport
from holdfast.delivery.signing import STRONG_KEY
from holdfast.events import Events
from holdfast.process.credentials import Credentials
from holdfast.process.descriptors import room_for
from holdfast.process.log import event
from holdfast.process.stores import Opened
from holdfast.store.embedded.spool import Spool
from holdfast.store.port import Store

HOSTS_REPORTED = 20
REASONS_REPORTED = 5
TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes shows its content for a container that has ended. It exists nowhere else."""
LONGEST_TERMINATION_LOG = 4096
"""Bytes that Kubernetes keeps of it."""

_logger = logging.getLogger("holdfast")


def log_start(config: Config, credentials: Credentials, opened: Opened) -> None:
    role: dict[str, Any] = {} if opened.role is None else {"role": opened.role}
    event(_logger, logging.INFO, "start", version=__version__, store=opened.place, **role)
    if config.store.url is not None and (config.store.path / "data.mdb").exists() and opened.spool is None:
        detail = (
            "nothing of the embedded store in store.path is delivered while store.url is set; holdfast handoff moves it"
        )
        event(_logger, logging.WARNING, "store_left_behind", path=str(config.store.path), detail=detail)
    log_config_warnings(config, credentials)


def log_ready(bound: Mapping[str, Address], control: Path, place: str, role: Role | None, *, ready: bool) -> str:
    """Print one line to standard output and log one event. Returns the status text for a service manager."""
    served: dict[str, Any] = {name: str(bound[name]) for name in ("ingest", "status") if name in bound}
    event(_logger, logging.INFO if ready else logging.WARNING, "ready" if ready else "not_ready", **served)
    listening = [f"{name} http://{address}" for name, address in served.items()]
    words = [*listening, f"control {control}", f"store {place}"]
    if role is not None:
        words.append(f"role {role}")
    if "probe" in bound:
        words.append(f"probe http://{bound['probe']}")
    print(f"holdfast {__version__} {'ready' if ready else 'not ready'}: {', '.join(words)}", flush=True)  # noqa: T201
    return ", ".join(listening)


def log_config_warnings(config: Config, credentials: Credentials) -> None:
    """Log settings that work but are unsafe or unusual."""
    if config.egress.allow_loopback:
        event(_logger, logging.WARNING, "loopback_allowed", detail="targets on this machine may be dialled")
    denied = names_among(config.egress.deny)
    if denied:
        event(_logger, logging.WARNING, "denied_by_name", names=denied, detail=f"egress.deny: {DENIED_BY_NAME}")
    if not is_loopback(config.listen.status.host):
        detail = "other machines can read hosts, states and what happened to messages; probes need listen.probe only"
        event(_logger, logging.WARNING, "status_exposed", status=str(config.listen.status), detail=detail)
    room = room_for(config)
    if room.ingest < config.ingest.max_connections:
        detail = "the system allows few file descriptors; raise LimitNOFILE or ulimit -n for ingest.max_connections"
        event(_logger, logging.WARNING, "few_descriptors", max_connections=room.ingest, detail=detail)
    for route, signer in credentials.route_keys.signers.items():
        if signer.is_weak:
            detail = f"Standard Webhooks asks for {STRONG_KEY} bytes at least"
            event(_logger, logging.WARNING, "weak_secret", route=route, detail=detail)


def log_clock(events: Events, offset: int) -> None:
    """`offset` is how far holdfast's time is ahead of the wall clock. Negative if it is behind."""
    if is_off(offset):
        detail = "seconds that holdfast's own time is ahead of the wall clock; signatures go by the wall clock"
        events.log(logging.WARNING, "clock_off", offset=offset / 1000, detail=detail)
    else:
        events.log(logging.INFO, "clock_right", offset=offset / 1000)


def log_clock_jump(events: Events, ahead: int) -> None:
    """The database's clock jumped."""
    detail = "seconds that the database's clock has jumped ahead; holdfast's own time goes on as before"
    events.log(logging.WARNING, "clock_jumped", jump=ahead / 1000, detail=detail)


def log_store_failure(error: CommitFailed) -> None:
    event(_logger, logging.CRITICAL, "store_failed", detail=str(error))


def log_store_reachable(events: Events, reason: StoreUnreachable | None) -> None:
    """The database became unreachable, or is reachable again."""
    if reason is None:
        events.log(logging.INFO, "store_back")
    else:
        events.log(logging.WARNING, "store_away", detail=str(reason))


def log_spooling(events: Events, found: int) -> None:
    """Webhooks wait on this machine, since now or since an earlier run."""
    if found:
        events.log(logging.WARNING, "spool_found", messages=found)
    else:
        events.log(logging.WARNING, "spooling_began", detail="webhooks wait on this machine until the database is back")


def log_handed_over(to: Address, handed: HandoffReport) -> None:
    """Log how many messages the other side took, and why it did not take the rest."""
    level = logging.WARNING if handed.left else logging.INFO
    left = dict(handed.left.most_common(REASONS_REPORTED))
    event(_logger, level, "handed_over", to=str(to), messages=handed.count, left=left)


async def log_exit(ledger: Store, handed: HandoffReport, spool: Spool | None) -> None:
    """Log how many messages wait and how many were handed over, by host, most first. A spool's wait on this machine."""
    store = await ledger.statistics()
    waiting: dict[str, int] = {}
    # An unreachable database can't count by host.
    with suppress(StoreUnreachable):
        waiting = await _waiting_by_host(ledger) if store.waiting else {}
    most = sorted(waiting.items(), key=lambda item: -item[1])[:HOSTS_REPORTED]
    fields: dict[str, Any] = {
        "waiting": store.waiting,
        "dead": store.dead,
        "waiting_by_host": dict(most),
        "handed_over": handed.count,
        "handed_over_by_host": dict(handed.by_host.most_common(HOSTS_REPORTED)),
        **({} if spool is None else {"spooled": spool.count}),
    }
    event(_logger, logging.INFO, "exit", **fields)
    write_termination_log(TERMINATION_LOG, fields)


async def _waiting_by_host(store: Store) -> dict[str, int]:
    waiting: dict[str, int] = {}
    after: str | None = None
    while True:
        page, after = await store.circuits(None, after, 1_000)
        waiting |= {masked_lane(view.record.key): view.waiting for view in page if view.waiting}
        if after is None:
            return waiting


def write_termination_log(file: Path, fields: Mapping[str, int | dict[str, int]]) -> None:
    """Write the exit event to the container's termination log, if there is one, with as many hosts as fit."""
    for count in range(HOSTS_REPORTED, -1, -1):
        cut = {
            name: dict(islice(each.items(), count)) if isinstance(each, dict) else each for name, each in fields.items()
        }
        text = json.dumps({"event": "exit", **cut}, separators=(",", ":")).encode() + b"\n"
        if len(text) <= LONGEST_TERMINATION_LOG:
            break
    # Do not create the file: outside of Kubernetes nobody wants it.
    with suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, text)
        finally:
            os.close(descriptor)
