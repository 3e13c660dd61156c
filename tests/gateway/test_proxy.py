"""A real gateway behind a forward proxy: it asks for a public address, and a server of the test answers."""

import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.connect_proxy import ConnectProxy, answering
from tests.support.harness import Receiver, running, until

# Addresses of the public internet that nothing but the proxy is ever asked for.
PLAIN, SECURE = "93.184.215.14", "93.184.215.15"


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    proxy = ConnectProxy()
    yield proxy
    proxy.close()


@pytest.fixture
def behind(proxy: ConnectProxy, receiver: Receiver) -> dict[str, object]:
    """Settings of a gateway that reaches the receiver through the proxy alone."""
    proxy.routes[f"{PLAIN}:80"] = ("127.0.0.1", receiver.port)
    return {"delivery__proxy": f"http://{proxy.address}", "egress__allow_loopback": "false"}


def test_the_proxy_gets_the_checked_address(
    tmp_path: Path, proxy: ConnectProxy, receiver: Receiver, behind: dict[str, object]
) -> None:
    with running(tmp_path / "store", **behind) as gateway:
        for _ in range(2):
            id = gateway.post(f"http://{PLAIN}/hook").json()["id"]
            until(lambda id=id: gateway.message(id)["state"] == "delivered")
        assert proxy.targets == [f"{PLAIN}:80"], "the tunnel is used again"
        assert gateway.message(id)["attempts"][-1]["address"] == f"{PLAIN}:80"
        assert receiver.requests[0].headers["host"] == PLAIN
        assert not any(name.startswith("proxy-") for name in receiver.requests[0].headers)


def test_credentials_are_sent_to_the_proxy_only(
    tmp_path: Path, proxy: ConnectProxy, receiver: Receiver, behind: dict[str, object]
) -> None:
    login = tmp_path / "login"
    login.write_text("sidecar:hunter2\n")
    with running(tmp_path / "store", delivery__proxy_credentials_file=login, **behind) as gateway:
        gateway.post(f"http://{PLAIN}/hook")
        request = receiver.wait_for_one()
        assert dict(proxy.asked[0].headers)["proxy-authorization"] == "Basic " + b64encode(b"sidecar:hunter2").decode()
        assert "proxy-authorization" not in request.headers
        assert "hunter2" not in gateway.log.read_text()


def test_tls_inside_the_tunnel_is_to_the_real_name(
    tmp_path: Path, proxy: ConnectProxy, behind: dict[str, object]
) -> None:
    authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
    ca_file.write_bytes(authority.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(SECURE).configure_cert(context)
    secure = Receiver(context)
    proxy.routes |= {f"{SECURE}:443": ("127.0.0.1", secure.port), f"{PLAIN}:443": ("127.0.0.1", secure.port)}
    try:
        with running(tmp_path / "store", delivery__ca_file=ca_file, **behind) as gateway:
            gateway.post(f"https://{SECURE}/hook")
            secure.wait_for_one()
            id = gateway.post(f"https://{PLAIN}/hook").json()["id"]
            attempt = until(lambda: gateway.message(id)["attempts"])[0]
            assert (attempt["error"], attempt["fault"]) == ("tls", "host")
            assert len(secure.requests) == 1
    finally:
        secure.close()


@pytest.mark.parametrize(
    ("status", "fault", "failures"), [(407, "here", 0), (502, "host", 1), (503, "host", 1), (403, "host", 1)]
)
def test_a_refusal_counts_against_the_host_or_not_by_its_status(
    tmp_path: Path, proxy: ConnectProxy, behind: dict[str, object], status: int, fault: str, failures: int
) -> None:
    proxy.script = answering(status)
    with running(tmp_path / "store", **behind) as gateway:
        id = gateway.post(f"http://{PLAIN}/hook").json()["id"]
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert (attempt["error"], attempt["fault"], attempt["status"]) == ("proxy", fault, None)
        assert str(status) in attempt["detail"]
        assert gateway.get(f"/circuits/{PLAIN}:80").json()["consecutive_failures"] == failures


def test_an_unreachable_proxy_is_a_local_failure(
    tmp_path: Path, proxy: ConnectProxy, behind: dict[str, object]
) -> None:
    proxy.close()
    with running(tmp_path / "store", **behind) as gateway:
        id = gateway.post(f"http://{PLAIN}/hook").json()["id"]
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert (attempt["error"], attempt["fault"]) == ("proxy", "here")
        assert proxy.address in attempt["detail"]


def test_the_proxy_is_not_asked_for_a_denied_address(
    tmp_path: Path, proxy: ConnectProxy, behind: dict[str, object]
) -> None:
    with running(tmp_path / "store", **behind) as gateway:
        assert gateway.post("http://169.254.169.254/latest").status_code == 403
        id = gateway.post("http://localhost/hook").json()["id"]
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert (attempt["error"], attempt["fault"]) == ("egress_denied", "here")
        assert proxy.asked == []


def test_no_proxy_targets_are_dialled_directly_and_obey_the_egress_rules(
    tmp_path: Path, proxy: ConnectProxy, receiver: Receiver, behind: dict[str, object]
) -> None:
    settings = behind | {"delivery__no_proxy": "127.0.0.0/8,localhost"}
    with running(tmp_path / "guarded", **settings) as gateway:
        assert gateway.post(f"{receiver.url}/hook").status_code == 403
    with running(tmp_path / "open", **settings | {"egress__allow_loopback": "true"}) as gateway:
        gateway.post(f"{receiver.url}/hook")
        receiver.wait_for_one()
    assert proxy.asked == []


def test_a_reload_changes_the_proxy(
    tmp_path: Path, proxy: ConnectProxy, receiver: Receiver, behind: dict[str, object]
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[delivery]\nproxy = "http://{proxy.address}"\n')
    other = ConnectProxy()
    other.routes = proxy.routes
    del behind["delivery__proxy"]
    try:
        with running(tmp_path / "store", config=config, **behind) as gateway:
            gateway.post(f"http://{PLAIN}/hook")
            receiver.wait_for_one()
            config.write_text(f'[delivery]\nproxy = "http://{other.address}"\n')
            assert gateway.call("POST", "/v1/reload").json()["changed"] == ["delivery.proxy"]
            gateway.post(f"http://{PLAIN}/hook")
            receiver.wait_for(lambda requests: len(requests) == 2)
            assert (proxy.targets, other.targets) == ([f"{PLAIN}:80"], [f"{PLAIN}:80"])
    finally:
        other.close()
