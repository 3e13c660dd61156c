"""Questions about the gateway, answered as JSON from the store, delivery and the process. All listeners use them."""

import os
import re
from collections.abc import Mapping
from typing import Any

from holdfast import __version__
from holdfast.clock import Clock, is_off, offset
from holdfast.core.circuit import CircuitRules, CircuitState
from holdfast.core.counters import BUCKET_WIDTH
from holdfast.core.explanation import why
from holdfast.core.message import MessageState, id_text, masked_lane, parse_id
from holdfast.core.schedule import RetryRules, expires_at
from holdfast.events import Events
from holdfast.operate import json_shapes
from holdfast.operate.ports import Condition, Deliveries, Spooled
from holdfast.operate.routing import LONGEST_PAGE, after_id, choice, circuit_name, page_limit, problem
from holdfast.store.port import CircuitView, MessageView, Store

MOST_CANDIDATES = 20

_MASKED = re.compile(r"https?://[^/]+/#[0-9a-f]{8}")
_FULL_NAME = re.compile(r"[a-z0-9._-]+:[0-9]{1,5}|\[[0-9a-f:.]+\]:[0-9]{1,5}")


class Queries:
    def __init__(
        self,
        store: Store,
        deliveries: Deliveries,
        condition: Condition,
        clock: Clock,
        events: Events,
        rules: CircuitRules,
        retry_rules: RetryRules,
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._condition = condition
        self._clock = clock
        self._events = events
        self._rules = rules
        self._retry_rules = retry_rules

    def configure(self, rules: CircuitRules, retry_rules: RetryRules) -> None:
        self._rules, self._retry_rules = rules, retry_rules

    async def status(self) -> dict[str, Any]:
        await self._condition.counting()
        store = await self._store.statistics()
        condition, counters = self._condition, self._condition.counters
        return {
            "version": __version__,
            "pid": os.getpid(),
            **({} if condition.role is None else {"role": condition.role}),
            "started_at": json_shapes.moment(condition.started_at),
            "ready": condition.ready,
            "degraded": self.degraded(),
            "draining": condition.draining,
            "clock": self._clock_state(),
            "store": {
                "path": store.path,
                "used_bytes": store.used_bytes,
                "reserved_bytes": store.reserved_bytes,
                "max_bytes": store.max_bytes,
                "waiting": store.waiting,
                "dead": store.dead,
                **_spooled(condition.spool),
            },
            "queues": {"first": store.first, "retry": store.retry},
            "in_flight": self._deliveries.attempts_in_flight,
            "oldest_waiting_at": json_shapes.moment(store.oldest_waiting_at),
            "next_due_at": json_shapes.moment(store.next_due_at),
            "earliest_expiry_at": json_shapes.moment(store.earliest_expiry_at),
            "circuits": {state: store.circuits[state] for state in CircuitState},
            "totals": {
                "accepted": counters.accepted,
                "refused": dict(counters.refused),
                "delivered": counters.delivered,
                "failed_attempts": counters.failed,
                "replayed": counters.replayed,
                "dropped": counters.dropped,
                "dead": dict(counters.dead),
                "trips": dict(counters.trips),
            },
        }

    def _clock_state(self) -> dict[str, Any]:
        """How far the gateway's clock is ahead of the wall clock, and whether that is more than usual."""
        ahead = offset(self._clock)
        return {"offset": json_shapes.seconds(ahead), "off": is_off(ahead)}

    def degraded(self) -> list[str]:
        states = {"store_away": self._condition.store_away, "store_full": self._condition.store_full}
        return [name for name, holds in states.items() if holds]

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the process can make progress, with its checks."""
        trouble = self._condition.store_trouble
        return trouble is None, {"status": "failing" if trouble else "ok", "checks": {"store": trouble or "ok"}}

    def readiness(self, *, strict: bool) -> tuple[bool, dict[str, Any]]:
        """Never depends on receivers: a failing receiver must not take the app next to the sidecar out of service."""
        condition = self._condition
        degraded = self.degraded()
        ready = condition.ready and not condition.draining and condition.store_trouble is None
        document = {"ready": ready, "draining": condition.draining, "degraded": degraded}
        return ready and not (strict and degraded), document

    async def circuits(self, query: Mapping[str, str], *, masked: bool) -> dict[str, Any]:
        """A page of circuits. If circuits are per URL, `masked` hides their paths, also in `next`."""
        state = choice(CircuitState, "state", query.get("state"))
        after = await self._unmasked(circuit_name(query["after"])) if query.get("after") else None
        found, following = await self._store.circuits(state, after, page_limit(query))
        if masked and following is not None:
            following = masked_lane(following)
        return {"circuits": [self._circuit(view, masked=masked) for view in found], "next": following}

    async def circuit(self, name: str, *, masked: bool = False) -> dict[str, Any]:
        return self._circuit(await self.find_circuit(name, masked=masked), masked=masked)

    async def _unmasked(self, key: str) -> str:
        """The key that a masked one stands for, found among the URLs of its host."""
        if not _MASKED.fullmatch(key):
            return key
        prefix = key.rpartition("#")[0]
        after: str | None = prefix
        while after is not None and after.startswith(prefix):
            found, after = await self._store.circuits(None, after, LONGEST_PAGE)
            for view in found:
                if masked_lane(view.record.key) == key:
                    return view.record.key
        return key

    async def find_circuit(self, name: str, *, masked: bool = False) -> CircuitView:
        """The circuit of this key, full or masked; without a port, the only circuit of this host. `masked` hides the
        paths of the candidates if there are several.
        """
        exact = await self._store.circuit(await self._unmasked(circuit_name(name)))
        if exact is not None:
            return exact
        candidates = [view for prefix in _prefixes(name) for view in await self._starting_with(prefix)]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            keys = [masked_lane(view.record.key) if masked else view.record.key for view in candidates]
            detail = f"{name} has several circuits; name one of {', '.join(keys)}."
            raise problem(404, "ambiguous-host", detail, candidates=keys)
        raise problem(404, "unknown-host", f"There is no circuit for {name}: nothing was sent to it recently.")

    async def key_and_host(self, name: str) -> tuple[str, str]:
        """The key and host of a circuit. A full host:port is taken as it is if it has no circuit: it may be new, or its
        circuit may be forgotten while dead letters are still kept.
        """
        if await self._store.circuit(circuit_name(name)) is None and _FULL_NAME.fullmatch(name):
            return name, name
        record = (await self.find_circuit(name)).record
        return record.key, record.host

    async def first_expiry(self, key: str) -> str | None:
        """When the first message of a circuit expires if the circuit stays as it is."""
        view = await self._store.circuit(key)
        if view is None or view.oldest is None:
            return None
        return json_shapes.moment(expires_at(self._retry_rules, view.oldest, view.record.circuit.enabled_at))

    def page(self) -> dict[str, Any]:
        """Data for the page beyond `status`: charts, the latest failures, and the rules."""
        now, counters = self._clock.now(), self._condition.counters
        return {
            "now": json_shapes.moment(now),
            "width": BUCKET_WIDTH / 1000,
            "accepted": counters.accepted_lately.per_second(now),
            "delivered": counters.delivered_lately.per_second(now),
            "failures": list(self._events.failures)[::-1],
            "rules": {
                "retry_base": json_shapes.seconds(self._retry_rules.base),
                "max_retries": self._retry_rules.max_retries,
                "probe_every": json_shapes.seconds(self._rules.probe_every),
                "expire_after": json_shapes.seconds(self._retry_rules.expire_after),
            },
        }

    async def message(self, text: str, *, masked: bool) -> dict[str, Any]:
        id = parse_id(text)
        view = await self._store.message_view(id) if id is not None else None
        if view is None:
            raise problem(404, "unknown-message", f"There is no message {text}, or it is past its retention.")
        document = self._message(view, masked=masked)
        if not masked:
            document["why"] = await self._why(view, MessageState(document["state"]))
        return document

    async def _why(self, view: MessageView, state: MessageState) -> str:
        lane = self._deliveries.lane_of(view.message.lane)
        stored = await self._store.circuit(view.message.lane) if lane is None else None
        circuit = lane.circuit if lane is not None else stored.record.circuit if stored is not None else None
        rules = (self._rules, self._retry_rules)
        return why(state, view.place, view.dead_reason, view.attempts, circuit, *rules)

    async def messages(self, query: Mapping[str, str]) -> dict[str, Any]:
        state = choice(MessageState, "state", query.get("state"))
        lane = (await self.key_and_host(query["host"]))[0] if query.get("host") else None
        after = after_id(query.get("after"))
        found, following = await self._store.message_views(state, lane, after, page_limit(query))
        return {
            "messages": [self._message(view, masked=False) for view in found],
            "next": id_text(following) if following is not None else None,
        }

    def _circuit(self, view: CircuitView, *, masked: bool) -> dict[str, Any]:
        lane = self._deliveries.lane_of(view.record.key)
        if lane is not None:
            record = view.record._replace(circuit=lane.circuit, limit=lane.host.limit)
            view = view._replace(record=record, waiting=view.waiting + self._deliveries.active_in(lane))
        document = json_shapes.circuit(view, self._clock.now(), self._rules)
        return {**document, "host": masked_lane(view.record.key)} if masked else document

    def _message(self, view: MessageView, *, masked: bool) -> dict[str, Any]:
        in_flight = view.message.id in self._deliveries.in_flight
        return json_shapes.message(view, in_flight=in_flight, masked=masked)

    async def _starting_with(self, prefix: str) -> list[CircuitView]:
        found, _ = await self._store.circuits(None, prefix, MOST_CANDIDATES)
        return [view for view in found if view.record.key.startswith(prefix)]


def _spooled(spool: Spooled | None) -> dict[str, Any]:
    return {} if spool is None else {"spool": spool.count, "spooling_since": json_shapes.moment(spool.since)}


def _prefixes(host: str) -> list[str]:
    """The prefixes of a host's keys: host:port, and URLs if circuits are per URL. Never part of a path: clients that
    may not see paths must not guess them piece by piece.
    """
    if "/" in host:
        return []
    return [f"{host}:", *(f"{scheme}://{host}{end}" for scheme in ("http", "https") for end in ("/", ":"))]
