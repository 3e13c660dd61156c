"""Metrics of a real process: complete, with the right types, changing, and bounded."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.operate.scrape import scrape
from tests.support.harness import PATIENCE, PLAIN, Gateway, Receiver, running, until

COUNTERS = {
    "holdfast_accepted_total": set(),
    "holdfast_attempts_total": {"outcome"},
    "holdfast_broken_records_total": set(),
    "holdfast_circuit_trips_total": {"reason"},
    "holdfast_control_refused_total": set(),
    "holdfast_dead_total": {"reason"},
    "holdfast_delivered_total": set(),
    "holdfast_dropped_total": set(),
    "holdfast_evicted_total": set(),
    "holdfast_fenced_outcomes_total": set(),
    "holdfast_refused_total": {"reason"},
    "holdfast_replayed_total": set(),
    "process_cpu_seconds_total": set(),
}
GAUGES = {
    "holdfast_attempts_in_flight": set(),
    "holdfast_build_info": {"version", "python"},
    "holdfast_circuit_next_probe_seconds": {"host"},
    "holdfast_circuit_state": {"host", "state"},
    "holdfast_circuit_waiting_messages": {"host"},
    "holdfast_circuits": {"state"},
    "holdfast_clock_offset_seconds": set(),
    "holdfast_connections_open": {"listener"},
    "holdfast_dead_letters": set(),
    "holdfast_draining": set(),
    "holdfast_earliest_expiry_seconds": set(),
    "holdfast_healthy": set(),
    "holdfast_next_due_seconds": set(),
    "holdfast_oldest_waiting_age_seconds": set(),
    "holdfast_ready": set(),
    "holdfast_spooled_messages": set(),
    "holdfast_store_full": set(),
    "holdfast_store_max_bytes": set(),
    "holdfast_store_used_bytes": set(),
    "holdfast_store_reserved_bytes": set(),
    "holdfast_store_volume_free_bytes": set(),
    "holdfast_waiting_messages": {"queue"},
    "process_max_fds": set(),
    "process_open_fds": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
    "process_virtual_memory_bytes": set(),
}
HISTOGRAMS = {
    name: {"le"}
    for name in (
        "holdfast_ack_duration_seconds",
        "holdfast_attempt_duration_seconds",
        "holdfast_commit_duration_seconds",
        "holdfast_commit_operations",
    )
}
ONE_FAILURE_DISABLES = {"circuit__disable_after": 1, "retry__base": "1h"}


def test_every_metric_has_its_type_help_and_labels(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    with running(tmp_path / "store", **ONE_FAILURE_DISABLES) as gateway:
        # A refusal, a failure and a disabled circuit, so that each metric has a sample.
        gateway.post("")
        gateway.post(f"{receiver.url}/fails")
        until(lambda: scrape(gateway).samples("holdfast_circuit_next_probe_seconds"))
        families = scrape(gateway).families
    for kind, expected in (("counter", COUNTERS), ("gauge", GAUGES), ("histogram", HISTOGRAMS)):
        assert {name for name, family in families.items() if family.type == kind} == set(expected)
        for name, labels in expected.items():
            assert families[name].documentation, name
            assert families[name].samples, name
            seen = {label for sample in families[name].samples for label in sample.labels}
            assert seen == labels, name


def test_an_idle_gateway_exposes_every_outcome_and_reason(gateway: Gateway) -> None:
    it = scrape(gateway)
    assert set(it.labels("holdfast_attempts_total", "outcome")) == {
        "2xx", "3xx", "4xx", "5xx", "other", "timeout", "connect", "dns", "tls", "reset", "protocol", "egress_denied",
        "proxy", "secret", "interrupted",
    }  # fmt: skip
    assert set(it.labels("holdfast_dead_total", "reason")) == {"exhausted", "expired"}
    assert set(it.labels("holdfast_circuits", "state")) == {"enabled", "disabled", "frozen"}
    assert it.samples("holdfast_earliest_expiry_seconds") == it.samples("holdfast_next_due_seconds") == []
    assert it.value("holdfast_ready") == it.value("holdfast_healthy") == 1
    assert it.value("holdfast_draining") == it.value("holdfast_store_full") == 0
    assert it.value("holdfast_store_max_bytes") == 4 << 30


def test_metrics_change_with_deliveries(gateway: Gateway, receiver: Receiver) -> None:
    for number in range(3):
        gateway.post(f"{receiver.url}/{number}")
    until(lambda: scrape(gateway).value("holdfast_delivered_total") == 3)
    it = scrape(gateway)
    assert it.value("holdfast_accepted_total") == 3
    assert it.value("holdfast_attempts_total", outcome="2xx") == 3
    assert it.value("holdfast_circuits", state="enabled") == 1
    assert it.value("holdfast_waiting_messages", queue="first") == 0
    for name in ("ack_duration_seconds", "attempt_duration_seconds"):
        assert it.value(f"holdfast_{name}_count") == it.value(f"holdfast_{name}_bucket", le="+Inf") == 3
        assert 0 < it.value(f"holdfast_{name}_sum") < PATIENCE
    # Each message was accepted and delivered, and each of these was an operation of some group.
    commits = it.value("holdfast_commit_duration_seconds_count")
    assert commits == it.value("holdfast_commit_operations_count")
    assert it.value("holdfast_commit_operations_sum") >= 6 >= commits / 2


def test_buckets_are_cumulative(gateway: Gateway, receiver: Receiver) -> None:
    gateway.post(f"{receiver.url}/x")
    it = scrape(gateway)
    for name in HISTOGRAMS:
        counts = [sample.value for sample in it.samples(f"{name}_bucket")]
        assert counts == sorted(counts)
        assert counts[-1] == it.value(f"{name}_count")


def test_refusals_are_counted_by_reason(gateway: Gateway) -> None:
    gateway.post("")
    gateway.post("https://127.1/x")
    httpx.get(f"http://{gateway.ingest}/https://a.example/", **PLAIN)
    host, _, port = gateway.ingest.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")
    it = scrape(gateway)
    assert {sample.labels["reason"]: sample.value for sample in it.samples("holdfast_refused_total")} == {
        "no-target": 1, "bad-target": 1, "wrong-method": 1, "bad-request": 1,
    }  # fmt: skip
    assert it.value("holdfast_ack_duration_seconds_count") == 0
    assert gateway.get("/status").json()["totals"]["refused"].keys() == set(
        it.labels("holdfast_refused_total", "reason")
    )


def test_waiting_and_dead_messages_are_counted(tmp_path: Path, receiver: Receiver) -> None:
    statuses = {"/moved": 302, "/gone": 410, "/odd": 601}
    receiver.answer = lambda request: statuses.get(request.path, 500)
    with running(tmp_path / "store", retry__max_retries=1, retry__base="1h", circuit__min_attempts=0) as gateway:
        ids = [gateway.post(receiver.url + path).json()["id"] for path in ("/moved", "/gone", "/odd", "/fails")]
        until(lambda: scrape(gateway).value("holdfast_waiting_messages", queue="retry") == 4)
        it = scrape(gateway)
        for outcome in ("3xx", "4xx", "5xx", "other"):
            assert it.value("holdfast_attempts_total", outcome=outcome) == 1
        assert 3500 < it.value("holdfast_next_due_seconds") <= 3600
        assert 0 < it.value("holdfast_oldest_waiting_age_seconds") < PATIENCE
        # The only retry, made now instead of in an hour.
        gateway.call("POST", f"/v1/messages/{ids[0]}/retry")
        until(lambda: scrape(gateway).value("holdfast_dead_letters") == 1)
        assert scrape(gateway).value("holdfast_dead_total", reason="exhausted") == 1
        gateway.call("POST", "/v1/dead/replay", {})
        gateway.call("DELETE", f"/v1/messages/{ids[1]}")
        it = scrape(gateway)
        assert it.value("holdfast_replayed_total") == it.value("holdfast_dropped_total") == 1
        assert it.value("holdfast_dead_letters") == 0


def test_at_most_fifty_hosts_are_named_with_frozen_ones_first(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with running(tmp_path / "store", retry__expire_after="1h", **ONE_FAILURE_DISABLES) as gateway:
            for number in range(1, 61):
                assert gateway.post(f"http://127.0.1.{number}:{port}/x").status_code == 202
            until(lambda: scrape(gateway).value("holdfast_circuits", state="disabled") == 60)
            last = f"127.0.1.9:{port}"
            assert gateway.call("POST", f"/v1/circuits/{last}/freeze").json()["changed"]
            it = scrape(gateway)
    assert it.value("holdfast_circuits", state="disabled") == 59
    assert it.value("holdfast_circuits", state="frozen") == 1
    assert it.value("holdfast_circuit_trips_total", reason="consecutive_failures") == 60
    assert it.value("holdfast_circuit_trips_total", reason="operator") == 1
    hosts = it.labels("holdfast_circuit_state", "host")
    assert len(set(hosts)) == len(hosts) == 50
    assert hosts[0] == last
    assert set(it.labels("holdfast_circuit_waiting_messages", "host")) == set(hosts)
    assert set(it.labels("holdfast_circuit_next_probe_seconds", "host")) == set(hosts) - {last}
    assert {sample.value for sample in it.samples("holdfast_circuit_waiting_messages")} == {1}
    assert all(0 < sample.value <= 600 for sample in it.samples("holdfast_circuit_next_probe_seconds"))
    assert 3500 < it.value("holdfast_earliest_expiry_seconds") < 3600


def test_a_circuit_by_url_does_not_show_its_path(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    with running(tmp_path / "store", circuit__scope="url", **ONE_FAILURE_DISABLES) as gateway:
        for path in ("/token-1", "/token-2"):
            gateway.post(receiver.url + path)
        until(lambda: scrape(gateway).value("holdfast_circuits", state="disabled") == 2)
        it = scrape(gateway)
    assert "token" not in it.text
    hosts = it.labels("holdfast_circuit_state", "host")
    assert len(set(hosts)) == 2
    assert all(re.fullmatch(re.escape(receiver.url) + "/#[0-9a-f]{8}", host) for host in hosts)


def test_a_drain_is_shown(gateway: Gateway) -> None:
    gateway.call("POST", "/v1/drain", {})
    assert scrape(gateway).value("holdfast_draining") == 1
    assert scrape(gateway).value("holdfast_ready") == 0
    gateway.call("POST", "/v1/drain", {"cancel": True})
    assert scrape(gateway).value("holdfast_ready") == 1


def test_connections_are_counted_by_listener(gateway: Gateway) -> None:
    host, _, port = gateway.ingest.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE):
        until(lambda: scrape(gateway).value("holdfast_connections_open", listener="ingest") == 1)
    until(lambda: scrape(gateway).value("holdfast_connections_open", listener="ingest") == 0)
    assert set(scrape(gateway).labels("holdfast_connections_open", "listener")) == {"ingest", "status", "control"}


@pytest.mark.usefixtures("executed")
def test_the_first_scrape_loads_the_client_library_and_it_stays_small(
    gateway: Gateway, measured: Callable[[str], None]
) -> None:
    def rss() -> int:
        text = Path(f"/proc/{gateway.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1])  # type: ignore[index]

    gateway.get("/status")
    before = rss()
    scrape(gateway)
    after = rss()
    measured(f"RSS around the first scrape: {before} to {after} kB")
    assert before + 500 < after < 48 * 1024
