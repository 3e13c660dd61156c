"""A real gateway is asked for every closed address, in every spelling: it dials none of them."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.addresses import V4, V6
from tests.support.address_spellings import odd, plain, samples
from tests.support.harness import PATIENCE, Gateway, Receiver, running, until

BAD_TARGET, EGRESS_DENIED = "urn:holdfast:problem:bad-target", "urn:holdfast:problem:egress-denied"


class Client:
    """Sends targets as they are spelled, which no HTTP library does, over one connection as long as it lasts."""

    def __init__(self, gateway: Gateway) -> None:
        self._host = gateway.ingest
        self._reader: Any = None
        self.requests = 0

    def ask(self, line: str, *headers: str) -> tuple[int, dict[str, Any]]:
        """A request with this target in its request line."""
        lines = [f"POST {line} HTTP/1.1", f"host: {self._host}", "content-length: 2", *headers]
        if self._reader is None:
            self._connect()
        self.requests += 1
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n{}")
        status = int(self._reader.readline().split()[1])
        answered = {}
        while header := self._reader.readline().strip():
            name, _, value = header.partition(b": ")
            answered[name] = value
        body = self._reader.read(int(answered[b"content-length"]))
        if answered.get(b"connection") == b"close":
            self.close()
        return status, json.loads(body)

    def by_every_way(self, target: str) -> Iterator[tuple[int, dict[str, Any]]]:
        yield self.ask(f"/{target}")
        yield self.ask("/", f"holdfast-target: {target}")
        yield self.ask(target)

    def _connect(self) -> None:
        host, _, port = self._host.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._socket.close()
            self._reader = None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Every port is open, loopback is not."""
    store = tmp_path_factory.mktemp("guarded") / "store"
    with running(store, egress__allow_loopback="false", egress__allow_ports="*") as gateway:
        yield gateway


@pytest.fixture
def client(guarded: Gateway) -> Iterator[Client]:
    client = Client(guarded)
    yield client
    client.close()


class Listeners:
    """One on each loopback address that there is, each on a port of its own, where nobody may come."""

    def __init__(self, ending: ExitStack) -> None:
        self._sockets = []
        for host in ("127.0.0.1", "127.0.0.2", "::1"):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                self._sockets.append(ending.enter_context(socket.create_server((host, 0), family=family)))
            except OSError:
                assert host == "::1", "only IPv6 may be missing"

    @property
    def names(self) -> list[tuple[IPv4Address | IPv6Address, int]]:
        return [(ip_address(each.getsockname()[0]), each.getsockname()[1]) for each in self._sockets]

    def visits(self) -> int:
        """Connections since the last call: they wait to be accepted, even if they have ended."""
        count = 0
        for each in self._sockets:
            each.setblocking(False)
            while True:
                try:
                    each.accept()[0].close()
                except BlockingIOError:
                    break
                count += 1
        return count


@contextmanager
def listening() -> Iterator[Listeners]:
    with ExitStack() as ending:
        listeners = Listeners(ending)
        yield listeners
        for host, port in listeners.names:
            socket.create_connection((str(host), port), PATIENCE).close()
        assert listeners.visits() == len(listeners.names), "they would not have noticed"


def accepted(gateway: Gateway) -> int:
    status = gateway.call("GET", "/v1/status").json()
    return int(status["totals"]["accepted"])


def refusals(client: Client, hosts: list[str], expected: tuple[int, str]) -> None:
    # In a header, as a request line that is not ASCII is refused before anybody looks for a target in it.
    for host in hosts:
        status, problem = client.ask("/", f"holdfast-target: http://{host}/hook")
        assert (status, problem["type"]) == expected, f"{host}: {status} {problem}"


def test_every_denied_range_in_every_spelling(
    guarded: Gateway, client: Client, measured: Callable[[str], None]
) -> None:
    before = accepted(guarded)
    for row in (*V4, *V6):
        for address in samples(row):
            refusals(client, plain(address), (403, EGRESS_DENIED))
            refusals(client, odd(address), (400, BAD_TARGET))
    assert accepted(guarded) == before
    measured(f"egress: {client.requests:,} spellings of {len(V4) + len(V6)} denied ranges refused by a real gateway")


def test_no_spelling_and_no_form_of_request_reaches_loopback(guarded: Gateway, client: Client) -> None:
    before = accepted(guarded)
    with listening() as listeners:
        for address, port in listeners.names:
            for host, expected in [*((host, 403) for host in plain(address)), *((host, 400) for host in odd(address))]:
                for status, problem in client.by_every_way(f"http://{host}:{port}/hook"):
                    assert status == expected, f"{host}: {status} {problem}"
        assert listeners.visits() == 0
    assert accepted(guarded) == before


def test_a_name_that_resolves_to_loopback_is_a_local_failure(guarded: Gateway, client: Client) -> None:
    with listening() as listeners:
        for _, port in listeners.names:
            status, answer = client.ask(f"/http://localhost:{port}/hook")
            assert status == 202
            attempt = first_attempt(guarded, answer["id"])
            assert (attempt["error"], attempt["fault"], attempt["address"]) == ("egress_denied", "here", None)
            assert "is a loopback address" in attempt["detail"]
            circuit = guarded.get(f"/circuits/localhost:{port}").json()
            assert (circuit["state"], circuit["consecutive_failures"]) == ("enabled", 0)
            assert circuit["window"] == {"attempts": 0, "failures": 0}
        assert listeners.visits() == 0


def first_attempt(gateway: Gateway, id: str) -> dict[str, Any]:
    return dict(until(lambda: gateway.message(id)["attempts"])[0])


def test_a_denied_name_is_denied_in_every_spelling_and_logged_at_start(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[egress]\ndeny = ["Denied.example", "*.Straße.example", "192.0.2.0/24", "2001:db8::1"]\n')
    with running(tmp_path / "store", config) as gateway:
        [told] = [event for event in gateway.events() if event["event"] == "denied_by_name"]
        assert (told["level"], told["names"]) == ("warning", ["denied.example", "*.xn--strae-oqa.example"])
        assert "name the networks" in told["detail"]
        client = Client(gateway)
        for host in (
            "denied.example",
            "DENIED.Example",
            "a.straße.example",
            "a.b.STRAßE.example",
            "A.XN--strae-oqa.example",
        ):
            for rest in ("", ":443", ":8443/", "?x"):
                status, problem = client.ask("/", f"holdfast-target: https://{host}{rest}")
                assert (status, problem["type"]) == (403, EGRESS_DENIED)
        refusals(
            client, ["denied.example.", "denied。example", "ｄenied.example", "denied.example%2e"], (400, BAD_TARGET)
        )
        client.close()


def test_holdfast_itself_is_never_a_target_even_if_loopback_is_open(gateway: Gateway) -> None:
    client = Client(gateway)
    for listener in (gateway.ingest, gateway.status):
        port = listener.rpartition(":")[2]
        for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"):
            status, problem = client.ask(f"/http://{host}:{port}/")
            assert (status, problem["type"]) == (403, EGRESS_DENIED)
        _, answer = client.ask(f"/http://localhost:{port}/")
        attempt = first_attempt(gateway, answer["id"])
        assert (attempt["error"], attempt["fault"]) == ("egress_denied", "here")
        assert "holdfast itself" in attempt["detail"]
    client.close()


def test_a_route_has_its_exemption_however_its_own_address_is_spelled(tmp_path: Path, receiver: Receiver) -> None:
    """The exemption goes by the host that messages name, which is in its one spelling."""
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[routes.local]\nurl = "http://[0:0:0:0:0:FFFF:7F00:1]:{receiver.port}/in"\n')
    with running(tmp_path / "store", config, egress__allow_loopback="false", egress__allow_ports="443") as gateway:
        assert gateway.post("to/local").status_code == 202
        assert receiver.wait_for_one().headers["host"] == f"127.0.0.1:{receiver.port}"
        assert gateway.post(f"{receiver.url}/in").status_code == 403
