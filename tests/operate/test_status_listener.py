"""The probe listener: three paths, any Host, off by default."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.operate.scrape import run_in_vain, scrape
from tests.support.harness import PLAIN, Gateway, Receiver, running


@pytest.fixture
def probed(tmp_path: Path) -> Iterator[tuple[Gateway, str]]:
    with running(tmp_path / "store", listen__probe="0.0.0.0:0") as gateway:
        found = re.search(r", probe http://0\.0\.0\.0:(\d+)$", gateway.out[0].strip())
        assert found is not None
        yield gateway, f"127.0.0.1:{found[1]}"


def test_the_listener_is_off_by_default(gateway: Gateway) -> None:
    assert "probe" not in gateway.out[0]


def test_the_probe_listener_serves_health_and_metrics_under_any_name(probed: tuple[Gateway, str]) -> None:
    gateway, address = probed
    for path in ("/healthz", "/readyz", "/metrics"):
        for host in ("10.2.3.4:8802", "pod.example", "evil.example"):
            answer = httpx.get(f"http://{address}{path}", headers={"host": host}, **PLAIN)
            assert answer.status_code == 200
    assert scrape(gateway, address).labels("holdfast_connections_open", "listener").count("probe") == 1


@pytest.mark.parametrize("path", ["/", "/status", "/circuits", "/messages/msg_" + "0" * 32, "/page.json", "/v1/status"])
def test_the_probe_listener_serves_nothing_else(probed: tuple[Gateway, str], path: str) -> None:
    _, address = probed
    assert httpx.get(f"http://{address}{path}", **PLAIN).status_code == 404


def test_the_probe_listener_is_read_only(probed: tuple[Gateway, str]) -> None:
    _, address = probed
    assert httpx.post(f"http://{address}/metrics", **PLAIN).status_code == 405


def test_readiness_follows_the_drain(probed: tuple[Gateway, str]) -> None:
    gateway, address = probed
    gateway.call("POST", "/v1/drain", {})
    assert httpx.get(f"http://{address}/readyz", **PLAIN).status_code == 503
    assert httpx.get(f"http://{address}/healthz", **PLAIN).status_code == 200


def test_the_probe_listener_is_never_a_target(probed: tuple[Gateway, str], receiver: Receiver) -> None:
    gateway, address = probed
    answer = gateway.post(f"http://{address}/metrics")
    assert answer.status_code == 403
    assert gateway.post(f"{receiver.url}/x").status_code == 202
    receiver.wait_for_one()


def test_an_address_in_use_is_reported(probed: tuple[Gateway, str], tmp_path: Path) -> None:
    _, address = probed
    done = run_in_vain(tmp_path / "other", listen__probe=address)
    assert done.returncode == 1
    assert f"can't listen on {address}: it is in use" in done.stderr
    assert httpx.get(f"http://{address}/healthz", **PLAIN).status_code == 200
