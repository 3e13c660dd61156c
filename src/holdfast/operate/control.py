"""The control socket: for operators of this machine, who may see everything and act."""

from holdfast.clock import Clock
from holdfast.http.server import Request, Response
from holdfast.operate.insight import Insight
from holdfast.operate.ports import Deliveries
from holdfast.operate.routing import Call, Route, Router, answer, problem
from holdfast.store.port import DeadFilter, ReplayDead, Store, Swept

REPLAY_STEP = 128


class ControlSocket:
    def __init__(self, insight: Insight, deliveries: Deliveries, store: Store, clock: Clock) -> None:
        self._insight = insight
        self._deliveries = deliveries
        self._store = store
        self._clock = clock
        self._router = Router(
            [
                Route("GET", "/v1/status", self._status),
                Route("GET", "/v1/circuits", self._circuits),
                Route("GET", "/v1/circuits/{}", self._circuit),
                Route("POST", "/v1/circuits/{}/unfreeze", self._unfreeze),
                Route("GET", "/v1/messages", self._messages),
                Route("GET", "/v1/messages/{}", self._message),
            ]
        )

    async def __call__(self, request: Request) -> Response:
        return await self._router(request)

    async def _status(self, call: Call) -> Response:
        return answer(await self._insight.status())

    async def _circuits(self, call: Call) -> Response:
        return answer(await self._insight.circuits(call.query))

    async def _circuit(self, call: Call) -> Response:
        return answer(await self._insight.circuit(call.name))

    async def _messages(self, call: Call) -> Response:
        return answer(await self._insight.messages(call.query))

    async def _message(self, call: Call) -> Response:
        return answer(await self._insight.message(call.name, masked=False))

    async def _unfreeze(self, call: Call) -> Response:
        replay = call.body.get("replay_dead", False)
        if not isinstance(replay, bool):
            raise problem(400, "bad-body", "replay_dead is true or false.")
        record = (await self._insight.find_circuit(call.name)).record
        change = await self._deliveries.unfreeze(record.key, record.host)
        replayed = await self._replay_dead(record.key, record.host) if replay else 0
        circuit = await self._insight.circuit(record.key)
        return answer({"changed": change is not None, "replayed": replayed, "circuit": circuit})

    async def _replay_dead(self, key: str, host: str) -> int:
        """In bounded steps. What dies while this goes on is not replayed again."""
        now = self._clock.now()
        replayed = 0
        while True:
            select = DeadFilter(key, until=now)
            swept: Swept = await self._store.perform(ReplayDead(select, self._clock.now(), REPLAY_STEP))
            replayed += swept.count
            if swept.count:
                self._deliveries.slow_start(key, host)
            if swept.after is None:
                return replayed
