"""Scenarios of a fleet at 200 webhooks a second: what a message costs where groups are small, and by how many replicas.

One replica alone; one that takes webhooks beside one that delivers; and beside four. The webhooks are for 16 hosts,
which the replicas share. Measured in the middle of the load: connections, slow start and caches are no part of it. The
beats of the replicas are, shared out among the messages.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

from tests.bench.figures import Figure
from tests.bench.load import paced
from tests.bench.measuring import Usage, checked, usage
from tests.bench.session import Session
from tests.bench.systems import Holdfast, fleet

RATE = 200.0
CONNECTIONS = 32
BEFORE, AFTER = 3.0, 1.0
"""Seconds of load before and after those that count."""
ROUNDS = 2
ALONE, ONE, FOUR = ("all",), ("ingest", "deliver"), ("ingest", *["deliver"] * 4)

_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


class Steady(NamedTuple):
    """What a message cost; `transactions` include one for each session that a notification wakes."""

    usage: Usage
    transactions: float
    p50: float
    p99: float


def replica_cpu(session: Session) -> Figure:
    found = [each[ALONE] for each in _rounds(session)]
    return Figure("us/msg", [each.usage.own * 1e6 for each in found], beside=_details(found))


def database_cpu(session: Session) -> Figure:
    found = [each[ALONE] for each in _rounds(session)]
    return Figure("us/msg", [each.usage.server * 1e6 for each in found])


def four_cpu(session: Session) -> Figure:
    """CPU of all replicas and of the server."""
    return _four(session, "us/msg", lambda each: (each.usage.own + each.usage.server) * 1e6)


def four_database_cpu(session: Session) -> Figure:
    return _four(session, "us/msg", lambda each: each.usage.server * 1e6)


def four_transactions(session: Session) -> Figure:
    return _four(session, "", lambda each: each.transactions)


def _four(session: Session, unit: str, figure: Callable[[Steady], float]) -> Figure:
    found = _rounds(session)
    ours, other = ([figure(each[roles]) for each in found] for roles in (FOUR, ONE))
    beside = {"one replica for all": median(figure(each[ALONE]) for each in found)}
    return Figure(unit, ours, other, "one delivers", beside | _details([each[FOUR] for each in found]))


def _details(found: list[Steady]) -> dict[str, float]:
    return {
        "gateway cpu us": median(each.usage.own for each in found) * 1e6,
        "server cpu us": median(each.usage.server for each in found) * 1e6,
        "wal bytes": median(each.usage.wal for each in found),
        "transactions": median(each.transactions for each in found),
        "ack p50 ms": median(each.p50 for each in found) * 1e3,
        "ack p99 ms": median(each.p99 for each in found) * 1e3,
    }


def _rounds(session: Session) -> list[Mapping[tuple[str, ...], Steady]]:
    def measure() -> list[Mapping[tuple[str, ...], Steady]]:
        rounds = range(min(session.pairs, ROUNDS))
        return [{roles: _steady(session, roles) for roles in (ALONE, ONE, FOUR)} for _ in rounds]

    return list(session.once("fleet steady", measure))


def _steady(session: Session, roles: tuple[str, ...]) -> Steady:
    database, folder = session.databases.new(), session.stores.new("fleet")
    with fleet(folder, database, roles) as system:
        found = _in_the_middle(session, system)
    session.stores.drop(folder)
    database.drop()
    return found


def _in_the_middle(session: Session, system: Holdfast) -> Steady:
    assert system.database is not None
    bell, sink, database, seconds = threading.Event(), session.sink, system.database, session.seconds * 2
    with ThreadPoolExecutor(1) as pool:
        urls, whole = system.urls(sink.url), BEFORE + seconds + AFTER
        load = pool.submit(paced, urls, RATE, whole, CONNECTIONS, spread=session.spread)
        bell.wait(BEFORE)
        count, used, [(transactions,)] = sink.count(), usage(system), database.ask(_TRANSACTIONS)
        bell.wait(seconds)
        messages = sink.count() - count
        each, [(more,)] = usage(system).each(used, messages), database.ask(_TRANSACTIONS)
        told = checked(load.result())
    return Steady(each, (more - transactions) / messages, told.p50, told.p99)
