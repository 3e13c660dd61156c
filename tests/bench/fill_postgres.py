"""Fills a database with waiting messages: one of each host as the store writes it, its copies made by the server.

Also what the store itself asks of such a database, for whoever wants to know how long that takes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from holdfast.clock import BootClock
from holdfast.core.circuit import CircuitState
from holdfast.core.ownership import SHARDS, shard_of
from holdfast.store.port import ALL_CLASSES, LaneQuery
from holdfast.store.postgres import lane_rows, queries, reads, rows
from holdfast.store.postgres.migration import prepare_database
from holdfast.store.postgres.rows import WAITING, Terms
from holdfast.store.postgres.shares import FOLDED, Counts
from holdfast.store.postgres.transactions import Connection, connect
from holdfast.store.records import live_record
from tests.bench.fill import lane, message, settings

LANES = 16
READ = 16
TIMES = 41
HOSTS_AT_ONCE = 5_000

_COPIES = f"""INSERT INTO messages (id, lane, standing, born, due, retry, attempts, held, size, shard, record)
    SELECT decode(lpad(to_hex(%(first)s::bigint + n), 12, '0') || lpad(to_hex(n), 20, '0'), 'hex'),
        lane, {WAITING}, %(first)s::bigint + n, 0, 0, 0, false, %(size)s, shard, record
    FROM unnest(%(numbers)s::bigint[], %(lanes)s::text[], %(shards)s::smallint[], %(records)s::bytea[])
        AS v(number, lane, shard, record),
        generate_series(0, %(each)s::bigint - 1) AS turn, LATERAL (SELECT turn * %(hosts)s::bigint + number) AS o(n)"""


def fill(url: str, count: int, hosts: Sequence[str], state: CircuitState) -> None:
    """`count` messages, accepted a millisecond after one another, dealt out to hosts whose circuits are in `state`."""
    prepare_database(url)
    terms = terms_of_now()
    with connect(url, "fill") as connection:
        connection.execute("SET statement_timeout TO 0")
        for start in range(0, len(hosts), HOSTS_AT_ONCE):
            numbers = range(start, min(start + HOSTS_AT_ONCE, len(hosts)))
            _fill_some(connection, count, hosts, numbers, terms)
            _circuits(connection, hosts[start : start + HOSTS_AT_ONCE], state, terms)
            connection.commit()
        connection.autocommit = True
        for table in ("messages", "lanes", "counters"):
            connection.execute(f"VACUUM (ANALYZE) {table}")


def _fill_some(connection: Connection, count: int, hosts: Sequence[str], numbers: range, terms: Terms) -> None:
    names = [hosts[number] for number in numbers]
    each, first = count // len(hosts), terms.now - count
    ones = [message(bytes(16), host, first) for host in names]
    values = {"each": each, "first": first, "hosts": len(hosts), "size": len(ones[0].body), "lanes": names}
    values |= {"shards": [shard_of(host) for host in names], "records": [rows.encode(one)[0] for one in ones]}
    connection.execute(_COPIES, values | {"numbers": list(numbers)})
    counts = Counts()
    for host in names:
        counts.add(host, host, WAITING, len(ones[0].body), each)
    counts.write(connection, FOLDED)


def _circuits(connection: Connection, hosts: Sequence[str], state: CircuitState, terms: Terms) -> None:
    config = settings(Path())
    coming = [live_record(lane(host, state, config, terms.now), terms.rules.run) for host in hosts]
    lane_rows.put_circuits(connection, coming, terms)
    lane_rows.review(connection, {host: host for host in hosts}, terms)


def terms_of_now() -> Terms:
    config, now = settings(Path()), BootClock().now()
    return Terms(config.store_rules(now), 0, 0, now, config.store.max_size)


def questions(url: str, host: str) -> Mapping[str, float]:
    """Seconds, medians: a read of the host's next messages, the agenda, and what `/status` asks."""
    terms = terms_of_now()
    agenda = partial(
        reads.agenda, shards=range(SHARDS), now=terms.now, limit=LANES, skip=(), classes=ALL_CLASSES, since=0
    )
    with connect(url, "questions") as connection:
        return {
            "read": median(_reads(connection, host, terms)),
            "agenda": median(_timed(connection, agenda)),
            "status": median(_timed(connection, partial(queries.statistics, terms=terms, path=""))),
        }


def _reads(connection: Connection, host: str, terms: Terms) -> list[float]:
    """Of the next ones each time."""
    taken, read_to = [], b""
    for _ in range(TIMES):
        ask = LaneQuery(host, terms.now, READ, READ, None, frozenset(), read_to)
        began = perf_counter()
        (view,) = reads.survey(connection, [ask], range(SHARDS))
        taken.append(perf_counter() - began)
        connection.rollback()
        assert len(view.fresh) == READ, f"{len(view.fresh)} read"
        last = view.fresh[-1]
        read_to = last.place.born.to_bytes(8, "big") + last.message.id
    return taken


def _timed(connection: Connection, question: Callable[[Connection], object]) -> list[float]:
    taken = []
    for _ in range(TIMES):
        began = perf_counter()
        question(connection)
        taken.append(perf_counter() - began)
        connection.rollback()
    return taken
