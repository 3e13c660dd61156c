"""Questions about the gateway, answered from the store, from delivery and from the process; both listeners ask here."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from holdfast import __version__
from holdfast.clock import Clock
from holdfast.core.circuit import CircuitRules, CircuitState
from holdfast.core.message import MessageId, State, id_text, parse_id
from holdfast.operate import shapes
from holdfast.operate.ports import Condition, Deliveries
from holdfast.operate.routing import problem
from holdfast.store.port import CircuitView, Store, Story

PAGE = 100
LONGEST_PAGE = 1_000
CANDIDATES = 20

Choice = TypeVar("Choice", State, CircuitState)


class Insight:
    def __init__(
        self, store: Store, deliveries: Deliveries, condition: Condition, clock: Clock, rules: CircuitRules
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._condition = condition
        self._clock = clock
        self._rules = rules

    async def status(self) -> dict[str, Any]:
        store = await self._store.statistics()
        condition, tally = self._condition, self._condition.tally
        return {
            "version": __version__,
            "pid": os.getpid(),
            "started_at": shapes.moment(condition.started_at),
            "ready": condition.ready,
            "degraded": self.degraded(),
            "draining": condition.draining,
            "store": {
                "path": store.path,
                "used_bytes": store.used_bytes,
                "max_bytes": store.max_bytes,
                "waiting": store.waiting,
                "dead": store.dead,
            },
            "queues": {"first": store.first, "retry": store.retry},
            "in_flight": self._deliveries.attempts_in_flight,
            "oldest_waiting_at": shapes.moment(store.oldest_waiting_at),
            "next_due_at": shapes.moment(store.next_due_at),
            "earliest_expiry_at": shapes.moment(store.earliest_expiry_at),
            "circuits": {state: store.circuits[state] for state in CircuitState},
            "totals": {
                "accepted": tally.accepted,
                "refused": dict(tally.refused),
                "delivered": tally.delivered,
                "failed_attempts": tally.failed,
                "dead": dict(tally.dead),
                "trips": dict(tally.trips),
            },
        }

    def degraded(self) -> list[str]:
        return ["store_full"] if self._condition.store_full else []

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the process can make progress, and the checks behind it."""
        trouble = self._condition.store_trouble
        return trouble is None, {"status": "failing" if trouble else "ok", "checks": {"store": trouble or "ok"}}

    def readiness(self, *, strict: bool) -> tuple[bool, dict[str, Any]]:
        """Never depends on receivers: a sidecar must not take its app down for their sake."""
        condition = self._condition
        degraded = self.degraded()
        ready = condition.ready and not condition.draining and condition.store_trouble is None
        document = {"ready": ready, "draining": condition.draining, "degraded": degraded}
        return ready and not (strict and degraded), document

    async def circuits(self, query: Mapping[str, str]) -> dict[str, Any]:
        state = _choice(CircuitState, "state", query.get("state"))
        found, following = await self._store.circuits(state, query.get("after") or None, _limit(query))
        return {"circuits": [self._circuit(view) for view in found], "next": following}

    async def circuit(self, name: str) -> dict[str, Any]:
        return self._circuit(await self.find_circuit(name))

    async def find_circuit(self, name: str) -> CircuitView:
        """The circuit of this key, or the only one of this host when no port is given."""
        exact = await self._store.circuit(name)
        if exact is not None:
            return exact
        candidates = [view for prefix in _prefixes(name) for view in await self._starting_with(prefix)]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            keys = [view.record.key for view in candidates]
            detail = f"{name} has several circuits; name one of {', '.join(keys)}."
            raise problem(404, "ambiguous-host", detail, candidates=keys)
        raise problem(404, "unknown-host", f"There is no circuit for {name}: nothing was sent to it lately.")

    async def message(self, text: str, *, masked: bool) -> dict[str, Any]:
        id = parse_id(text)
        story = await self._store.story(id) if id is not None else None
        if story is None:
            raise problem(
                404, "unknown-message", f"There is no message {text}: it never was, or is past its retention."
            )
        return self._message(story, masked=masked)

    async def messages(self, query: Mapping[str, str]) -> dict[str, Any]:
        state = _choice(State, "state", query.get("state"))
        lane = (await self.find_circuit(query["host"])).record.key if query.get("host") else None
        after = _after(query.get("after"))
        found, following = await self._store.stories(state, lane, after, _limit(query))
        return {
            "messages": [self._message(story, masked=False) for story in found],
            "next": id_text(following) if following is not None else None,
        }

    def _circuit(self, view: CircuitView) -> dict[str, Any]:
        lane = self._deliveries.lane_of(view.record.key)
        if lane is not None:
            record = view.record._replace(circuit=lane.circuit, limit=lane.host.limit)
            view = CircuitView(record, view.waiting + self._deliveries.active_in(lane), view.dead)
        return shapes.circuit(view, self._clock.now(), self._rules)

    def _message(self, story: Story, *, masked: bool) -> dict[str, Any]:
        in_flight = story.message.id in self._deliveries.in_flight
        return shapes.message(story, in_flight=in_flight, masked=masked)

    async def _starting_with(self, prefix: str) -> list[CircuitView]:
        found, _ = await self._store.circuits(None, prefix, CANDIDATES)
        return [view for view in found if view.record.key.startswith(prefix)]


def _prefixes(host: str) -> list[str]:
    """What keys of a host begin with: host:port, and URLs where circuits go by URL."""
    return [f"{host}:", *(f"{scheme}://{host}{end}" for scheme in ("http", "https") for end in ("/", ":"))]


def _choice(kind: type[Choice], name: str, value: str | None) -> Choice | None:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(kind)
        raise problem(400, "bad-query", f"{name} is one of {allowed}.") from None


def _limit(query: Mapping[str, str]) -> int:
    value = query.get("limit") or str(PAGE)
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= LONGEST_PAGE:
        raise problem(400, "bad-query", f"limit is a number from 1 to {LONGEST_PAGE}.")
    return int(value)


def _after(value: str | None) -> MessageId | None:
    if not value:
        return None
    id = parse_id(value)
    if id is None:
        raise problem(400, "bad-query", "after is the id of a message, as `next` gives it.")
    return id
