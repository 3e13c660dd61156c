"""Scenarios on PostgreSQL: one and two replicas against the embedded store, and what it costs that much waits.

CPU is that of the gateways and of the server together. The load has 256 connections: a commit over there takes longer
than one here, and what comes meanwhile shares the next one. With 32, as the other rows have it, a replica mostly waits.
It is for 16 hosts, on both stores: a host is one replica's.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from holdfast.core.circuit import CircuitState
from tests.bench.database import Database
from tests.bench.figures import Figure
from tests.bench.fill_postgres import fill, questions
from tests.bench.load import CONNECTIONS, Load, paced
from tests.bench.measuring import Run, checked, saturate, usage
from tests.bench.session import Drain, Session
from tests.bench.stores import FROZEN
from tests.bench.systems import Holdfast, fleet, holdfast
from tests.bench.wal_bytes import write_ahead
from tests.support.harness import until

MANY = 256
"""Connections."""
FEW = 1_000
SOME = 20_000
"""Waiting for the sink: their drain takes long enough to be measured."""
DRAIN_ENOUGH = 60.0
SETTLE = 3.0
"""Seconds after the start before a gateway counts as idle."""
ROUNDS = 3
ROUNDS_BESIDE = 2
FEW_HOSTS = 10


class Measured(NamedTuple):
    """A system under all the load that it takes, and at half of that."""

    run: Run
    half: Load | None


class Round(NamedTuple):
    """The same measured on the embedded store and with one and two replicas, in turn."""

    embedded: Measured
    fleets: Mapping[int, Measured]


Measure = Callable[[Holdfast], Measured]


# -- against the embedded store ----------------------------------------------------------------------------------------


def acknowledged(session: Session, replicas: int) -> Figure:
    found = _rounds(session, "acknowledged", partial(_enqueue, session))
    return _compared("msg/s", found, replicas, lambda one: one.run.ack_rate)


def end_to_end(session: Session, replicas: int) -> Figure:
    return _compared("msg/s", _saturated(session), replicas, lambda one: one.run.rate)


def few_connections(session: Session) -> Figure:
    found = _rounds(session, "few connections", partial(_deliver, session, CONNECTIONS), (1,))
    return _compared("msg/s", found, 1, lambda one: one.run.rate)


def cpu(session: Session, replicas: int) -> Figure:
    return _compared("us/msg", _saturated(session), replicas, lambda one: one.run.cpu * 1e6)


def ack_p99(session: Session, replicas: int) -> Figure:
    """Each at half of what it delivers at most."""
    found = _saturated(session)
    figure = _compared("ms", found, replicas, lambda one: _half(one).p99 * 1e3)
    halves = {"": [one.fleets[replicas] for one in found], "LMDB ": [one.embedded for one in found]}
    beside = {}
    for name, measured in halves.items():
        beside[f"{name}at msg/s"] = median(_half(one).rate for one in measured)
        beside[f"{name}ack p50 ms"] = median(_half(one).p50 for one in measured) * 1e3
    return Figure(figure.unit, figure.ours, figure.other, figure.against, beside)


def _saturated(session: Session) -> list[Round]:
    return _rounds(session, "saturated", partial(_deliver_and_pace, session))


def _rounds(session: Session, name: str, measure: Measure, replicas: Sequence[int] = (1, 2)) -> list[Round]:
    def all_of_them() -> list[Round]:
        return [
            Round(_embedded(session, measure), {count: _fleet(session, count, measure) for count in replicas})
            for _ in _pairs(session)
        ]

    return list(session.once(f"fleet {name}", all_of_them))


def _pairs(session: Session, rounds: int = ROUNDS) -> range:
    """Fewer than elsewhere: each has a database to make."""
    return range(min(session.pairs, rounds))


def _embedded(session: Session, measure: Measure) -> Measured:
    store = session.stores.new("holdfast")
    with holdfast(store) as system:
        measured = measure(system)
    session.stores.drop(store)
    return measured


def _fleet(session: Session, replicas: int, measure: Measure) -> Measured:
    database = session.databases.new()
    measured = _on(session, database, measure, replicas)
    database.drop()
    return measured


def _on(session: Session, database: Database, measure: Measure, replicas: int = 1) -> Measured:
    folder = session.stores.new("fleet")
    with fleet(folder, database, ["all"] * replicas) as system:
        measured = measure(system)
    session.stores.drop(folder)
    return measured


def _deliver(session: Session, connections: int, system: Holdfast) -> Measured:
    return Measured(_saturate(session, system, connections), None)


def _deliver_and_pace(session: Session, system: Holdfast) -> Measured:
    run = _saturate(session, system, MANY)
    urls = system.urls(session.sink.url)
    return Measured(run, checked(paced(urls, run.rate / 2, session.seconds, spread=session.spread)))


def _saturate(session: Session, system: Holdfast, connections: int) -> Run:
    return saturate(system, session.sink, session.seconds, connections=connections, spread=session.spread)


def _enqueue(session: Session, system: Holdfast) -> Measured:
    """Nothing of it is delivered."""
    # Who owns the host may not have been heard of yet.
    until(lambda: system.gateway.call("POST", f"/v1/circuits/{FROZEN}/freeze").is_success)
    target = f"https://{FROZEN}/hook"
    return Measured(saturate(system, session.sink, session.seconds, connections=MANY, target=target), None)


def _half(measured: Measured) -> Load:
    assert measured.half is not None
    return measured.half


def _compared(unit: str, found: Sequence[Round], replicas: int, figure: Callable[[Measured], float]) -> Figure:
    ours = [one.fleets[replicas] for one in found]
    other = [figure(one.embedded) for one in found]
    return Figure(unit, [figure(one) for one in ours], other, "LMDB", _details([one.run for one in ours]))


def _details(runs: Sequence[Run]) -> dict[str, float]:
    shown = {
        "gateway cpu us": median(run.usage.own for run in runs) * 1e6,
        "server cpu us": median(run.usage.server for run in runs) * 1e6,
        "wal bytes": median(run.usage.wal for run in runs),
        "ack p50 ms": median(run.p50 for run in runs) * 1e3,
        "ack p99 ms": median(run.p99 for run in runs) * 1e3,
    }
    groups = [run.group for run in runs if run.group is not None]
    return shown | ({"group": median(groups)} if groups else {})


# -- much waits --------------------------------------------------------------------------------------------------------


def backlog_rate(session: Session) -> Figure:
    return _beside_backlog(session, "msg/s", lambda run: run.rate)


def backlog_acks(session: Session) -> Figure:
    return _beside_backlog(session, "msg/s", lambda run: run.ack_rate)


def backlog_cpu(session: Session) -> Figure:
    return _beside_backlog(session, "us/msg", lambda run: run.cpu * 1e6)


def hosts_rate(session: Session) -> Figure:
    return _beside_hosts(session, "msg/s", lambda run: run.rate)


def hosts_cpu(session: Session) -> Figure:
    return _beside_hosts(session, "us/msg", lambda run: run.cpu * 1e6)


def _beside_backlog(session: Session, unit: str, figure: Callable[[Run], float]) -> Figure:
    """Load to the sink while others wait for a frozen host."""
    many, few = partial(_frozen, session, session.backlog), partial(_frozen, session, FEW)
    return _beside(session, "backlog", many, few, _waiting(FEW), unit, figure)


def _beside_hosts(session: Session, unit: str, figure: Callable[[Run], float]) -> Figure:
    """The same while as many wait for very many frozen hosts, and for few."""
    many, few = partial(_frozen_hosts, session, session.hosts), partial(_frozen_hosts, session, FEW_HOSTS)
    return _beside(session, "hosts", many, few, f"{FEW_HOSTS} hosts", unit, figure)


def _beside(
    session: Session,
    name: str,
    many: Callable[[], Database],
    few: Callable[[], Database],
    against: str,
    unit: str,
    figure: Callable[[Run], float],
) -> Figure:
    def measure() -> list[tuple[Run, Run]]:
        load = partial(_deliver, session, MANY)
        return [(_on(session, many(), load).run, _on(session, few(), load).run) for _ in _pairs(session, ROUNDS_BESIDE)]

    found = list(session.once(f"fleet beside {name}", measure))
    ours, other = [one for one, _ in found], [one for _, one in found]
    return Figure(unit, [figure(run) for run in ours], [figure(run) for run in other], against, _details(ours))


def question(session: Session, name: str) -> Figure:
    """How long the store waits for an answer."""

    def measure() -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
        many, few = _for_sink(session, session.backlog), _for_sink(session, FEW)
        host = session.sink.host
        return [(questions(many.url, host), questions(few.url, host)) for _ in _pairs(session)]

    found = session.once("fleet questions", measure)
    ours, other = [many[name] * 1e3 for many, _ in found], [few[name] * 1e3 for _, few in found]
    return Figure("ms", ours, other, _waiting(FEW))


def disk(session: Session) -> Figure:
    """With all of its indexes."""
    return Figure("bytes", [_frozen(session, session.backlog).filled / session.backlog])


def wal(session: Session) -> Figure:
    """Of a message that is delivered at once; and of each step."""
    database = session.databases.new()
    ahead = write_ahead(database)
    database.drop()
    return Figure("bytes", [ahead.accepted + ahead.delivered], beside=ahead._asdict())


def delivery(session: Session) -> Figure:
    """The backlog itself is delivered, or as much of it as goes in a minute."""
    some = min(SOME, session.backlog // 4)
    few, many = _drain(session, some), _drain(session, session.backlog)
    beside = {
        "gateway cpu us": many.usage.own * 1e6,
        "server cpu us": many.usage.server * 1e6,
        "wal bytes": many.usage.wal,
        "delivered": many.delivered,
        "cpu ratio": many.cpu / few.cpu,
        "bytes of a delivered row": _for_sink(session, some).size("delivered") / some,
    }
    return Figure("msg/s", [many.rate], [few.rate], _waiting(some), beside)


def idle_cpu(session: Session) -> Figure:
    """The server's own upkeep included."""
    ours, other = (_idle(session, _frozen(session, count)) for count in (session.backlog, FEW))
    return Figure("%", [ours * 100], [other * 100], _waiting(FEW))


def _waiting(count: int) -> str:
    return f"{count:,} waiting"


def _frozen(session: Session, waiting: int) -> Database:
    return _filled(session, f"frozen {waiting}", waiting, [FROZEN], CircuitState.FROZEN)


def _frozen_hosts(session: Session, hosts: int) -> Database:
    names = [f"host{number}.example:443" for number in range(hosts)]
    return _filled(session, f"frozen hosts {hosts}", session.backlog, names, CircuitState.FROZEN)


def _for_sink(session: Session, waiting: int) -> Database:
    return _filled(session, f"enabled {waiting}", waiting, [session.sink.host], CircuitState.ENABLED)


def _filled(session: Session, name: str, waiting: int, hosts: Sequence[str], state: CircuitState) -> Database:
    return session.databases.filled(name, lambda url: fill(url, waiting, hosts, state))


def _drain(session: Session, waiting: int) -> Drain:
    database, before, folder = _for_sink(session, waiting), session.sink.count(), session.stores.new("fleet")
    with fleet(folder, database) as system:
        drain = session.draining(system, before, waiting, DRAIN_ENOUGH)
        system.gateway.kill()
    return drain


def _idle(session: Session, database: Database) -> float:
    """What the load before it left is cleared away first."""
    database.do("VACUUM")
    bell, seconds = threading.Event(), session.seconds * 2
    with fleet(session.stores.new("fleet"), database) as system:
        bell.wait(SETTLE)
        before = usage(system)
        bell.wait(seconds)
        used = usage(system)
    return (used.own + used.server - before.own - before.server) / seconds
