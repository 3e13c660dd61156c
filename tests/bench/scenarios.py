"""Every figure that is asked for: its name, what it is, what it has to be, and how it is measured."""

from collections.abc import Callable
from typing import NamedTuple

from bench import scenarios_backlog as backlog
from bench import scenarios_load as load
from bench.figures import Bound, Figure
from bench.session import Session


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
    Scenario("large_drained", "end to end, 64 KiB, after that drain", at_least(0.7), load.large_drained),
)
