"""Tunnels through a real CONNECT proxy."""

import socket
import ssl
from contextlib import closing

import pytest
import trio

from holdfast.http.dial import Origin, connect, format_address, open_tunnel
from holdfast.http.exceptions import ConnectionReset, ExchangeTimeout, ProxyError, TlsError
from holdfast.http.transport import Transport
from tests.support import connect_proxy
from tests.support.connect_proxy import ESTABLISHED, ConnectProxy, answering, dripping, hanging, resetting, saying

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
IP = "93.184.216.34"
TARGET = f"{IP}:443"
PLAIN = Origin("http", "a.example", 443)
A, B = Origin("https", "a.example", 443), Origin("https", "b.example", 443)
BASIC = b"Basic dXNlcjpzZWNyZXQ="


@pytest.fixture
def proxy():
    with closing(ConnectProxy()) as running:
        yield running


@pytest.fixture
async def through(proxy, each_engine):
    """A transport that opens tunnels to one public address for every name."""
    made: list[Transport] = []

    def make(ssl_context=None, name=(IP, 443), authorization=None):
        async def resolve(origin):
            return [(socket.AF_INET6 if ":" in name[0] else socket.AF_INET, name)]

        async def dial(origin, addresses, deadline, progress):
            target = format_address(addresses[0][1])
            dialled = await connect([(socket.AF_INET, ("127.0.0.1", proxy.port))], deadline, progress)
            progress(target, "proxy")
            return await open_tunnel(dialled, target, authorization, each_engine)

        made.append(
            Transport(
                resolve,
                dial=dial,
                ssl_context=ssl_context or ssl.create_default_context(),
                max_answer=65536,
                max_idle_per_origin=8,
                idle_timeout=60,
                engine=each_engine,
            )
        )
        return made[-1]

    yield make
    for transport in made:
        await transport.aclose()


async def post(transport, origin=PLAIN, seconds=10):
    head = b"POST /hook HTTP/1.1\r\nhost: a.example\r\ncontent-length: 5\r\n\r\n"
    return await transport.exchange(origin, head, b"hello", trio.current_time() + seconds)


async def left(proxy):
    """Waits until this side has closed every connection to the proxy."""
    await trio.to_thread.run_sync(proxy.wait_until_all_left)


async def test_plain_http_uses_a_tunnel_to_the_address(receiver, proxy, through):
    async with receiver() as there:
        there.scripts = [there.answering(OK)]
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        answer = await post(through())
        assert (answer.status, answer.body, answer.address) == (200, b"ok", TARGET)
        assert [(asked.line, asked.headers) for asked in proxy.asked] == [
            (f"CONNECT {TARGET} HTTP/1.1", (("host", TARGET),))
        ]
        assert there.heard == [b"POST /hook HTTP/1.1\r\nhost: a.example\r\ncontent-length: 5\r\n\r\nhello"]


async def test_an_ipv6_address_is_requested_in_brackets(receiver, proxy, through):
    async with receiver() as there:
        there.scripts = [there.answering(OK)]
        proxy.routes["[2606:4700::1111]:443"] = ("127.0.0.1", there.port)
        answer = await post(through(name=("2606:4700::1111", 443, 0, 0)))
        assert (answer.status, answer.address) == (200, "[2606:4700::1111]:443")
        assert proxy.asked[0].headers == (("host", "[2606:4700::1111]:443"),)


async def test_only_the_proxy_gets_the_credentials(receiver, proxy, through):
    async with receiver() as there:
        there.scripts = [there.answering(OK, OK)]
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        transport = through(authorization=BASIC)
        for _ in range(2):
            await post(transport)
        assert [dict(asked.headers).get("proxy-authorization") for asked in proxy.asked] == [BASIC.decode()]
        assert len(there.heard) == 2
        assert not any(b"authorization" in heard.lower() or b"dXNlc" in heard for heard in there.heard)


async def test_one_tunnel_serves_many_exchanges_over_tls(receiver, proxy, through, server_context, client_context):
    names: list[str | None] = []
    server_context.sni_callback = lambda connection, name, context: names.append(name)
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK, OK)]
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        transport = through(client_context)
        answers = [await post(transport, A) for _ in range(2)]
        assert [(answer.reused, answer.address) for answer in answers] == [(False, TARGET), (True, TARGET)]
        assert (proxy.targets, proxy.connections, names) == ([TARGET], 1, ["a.example"])


async def test_two_names_on_one_address_have_tunnels_of_their_own(
    receiver, proxy, through, server_context, client_context
):
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK, OK)] * 2
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        transport = through(client_context)
        assert [(await post(transport, origin)).reused for origin in (A, B, A, B)] == [False, False, True, True]
        assert proxy.targets == [TARGET] * 2


async def test_the_certificate_inside_is_checked_for_each_name(
    receiver, proxy, through, server_context, client_context
):
    """Even though a valid connection to the same address is idle."""
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)] * 2
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        transport = through(client_context)
        assert (await post(transport, A)).status == 200
        with pytest.raises(TlsError, match="certificate") as raised:
            await post(transport, Origin("https", "evil.example", 443))
        assert (raised.value.kind, raised.value.address) == ("tls", TARGET)
        assert len(there.heard) == 1


async def test_an_untrusted_authority_inside_a_tunnel_is_a_tls_error(receiver, proxy, through, server_context):
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)]
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        with pytest.raises(TlsError, match="certificate"):
            await post(through(), A)
        assert there.heard == []
        await left(proxy)


@pytest.mark.parametrize(
    ("status", "here", "phrase"),
    [
        (407, True, "407 Proxy Authentication Required"),
        (403, False, "403 Forbidden"),
        (302, False, "302 Found"),
        (502, False, "502 Bad Gateway"),
        (503, False, "503 Service Unavailable"),
    ],
)
async def test_a_refusal_says_whether_the_proxy_is_at_fault(proxy, through, status, here, phrase):
    proxy.script = answering(status)
    with pytest.raises(ProxyError) as raised:
        await post(through(authorization=BASIC))
    error = raised.value
    assert (error.kind, error.here, error.status, error.address) == ("proxy", here, status, TARGET)
    assert error.detail == f"the proxy {proxy.address} answered {phrase}"
    await left(proxy)


@pytest.mark.parametrize("status", [200, 204, 299])
async def test_any_2xx_opens_a_tunnel_whatever_its_length_field(receiver, proxy, through, status):
    """RFC 9110, 9.3.6: a client ignores Content-Length in a 2xx answer to CONNECT."""
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 %d \r\ncontent-length: 9\r\n\r\n" % status

    def script(proxy, connection, asked):
        connection.sendall(head)
        hears = connection.recv(65536)
        connection.sendall(OK if hears.endswith(b"hello") else b"garbage")

    proxy.script = script
    assert (await post(through())).body == b"ok"


async def test_an_unknown_status_is_shown_as_a_number(proxy, through):
    proxy.script = saying(b"HTTP/1.0 599 user:secret\r\n\r\n")
    with pytest.raises(ProxyError) as raised:
        await post(through())
    assert raised.value.detail == f"the proxy {proxy.address} answered 599"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (connect_proxy.closing, "closed the connection"),
        (resetting, "gave no answer: Connection reset by peer"),
        (saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "does not speak HTTP"),
        (saying(b"HTTP/1.1 200 OK\n\n"), "does not speak HTTP"),
        (saying(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), "does not speak HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000), "does not speak HTTP"),
        (saying(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 65), "does not speak HTTP"),
        (lambda proxy, connection, asked: connection.sendall(b"HTTP/1.1 200 Conn"), "closed the connection"),
    ],
    ids=["closes", "resets", "garbage", "bare LF", "101", "endless head", "too many 1xx", "half a head"],
)
async def test_a_peer_that_is_not_a_proxy_is_at_fault(proxy, through, script, words):
    proxy.script = script
    with pytest.raises(ProxyError, match=words) as raised:
        await post(through(authorization=BASIC))
    assert (raised.value.here, raised.value.status, raised.value.address) == (True, None, TARGET)
    assert proxy.address in raised.value.detail
    assert "dXNlc" not in str(raised.value)
    await left(proxy)


async def test_bytes_after_the_head_of_a_2xx_are_an_error(proxy, through):
    """They would pass for the answer to a request that was not sent yet."""
    proxy.script = saying(ESTABLISHED + OK)
    with pytest.raises(ProxyError, match="before anything was sent") as raised:
        await post(through())
    assert (raised.value.here, raised.value.status) == (False, 200)
    await left(proxy)


async def test_a_refusal_is_read_from_a_proxy_that_read_nothing(each_engine):
    """Sending fails, but the answer is there."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        dialled = await connect([(socket.AF_INET, busy.getsockname())], trio.current_time() + 10, print)
        accepted, _ = busy.accept()
        with accepted:
            accepted.sendall(b"HTTP/1.1 503 Busy\r\n\r\n")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    with pytest.raises(ProxyError) as raised:
        await open_tunnel(dialled, TARGET, None, each_engine)
    assert (raised.value.status, dialled.wire.socket.fileno()) == (503, -1)


@pytest.mark.parametrize(
    "script",
    [
        hanging,
        saying(b"HTTP/1.1 200 Conn"),
        saying(b"HTTP/1.1 100 Continue\r\n\r\n"),
        dripping(b"HTTP/1.1 200 OK\r\nx: ", b"x"),
    ],
    ids=["silent", "half a head", "1xx only", "drips"],
)
async def test_a_silent_proxy_is_a_timeout_in_its_own_stage(proxy, through, script, mock_clock):
    proxy.script = script

    async def pass_the_deadline():
        await trio.to_thread.run_sync(proxy.wait_for, lambda proxy: len(proxy.asked) == 1)
        mock_clock.jump(31)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_the_deadline)
        with pytest.raises(ExchangeTimeout) as raised:
            await post(through(), seconds=30)
    assert (raised.value.stage, raised.value.address) == ("proxy", TARGET)
    assert raised.value.detail == "the proxy did not answer in time"
    await left(proxy)


async def test_a_reset_inside_the_tunnel_is_a_fault_of_the_target(receiver, proxy, through):
    async with receiver() as there:
        there.scripts = [there.request]
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        with pytest.raises(ConnectionReset) as raised:
            await post(through())
        assert raised.value.address == TARGET


async def test_a_tunnel_closed_while_idle_is_opened_again(receiver, proxy, through):
    async with receiver() as there:
        there.scripts = [there.answering(OK), there.answering(OK)]
        proxy.routes[TARGET] = ("127.0.0.1", there.port)
        transport = through()
        await post(transport)
        await left(proxy)
        assert not (await post(transport)).reused
        assert proxy.targets == [TARGET] * 2
