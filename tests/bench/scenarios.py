"""Every figure: its name, meaning, goal, and how it is measured."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.bench import scenarios_backlog as backlog
from tests.bench import scenarios_bounds as bounds
from tests.bench import scenarios_fleet as fleet
from tests.bench import scenarios_load as load
from tests.bench import scenarios_steady as steady
from tests.bench.figures import Bound, Figure
from tests.bench.session import Session


class Scenario(NamedTuple):
    name: str
    what: str
    bound: Bound
    how: Callable[[Session], Figure]


def at_least(ratio: float) -> Bound:
    return Bound(at_least=ratio)


def at_most(ratio: float) -> Bound:
    return Bound(at_most=ratio)


def no_more_than(figure: float) -> Bound:
    return Bound(at_most=figure, of_figure=True)


SCENARIOS = (
    Scenario("end_to_end", "end to end, 1 KiB, 32 connections", at_least(1.0), load.end_to_end),
    Scenario("own_heads", "... each with a head of its own", Bound(), load.own_heads),
    Scenario("cpu", "CPU per message", at_most(1.15), load.cpu),
    Scenario("split", "end to end, process.split", at_least(1.3), load.split),
    Scenario("ack_p99", "ack p99 at half of its saturation", no_more_than(10), load.ack_p99),
    Scenario("ack_p99_hanging", "... while 200 receivers hang", at_most(3), load.ack_p99_hanging),
    Scenario("connections", "2,000 client connections, mostly idle", at_least(0.8), load.connections),
    Scenario("large_fresh", "end to end, 64 KiB", at_least(0.7), load.large_fresh),
    Scenario("ack_backlog_one", "ack rate, backlog of one frozen host", at_least(0.9), backlog.ack_one),
    Scenario("ack_backlog_hosts", "ack rate, backlog of many frozen hosts", at_least(0.9), backlog.ack_hosts),
    Scenario("start_one", "start to ready, backlog of one host", at_most(1.5), backlog.start_one),
    Scenario("start_hosts", "start to ready, backlog of many hosts", at_most(1.5), backlog.start_hosts),
    Scenario("memory_backlog", "RssAnon with the backlog", at_most(1.3), backlog.memory_backlog),
    Scenario("idle_memory", "RSS, idle", no_more_than(48), backlog.idle_memory),
    Scenario("idle_cpu", "CPU idle, backlog of one frozen, ten disabled", no_more_than(0.5), backlog.idle_cpu),
    Scenario("fairness", "one webhook beside a host with 100,000", at_most(3), backlog.fairness),
    Scenario("delivery_one", "delivery rate, backlog of one host", at_least(0.8), backlog.delivery_one),
    Scenario("delivery_hosts", "delivery rate, backlog over many hosts", Bound(), backlog.delivery_hosts),
    Scenario("slow_disk", "delivery rate, an fsync of 400 ms more", at_least(0.6), bounds.slow_disk),
    Scenario("memory_hanging", "RssAnon, 1,500 hanging hosts, 1 MB each", no_more_than(160), bounds.memory_hanging),
    Scenario("places_hanging", "slowest of 20 beside 1,500 hanging hosts", no_more_than(2_000), bounds.places_hanging),
    Scenario("large_drained", "end to end, 64 KiB, after that drain", at_least(0.7), load.large_drained),
    *(
        Scenario(f"postgres_{name}{suffix}", f"{what}, {replicas} on PostgreSQL", bound, partial(how, replicas=count))
        for name, what, how, bounds_of in (
            ("acks", "ack rate, nothing delivered", fleet.acknowledged, (Bound(), Bound())),
            ("end_to_end", "end to end, 256 connections", fleet.end_to_end, (at_least(0.7), at_least(1.0))),
            ("cpu", "CPU per message with the server's", fleet.cpu, (Bound(), Bound())),
            ("ack_p99", "ack p99 at half of its saturation", fleet.ack_p99, (Bound(), Bound())),
        )
        for bound, (count, replicas, suffix) in zip(
            bounds_of, ((1, "one replica", ""), (2, "two replicas", "_two")), strict=True
        )
    ),
    Scenario(
        "postgres_steady", "CPU of the replica at 200 a second, PostgreSQL", no_more_than(800), steady.replica_cpu
    ),
    Scenario("postgres_steady_database", "... of the server", no_more_than(600), steady.database_cpu),
    Scenario("postgres_four", "... of all, one takes and four deliver", at_most(1.1), steady.four_cpu),
    Scenario("postgres_four_database", "... of the server", at_most(1.1), steady.four_database_cpu),
    Scenario("postgres_four_transactions", "... transactions", Bound(), steady.four_transactions),
    Scenario("postgres_few", "end to end, 32 connections, one replica on PostgreSQL", Bound(), fleet.few_connections),
    Scenario("postgres_backlog", "end to end beside the backlog, PostgreSQL", at_least(0.8), fleet.backlog_rate),
    Scenario("postgres_backlog_acks", "... ack rate", at_least(0.8), fleet.backlog_acks),
    Scenario("postgres_backlog_cpu", "... CPU per message", at_most(1.25), fleet.backlog_cpu),
    Scenario(
        "postgres_hosts", "end to end beside a backlog of many hosts, PostgreSQL", at_least(0.8), fleet.hosts_rate
    ),
    Scenario("postgres_hosts_cpu", "... CPU per message", at_most(1.25), fleet.hosts_cpu),
    Scenario("postgres_idle", "CPU idle, backlog of one frozen host, PostgreSQL", Bound(), fleet.idle_cpu),
    Scenario(
        "postgres_read",
        "a read of 16 from the backlog, PostgreSQL",
        at_most(1.5),
        partial(fleet.question, name="read"),
    ),
    Scenario("postgres_agenda", "... the agenda", at_most(1.5), partial(fleet.question, name="agenda")),
    Scenario("postgres_status", "... what /status asks", at_most(1.5), partial(fleet.question, name="status")),
    Scenario("postgres_wal", "WAL of a message that is delivered at once", Bound(), fleet.wal),
    Scenario("postgres_disk", "disk of a waiting message, PostgreSQL", Bound(), fleet.disk),
    Scenario("postgres_delivery", "delivery rate, backlog of one host, PostgreSQL", at_least(0.8), fleet.delivery),
)
