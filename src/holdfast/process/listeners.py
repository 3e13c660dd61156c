"""Opens every address to listen on, before anything else starts; and the ingest server.

An address that is taken gets a clear error.
"""

import errno
import grp
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from holdfast.config import Address, Config, ConfigError, ConfigFault
from holdfast.config import ListenSettings as Wanted
from holdfast.core.budget import RECEIVING_BYTES
from holdfast.core.counters import Counters
from holdfast.core.ownership import Role
from holdfast.delivery.egress import Guard
from holdfast.http.exceptions import problem_for_status
from holdfast.http.server import Limits, Server
from holdfast.http.sockets import open_tcp_listeners, open_unix_listener
from holdfast.ingest.handler import Ingest, TimeSource
from holdfast.process.descriptors import room_for
from holdfast.store.port import Acceptance

HIGHEST_GROUP = (1 << 32) - 2


class CannotListen(Exception):
    """holdfast can't listen on an address."""


class Listeners(NamedTuple):
    """`tcp` holds the listeners by name: status, ingest, probe. `bound` holds their addresses with the actual ports."""

    tcp: Mapping[str, list[trio.SocketListener]]
    bound: Mapping[str, Address]
    control: trio.SocketListener

    @property
    def names(self) -> set[tuple[str, int]]:
        """Host and port of each listener, as the kernel reports them."""
        sockets = (listener.socket for listeners in self.tcp.values() for listener in listeners)
        return {sock.getsockname()[:2] for sock in sockets}


async def open_listeners(wanted: Wanted, group: int | None, role: Role) -> Listeners:
    named = {"ingest": wanted.ingest if role.ingests else None, "status": wanted.status, "probe": wanted.probe}
    addresses = {name: address for name, address in named.items() if address is not None}
    tcp = {name: await _listen(address) for name, address in addresses.items()}
    bound = {name: Address(address.host, _port(tcp[name])) for name, address in addresses.items()}
    return Listeners(tcp, bound, await _listen_control(wanted.control, group))


def group_number(name: str | None) -> int | None:
    """The group of `listen.control_group`, by its name or its number."""
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        # In a container many groups have a number only.
        if name.isdecimal() and int(name) <= HIGHEST_GROUP:
            return int(name)
    problem = "there is no such group on this machine"
    raise ConfigError([ConfigFault("listen.control_group", problem, "the name or number of a group")])


async def _listen(address: Address) -> list[trio.SocketListener]:
    try:
        return await open_tcp_listeners(address.host, address.port)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else str(error)
        raise CannotListen(f"can't listen on {address}: {reason}") from error


def _port(listeners: list[trio.SocketListener]) -> int:
    return int(listeners[0].socket.getsockname()[1])


async def _listen_control(path: Path, group: int | None) -> trio.SocketListener:
    try:
        return await open_unix_listener(path, 0o600 if group is None else 0o660, group)
    except OSError as error:
        reason = "another process answers there" if error.errno == errno.EADDRINUSE else str(error)
        raise CannotListen(f"can't listen on {path}: {reason}") from error


LAST_ANSWERS = 2.0
"""Seconds that open requests have to get their answers when ingest stops."""


class IngestListener:
    """`listening` is the bound address. `counters` counts refusals and times acknowledgements.

    With `process.split`, `split.parent.IngestProcess` replaces this class.
    """

    def __init__(
        self,
        config: Config,
        token: bytes | None,
        store: Acceptance,
        clock: TimeSource,
        guard: Guard,
        counters: Counters,
        listening: Address,
    ) -> None:
        self._store = store
        self._clock = clock
        self._guard = guard
        self._counters = counters
        self._listening = listening
        self.lost = trio.Event()
        """Never set: only a separate ingest process can be lost."""
        ingest = self._ingest(config, token)
        self._server = Server(
            ingest,
            _limits(config),
            gate=ingest.gate,
            on_refusal=lambda status, detail: counters.refused.update([_slug(status)]),
        )

    @property
    def connections(self) -> int:
        return self._server.connections

    async def count(self) -> None:
        """The counters are always up to date."""

    async def configure(self, config: Config, token: bytes | None) -> None:
        """Applies from the next request on. Connections stay open."""
        server, ingest = self._server, self._ingest(config, token)
        server.handler, server.gate = ingest, ingest.gate
        server.set_limits(_limits(config))

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until `stop` and the last answer after it. Closes the listeners."""
        await self._server.serve(listeners, task_status=task_status)

    def stop(self) -> None:
        self._server.stop()

    def _ingest(self, config: Config, token: bytes | None) -> Ingest:
        counters = self._counters
        return Ingest(
            config,
            self._store,
            self._clock,
            self._guard.judge_literal,
            lambda slug: counters.refused.update([slug]),
            listening=self._listening,
            token=token,
            seconds=trio.current_time,
            acknowledged=counters.ack_seconds.observe,
        )


class NoIngestListener:
    """Replaces IngestListener in a replica that takes no webhooks."""

    connections = 0

    def __init__(self) -> None:
        self.lost = trio.Event()

    async def count(self) -> None:
        """There is nothing to count."""

    async def configure(self, config: Config, token: bytes | None) -> None:
        """There is nothing to configure."""

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()

    def stop(self) -> None:
        """There is nothing to stop."""


def _slug(status: int) -> str:
    """The name of a refusal by the server itself, as in the `type` of its problem document."""
    return problem_for_status(status, "").type.rpartition(":")[2]


def _limits(config: Config) -> Limits:
    ingest = config.ingest
    return Limits(
        max_body=ingest.max_body,
        body_budget=RECEIVING_BYTES,
        max_head=ingest.max_head,
        max_headers=ingest.max_headers,
        max_connections=room_for(config).ingest,
        head_timeout=ingest.head_timeout / 1000,
        body_timeout=ingest.body_timeout / 1000,
        idle_timeout=ingest.idle_timeout / 1000,
    )
