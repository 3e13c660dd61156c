"""The tools of the benchmarks measure correctly."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from holdfast.core.circuit import CircuitState
from holdfast.store.postgres.fsck import Audit
from holdfast.store.postgres.transactions import connected
from tests.bench import load
from tests.bench.costs import Cost, draw
from tests.bench.database import Database
from tests.bench.figures import Bound, Figure
from tests.bench.fill import BODY
from tests.bench.fill_postgres import fill, questions, terms_of_now
from tests.bench.generator import Client, Generator, request
from tests.bench.processes import cpu_seconds
from tests.bench.report import document, markdown, table, verdict
from tests.bench.scenarios import Scenario
from tests.bench.sink import NGINX, Sink
from tests.bench.wal_bytes import write_ahead
from tests.support.harness import Receiver
from tests.support.postgres import OwnServer, Server

STALL = 0.4


@pytest.fixture
def stalling() -> Iterator[tuple[str, int]]:
    """Answers one connection's requests, the twentieth only after a while."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as requests:
            answered = 0
            while requests.readline():
                while requests.readline() != b"\r\n":
                    pass
                requests.read(1)
                answered += 1
                if answered == 20:
                    threading.Event().wait(STALL)
                connection.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()
    thread.join()
    listening.close()


def test_a_stall_counts_for_every_webhook_due_during_it(stalling: tuple[str, int]) -> None:
    generator = Generator(stalling, [request("gateway", "/", 1)], 1)
    generator.paced(200, 0.6)
    generator.close()
    slow = [latency for latency in generator.microseconds if latency > STALL / 4 * 1e6]
    # 80 were due in the 400 ms; who counts from when it could send sees a single slow one.
    assert len(generator.microseconds) == 120
    assert len(slow) >= 40


@pytest.mark.parametrize("nginx", [pytest.param(NGINX, id="nginx where it is"), pytest.param(None, id="own")])
def test_a_sink_counts_webhooks_and_nothing_else(nginx: str | None) -> None:
    sink = Sink(nginx)
    try:
        client = Client(("127.0.0.1", sink.port), request(sink.host, "/hook", 64 << 10))
        for _ in range(5):
            client.send(0.0)
            while not (status := client.receive()):
                pass
            assert status == 200
        client.socket.close()
        assert [sink.count(), sink.count()] == [5, 5]
    finally:
        sink.close()


def test_the_generator_and_the_sink_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WRK", None)
    sink = Sink(None)
    try:
        told = load.closed([sink.url], 0.3)
        assert told.acked > 0 and told.failed == 0
        # What was under way at the end is not counted as acknowledged.
        assert told.acked <= sink.count() <= told.acked + load.CONNECTIONS
    finally:
        sink.close()


@pytest.mark.parametrize("wrk", [pytest.param(load.WRK, id="wrk where it is"), pytest.param(None, id="own")])
def test_several_addresses_share_the_load(monkeypatch: pytest.MonkeyPatch, wrk: str | None) -> None:
    monkeypatch.setattr(load, "WRK", wrk)
    sinks = [Sink(None), Sink(None)]
    try:
        told = load.closed([sink.url for sink in sinks], 0.3)
        assert told.acked > 0 and told.failed == 0
        counts = [sink.count() for sink in sinks]
        assert min(counts) > 0
        assert told.acked <= sum(counts) <= told.acked + load.CONNECTIONS
    finally:
        for sink in sinks:
            sink.close()


def test_hosts_of_the_sink_take_turns(receiver: Receiver) -> None:
    told = load.paced([f"{receiver.url}/http://127.0.0.1:9/hook"], 100, 0.1, connections=2, spread=4)
    assert told.acked == 10
    hosts = {request.path.split("/")[3] for request in receiver.wait_for(lambda requests: len(requests) == 10)}
    assert hosts == {"127.1.0.1:9", "127.1.0.2:9", "127.1.0.3:9", "127.1.0.4:9"}


def test_a_failing_sink_fails_every_so_many() -> None:
    sink = Sink(None, fail_every=3)
    try:
        client = Client(("127.0.0.1", sink.port), request(sink.host, "/hook", 10))
        statuses = []
        for _ in range(6):
            client.send(0.0)
            while not (status := client.receive()):
                pass
            statuses.append(status)
        client.socket.close()
        assert sorted(statuses) == [200, 200, 200, 200, 500, 500]
    finally:
        sink.close()


def test_each_webhook_has_its_own_key(receiver: Receiver) -> None:
    client = Client(("127.0.0.1", receiver.port), request(f"127.0.0.1:{receiver.port}", "/hook", 10, keys=True))
    for _ in range(2):
        client.send(0.0)
        while not client.receive():
            pass
    client.socket.close()
    keys = [each.headers["idempotency-key"] for each in receiver.requests]
    assert len(set(keys)) == 2 and all(len(key) == 32 for key in keys)


def test_cpu_of_ended_children_is_counted() -> None:
    before = cpu_seconds([os.getpid()]), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = cpu_seconds([os.getpid()]), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after[1].ru_utime - before[1].ru_utime
    assert used > 0
    assert after[0] - before[0] >= used - 0.02


def test_the_store_works_with_a_filled_database(database: str) -> None:
    fill(database, 1_400, ["127.0.0.1:9", "127.0.0.1:10"], CircuitState.ENABLED)
    # Reads what was filled in.
    assert set(questions(database, "127.0.0.1:9")) == {"read", "agenda", "status"}
    with connected(database) as connection:
        assert list(Audit(connection, terms_of_now()).run()) == []


def test_each_step_of_a_message_writes_wal(postgres: Server) -> None:
    if not isinstance(postgres, OwnServer):
        pytest.skip("what others write is counted too")
    database = Database(postgres)
    steps = write_ahead(database)
    database.drop()
    # The message itself is written when it is accepted, and anew when it goes to the retries.
    assert len(BODY) < steps.accepted < 3 * len(BODY)
    assert len(BODY) < steps.failed < 4 * len(BODY)
    assert 0 < steps.delivered < len(BODY)


@pytest.mark.parametrize(
    ("bound", "met"),
    [
        (Bound(at_least=0.5), True),
        (Bound(at_least=0.51), False),
        (Bound(at_most=0.5), True),
        (Bound(at_most=0.49), False),
        (Bound(at_most=3, of_figure=True), True),
        (Bound(at_most=2.9, of_figure=True), False),
        (Bound(), None),
    ],
)
def test_the_median_of_the_ratios_counts(bound: Bound, met: bool | None) -> None:
    figure = Figure("ms", [1, 3, 100], [4, 6, 10], "yardstick")
    scenario = Scenario("it", "what it is", bound, lambda session: figure)
    assert figure.ratio == 0.5
    assert verdict(scenario, figure) is met
    row = json.loads(json.dumps(document([(scenario, figure)], {}, None)))["rows"][0]
    assert (row["figure"], row["against_figure"], row["ratio"], row["met"]) == (3, 6, 0.5, met)
    assert "0.25-10.00" in table([(scenario, figure)], None)
    assert markdown([(scenario, figure)], None).splitlines()[-1].count("|") == 8


def test_a_figure_without_measurement_has_no_verdict_and_a_reason() -> None:
    figure = Figure("msg/s", [], note="there is no such thing here")
    scenario = Scenario("it", "what it is", Bound(at_least=1), lambda session: figure)
    assert verdict(scenario, figure) is None
    assert "there is no such thing here" in table([(scenario, figure)], 1000.0)


def test_the_plot_has_a_point_for_each_cost() -> None:
    drawing = ElementTree.fromstring(draw([Cost(0, 1e-4, None), Cost(1_000, 1.1e-4, 9e-5), Cost(10_000, 1e-4, 8e-5)]))
    assert len(drawing.findall("{http://www.w3.org/2000/svg}circle")) == 5
