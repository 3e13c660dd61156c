"""The control socket: for operators of this machine, who may see everything and act."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import trio

from holdfast.config import ConfigError
from holdfast.core.errors import ReloadUnfinished
from holdfast.events import Event, News
from holdfast.http.server import Request, Response, StreamingResponse
from holdfast.operate.actions import Actions
from holdfast.operate.exporting import dead_lines
from holdfast.operate.filters import flag, only
from holdfast.operate.insight import Insight
from holdfast.operate.ports import Condition, Deliveries
from holdfast.operate.routing import Call, Route, Router, answer, problem
from holdfast.store.port import Store

JSON_LINES = [(b"content-type", b"application/jsonl")]


class ControlSocket:
    """`reload` takes over the config as it is now and says what that changed; `drain_timeout` is how long a call may
    wait for the drain to come to its end, in seconds.
    """

    def __init__(
        self,
        insight: Insight,
        actions: Actions,
        deliveries: Deliveries,
        condition: Condition,
        store: Store,
        news: News,
        reload: Callable[[], Awaitable[dict[str, list[str]]]],
    ) -> None:
        self._insight = insight
        self._actions = actions
        self._deliveries = deliveries
        self._condition = condition
        self._store = store
        self._news = news
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
                Route("GET", "/v1/events", self._events),
                Route("POST", "/v1/drain", self._drain),
                Route("POST", "/v1/reload", self._reload),
            ]
        )

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        return await self._router(request)

    async def _status(self, call: Call) -> Response:
        return answer(await self._insight.status())

    async def _circuits(self, call: Call) -> Response:
        return answer(await self._insight.circuits(call.query, masked=False))

    async def _circuit(self, call: Call) -> Response:
        return answer(await self._insight.circuit(call.name))

    async def _unfreeze(self, call: Call) -> Response:
        only(call.body, "replay_dead")
        return answer(await self._actions.unfreeze(call.name, replay_dead=flag(call.body, "replay_dead")))

    async def _freeze(self, call: Call) -> Response:
        return answer(await self._actions.freeze(call.name))

    async def _probe(self, call: Call) -> Response:
        return answer(await self._actions.probe(call.name))

    async def _messages(self, call: Call) -> Response:
        return answer(await self._insight.messages(call.query))

    async def _message(self, call: Call) -> Response:
        return answer(await self._insight.message(call.name, masked=False))

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
        return StreamingResponse(200, JSON_LINES, _lines(dead_lines(self._store, select)))

    async def _events(self, call: Call) -> StreamingResponse:
        return StreamingResponse(200, JSON_LINES, _lines(self._news.listen()))

    async def _drain(self, call: Call) -> Response:
        """As before an exit, without exiting. `wait` answers when nothing is due or in flight, or the time is over."""
        only(call.body, "cancel", "wait")
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
        only(call.body)
        try:
            return answer(await self._reload_config())
        except ConfigError as error:
            faults = [str(fault) for fault in error.faults]
            detail = f"The config has faults, the old one stays: {'; '.join(faults)}"
            raise problem(422, "bad-config", detail, faults=faults) from None
        except ReloadUnfinished as error:
            detail = f"The new config is in force, but not everywhere: {error}. Reload again to see when it has."
            raise problem(503, "reload-unfinished", detail) from None


async def _lines(documents: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(documents):
        async for document in documents:
            yield json.dumps(document).encode() + b"\n"
