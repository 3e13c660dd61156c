"""Tables of version 1, in which replicas claim messages, with rows of every kind."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field

import psycopg

from holdfast.core.circuit import Circuit, CircuitState, Reason, Window
from holdfast.core.message import DeadReason, Message, MessageId, next_id
from holdfast.store import records
from holdfast.store.embedded.shares import MESSAGE_COST
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import rows
from holdfast.store.postgres.migration import bring_up_to_date
from holdfast.store.postgres.schema import STEPS
from holdfast.store.postgres.transactions import connect
from tests.contract.builders import EXPIRE_AFTER, HOUR, MINUTE, attempt, idempotency, success

OLD, DEAD_OLD = 7, 5
"""The numbers of a replica that is alive, and of one that left its claims behind."""
RETRY_IN, HOLD, PROBE_IN, DELAYED = 20_000, 30_000, 40_000, 50_000
FAR = 30 * 24 * HOUR
BUSY, CLAIMED, DOWN, ICE, LIMITED, SHARED = (
    f"{name}.test:80" for name in ("busy", "claimed", "down", "ice", "lim", "u")
)
BY_URL = [f"http://{SHARED}/{path}" for path in ("x", "y")]
WAITING, RETRY, DEAD = 1, 2, 3


@dataclass
class Old:
    """What was put there: messages by what they are."""

    url: str
    now: int
    named: dict[str, Message] = field(default_factory=dict)
    circuits: dict[str, Circuit] = field(default_factory=dict)
    last: MessageId = bytes(16)
    connection: psycopg.Connection | None = None
    """While it is filled: to make one takes longer than what is done by it."""

    def __getitem__(self, name: str) -> MessageId:
        return self.named[name].id

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with nullcontext(self.connection) if self.connection else searching(self.url) as connection:
            done = connection.execute(statement.encode(), values)
            return done.fetchall() if done.description else []

    def replica_is_alive(self, lease: int = HOUR) -> None:
        self.execute(
            """INSERT INTO replicas VALUES (%s, 'old:1', true, '0.9', 1, 0,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %s)
            ON CONFLICT (number) DO UPDATE SET lease_until = excluded.lease_until""",
            OLD,
            lease,
        )

    def message(self, name: str, lane: str, host: str | None = None, body: bytes = b"{}") -> Message:
        self.last = next_id(self.last, self.now, 0)
        host = host or lane
        path = lane.partition(host)[2].encode() or b"/hook"
        message = Message(self.last, lane, host, "http", host, path, "POST", (), body, self.now, self.now)
        self.named[name] = message
        return message

    def put(
        self,
        name: str,
        lane: str,
        standing: int,
        *,
        host: str | None = None,
        due: int = 0,
        retry: int = 0,
        attempts: int = 0,
        held: bool = False,
        reason: int | None = None,
        owner: int | None = None,
        body: bytes = b"{}",
    ) -> None:
        message = self.message(name, lane, host, body)
        record, apart = rows.encode(message)
        self.execute(
            """INSERT INTO messages
            (id, lane, standing, born, due, retry, attempts, held, reason, size, owner, record, body)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)""",
            *(message.id, lane, standing, self.now, due, retry, attempts, held, reason, len(body), owner),
            *(record, apart),
        )
        counts = {WAITING: (1, 0, 0), RETRY: (0, 1, 0), DEAD: (0, 0, 1)}[max(standing, WAITING)]
        self.execute(
            """INSERT INTO counters AS c VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (host, lane, writer)
            DO UPDATE SET first = c.first + excluded.first, retry = c.retry + excluded.retry,
                dead = c.dead + excluded.dead, bytes = c.bytes + excluded.bytes""",
            *(message.host, lane, 2 * OLD + message.id[-1] % 2, *counts, MESSAGE_COST + len(body)),
        )
        for number in range(1, attempts + 1):
            made = attempt(number, at=self.now)._replace(answer=None)
            answer = b"busy" if number in (1, attempts - 1, attempts) else None
            record = records.encode_attempt(made)
            self.execute("INSERT INTO attempts VALUES (%s, %s, %s, %s)", message.id, number, record, answer)

    def lane(
        self, lane: str, circuit: Circuit, wake_at: int, *, host: str | None = None, most: int = 0, hold: int = 0
    ) -> None:
        host = host or lane
        self.circuits[lane] = circuit
        record = records.encode_lane(LaneRecord(lane, host, circuit, 0, 0, 0))
        state = rows.STATE_NUMBERS[circuit.state]
        self.execute("INSERT INTO lanes VALUES (%s, %s, %s, 2, 0, %s)", lane, host, state, record)
        self.execute("INSERT INTO hosts VALUES (%s, %s, 0, %s, 1) ON CONFLICT DO NOTHING", host, most, hold)
        self.execute("INSERT INTO wakes VALUES (%s, %s)", lane, wake_at)


def version_one(url: str, now: int) -> Old:
    """Nobody has it open any more but a replica that is alive."""
    with connect(url, "test") as connection:
        connection.autocommit = True
        assert bring_up_to_date(connection, STEPS[:1]) == (0, 1)
    old = Old(url, now)
    with searching(url) as old.connection:
        old.execute("DELETE FROM meta")  # What that version left there: the moment of its run, and of its last review.
        old.execute("INSERT INTO meta VALUES ('run', %s), ('rules', 'numbers')", (now - HOUR).to_bytes(8, "big"))
        old.replica_is_alive()
        for fill in (_healthy, _unwell, _finished):
            fill(old)
    old.connection = None
    return old


def searching(url: str) -> psycopg.Connection:
    return psycopg.connect(url, options="-c search_path=holdfast")


def _healthy(old: Old) -> None:
    now = old.now
    enabled = Circuit(since=now, enabled_at=now)
    old.lane(BUSY, enabled, now)
    old.put("active", BUSY, 0, owner=OLD)
    for number in range(3):
        old.put(f"waiting {number}", BUSY, WAITING, body=bytes(5_000 * number))
    old.put("claimed", BUSY, WAITING, owner=DEAD_OLD)
    old.put("retry", BUSY, RETRY, due=now + RETRY_IN, retry=1, attempts=1)
    old.put("claimed retry", BUSY, RETRY, due=now - 1, retry=1, attempts=1, owner=OLD)
    old.put("delayed", BUSY, RETRY, due=now + DELAYED, held=True)
    # All that waits there is claimed: the lane is only looked at to be forgotten.
    old.lane(CLAIMED, enabled, now + FAR)
    old.put("only claimed", CLAIMED, 0, owner=OLD)
    old.lane(LIMITED, enabled, now, most=4, hold=now + HOLD)
    old.put("behind a hold", LIMITED, WAITING)
    for number, lane in enumerate(BY_URL):
        old.lane(lane, enabled, now, host=SHARED)
        old.put(f"by url {number}", lane, WAITING, host=SHARED)


def _unwell(old: Old) -> None:
    now = old.now
    down = Circuit(
        CircuitState.DISABLED,
        since=now - MINUTE,
        reason=Reason.FAILURE_RATE,
        consecutive_failures=123,
        window=Window([[333, 5, 4], [334, 100, 99]]),
        first_attempt_at=now - HOUR,
        last_attempt_at=now - 1,
        last_success_at=now - 2,
        silent_since=now - 2,
        enabled_at=now - HOUR,
        next_probe_at=now + PROBE_IN,
    )
    old.lane(DOWN, down, now + PROBE_IN)
    for number in range(2):
        old.put(f"held {number}", DOWN, WAITING)
    ice = Circuit(CircuitState.FROZEN, since=now, reason=Reason.OPERATOR, enabled_at=now)
    old.lane(ICE, ice, now + EXPIRE_AFTER)
    old.put("frozen", ICE, WAITING)
    old.put("frozen retry", ICE, RETRY, due=now + RETRY_IN, retry=2, attempts=2)


def _finished(old: Old) -> None:
    now = old.now
    old.put("dead", BUSY, DEAD, due=now, retry=3, attempts=4, reason=rows.REASONS.index(DeadReason.EXHAUSTED))
    done = old.message("delivered", BUSY)
    record = records.encode_delivered(done, success(at=now), now)
    old.execute("INSERT INTO delivered VALUES (%s, %s, %s)", done.id, now, record)
    key = idempotency("k")
    old.execute("INSERT INTO keys VALUES (%s, %s, %s, %s)", key.digest, done.id, key.body, now)


def counted(old: Old) -> Counter[str]:
    [(first, retry, dead)] = old.execute("SELECT sum(first)::int, sum(retry)::int, sum(dead)::int FROM counters")
    return Counter({"first": first, "retry": retry, "dead": dead})  # type: ignore[dict-item]
