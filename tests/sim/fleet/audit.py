"""Looks into the database from outside, at one moment each time: what must hold there whatever is under way."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import IsolationLevel

from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.fleet import LEASE
from holdfast.core.lane import Heads, wake_at
from holdfast.core.message import id_text
from holdfast.delivery.service import circuit_rules, retry_rules
from holdfast.store import records
from sim.fleet.witness import FleetWitness
from sim.model import DELIVERED, DROPPED, WAITING
from sim.world import raw_id

if TYPE_CHECKING:
    from sim.fleet.replica import Replica

COST = 4_096
SOON = 1_000
"""Milliseconds by which an expiry may be known too late: a message is a little older than its commit."""
LYING = 12_000
"""Milliseconds that something may lie there which nothing holds back, while all replicas are well."""
BEATS = 3_000

_COUNTED = """
    WITH counted AS (
        SELECT lane, sum(first) AS first, sum(retry) AS retry, sum(dead) AS dead, sum(bytes) AS bytes
        FROM counters GROUP BY lane
    ), there AS (
        SELECT lane, count(*) FILTER (WHERE standing < 2) AS first, count(*) FILTER (WHERE standing = 2) AS retry,
            count(*) FILTER (WHERE standing = 3) AS dead, sum(%s + size) AS bytes FROM messages GROUP BY lane
    )
    SELECT lane, c.first, c.retry, c.dead, c.bytes, t.first, t.retry, t.dead, t.bytes
    FROM counted c FULL JOIN there t USING (lane)
    WHERE (coalesce(c.first, 0), coalesce(c.retry, 0), coalesce(c.dead, 0), coalesce(c.bytes, 0))
        <> (coalesce(t.first, 0), coalesce(t.retry, 0), coalesce(t.dead, 0), coalesce(t.bytes, 0))"""
_HEADS = """
    SELECT lane, min(born) FILTER (WHERE standing = 1), min(due) FILTER (WHERE standing = 2), min(born),
        min(CASE WHEN standing = 1 OR NOT held THEN 0 ELSE due END)
    FROM messages WHERE owner IS NULL AND standing IN (1, 2) GROUP BY lane"""


class Audit:
    def __init__(self, url: str, witness: FleetWitness) -> None:
        self._connection = psycopg.connect(url)
        self._connection.isolation_level = IsolationLevel.REPEATABLE_READ
        self._connection.execute("SET search_path TO holdfast")
        self._connection.commit()
        self._witness = witness
        self._orphans: dict[tuple[str, int], int] = {}
        self._strays: dict[tuple[str, int], int] = {}
        self._lying: dict[str, int] = {}

    def close(self) -> None:
        self._connection.close()

    def claim_of(self, id: str, number: int) -> tuple[int | None, int | None]:
        """Who has a message, and until when a replica has its lease."""
        owner = self._rows("SELECT owner FROM messages WHERE id = %s", raw_id(id))
        lease = self._rows("SELECT lease_until FROM replicas WHERE number = %s", number)
        self._connection.rollback()
        return owner[0][0] if owner else None, lease[0][0] if lease else None

    def look(self, replicas: Sequence["Replica"]) -> None:
        """All of it is seen at the same moment."""
        now = self._witness.clock()
        self._check_counters()
        self._check_wakes(now)
        self._check_owners(replicas, now)
        self._check_memory(replicas, now)
        self._check_lying(replicas, now)
        self._connection.rollback()

    def _rows(self, query: str, *terms: Any) -> list[Any]:
        return self._connection.execute(query.encode(), terms).fetchall()

    def _check_counters(self) -> None:
        for row in self._rows(_COUNTED, COST):
            self._witness.check(False, f"counted of {row[0]}: {row[1:5]}, and there are {row[5:]}")

    def _circuits(self) -> dict[str, Circuit]:
        return {
            lane: records.decode_lane(record).circuit for lane, record in self._rows("SELECT lane, record FROM lanes")
        }

    def _check_wakes(self, now: int) -> None:
        """What nobody has claimed is on the agenda in its time."""
        config = self._witness.config
        circuits, wakes = self._circuits(), dict(self._rows("SELECT lane, at FROM wakes"))
        for lane, waiting, due, oldest, probe_from in self._rows(_HEADS):
            circuit = circuits.get(lane, Circuit())
            disabled = circuit.state is CircuitState.DISABLED
            heads = Heads(waiting, due, oldest, probe_from if disabled else None)
            wanted = wake_at(circuit, heads, circuit_rules(config), retry_rules(config))
            at = wakes.get(lane)
            in_time = at is not None and at <= max(now, wanted + (0 if circuit.state is CircuitState.ENABLED else SOON))
            self._witness.check(
                in_time, f"{lane} ({circuit.state}): something waits for {wanted}, and it wakes at {at}"
            )

    def _check_owners(self, replicas: Sequence["Replica"], now: int) -> None:
        """What belongs to nobody alive is soon free: the row of who is gone leaves with its lease."""
        gone = self._rows(
            "SELECT id, owner FROM messages WHERE owner IS NOT NULL AND owner NOT IN (SELECT number FROM replicas)"
        )
        orphans = {(id_text(id), owner): now for id, owner in gone}
        orphans |= {
            (f"replica {number}", number): until
            for number, until in self._rows("SELECT number, lease_until FROM replicas WHERE lease_until < %s", now)
        }
        self._orphans = {key: self._orphans.get(key, since) for key, since in orphans.items()}
        reaper = any(replica.was_well(2 * LEASE / 1000) for replica in replicas)
        for (what, owner), since in self._orphans.items():
            self._witness.check(
                now - since < BEATS or not reaper, f"{what}: still {owner}'s, who is gone since {since}"
            )

    def _check_memory(self, replicas: Sequence["Replica"], now: int) -> None:
        """What belongs to a replica is in its memory, or on the way there or back."""
        strays = {}
        for replica in replicas:
            known = {id for lane in replica.roster.live.values() for id in lane.known}
            for (id,) in self._rows("SELECT id FROM messages WHERE owner = %s", replica.store.number):
                if id not in known and replica.was_well(BEATS / 1000):
                    strays[id_text(id), replica.store.number] = now
        self._strays = {key: self._strays.get(key, since) for key, since in strays.items()}
        for (id, owner), since in self._strays.items():
            self._witness.check(
                now - since < 2 * BEATS, f"{id}: claimed by {owner}, which does not know of it since {since}"
            )

    def _check_lying(self, replicas: Sequence["Replica"], now: int) -> None:
        lying = {}
        if replicas and all(replica.was_well() for replica in replicas):
            busy = {asked.host for asked in self._witness.unrecorded}
            held = {host for (host,) in self._rows("SELECT host FROM hosts WHERE hold_until > %s", now)}
            for id, host in self._rows(
                """SELECT m.id, l.host FROM messages m JOIN lanes l USING (lane) WHERE owner IS NULL AND l.state = 0
                AND (standing = 1 OR (standing = 2 AND due < %s))""",
                now,
            ):
                if host not in busy | held:
                    lying[id_text(id)] = now
        self._lying = {id: self._lying.get(id, since) for id, since in lying.items()}
        for id, since in self._lying.items():
            self._witness.check(now - since < LYING, f"{id}: could go since {since}, and nobody takes it")

    def check_end(self) -> None:
        """Each message is where its history says, and nothing else is there."""
        check = self._witness.check
        there = {id_text(id): rest for id, *rest in self._rows("SELECT id, standing, attempts FROM messages")}
        delivered = {id_text(id) for (id,) in self._rows("SELECT id FROM delivered")}
        for id, message in self._witness.messages.items():
            state = message.now.state
            check(state != WAITING, f"{id}: left behind, {message.now}")
            check((id in there) == (state not in (DELIVERED, DROPPED)), f"{id}: {state}, and {there.get(id)} is there")
            known = id in delivered or (state == DELIVERED and self._witness.evicted)
            check(known == (state == DELIVERED), f"{id}: {state}, and among the delivered ones: {known}")
            if id in there:
                self._check_attempts(id, message.now.attempts, there[id][1])
        strange = [id for id in there if id not in self._witness.messages]
        check(not strange, f"never accepted, and in the database: {strange[:2]}")
        self._connection.rollback()

    def _check_attempts(self, id: str, expected: int, counted: int) -> None:
        recorded = self._rows("SELECT count(*) FROM attempts WHERE id = %s", raw_id(id))[0][0]
        self._witness.check(
            expected == counted == recorded, f"{id}: {expected} attempts, {counted} counted, {recorded} on record"
        )
