"""Connections, direct or through the forward proxy: real servers, a real CONNECT proxy, and every peer judged."""

import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.delivery.dialer import Dialer, ProxySettings
from holdfast.http.dial import Address, Origin
from holdfast.http.exceptions import ConnectError, ExchangeTimeout, ProxyError
from holdfast.http.transport import Answer, Transport
from tests.support import connect_proxy
from tests.support.connect_proxy import ConnectProxy, answering, hanging, tunnel
from tests.support.harness import Receiver
from tests.support.ports import dead_port, refusing_port

HOST = "a.example"
FIRST, SECOND = "93.184.216.34", "93.184.216.35"
BASIC = b"Basic dXNlcjpzZWNyZXQ="


def address(ip: str, port: int) -> Address:
    if ":" in ip:
        return socket.AF_INET6, (ip, port, 0, 0)
    return socket.AF_INET, (ip, port)


class World:
    """A transport over `Dialer`. The test controls the names, the judge and the proxy's address."""

    def __init__(self, proxy: ConnectProxy, receiver: Receiver) -> None:
        self.proxy = proxy
        self.receiver = receiver
        self.port = receiver.port
        self.addresses: Sequence[str] = [FIRST]
        self.judged: list[tuple[Origin, str]] = []
        self.denied: set[str] = set()
        self.looked_up: list[tuple[str, int]] = []
        self.proxies: list[Address] = [address("127.0.0.1", proxy.port)]
        self.look_up = self._look_up
        self.dialer = Dialer(ProxySettings(), judge_peer=self._judge, look_up=lambda *name: self.look_up(*name))
        self.transport = Transport(
            self._resolve,
            dial=self.dialer.dial,
            ssl_context=ssl.create_default_context(),
            max_answer=65536,
            max_idle_per_origin=8,
            idle_timeout=60,
        )
        self.through()

    def through(self, *no_proxy: str, authorization: bytes | None = None) -> None:
        self.dialer.configure(ProxySettings(("proxy.internal", 3128), authorization, no_proxy))

    def route(self, *ips: str) -> None:
        """The proxy reaches the receiver at these addresses, and no others."""
        self.proxy.routes = {f"{ip}:{self.port}": ("127.0.0.1", self.port) for ip in ips}

    async def post(self, host: str = HOST, seconds: float = 30) -> Answer:
        head = b"POST /hook HTTP/1.1\r\nhost: a.example\r\ncontent-length: 0\r\n\r\n"
        origin = Origin("http", host, self.port)
        return await self.transport.exchange(origin, head, b"", trio.current_time() + seconds)

    async def _resolve(self, origin: Origin) -> list[Address]:
        return [address(ip, origin.port) for ip in self.addresses]

    async def _look_up(self, host: str, port: int) -> list[Address]:
        self.looked_up.append((host, port))
        return self.proxies

    def _judge(self, origin: Origin, peer: str) -> None:
        ip = peer.rpartition(":")[0].strip("[]")
        self.judged.append((origin, ip))
        if ip in self.denied:
            raise EgressDenied(f"{ip} is denied")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with closing(ConnectProxy()) as proxy, closing(Receiver()) as receiver:
        made = World(proxy, receiver)
        yield made
        await made.transport.aclose()


@pytest.fixture
def dead() -> Iterator[int]:
    with dead_port() as port:
        yield port


async def after(happens: Callable[[], Any], clock: MockClock, seconds: float) -> None:
    """Let time pass when a condition holds."""
    await trio.to_thread.run_sync(happens)
    clock.jump(seconds)


async def test_the_proxy_is_asked_for_the_checked_address_and_never_for_a_name(world: World) -> None:
    world.route(FIRST)
    world.through(authorization=BASIC)
    answers = [await world.post() for _ in range(2)]
    assert [(answer.status, answer.reused) for answer in answers] == [(200, False), (200, True)]
    assert answers[0].address == f"{FIRST}:{world.port}"
    assert [(asked.line, asked.headers) for asked in world.proxy.asked] == [
        (
            f"CONNECT {FIRST}:{world.port} HTTP/1.1",
            (("host", f"{FIRST}:{world.port}"), ("proxy-authorization", BASIC.decode())),
        )
    ]
    assert world.looked_up == [("proxy.internal", 3128)]
    assert world.judged == []
    assert all("proxy-authorization" not in request.headers for request in world.receiver.requests)


async def test_without_a_proxy_the_peer_is_judged_under_its_origin(world: World) -> None:
    world.dialer.configure(ProxySettings())
    world.addresses = ["127.0.0.1"]
    assert (await world.post()).address == f"127.0.0.1:{world.port}"
    assert world.judged == [(Origin("http", HOST, world.port), "127.0.0.1")]
    assert (world.proxy.connections, world.looked_up) == (0, [])


@pytest.mark.parametrize(
    ("no_proxy", "host", "ip"),
    [
        ("*.internal", "hooks.internal", "127.0.0.1"),
        ("hooks.internal", "hooks.internal", "127.0.0.1"),
        ("127.0.0.1", HOST, "127.0.0.1"),
        ("127.0.0.0/8", HOST, "127.0.0.1"),
        ("127.0.0.0/8", HOST, "::ffff:127.0.0.1"),
    ],
)
async def test_connections_that_bypass_the_proxy_are_judged(world: World, no_proxy: str, host: str, ip: str) -> None:
    world.through("192.0.2.1", "2001:db8::/32", no_proxy)
    world.addresses = [ip]
    assert (await world.post(host)).status == 200
    assert [peer for _, peer in world.judged] == [ip]
    assert world.proxy.connections == 0


@pytest.mark.parametrize("no_proxy", ["*.internal", "internal", "127.0.0.2", "10.0.0.0/8", "::/0"])
async def test_hosts_not_in_no_proxy_go_through_the_proxy(world: World, no_proxy: str) -> None:
    world.through(no_proxy)
    world.addresses = ["127.0.0.1"]
    world.route("127.0.0.1")
    assert (await world.post("internal.example")).status == 200
    assert world.proxy.targets == [f"127.0.0.1:{world.port}"]


async def test_no_proxy_is_applied_to_each_address(world: World) -> None:
    """The proxy can't reach the first address; the second lies in a network that needs no proxy."""
    world.through("127.0.0.0/8")
    world.addresses = [FIRST, "127.0.0.1"]
    assert (await world.post()).address == f"127.0.0.1:{world.port}"
    assert world.proxy.targets == [f"{FIRST}:{world.port}"]


@pytest.mark.parametrize("no_proxy", [None, "0.0.0.0"])
async def test_nothing_is_sent_to_a_peer_that_may_not_be_dialled(world: World, no_proxy: str | None) -> None:
    """Linux treats 0.0.0.0 as loopback: another address answers than the one that was judged."""
    if no_proxy is None:
        world.dialer.configure(ProxySettings())
    else:
        world.through(no_proxy)
    world.denied = {"127.0.0.1"}
    world.addresses = ["0.0.0.0"]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        world.port = listening.getsockname()[1]
        with pytest.raises(EgressDenied, match=r"127\.0\.0\.1"):
            await world.post()
        accepted, _ = listening.accept()
        with accepted:
            accepted.settimeout(10)
            assert accepted.recv(100) == b""
    assert world.transport.opened == 0


@pytest.mark.parametrize("status", [403, 502, 503])
async def test_the_next_address_is_tried_when_the_proxy_fails_for_one(world: World, status: int) -> None:
    world.addresses = [FIRST, SECOND]
    world.route(SECOND)

    def script(proxy: ConnectProxy, connection: socket.socket, asked: connect_proxy.Asked) -> None:
        (answering(status) if asked.target.startswith(FIRST) else tunnel)(proxy, connection, asked)

    world.proxy.script = script
    assert (await world.post()).address == f"{SECOND}:{world.port}"
    assert world.proxy.targets == [f"{FIRST}:{world.port}", f"{SECOND}:{world.port}"]


async def test_when_the_proxy_fails_for_all_addresses_the_last_error_is_reported(world: World) -> None:
    world.addresses = [FIRST, SECOND]
    with pytest.raises(ProxyError) as raised:
        await world.post()
    error = raised.value
    assert (error.here, error.status, error.address) == (False, 502, f"{SECOND}:{world.port}")
    assert error.detail == f"the proxy {world.proxy.address} answered 502 Bad Gateway"


async def test_an_unreachable_direct_address_does_not_hide_the_proxys_error(world: World) -> None:
    world.through("255.255.255.255")
    world.addresses = [FIRST, "::ffff:255.255.255.255"]
    with pytest.raises(ProxyError):
        await world.post()
    world.addresses = ["::ffff:255.255.255.255"]
    with pytest.raises(ConnectError) as raised:
        await world.post()
    assert raised.value.errno == errno.ENETUNREACH


async def test_407_is_this_sides_failure_and_tried_once(world: World) -> None:
    world.addresses = [FIRST, SECOND]
    world.through(authorization=BASIC)
    world.proxy.script = answering(407)
    with pytest.raises(ProxyError) as raised:
        await world.post()
    error = raised.value
    assert (error.here, error.status, error.address) == (True, 407, f"{FIRST}:{world.port}")
    assert error.detail.endswith("407 Proxy Authentication Required; see delivery.proxy_credentials_file")
    assert "dXNlc" not in error.detail
    assert len(world.proxy.asked) == 1


async def test_a_refusal_by_the_proxy_is_this_sides_failure_and_tried_once(world: World) -> None:
    world.addresses = [FIRST, SECOND]
    port = refusing_port()
    world.proxies = [address("127.0.0.1", port)]
    with pytest.raises(ProxyError) as raised:
        await world.post()
    error = raised.value
    assert (error.here, error.status, error.address) == (True, None, f"{FIRST}:{world.port}")
    assert error.detail == f"the proxy 127.0.0.1:{port} can't be reached: Connection refused"
    assert len(world.looked_up) == 1


async def test_all_addresses_of_the_proxy_are_tried(world: World) -> None:
    world.proxies.insert(0, address("127.0.0.1", refusing_port()))
    world.route(FIRST)
    assert (await world.post()).status == 200


@pytest.mark.parametrize("here", [True, False])
async def test_a_proxy_whose_name_does_not_resolve_is_this_sides_failure(world: World, here: bool) -> None:
    """The target's name is not at fault, whatever the resolver reports."""

    async def look_up(host: str, port: int) -> list[Address]:
        raise NameNotResolved(f"{host}: Name or service not known", here=here)

    world.look_up = look_up
    with pytest.raises(ProxyError) as raised:
        await world.post()
    assert (raised.value.here, raised.value.status) == (True, None)
    assert "delivery.proxy" in raised.value.detail
    assert "proxy.internal: Name or service not known" in raised.value.detail


async def test_a_proxy_without_an_address_is_this_sides_failure(world: World) -> None:
    world.proxies = []
    with pytest.raises(ProxyError, match=r"proxy\.internal:3128 can't be reached") as raised:
        await world.post()
    assert raised.value.here


@pytest.mark.parametrize("addresses", [[FIRST], [FIRST, SECOND]])
async def test_a_timeout_before_the_proxy_is_reached_is_this_sides_failure(
    world: World, dead: int, mock_clock: MockClock, addresses: list[str]
) -> None:
    world.addresses = addresses
    world.proxies = [address("127.0.0.1", dead)]

    async def pass_the_deadline() -> None:
        for _ in addresses:
            await wait_all_tasks_blocked()
            mock_clock.jump(30 / len(addresses))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_the_deadline)
        with pytest.raises(ProxyError) as raised:
            await world.post()
    error = raised.value
    assert (error.here, error.status, error.address) == (True, None, f"{addresses[-1]}:{world.port}")
    assert error.detail == "the proxy could not be reached in time"


async def test_a_timeout_while_the_proxys_name_is_resolved_is_this_sides_failure(
    world: World, mock_clock: MockClock
) -> None:
    async def look_up(host: str, port: int) -> list[Address]:
        mock_clock.jump(31)
        await trio.sleep_forever()
        raise AssertionError

    world.look_up = look_up
    with pytest.raises(ProxyError) as raised:
        await world.post()
    assert raised.value.here


async def test_a_timeout_while_the_proxy_connects_is_the_hosts_failure(world: World, mock_clock: MockClock) -> None:
    world.proxy.script = hanging
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, lambda: world.proxy.wait_for(lambda proxy: len(proxy.asked) == 1), mock_clock, 31)
        with pytest.raises(ExchangeTimeout) as raised:
            await world.post()
    assert (raised.value.stage, raised.value.address) == ("proxy", f"{FIRST}:{world.port}")


async def test_an_address_that_hangs_behind_the_proxy_does_not_use_all_the_time(
    world: World, mock_clock: MockClock
) -> None:
    world.addresses = [FIRST, SECOND]
    world.route(SECOND)

    def script(proxy: ConnectProxy, connection: socket.socket, asked: connect_proxy.Asked) -> None:
        (hanging if asked.target.startswith(FIRST) else tunnel)(proxy, connection, asked)

    world.proxy.script = script
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, lambda: world.proxy.wait_for(lambda proxy: len(proxy.asked) == 1), mock_clock, 15)
        assert (await world.post()).address == f"{SECOND}:{world.port}"


async def test_a_timeout_of_a_direct_connection_is_a_connect_timeout(
    world: World, dead: int, mock_clock: MockClock
) -> None:
    world.through("127.0.0.1")
    world.addresses, world.port = ["127.0.0.1"], dead
    async with trio.open_nursery() as nursery:

        async def pass_the_deadline() -> None:
            await wait_all_tasks_blocked()
            mock_clock.jump(31)

        nursery.start_soon(pass_the_deadline)
        with pytest.raises(ExchangeTimeout) as raised:
            await world.post()
    assert (raised.value.stage, raised.value.address) == ("connect", f"127.0.0.1:{dead}")


async def test_new_settings_apply_to_new_connections_and_a_renewal_replaces_all(world: World) -> None:
    world.route(FIRST)
    await world.post()
    with closing(ConnectProxy()) as other:
        other.routes = world.proxy.routes
        world.proxies = [address("127.0.0.1", other.port)]
        world.through(authorization=BASIC)
        assert (await world.post()).reused
        world.transport.renew(max_idle_per_origin=8)
        assert not (await world.post()).reused
        assert dict(other.asked[0].headers)["proxy-authorization"] == BASIC.decode()
        world.transport.renew(max_idle_per_origin=8)
    world.addresses = ["127.0.0.1"]
    world.dialer.configure(ProxySettings())
    assert (await world.post()).address == f"127.0.0.1:{world.port}"
    assert len(world.proxy.asked) == len(other.asked) == 1


async def test_a_reload_does_not_send_new_credentials_to_the_old_proxy(world: World) -> None:
    world.through(authorization=b"Basic b2xk")

    async def look_up(host: str, port: int) -> list[Address]:
        world.through(authorization=BASIC)
        return world.proxies

    world.look_up = look_up
    world.route(FIRST)
    await world.post()
    assert dict(world.proxy.asked[0].headers)["proxy-authorization"] == "Basic b2xk"


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "all_proxy"])
async def test_proxy_variables_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for spelling in (name, name.upper()):
        monkeypatch.setenv(spelling, f"http://{world.proxy.address}")
    world.dialer.configure(ProxySettings())
    world.addresses = ["127.0.0.1"]
    assert (await world.post()).status == 200
    assert world.proxy.connections == 0


async def test_no_proxy_variables_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")
    world.route(FIRST)
    assert (await world.post()).status == 200
    assert len(world.proxy.asked) == 1


def test_credentials_are_not_shown() -> None:
    assert "dXNlc" not in repr(ProxySettings(("proxy.internal", 3128), BASIC))
