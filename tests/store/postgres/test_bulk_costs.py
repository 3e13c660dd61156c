"""What the sweep removes costs by how much that is, however many lanes there are: counted in rows and look-ups, as the
server tells them.
"""

import psycopg
import trio

from holdfast.config import build
from holdfast.core.circuit import Circuit
from holdfast.core.message import Message
from holdfast.delivery.upkeep import STEP
from holdfast.store import records
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import rows
from holdfast.store.postgres.migration import migrate
from tests.contract.builders import DAY, HOST, NOW, success
from tests.fleet.virtual_replicas import Replica
from tests.store.fleets import every_host_is_owned
from tests.support.harness import until
from tests.support.trio_clock import TrioClock

FINISHED = 2 * STEP
"""Records of each kind that are past their retention."""
LONG_AGO = NOW - 100 * DAY
TOUCHED = """SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + coalesce(idx_scan, 0))::bigint
    FROM pg_stat_user_tables WHERE schemaname = 'holdfast' AND relname <> 'counters'"""
"""Counters are summed up once in a while, whether or not something is swept."""
SESSIONS = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'holdfast %'"
ID = "decode(lpad(to_hex(v), 32, '0'), 'hex')"


def ask(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(query.encode()).fetchone()
        return 0 if found is None else int(found[0])


def fill(url: str, lanes: int) -> None:
    """So many lanes with a message each that waits for its time, and what is past its retention."""
    migrate(url)
    message = Message(bytes(16), HOST, HOST, "http", HOST, b"/", "POST", (), b"{}", NOW, NOW)
    record, _ = rows.encode(message)
    lane = records.encode_lane(LaneRecord(HOST, HOST, Circuit(since=NOW, enabled_at=NOW), 16, NOW, 0))
    delivered = records.encode_delivered(message, success(), NOW)
    put = f"""INSERT INTO messages (id, lane, standing, born, due, retry, attempts, held, reason, size, record)
        SELECT {ID}, 'h' || v, %s, %s, %s, 0, 0, false, %s, 2, %s FROM generate_series(%s::bigint, %s) AS v"""
    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        connection.execute(
            """INSERT INTO lanes (lane, host, shard, state, wake_at, record, host_class)
            SELECT 'h' || v, %s, v & 255, 0, %s, %s, 0 FROM generate_series(1, %s) AS v""",
            (HOST, NOW + 100 * DAY, lane, lanes),
        )
        connection.execute(put.encode(), (rows.RETRY, NOW, NOW + 100 * DAY, None, record, 1, lanes))
        connection.execute(put.encode(), (rows.DEAD, NOW, LONG_AGO, 0, record, 1 << 40, (1 << 40) + FINISHED - 1))
        for table, values in (("delivered", (LONG_AGO, delivered)), ("keys", (bytes(16), bytes(16), LONG_AGO))):
            given = ", ".join(["%s"] * len(values))
            finished = f"INSERT INTO {table} SELECT {ID}, {given} FROM generate_series(1, %s) AS v"
            connection.execute(finished.encode(), (*values, FINISHED))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


async def touched_by_a_sweep(url: str, lanes: int) -> int:
    fill(url, lanes)
    before = ask(url, TOUCHED)
    replica = Replica(build({}), url=url, clock=TrioClock(NOW))
    replica.compose()
    upkeep = replica.delivery._upkeep
    async with trio.open_nursery() as nursery:
        await nursery.start(replica.ledger.run)
        await every_host_is_owned(replica.ledger)
        upkeep._grace_ends = 0
        while await upkeep._sweep():
            pass
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(until, lambda: not ask(url, SESSIONS))  # What they counted is told when they end.
    touched = ask(url, TOUCHED) - before
    for table in ("messages WHERE standing = 3", "delivered", "keys"):
        assert ask(url, f"SELECT count(*) FROM holdfast.{table}") == 0
    assert ask(url, "SELECT count(*) FROM holdfast.messages") == lanes
    return touched


async def test_a_sweep_costs_the_same_however_many_lanes_there_are(database: str) -> None:
    few = await touched_by_a_sweep(database, 10)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA holdfast CASCADE")
    many = await touched_by_a_sweep(database, 3_000)
    assert many < 1.2 * few
