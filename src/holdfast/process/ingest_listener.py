"""The ingest listener: its server, and a handler for each config."""

from collections.abc import Sequence

import trio

from holdfast.config import Address, Config
from holdfast.core.budget import RECEIVING_BYTES
from holdfast.core.counters import Counters
from holdfast.delivery.egress import Guard
from holdfast.http.errors import problem_for_status
from holdfast.http.server import Limits, Server
from holdfast.ingest.handler import Clock, Ingest
from holdfast.process.descriptors import room_for
from holdfast.store.port import Acceptance

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
        clock: Clock,
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
