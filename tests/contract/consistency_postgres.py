"""Whether the tables that replicas share agree with one another: all that is kept beside the messages recomputed from
them, by the plainest means.
"""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import psycopg

from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane import Heads, wake_at
from holdfast.core.message import Message, MessageId, Standing
from holdfast.store import records
from holdfast.store.room import MESSAGE_COST
from holdfast.store.work import StoreRules

STANDINGS = (Standing.ACTIVE, Standing.WAITING, Standing.RETRY, Standing.DEAD)
STATES = (CircuitState.ENABLED, CircuitState.DISABLED, CircuitState.FROZEN)


class Row(NamedTuple):
    """A message as it lies in its table."""

    id: MessageId
    lane: str
    standing: Standing
    born: int
    due: int
    held: bool
    reason: int | None
    size: int
    owner: int | None
    message: Message


Tables = dict[str, list[tuple[Any, ...]]]


def dump(url: str) -> Tables:
    """Every table, in one moment, its rows in some order that is always the same."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'").fetchall()
        return {
            name: sorted(connection.execute(f"SELECT * FROM holdfast.{name}".encode()).fetchall(), key=repr)
            for (name,) in names
        }


def check(url: str, rules: StoreRules, now: int) -> None:
    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        rows = _rows(connection)
        _check_owners(connection, rows)
        _check_leftovers(connection, rows)
        _check_answers(connection)
        _check_counters(connection, rows)
        circuits = _check_lanes(connection, rows)
        _check_wakes(connection, rows, circuits, rules, now)


def _rows(connection: psycopg.Connection) -> list[Row]:
    """Every message, and that what its columns say is what its record says."""
    rows = []
    for id, lane, standing, born, due, held, reason, size, owner, record, body in connection.execute(
        "SELECT id, lane, standing, born, due, held, reason, size, owner, record, body FROM messages"
    ):
        message, length, apart = records.decode_message(id, record)
        assert (message.lane, length, apart) == (lane, size, body is not None)
        assert body is None or len(body) == size
        rows.append(Row(id, lane, STANDINGS[standing], born, due, held, reason, size, owner, message))
    return rows


def _check_owners(connection: psycopg.Connection, rows: list[Row]) -> None:
    """Who has a message in memory is alive, and nobody has a dead one; an active one is in somebody's memory."""
    alive = {number for (number,) in connection.execute("SELECT number FROM replicas")}
    assert {row.owner for row in rows} - {None} <= alive
    for row in rows:
        assert (row.reason is not None) == (row.standing is Standing.DEAD)
        assert row.owner is None or row.standing is not Standing.DEAD
        assert row.owner is not None or row.standing is not Standing.ACTIVE


def _check_leftovers(connection: psycopg.Connection, rows: list[Row]) -> None:
    """Nothing belongs to a message that is gone."""
    delivered = {id for (id,) in connection.execute("SELECT id FROM delivered")}
    waiting = {row.id for row in rows}
    assert not waiting & delivered
    assert {id for (id,) in connection.execute("SELECT id FROM attempts")} <= waiting | delivered


def _check_answers(connection: psycopg.Connection) -> None:
    """Answers are kept for the first and the last two attempts."""
    answered: dict[MessageId, list[int]] = defaultdict(list)
    last: Counter[MessageId] = Counter()
    for id, number, answer in connection.execute("SELECT id, number, answer FROM attempts"):
        last[id] = max(last[id], number)
        if answer is not None:
            answered[id].append(number)
    for id, numbers in answered.items():
        assert set(numbers) <= {1, last[id] - 1, last[id]}


def _check_counters(connection: psycopg.Connection, rows: list[Row]) -> None:
    """What is counted for each lane, and held by each host, is what there is."""
    expected: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        counts = expected[row.message.host, row.lane]
        counts[{Standing.RETRY: 1, Standing.DEAD: 2}.get(row.standing, 0)] += 1
        counts[3] += MESSAGE_COST + row.size
    found = connection.execute(
        "SELECT host, lane, sum(first), sum(retry), sum(dead), sum(bytes) FROM counters GROUP BY host, lane"
    ).fetchall()
    counted = {(host, lane): [int(count) for count in counts] for host, lane, *counts in found if any(counts)}
    assert counted == expected


def _check_lanes(connection: psycopg.Connection, rows: list[Row]) -> dict[str, Circuit]:
    """What waits has a lane; what is searched for is what the record says."""
    circuits: dict[str, Circuit] = {}
    for lane, host, state, record in connection.execute("SELECT lane, host, state, record FROM lanes"):
        kept = records.decode_lane(record)
        assert (kept.key, kept.host, kept.circuit.state) == (lane, host, STATES[state])
        circuits[lane] = kept.circuit
    assert {row.lane for row in rows if row.standing is not Standing.DEAD and row.owner is None} <= set(circuits)
    return circuits


def _check_wakes(
    connection: psycopg.Connection, rows: list[Row], circuits: dict[str, Circuit], rules: StoreRules, now: int
) -> None:
    """Every lane is looked at when it needs it, or at once; a look too early finds nothing, and puts it off."""
    wakes = dict(connection.execute("SELECT lane, at FROM wakes").fetchall())
    assert set(wakes) <= set(circuits)
    for lane, circuit in circuits.items():
        free = [row for row in rows if row.lane == lane and row.owner is None]
        waiting = [row.born for row in free if row.standing is Standing.WAITING]
        retries = [row for row in free if row.standing is Standing.RETRY]
        due = min((row.due for row in retries), default=None)
        oldest = min([*waiting, *(row.born for row in retries)], default=None)
        at_any_time = waiting or not all(row.held for row in retries)
        probe_from = (0 if at_any_time else due) if circuit.state is CircuitState.DISABLED else None
        heads = Heads(min(waiting, default=None), due, oldest, probe_from)
        at = wake_at(circuit, heads, rules.circuit, rules.retry)
        assert not at or wakes[lane] <= max(at, now), f"{lane} is looked at {wakes[lane] - at} ms too late"
