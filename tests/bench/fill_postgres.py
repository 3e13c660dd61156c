"""Fills a database with waiting messages of one host: one as the store writes it, the others made of it by the server.

Also what the store itself asks of such a database, for whoever wants to know how long that takes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.fill import lane, message, settings
from holdfast.clock import BootClock
from holdfast.core.circuit import CircuitState
from holdfast.core.message import MessageId
from holdfast.opening import store_rules
from holdfast.store.port import Ask
from holdfast.store.postgres import accepting, claiming, rows, showing, waking
from holdfast.store.postgres.connection import Connection, connect
from holdfast.store.postgres.contact import make_contact
from holdfast.store.postgres.counting import FOLDED, Counts
from holdfast.store.postgres.rows import STATE_NUMBERS, WAITING
from holdfast.store.postgres.terms import Terms

LANES = 16
CLAIMED = 16
TIMES = 41

_COPIES = """INSERT INTO messages (id, lane, standing, born, due, retry, attempts, held, size, record, body)
    SELECT decode(lpad(to_hex(%(now)s::bigint - %(count)s + n), 12, '0') || lpad(to_hex(n), 20, '0'), 'hex'),
        %(lane)s, %(standing)s, %(now)s::bigint - %(count)s + n, 0, 0, 0, false, %(size)s, %(record)s, %(body)s
    FROM generate_series(1, %(count)s::bigint) AS n"""


def fill(url: str, count: int, host: str, state: CircuitState) -> None:
    """`count` messages, accepted a millisecond after one another, for a host whose circuit is in `state`."""
    make_contact(url)
    terms = terms_of_now()
    one = message(bytes(16), host, terms.now - count)
    record, body = rows.encode(one)
    circuit = lane(host, state, settings(Path()), terms.now).circuit
    counts = Counts()
    counts.add(host, host, WAITING, len(one.body), count)
    with connect(url, "fill") as connection:
        connection.execute("SET statement_timeout TO 0")
        values = {"lane": host, "standing": WAITING, "size": len(one.body), "record": record, "body": body}
        connection.execute(_COPIES, {**values, "now": terms.now, "count": count})
        counts.write(connection, FOLDED)
        accepting.know_lanes(connection, {host: host}, terms)
        connection.execute(
            "UPDATE lanes SET state = %s, record = %s WHERE lane = %s",
            (STATE_NUMBERS[state], rows.encode_circuit(host, host, circuit), host),
        )
        waking.review(connection, [host], terms)
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM (ANALYZE) messages")
        connection.execute("VACUUM (ANALYZE) lanes")


def terms_of_now() -> Terms:
    config, now = settings(Path()), BootClock().now()
    return Terms(store_rules(config, now), 0, 0, now, now, False, config.store.max_size)


def questions(url: str, host: str) -> Mapping[str, float]:
    """Seconds, medians: a claim of the host's next messages, the agenda, and what `/status` asks; without the fsync of
    a commit.
    """
    terms = terms_of_now()
    with connect(url, "questions") as connection:
        connection.execute("SET synchronous_commit TO off")
        connection.commit()
        return {
            "claim": median(_claims(connection, host, terms)),
            "agenda": median(_timed(connection, partial(claiming.agenda, now=terms.now, limit=LANES, skip=()))),
            "status": median(_timed(connection, partial(showing.statistics, terms=terms, path=""))),
        }


def _claims(connection: Connection, host: str, terms: Terms) -> list[float]:
    """Of the next ones each time; in the end all are given back."""
    taken, skip = [], frozenset[MessageId]()
    for _ in range(TIMES):
        began = perf_counter()
        (view,) = claiming.survey(connection, [Ask(host, terms.now, CLAIMED, CLAIMED, None, skip)], terms)
        taken.append(perf_counter() - began)
        assert len(view.fresh) == CLAIMED, f"{len(view.fresh)} claimed"
        skip |= {entry.message.id for entry in view.fresh}
    connection.execute("UPDATE messages SET owner = NULL WHERE owner = %s", (terms.number,))
    connection.commit()
    return taken


def _timed(connection: Connection, question: Callable[[Connection], object]) -> list[float]:
    taken = []
    for _ in range(TIMES):
        began = perf_counter()
        question(connection)
        taken.append(perf_counter() - began)
        connection.rollback()
    return taken
