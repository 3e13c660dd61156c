"""The cost of other hosts does not grow with a frozen host's backlog, in blocks and scans of the database."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.support.harness import Gateway, Received, Receiver, running

FEW, MANY = 1_000, 100_000
WEBHOOKS = 200
FROZEN = "127.0.0.1:9"
RULES = {"retry__base": "100ms"}

_MULTIPLY = """INSERT INTO messages (id, lane, standing, born, due, retry, attempts, held, size, shard, record, body)
    SELECT substr(id, 1, 8) || int8send(n), lane, standing, born + n, due, retry, attempts, held, size, shard, record,
        body
    FROM (SELECT * FROM messages WHERE lane = %s ORDER BY born LIMIT 1) AS m,
        generate_series(%s::bigint, %s::bigint) AS n"""
_COUNT = "UPDATE counters SET first = first + %s, bytes = bytes + %s * 4096 WHERE lane = %s AND first > 0"
_COST = """SELECT s.seq_scan, heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read
    FROM pg_stat_user_tables s JOIN pg_statio_user_tables USING (relid) WHERE s.relname = 'messages'"""


class Cost(NamedTuple):
    """Of the table of messages: how often it was read as a whole, and how many blocks of it were touched."""

    scans: int
    blocks: int


def test_a_frozen_host_costs_the_others_nothing(
    tmp_path: Path, database: str, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    tried: set[str] = set()

    def failing_at_first(request: Received) -> int:
        is_first = request.id not in tried
        tried.add(request.id)
        return 500 if is_first and len(tried) % 4 == 0 else 200

    receiver.answer = failing_at_first
    with running(tmp_path / "store", store__url=database, **RULES) as gateway:
        assert gateway.call("POST", f"/v1/circuits/{FROZEN}/freeze").json()["changed"]
        gateway.post(f"http://{FROZEN}/hook")
        assert gateway.stop() == 0
    few = grown(tmp_path, database, receiver, FEW)
    many = grown(tmp_path, database, receiver, MANY)
    measured(
        f"{WEBHOOKS} webhooks beside a frozen host touched {few.blocks} blocks of messages with {FEW} of its waiting, "
        f"{many.blocks} with {MANY}"
    )
    assert many.scans == 0
    assert many.blocks < 2 * few.blocks


def grown(folder: Path, database: str, receiver: Receiver, waiting: int) -> Cost:
    """Let a frozen host's backlog grow by so many; what does a load to another one cost then?"""
    with psycopg.connect(database, options="-c search_path=holdfast", autocommit=True) as connection:
        connection.execute("ALTER TABLE messages SET (autovacuum_enabled = false)")
        (before,) = connection.execute("SELECT count(*) FROM messages").fetchone() or (0,)
        connection.execute(_MULTIPLY, (FROZEN, before, waiting - 1))
        connection.execute(_COUNT, (waiting - before, waiting - before, FROZEN))
        connection.execute("VACUUM ANALYZE")
    begin = cost(database)
    with running(folder / "store", store__url=database, **RULES) as gateway:
        deliver(gateway, receiver)
        assert gateway.stop() == 0
    end = cost(database)
    return Cost(end.scans - begin.scans, end.blocks - begin.blocks)


def deliver(gateway: Gateway, receiver: Receiver) -> None:
    ids = {gateway.post(f"{receiver.url}/hook").json()["id"] for _ in range(WEBHOOKS)}
    receiver.wait_for(lambda requests: ids <= {request.id for request in requests if request.status == 200})


def cost(database: str) -> Cost:
    """What a connection has cost is counted when it is closed, at the latest."""
    with psycopg.connect(database) as connection:
        return Cost(*connection.execute(_COST).fetchone() or (0, 0))
