"""The control socket: shows everything to operators of this machine, carries out their actions, checks who they are."""

import json
import os
import pwd
import socket
import struct
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import trio

from holdfast.config import ConfigError
from holdfast.core.errors import ReloadUnfinished
from holdfast.events import Event, Events
from holdfast.http.request_response import Request, Response, StreamingResponse
from holdfast.operate import json_shapes
from holdfast.operate.actions import Actions
from holdfast.operate.gateway_queries import Queries
from holdfast.operate.ports import Condition, Deliveries
from holdfast.operate.routing import Call, Route, Router, answer, flag, problem, refuse_unknown
from holdfast.store.port import DeadFilter, Store

JSON_LINES = [(b"content-type", b"application/jsonl")]
DEAD_LETTERS_A_READ = 50

_CREDENTIALS = struct.Struct("iII")
_SO_PEERGROUPS = 59
"""Linux's supplementary groups of a peer; Python has no name for it."""
_MOST_GROUP_BYTES = 1024
"""Bytes that Python's getsockopt takes: 256 groups."""


class ControlSocket:
    """`reload` applies the config file and returns what changed. `drain_timeout` is how long a drain call may wait, in
    seconds.
    """

    def __init__(
        self,
        queries: Queries,
        actions: Actions,
        deliveries: Deliveries,
        condition: Condition,
        store: Store,
        events: Events,
        reload: Callable[[], Awaitable[dict[str, list[str]]]],
    ) -> None:
        self._queries = queries
        self._actions = actions
        self._deliveries = deliveries
        self._condition = condition
        self._store = store
        self._events = events
        self._reload_config = reload
        self.drain_timeout = 0.0
        self._router = Router(
            [
                Route("GET", "/v1/status", self._status),
                Route("GET", "/v1/circuits", self._circuits),
                Route("GET", "/v1/circuits/{}", self._circuit),
                Route("POST", "/v1/circuits/{}/unfreeze", self._unfreeze),
                Route("POST", "/v1/circuits/{}/freeze", self._freeze),
                Route("POST", "/v1/circuits/{}/probe", self._probe),
                Route("GET", "/v1/messages", self._messages),
                Route("POST", "/v1/messages/drop", self._drop_messages),
                Route("GET", "/v1/messages/{}", self._message),
                Route("DELETE", "/v1/messages/{}", self._drop),
                Route("POST", "/v1/messages/{}/retry", self._retry),
                Route("POST", "/v1/dead/replay", self._replay_dead),
                Route("POST", "/v1/dead/drop", self._drop_dead),
                Route("GET", "/v1/dead/export", self._export_dead),
                Route("GET", "/v1/events", self._event_lines),
                Route("POST", "/v1/drain", self._drain),
                Route("POST", "/v1/reload", self._reload),
            ]
        )

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        return await self._router(request)

    async def _status(self, call: Call) -> Response:
        return answer(await self._queries.status())

    async def _circuits(self, call: Call) -> Response:
        return answer(await self._queries.circuits(call.query, masked=False))

    async def _circuit(self, call: Call) -> Response:
        return answer(await self._queries.circuit(call.name))

    async def _unfreeze(self, call: Call) -> Response:
        refuse_unknown(call.body, "replay_dead")
        return answer(await self._actions.unfreeze(call.name, replay_dead=flag(call.body, "replay_dead")))

    async def _freeze(self, call: Call) -> Response:
        return answer(await self._actions.freeze(call.name))

    async def _probe(self, call: Call) -> Response:
        return answer(await self._actions.probe(call.name))

    async def _messages(self, call: Call) -> Response:
        return answer(await self._queries.messages(call.query))

    async def _message(self, call: Call) -> Response:
        return answer(await self._queries.message(call.name, masked=False))

    async def _retry(self, call: Call) -> Response:
        return answer(await self._actions.retry(call.name))

    async def _drop(self, call: Call) -> Response:
        return answer(await self._actions.drop(call.name))

    async def _drop_messages(self, call: Call) -> Response:
        return answer(await self._actions.drop_messages(call.body))

    async def _replay_dead(self, call: Call) -> Response:
        return answer(await self._actions.replay(call.body))

    async def _drop_dead(self, call: Call) -> Response:
        return answer(await self._actions.drop_dead(call.body))

    async def _export_dead(self, call: Call) -> StreamingResponse:
        select = await self._actions.dead_filter(call.query)
        return StreamingResponse(200, JSON_LINES, _lines(_dead_letters(self._store, select)))

    async def _event_lines(self, call: Call) -> StreamingResponse:
        return StreamingResponse(200, JSON_LINES, _lines(self._events.listen()))

    async def _drain(self, call: Call) -> Response:
        """Like the drain before an exit, but the gateway keeps running. With `wait` it answers when nothing is due or
        in flight, or after the timeout.
        """
        refuse_unknown(call.body, "cancel", "wait")
        if flag(call.body, "cancel"):
            self._condition.resume()
        else:
            self._condition.drain()
        if flag(call.body, "wait"):
            with trio.move_on_after(self.drain_timeout):
                await self._deliveries.wait_quiet()
        in_flight, quiet = self._deliveries.attempts_in_flight, self._deliveries.is_quiet
        return answer({"draining": self._condition.draining, "quiet": quiet, "in_flight": in_flight})

    async def _reload(self, call: Call) -> Response:
        refuse_unknown(call.body)
        try:
            return answer(await self._reload_config())
        except ConfigError as error:
            faults = [str(fault) for fault in error.faults]
            detail = f"The config has faults; the old one stays in force: {'; '.join(faults)}"
            raise problem(422, "bad-config", detail, faults=faults) from None
        except ReloadUnfinished as error:
            detail = f"The new config is in force, but not everywhere: {error}. Reload again to check."
            raise problem(503, "reload-unfinished", detail) from None


async def _lines(documents: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(documents):
        async for document in documents:
            yield json.dumps(document).encode() + b"\n"


async def _dead_letters(store: Store, select: DeadFilter) -> AsyncGenerator[dict[str, Any], None]:
    while True:
        page, after = await store.dead(select, DEAD_LETTERS_A_READ)
        for view in page:
            yield json_shapes.dead_letter(view)
        if after is None:
            return
        select = replace(select, after=after)


class ControlAccess:
    """Decides who may use the control socket: root, the gateway's own user, and members of `group` if it is set.

    The kernel checks the socket's mode first. This check holds even if the mode was widened or a socket was passed on.
    `on_refused` is called with the user of each refused connection.
    """

    def __init__(self, group: int | None, on_refused: Callable[[int], None]) -> None:
        self._group = group
        self._on_refused = on_refused
        self._users = (0, os.geteuid())

    def __call__(self, sock: socket.socket) -> str | None:
        """Returns why the peer is refused, or None."""
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, own_group = _CREDENTIALS.unpack(data)
        if user in self._users:
            return None
        if self._group is not None and self._group in (own_group, *_further_groups(sock, user, own_group)):
            return None
        self._on_refused(user)
        allowed = "its own user and root" if self._group is None else "its own user, root and listen.control_group"
        return f"user {user} may not use this socket: it is for {allowed}"


def _further_groups(sock: socket.socket, user: int, own_group: int) -> list[int]:
    """The supplementary groups of the peer's process; of its user if the kernel can't tell."""
    try:
        return list(array("I", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUP_BYTES)))
    except OSError:
        pass
    try:
        return os.getgrouplist(pwd.getpwuid(user).pw_name, own_group)
    except KeyError:
        return []
