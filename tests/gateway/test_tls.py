"""TLS of a real gateway: trusted authorities, client certificates, and reports of wrong certificates."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import httpx
import pytest
import trustme

from tests.support.harness import PLAIN, Receiver, running, until


class Serve(Protocol):
    def __call__(self, *names: str, asking: bool = False) -> Receiver: ...


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def serve(authority: trustme.CA) -> Iterator[Serve]:
    """Start receivers with a certificate for some names; those that ask want one shown to them too."""
    with ExitStack() as stack:

        def start(*names: str, asking: bool = False) -> Receiver:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(*names).configure_cert(context)
            if asking:
                authority.configure_trust(context)
                context.verify_mode = ssl.CERT_REQUIRED
            receiver = Receiver(context)
            stack.callback(receiver.close)
            return receiver

        yield start


@pytest.fixture
def ca_file(tmp_path: Path, authority: trustme.CA) -> Path:
    file = tmp_path / "ca.pem"
    file.write_bytes(authority.cert_pem.bytes())
    return file


def test_an_authority_of_ca_file_is_trusted(tmp_path: Path, ca_file: Path, serve: Serve) -> None:
    receiver = serve("127.0.0.1")
    with running(tmp_path / "store", delivery__ca_file=ca_file) as gateway:
        gateway.post(f"{receiver.url}/hook")
        receiver.wait_for_one()


def test_an_unknown_authority_is_not_trusted(tmp_path: Path, serve: Serve) -> None:
    receiver = serve("127.0.0.1")
    with running(tmp_path / "store") as gateway:
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert (attempt["error"], attempt["fault"]) == ("tls", "host")
        assert "certificate refused" in attempt["detail"]
        assert receiver.requests == []


def test_a_certificate_for_another_name_fails_the_attempt_with_its_reason(
    tmp_path: Path, ca_file: Path, serve: Serve
) -> None:
    receiver = serve("other.example")
    with running(tmp_path / "store", delivery__ca_file=ca_file) as gateway:
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert attempt["error"] == "tls"
        assert "not valid for '127.0.0.1'" in attempt["detail"]
        assert receiver.requests == []


def test_two_names_on_one_address_are_each_checked(tmp_path: Path, ca_file: Path, serve: Serve) -> None:
    """`localhost` and 127.0.0.1 lead to one listener, whose certificate is good for one of them."""
    receiver = serve("localhost")
    with running(tmp_path / "store", delivery__ca_file=ca_file) as gateway:
        gateway.post(f"https://localhost:{receiver.port}/hook")
        receiver.wait_for_one()
        id = gateway.post(f"https://127.0.0.1:{receiver.port}/hook").json()["id"]
        assert until(lambda: gateway.message(id)["attempts"])[0]["error"] == "tls"
        assert len(receiver.requests) == 1


def test_only_a_route_s_own_host_gets_its_client_certificate(
    tmp_path: Path, authority: trustme.CA, ca_file: Path, serve: Serve
) -> None:
    receiver = serve("127.0.0.1", asking=True)
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    _issue(authority, "one.example", *files)
    config = tmp_path / "holdfast.toml"
    config.write_text(
        f'[routes.bank]\nurl = "{receiver.url}"\nclient_cert_file = "{files[0]}"\nclient_key_file = "{files[1]}"\n'
    )
    with running(tmp_path / "store", config=config, delivery__ca_file=ca_file) as gateway:
        url = f"http://{gateway.ingest}/to/bank/in"
        assert httpx.post(url, **PLAIN).status_code == 202
        assert receiver.wait_for_one().client == "one.example"
        id = gateway.post(f"{receiver.url}/in").json()["id"]
        attempt = until(lambda: gateway.message(id)["attempts"])[0]
        assert attempt["error"] in ("tls", "reset")
        _issue(authority, "two.example", *files)
        httpx.post(url, **PLAIN)
        assert receiver.wait_for(lambda requests: len(requests) == 2)[1].client == "two.example"


def _issue(authority: trustme.CA, name: str, cert: Path, key: Path) -> None:
    issued = authority.issue_cert(name)
    for path, pem in ((cert, issued.cert_chain_pems[0]), (key, issued.private_key_pem)):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(pem.bytes())
        fresh.replace(path)
