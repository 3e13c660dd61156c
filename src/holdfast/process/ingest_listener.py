"""The ingest listener of a gateway: its server and handler, made from a config and made anew from the next one."""

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
"""Seconds that requests under way have to get their answers when ingest stops."""


class IngestListener:
    """`listening` is the address that the listeners are bound to; what is refused and how long answers take is counted
    in `counters`. Where another process serves, `split.parent.IngestProcess` is in the place of this.
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
        """Never set: this process can't lose itself."""
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
        """From the next request on; connections stay open."""
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
    """In the place of an IngestListener in a replica that takes no webhooks."""

    connections = 0

    def __init__(self) -> None:
        self.lost = trio.Event()

    async def count(self) -> None:
        """Nothing is refused here, or acknowledged."""

    async def configure(self, config: Config, token: bytes | None) -> None:
        """Neither is used here."""

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()

    def stop(self) -> None:
        """There is no server."""


def _slug(status: int) -> str:
    """A refusal of the server's own as the `type` of its problem names it."""
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
