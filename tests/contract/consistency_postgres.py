"""Checks that the tables of a database agree with one another: recomputes from the messages all that is derived from
them.
"""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import psycopg

from holdfast.core.budget import class_of
from holdfast.core.circuit import CircuitState
from holdfast.core.lane_times import Heads, wake_at
from holdfast.core.message import Message, MessageId, Standing
from holdfast.core.ownership import shard_of
from holdfast.core.store_rules import MESSAGE_COST, StoreRules
from holdfast.store import records
from holdfast.store.port import LaneRecord

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
    shard: int
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
        _check_standings(rows)
        _check_leftovers(connection, rows)
        _check_answers(connection)
        _check_counters(connection, rows)
        circuits = _check_lanes(connection, rows)
        _check_wakes(connection, rows, circuits, rules, now)


def _rows(connection: psycopg.Connection) -> list[Row]:
    """Every message, and that what its columns say is what its record says."""
    rows = []
    for id, lane, standing, born, due, held, reason, size, shard, record, body in connection.execute(
        "SELECT id, lane, standing, born, due, held, reason, size, shard, record, body FROM messages"
    ):
        message, length, apart = records.decode_message(id, record)
        assert (message.lane, length, apart) == (lane, size, body is not None)
        assert body is None or len(body) == size
        rows.append(Row(id, lane, STANDINGS[standing], born, due, held, reason, size, shard, message))
    return rows


def _check_standings(rows: list[Row]) -> None:
    """Dead ones have a reason, and what has arrived is found by its owner."""
    for row in rows:
        assert (row.reason is not None) == (row.standing is Standing.DEAD)
        assert row.standing is not Standing.ACTIVE or row.shard == shard_of(row.message.host)


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
        is_late = row.standing is Standing.ACTIVE and row.due
        counts[1 if is_late else {Standing.RETRY: 1, Standing.DEAD: 2}.get(row.standing, 0)] += 1
        counts[3] += MESSAGE_COST + row.size
    found = connection.execute(
        "SELECT host, lane, sum(first), sum(retry), sum(dead), sum(bytes) FROM counters GROUP BY host, lane"
    ).fetchall()
    counted = {(host, lane): [int(count) for count in counts] for host, lane, *counts in found if any(counts)}
    assert counted == expected


def _check_lanes(connection: psycopg.Connection, rows: list[Row]) -> dict[str, LaneRecord]:
    """What waits has a lane; what is searched for is what the record says."""
    circuits: dict[str, LaneRecord] = {}
    for lane, host, shard, state, host_class, record in connection.execute(
        "SELECT lane, host, shard, state, host_class, record FROM lanes"
    ):
        kept = records.decode_lane(record)
        assert (kept.key, kept.host, kept.circuit.state) == (lane, host, STATES[state])
        assert (shard, host_class) == (shard_of(host), class_of(kept.answers))
        circuits[lane] = kept
    assert {row.lane for row in rows if row.standing in (Standing.WAITING, Standing.RETRY)} <= set(circuits)
    return circuits


def _check_wakes(
    connection: psycopg.Connection, rows: list[Row], circuits: dict[str, LaneRecord], rules: StoreRules, now: int
) -> None:
    """Every lane is looked at when it needs it, or at once; a look too early finds nothing, and puts it off."""
    wakes = dict(connection.execute("SELECT lane, wake_at FROM lanes").fetchall())
    for lane, record in circuits.items():
        queued = [row for row in rows if row.lane == lane]
        waiting = [row.born for row in queued if row.standing is Standing.WAITING]
        retries = [row for row in queued if row.standing is Standing.RETRY]
        due = min((row.due for row in retries), default=None)
        oldest = min([*waiting, *(row.born for row in retries)], default=None)
        at_any_time = waiting or not all(row.held for row in retries)
        is_disabled = record.circuit.state is CircuitState.DISABLED
        heads = Heads(min(waiting, default=None), due, oldest, (0 if at_any_time else due) if is_disabled else None)
        at = wake_at(record.circuit, heads, rules.circuit, rules.retry, record.hold_until)
        assert not at or 0 < wakes[lane] <= max(at, now), f"{lane} is looked at {wakes[lane] - at} ms too late"
