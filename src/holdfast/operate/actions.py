"""What operators do to messages and circuits: each in bounded transactions, safe to interrupt and to repeat."""

import logging
from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.counters import Counters
from holdfast.core.message import DeadReason, MessageId, MessageState, id_text, masked_lane, parse_id
from holdfast.events import Events
from holdfast.operate.ports import Deliveries
from holdfast.operate.queries import Queries
from holdfast.operate.requests import bulk_limit, choice, moment, problem, refuse_unknown, text
from holdfast.store.port import (
    BulkResult,
    DeadFilter,
    DropDead,
    DropMessages,
    MessageFilter,
    ReplayDead,
    Retried,
    RetryNow,
    Store,
)

STEP = 128
FOREVER = 1 << 62


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
        """Also a host not yet seen; says when its messages begin to expire."""
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
            raise problem(409, "delivered", f"{text} was delivered; only what waits or is dead can be retried.")
        if result is Retried.REPLAYED:
            self._counters.replayed += 1
        return {"result": result, "message": await self._queries.message(text, masked=False)}

    async def drop(self, text: str) -> dict[str, Any]:
        id, _, _ = await self._known(text)
        self._refuse_in_flight(id, text)
        swept: BulkResult = await self._store.perform(DropMessages(MessageFilter(id=id), 1))
        if not swept.ids:
            raise problem(409, "delivered", f"{text} was delivered; its record goes by retention.")
        self._dropped(swept)
        return {"dropped": 1}

    # -- in bulk -----------------------------------------------------------------------------------------------------

    async def drop_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        refuse_unknown(body, "host", "before", "state", "limit")
        state = choice(MessageState, "state", body.get("state"))
        if state in (MessageState.DELIVERED, MessageState.IN_FLIGHT):
            raise problem(400, "bad-body", "Only messages that wait or are dead can be dropped.")
        select = MessageFilter(await self._lane(body), moment("before", body.get("before"), FOREVER), state)
        limit, dropped = bulk_limit(body), 0
        while True:
            step = STEP if limit is None else min(STEP, limit - dropped)
            swept: BulkResult = await self._store.perform(DropMessages(select, step, self._deliveries.in_flight))
            dropped += swept.count
            self._dropped(swept)
            if swept.after is None or dropped == limit:
                return {"dropped": dropped, "done": swept.after is None}
            select = MessageFilter(select.lane, select.before, select.state, swept.after)

    async def replay(self, body: Mapping[str, Any]) -> dict[str, Any]:
        replayed = await self._replay(await self.dead_filter(body), limit := bulk_limit(body))
        return {"replayed": replayed, "done": limit is None or replayed < limit}

    async def drop_dead(self, body: Mapping[str, Any]) -> dict[str, Any]:
        select, limit, dropped = await self.dead_filter(body), bulk_limit(body), 0
        while True:
            step = STEP if limit is None else min(STEP, limit - dropped)
            swept: BulkResult = await self._store.perform(DropDead(select, step))
            dropped += swept.count
            self._dropped(swept)
            if swept.after is None or dropped == limit:
                return {"dropped": dropped, "done": swept.after is None}
            select = _go_on(select, swept.after)

    async def _replay(self, select: DeadFilter, limit: int | None) -> int:
        """In bounded steps. What dies while this goes on is not replayed again: `until` is the start."""
        replayed = 0
        while True:
            step = STEP if limit is None else min(STEP, limit - replayed)
            swept: BulkResult = await self._store.perform(ReplayDead(select, self._clock.now(), step))
            replayed += swept.count
            self._counters.replayed += swept.count
            if swept.after is None or replayed == limit:
                self._events.log(logging.INFO, "dead_replayed", host=masked_lane(select.lane or ""), count=replayed)
                return replayed
            select = _go_on(select, swept.after)

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
            raise problem(409, "in-flight", f"An attempt of {text} is under way; ask again when it has ended.")

    def _dropped(self, swept: BulkResult) -> None:
        self._counters.dropped += swept.count
        if swept.count:
            some = [id_text(id) for id in swept.ids[:10]]
            self._events.log(logging.WARNING, "messages_dropped", count=swept.count, messages=some)


def _go_on(select: DeadFilter, after: bytes) -> DeadFilter:
    return DeadFilter(select.lane, select.since, select.until, select.reason, after)
