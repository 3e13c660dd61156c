"""What operators do to messages and circuits: in bounded transactions, safe to interrupt and to repeat."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.counters import Counters
from holdfast.core.message import DeadReason, MessageId, MessageState, id_text, masked_lane, parse_id
from holdfast.events import Events
from holdfast.operate.gateway_queries import Queries
from holdfast.operate.ports import Deliveries
from holdfast.operate.routing import bulk_limit, choice, moment, problem, refuse_unknown, text
from holdfast.store.port import (
    NO_LIMIT,
    BulkResult,
    DeadFilter,
    DropDead,
    DropMessages,
    MessageFilter,
    Operation,
    ReplayDead,
    Retried,
    RetryNow,
    Store,
)

STEP = 128

Filter = TypeVar("Filter", DeadFilter, MessageFilter)


class Actions:
    def __init__(
        self, queries: Queries, deliveries: Deliveries, store: Store, clock: Clock, counters: Counters, events: Events
    ) -> None:
        self._queries = queries
        self._deliveries = deliveries
        self._store = store
        self._clock = clock
        self._counters = counters
        self._events = events

    # -- circuits ----------------------------------------------------------------------------------------------------

    async def unfreeze(self, name: str, *, replay_dead: bool) -> dict[str, Any]:
        record = (await self._queries.find_circuit(name)).record
        change = await self._deliveries.unfreeze(record.key, record.host)
        replayed = await self._replay(DeadFilter(record.key, until=self._clock.now() + 1), None) if replay_dead else 0
        circuit = await self._queries.circuit(record.key)
        return {"changed": change is not None, "replayed": replayed, "circuit": circuit}

    async def freeze(self, name: str) -> dict[str, Any]:
        """Freezes a circuit, also one that does not exist yet. The answer says when its messages begin to expire."""
        key, host = await self._queries.key_and_host(name)
        change = await self._deliveries.freeze(key, host)
        circuit = await self._queries.circuit(key)
        expires = await self._queries.first_expiry(key)
        return {"changed": change is not None, "messages_expire_from": expires, "circuit": circuit}

    async def probe(self, name: str) -> dict[str, Any]:
        record = (await self._queries.find_circuit(name)).record
        if not await self._deliveries.probe(record.key, record.host):
            detail = f"{record.key} is not {CircuitState.DISABLED}: only disabled circuits are probed."
            raise problem(409, "not-disabled", detail)
        return {"probing": True, "circuit": await self._queries.circuit(record.key)}

    # -- single messages ---------------------------------------------------------------------------------------------

    async def retry(self, text: str) -> dict[str, Any]:
        id, lane, host = await self._known(text)
        self._refuse_in_flight(id, text)
        result = Retried.DUE
        if not self._deliveries.is_queued(id, lane):
            result = await self._store.perform(RetryNow(id, self._clock.now(), lane, host))
        if result is Retried.DELIVERED:
            raise problem(409, "delivered", f"{text} was delivered; only waiting and dead messages can be retried.")
        if result is Retried.REPLAYED:
            self._counters.replayed += 1
        return {"result": result, "message": await self._queries.message(text, masked=False)}

    async def drop(self, text: str) -> dict[str, Any]:
        id, _, _ = await self._known(text)
        self._refuse_in_flight(id, text)
        result: BulkResult = await self._store.perform(DropMessages(MessageFilter(id=id), 1))
        if not result.ids:
            raise problem(409, "delivered", f"{text} was delivered; its record is removed when its retention ends.")
        self._count_dropped(result)
        return {"dropped": 1}

    # -- in bulk -----------------------------------------------------------------------------------------------------

    async def drop_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        refuse_unknown(body, "host", "before", "state", "limit")
        state = choice(MessageState, "state", body.get("state"))
        if state in (MessageState.DELIVERED, MessageState.IN_FLIGHT):
            raise problem(400, "bad-body", "Only waiting and dead messages can be dropped.")
        select = MessageFilter(await self._lane(body), moment("before", body.get("before"), NO_LIMIT), state)
        in_flight = self._deliveries.in_flight
        dropped, done = await self._in_steps(
            lambda select, step: DropMessages(select, step, in_flight), select, bulk_limit(body), self._count_dropped
        )
        return {"dropped": dropped, "done": done}

    async def replay(self, body: Mapping[str, Any]) -> dict[str, Any]:
        replayed = await self._replay(await self.dead_filter(body), limit := bulk_limit(body))
        return {"replayed": replayed, "done": limit is None or replayed < limit}

    async def drop_dead(self, body: Mapping[str, Any]) -> dict[str, Any]:
        select = await self.dead_filter(body)
        dropped, done = await self._in_steps(DropDead, select, bulk_limit(body), self._count_dropped)
        return {"dropped": dropped, "done": done}

    async def _replay(self, select: DeadFilter, limit: int | None) -> int:
        """`select.until` is the start of the action: messages that die during it are not replayed again."""

        def count(result: BulkResult) -> None:
            self._counters.replayed += result.count

        replayed, _ = await self._in_steps(
            lambda select, step: ReplayDead(select, self._clock.now(), step), select, limit, count
        )
        self._events.log(logging.INFO, "dead_replayed", host=masked_lane(select.lane or ""), count=replayed)
        return replayed

    async def _in_steps(
        self,
        operation: Callable[[Filter, int], Operation],
        select: Filter,
        limit: int | None,
        count: Callable[[BulkResult], None],
    ) -> tuple[int, bool]:
        """Perform a bulk action in bounded steps. Returns how many messages it changed, and whether none are left."""
        total = 0
        while True:
            step = STEP if limit is None else min(STEP, limit - total)
            result: BulkResult = await self._store.perform(operation(select, step))
            total += result.count
            count(result)
            if result.after is None or total == limit:
                return total, result.after is None
            select = replace(select, after=result.after)

    async def dead_filter(self, body: Mapping[str, Any]) -> DeadFilter:
        refuse_unknown(body, "host", "since", "until", "reason", "limit")
        return DeadFilter(
            await self._lane(body),
            moment("since", body.get("since"), 0),
            moment("until", body.get("until"), self._clock.now() + 1),
            choice(DeadReason, "reason", body.get("reason")),
        )

    async def _lane(self, body: Mapping[str, Any]) -> str | None:
        host = text("host", body.get("host"))
        return (await self._queries.key_and_host(host))[0] if host else None

    async def _known(self, text: str) -> tuple[MessageId, str, str]:
        id = parse_id(text)
        view = await self._store.message_view(id) if id is not None else None
        if id is None or view is None:
            raise problem(404, "unknown-message", f"There is no message {text}.")
        return id, view.message.lane, view.message.host

    def _refuse_in_flight(self, id: MessageId, text: str) -> None:
        if id in self._deliveries.in_flight:
            raise problem(409, "in-flight", f"An attempt of {text} is in flight; repeat the request when it has ended.")

    def _count_dropped(self, result: BulkResult) -> None:
        self._counters.dropped += result.count
        if result.count:
            some = [id_text(id) for id in result.ids[:10]]
            self._events.log(logging.WARNING, "messages_dropped", count=result.count, messages=some)
