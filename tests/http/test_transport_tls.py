"""TLS: names, trust, and connections that are never shared."""

import _ssl
import ctypes
import socket
import ssl
import tracemalloc
from contextlib import suppress

import pytest
import trio

from holdfast.http.connection import DATALESS_RECORDS, TlsConnection
from holdfast.http.deadlines import Deadlines
from holdfast.http.dial import Origin, connect
from holdfast.http.exceptions import ExchangeError, ExchangeTimeout, TlsError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
A, B = Origin("https", "a.example", 443), Origin("https", "b.example", 443)


async def post(transport, origin=A, body=b"hello", seconds=10):
    head = b"POST /hook HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    return await transport.exchange(origin, head, body, trio.current_time() + seconds)


async def test_a_connection_with_the_right_name_is_trusted_and_reused(
    receiver, transport_to, server_context, client_context
):
    names: list[str | None] = []
    server_context.sni_callback = lambda connection, name, context: names.append(name)
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK, OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        answers = [await post(transport) for _ in range(2)]
        assert [(answer.status, answer.reused, answer.address) for answer in answers] == [
            (200, False, there.address),
            (200, True, there.address),
        ]
        assert names == ["a.example"]


async def test_a_literal_address_is_checked_against_the_certificate(
    receiver, transport_to, server_context, client_context
):
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        assert (await post(transport, Origin("https", "127.0.0.1", 443))).status == 200


async def test_two_names_on_one_address_never_share_a_connection(
    receiver, transport_to, server_context, client_context
):
    """Even though the certificate is valid for both."""
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK, OK)] * 2
        transport = transport_to(there.port, ssl_context=client_context)
        assert [(await post(transport, origin)).reused for origin in (A, B, A, B)] == [False, False, True, True]
        assert there.connections == 2


async def test_the_wrong_name_is_a_tls_error(receiver, transport_to, server_context, client_context):
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        with pytest.raises(TlsError) as raised:
            await post(transport, Origin("https", "evil.example", 443))
        assert (raised.value.kind, raised.value.address) == ("tls", there.address)
        assert "certificate" in raised.value.detail
        assert there.heard == []


async def test_an_untrusted_authority_is_a_tls_error(receiver, transport_to, server_context):
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)]
        with pytest.raises(TlsError, match="certificate"):
            await post(transport_to(there.port))
        assert there.heard == []


async def test_contexts_are_chosen_by_origin(receiver, transport_to, server_context, client_context):
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)] * 2
        untrusting = ssl.create_default_context()
        transport = transport_to(there.port, ssl_context=lambda origin: client_context if origin == A else untrusting)
        assert (await post(transport, A)).status == 200
        with pytest.raises(TlsError):
            await post(transport, B)


async def test_an_error_of_the_context_function_closes_the_connection(receiver, transport_to):
    """For example if the file of a client certificate is missing."""
    heard = []
    closed = trio.Event()

    async def listen(stream):
        heard.append(await stream.receive_some(100))
        closed.set()

    def context(origin):
        raise FileNotFoundError(origin.host)

    async with receiver() as there:
        there.scripts = [listen]
        with pytest.raises(FileNotFoundError):
            await post(transport_to(there.port, ssl_context=context))
        with trio.fail_after(30):
            await closed.wait()
        assert heard == [b""]


async def test_plain_http_on_a_tls_port_is_a_tls_error_at_once(receiver, transport_to, client_context):
    async def speaks_http(stream):
        await stream.receive_some(10)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await trio.sleep_forever()

    async with receiver() as there:
        there.scripts = [speaks_http]
        with pytest.raises(TlsError):
            await post(transport_to(there.port, ssl_context=client_context), seconds=60)


async def test_a_silent_handshake_meets_the_deadline(receiver, transport_to, client_context):
    async with receiver() as there:
        there.scripts = [lambda stream: trio.sleep_forever()]
        with pytest.raises(ExchangeTimeout) as raised:
            await post(transport_to(there.port, ssl_context=client_context), seconds=0.1)
        assert (raised.value.stage, raised.value.address) == ("tls", there.address)


async def test_old_versions_are_refused(receiver, transport_to, authority, client_context):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("a.example").configure_cert(old)
    for context in (old, client_context):
        with pytest.warns(DeprecationWarning):
            context.minimum_version = ssl.TLSVersion.TLSv1
        context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with receiver(old) as there:
        there.scripts = [there.answering(OK)]
        with pytest.raises(TlsError, match="too old"):
            await post(transport_to(there.port, ssl_context=client_context))


@pytest.mark.parametrize("group", ["ffdhe2048", "ffdhe8192"])
async def test_a_finite_field_key_exchange_is_refused_before_it_is_computed(
    receiver, transport_to, server_context, client_context, group
):
    """TLS 1.3 lets the server choose among all groups that `ssl` offers."""
    server_context.set_ecdh_curve(group)
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)]
        with pytest.raises(TlsError, match="finite field"):
            await post(transport_to(there.port, ssl_context=client_context))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("curve", ["prime256v1", "secp384r1", "secp521r1", "X25519", "X448"])
async def test_any_curve_is_accepted(receiver, transport_to, server_context, client_context, curve, version):
    """X25519 is offered first. For any other curve a TLS 1.3 server requests a second hello."""
    server_context.set_ecdh_curve(curve)
    server_context.maximum_version = version
    async with receiver(server_context) as there:
        there.scripts = [there.answering(OK)]
        assert (await post(transport_to(there.port, ssl_context=client_context))).status == 200


async def shaking_hands(stream, context, say):
    """Does a handshake as a server. `say` sends its bytes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    while data := await stream.receive_some():
        incoming.write(data)
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
            server.read()
            server.write(OK)
        await say(outgoing.read())


async def test_a_hello_may_come_in_many_segments(receiver, transport_to, server_context, client_context):
    async def drip(stream):
        async def byte_by_byte(data):
            for place in range(len(data)):
                await stream.send_all(data[place : place + 1])
                await trio.lowlevel.checkpoint()

        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await shaking_hands(stream, server_context, byte_by_byte)

    async with receiver() as there:
        there.scripts = [drip]
        assert (await post(transport_to(there.port, ssl_context=client_context))).status == 200


@pytest.mark.parametrize("cut", [0, 1, 3, 50, -1])
async def test_a_hello_in_several_records_is_refused(receiver, transport_to, server_context, client_context, cut):
    """It could hide its choice of a group."""

    async def fragment(stream):
        async def in_two_records(data):
            version, size = data[1:3], int.from_bytes(data[3:5], "big")
            hello, rest = data[5 : 5 + size], data[5 + size :]
            parts = [hello[:cut], hello[cut:]]
            records = [b"\x16%b%b%b" % (version, len(part).to_bytes(2, "big"), part) for part in parts]
            await stream.send_all(b"".join([*records, rest]))

        await shaking_hands(stream, server_context, in_two_records)

    async with receiver() as there:
        there.scripts = [fragment]
        with pytest.raises(TlsError, match="not a whole server hello"):
            await post(transport_to(there.port, ssl_context=client_context))


async def alert(stream: trio.SSLStream) -> None:
    """Sends an alert about a record that was never sent. trio holds tickets back until data is sent."""
    stream._incoming.write(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(ssl.SSLError):
        stream._ssl_object.read()
    await stream.transport_stream.send_all(stream._outgoing.read())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n"])
async def test_an_alert_instead_of_an_answer_is_a_tls_error(
    receiver, transport_to, server_context, client_context, begun
):
    server_context.num_tickets = 0

    async def refuse(stream):
        await there.request(stream)
        await stream.send_all(begun)
        await alert(stream)

    async with receiver(server_context) as there:
        there.scripts = [refuse]
        with pytest.raises(TlsError, match="ALERT_BAD_RECORD_MAC") as raised:
            await post(transport_to(there.port, ssl_context=client_context))
        assert (raised.value.kind, raised.value.address) == ("tls", there.address)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n"])
async def test_an_alert_on_a_reused_connection_means_that_it_is_stale(
    receiver, transport_to, server_context, client_context, begun
):
    """Only before the first byte of the answer."""

    async def refuse_the_second(stream):
        await there.answering(OK)(stream)
        await there.request(stream)
        await stream.send_all(begun)
        await alert(stream)

    async with receiver(server_context) as there:
        there.scripts = [refuse_the_second, there.answering(OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        await post(transport)
        if begun:
            with pytest.raises(TlsError, match="ALERT"):
                await post(transport)
        else:
            assert (await post(transport)).status == 200
        assert transport.resent == (0 if begun else 1)


async def test_a_large_body_is_sent_again_after_a_stale_connection(
    receiver, transport_to, server_context, client_context
):
    body = bytes(range(256)) * 8192
    async with receiver(server_context) as there:

        async def closes_on_second(stream):
            await there.answering(OK)(stream)
            await there.request(stream)

        there.scripts = [closes_on_second, there.answering(OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        assert not (await post(transport, body=body)).reused
        answer = await post(transport, body=body)
        assert (answer.status, answer.reused, transport.resent) == (200, False, 1)
        assert [heard.endswith(body) for heard in there.heard] == [True] * 3


@pytest.mark.parametrize("then", ["closes", "stops reading"])
async def test_an_early_answer_is_read(receiver, transport_to, server_context, client_context, then):
    async def refuse(stream):
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nbig!")
        if then == "stops reading":
            await trio.sleep_forever()

    async with receiver(server_context) as there:
        there.scripts = [refuse]
        transport = transport_to(there.port, ssl_context=client_context)
        answer = await post(transport, body=bytes(32 << 20))
        assert (answer.status, answer.body) == (413, b"big!")


async def test_a_body_is_encrypted_in_slices(receiver, transport_to, server_context, client_context, settled):
    body = bytes(32 << 20)

    async def read_nothing(stream):
        await stream.do_handshake()
        await trio.sleep_forever()

    async with receiver(server_context) as there, trio.open_nursery() as nursery:
        there.scripts = [read_nothing]
        transport = transport_to(there.port, ssl_context=client_context)
        tracemalloc.start()
        nursery.start_soon(post, transport, A, body, 60)
        await settled()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert transport.in_use == 1
        assert held < 1 << 20
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fault", ["not TLS", "not trusted", "stops reading"])
async def test_a_failed_exchange_holds_no_body(receiver, transport_to, server_context, client_context, tracked, fault):
    async def answer_plainly(stream):
        await stream.receive_some(100)
        await stream.send_all(OK)

    async def stop_reading(stream):
        await stream.do_handshake()
        await trio.sleep_forever()

    async with receiver(None if fault == "not TLS" else server_context) as there:
        there.scripts = [answer_plainly if fault == "not TLS" else stop_reading]
        context = ssl.create_default_context() if fault == "not trusted" else client_context
        with suppress(ExchangeError):
            await post(transport_to(there.port, ssl_context=context), body=tracked(bytes(32 << 20)), seconds=0.3)
        await trio.lowlevel.checkpoint()
        assert tracked.alive == 0


async def test_a_second_answer_in_its_own_record_is_noticed(
    receiver, transport_to, server_context, client_context, settled
):
    """It must not pass for the answer to the next request."""

    async def answers_twice(stream):
        await there.request(stream)
        poison = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison"
        # Both records in one segment, so that one read gets both.
        stream.transport_stream.socket.setsockopt(6, 3, 1)
        await stream.send_all(OK)
        await stream.send_all(poison)
        stream.transport_stream.socket.setsockopt(6, 3, 0)
        await trio.sleep_forever()

    async with receiver(server_context) as there:
        there.scripts = [answers_twice, there.answering(OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        assert (await post(transport)).body == b"ok"
        await settled()
        answer = await post(transport)
        assert (answer.body, answer.reused) == (b"ok", False)


async def test_an_answer_can_be_read_after_sending_failed(receiver, server_context, client_context, settled):
    async def answers_and_resets(stream):
        await stream.do_handshake()
        await stream.transport_stream.socket.recv(1, socket.MSG_PEEK)
        await stream.send_all(OK)
        await trio.aclose_forcefully(stream)

    async with receiver(server_context) as there:
        there.scripts = [answers_and_resets]
        dialled = await connect([(socket.AF_INET, ("127.0.0.1", there.port))], trio.current_time() + 10, print)
        connection = TlsConnection(A, dialled, Deadlines(), client_context)
        await connection.handshake()
        await settled()
        await connection.send_some(b"POST", b"")
        await settled()
        with pytest.raises(OSError, match=r"reset|pipe"):
            await connection.send_rest(b"", bytes(1 << 20), 0)
        assert await connection.receive() == OK
        connection.close()


async def test_a_few_session_tickets_before_an_answer_are_accepted(
    receiver, transport_to, server_context, client_context
):
    server_context.num_tickets = DATALESS_RECORDS
    large = b"HTTP/1.1 500 Oh\r\ncontent-length: 65536\r\n\r\n" + bytes(65536)
    async with receiver(server_context) as there:
        there.scripts = [there.answering(large, OK)]
        transport = transport_to(there.port, ssl_context=client_context)
        assert len((await post(transport)).body) == 65536
        assert (await post(transport)).reused


@pytest.mark.parametrize("answer", [OK, OK[:5]])
async def test_endless_tickets_are_a_tls_error(receiver, transport_to, server_context, client_context, answer):
    server_context.num_tickets = 1_000

    async def give_tickets(stream):
        await stream.do_handshake()
        await stream.send_all(answer)
        await trio.sleep_forever()

    async with receiver(server_context) as there:
        there.scripts = [give_tickets]
        with pytest.raises(TlsError, match="without data") as raised:
            await post(transport_to(there.port, ssl_context=client_context))
        assert raised.value.address == there.address


async def renew_keys(stream: trio.SSLStream) -> None:
    """Python has no function for this. The second field of its SSL object points to that of OpenSSL."""
    tls, pointer = stream._ssl_object, object.__basicsize__ + 8
    ctypes.CDLL(_ssl.__file__).SSL_key_update(ctypes.c_void_p.from_address(id(tls._sslobj) + pointer), 0)
    tls.do_handshake()
    await stream.transport_stream.send_all(stream._outgoing.read())


@pytest.mark.parametrize("before", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\nhel"])
async def test_endless_key_updates_are_a_tls_error_before_the_answer(
    receiver, transport_to, server_context, client_context, before
):
    async def renew(stream):
        await there.request(stream)
        await stream.send_all(before)
        while True:
            await renew_keys(stream)

    async with receiver(server_context) as there:
        there.scripts = [renew]
        transport = transport_to(there.port, ssl_context=client_context)
        if before.endswith(b"hel"):
            assert (await post(transport)).status == 201
        else:
            with pytest.raises(TlsError, match="without data"):
                await post(transport)
