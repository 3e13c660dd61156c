"""Exchanges with scripted receivers on loopback."""

import errno
import math
import socket
import tracemalloc
from contextlib import suppress

import pytest
import trio

from holdfast.http.codec import ResponseParser
from holdfast.http.connection import Connection
from holdfast.http.deadlines import Deadlines
from holdfast.http.dial import Origin, connect
from holdfast.http.exceptions import BadAnswer, ConnectError, ConnectionReset, ExchangeError, ExchangeTimeout
from holdfast.http.pool import AddressLimit
from holdfast.http.transport import Transport, _Exchange, _talk
from tests.support.ports import dead_port, refusing_port

HEAD = b"POST /hook HTTP/1.1\r\nhost: a.example\r\ncontent-length: 5\r\n\r\n"
BODY = b"hello"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ORIGIN = Origin("http", "a.example", 80)


def soon(seconds: float = 10) -> float:
    return trio.current_time() + seconds


async def post(transport: Transport, origin: Origin = ORIGIN, seconds: float = 10):
    return await transport.exchange(origin, HEAD, BODY, soon(seconds))


def large_head(size: int) -> bytes:
    return b"POST /hook HTTP/1.1\r\nhost: a.example\r\ncontent-length: %d\r\n\r\n" % size


async def test_an_exchange_returns_the_answer(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(OK)]
        transport = transport_to(there.port)
        answer = await post(transport)
        assert (answer.status, answer.headers, answer.body) == (200, [(b"content-length", b"2")], b"ok")
        assert (answer.address, answer.reused, answer.complete) == (there.address, False, True)
        assert there.heard == [HEAD + BODY]


async def test_connections_are_reused(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(OK, OK, OK)]
        transport = transport_to(there.port)
        assert [(await post(transport)).reused for _ in range(3)] == [False, True, True]
        assert there.connections == 1
        assert (transport.opened, transport.reused, transport.in_use) == (1, 2, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokay",
    ],
    ids=["close", "http/1.0", "bytes after it"],
)
async def test_a_connection_is_not_reused_after_such_an_answer(receiver, transport_to, answer):
    async with receiver() as there:
        there.scripts = [there.answering(answer, close=False)] * 2
        transport = transport_to(there.port)
        assert [(await post(transport)).reused for _ in range(2)] == [False, False]
        assert there.connections == 2


@pytest.mark.parametrize("other", [Origin("http", "b.example", 80), Origin("http", "a.example", 80, "zone")])
async def test_connections_are_never_shared_between_origins(receiver, transport_to, other):
    """Both names have the same address."""
    async with receiver() as there:
        there.scripts = [there.answering(OK, OK)] * 2
        transport = transport_to(there.port)
        assert not (await post(transport)).reused
        assert not (await post(transport, other)).reused
        assert (await post(transport)).reused


async def test_a_connection_closed_while_idle_is_not_used(receiver, transport_to, settled):
    async with receiver() as there:
        there.scripts = [there.answering(OK), there.answering(OK)]
        transport = transport_to(there.port)
        await post(transport)
        await settled()
        answer = await post(transport)
        assert (answer.reused, transport.resent) == (False, 0)
        assert len(there.heard) == 2


async def test_a_connection_with_unexpected_bytes_is_not_used(receiver, transport_to, settled):
    async with receiver() as there:

        async def speaks_unasked(stream):
            await there.answering(OK)(stream)
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
            await trio.sleep_forever()

        there.scripts = [speaks_unasked, there.answering(OK)]
        transport = transport_to(there.port)
        await post(transport)
        await settled()
        await settled()
        answer = await post(transport)
        assert (answer.reused, answer.body) == (False, b"ok")


def closing_on_second_request(there, last_words: bytes = b"", reset: bool = False):
    async def script(stream):
        await there.request(stream)
        await stream.send_all(OK)
        await there.request(stream)
        if last_words:
            await stream.send_all(last_words)
        if reset:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    return script


@pytest.mark.parametrize("reset", [False, True])
async def test_a_stale_connection_is_replaced_once(receiver, transport_to, reset):
    async with receiver() as there:
        there.scripts = [closing_on_second_request(there, reset=reset), there.answering(OK)]
        transport = transport_to(there.port)
        await post(transport)
        answer = await post(transport)
        assert (answer.status, answer.reused) == (200, False)
        assert there.heard == [HEAD + BODY] * 3
        assert transport.resent == 1


async def test_a_resend_is_not_repeated(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [closing_on_second_request(there), there.answering(b"")]
        transport = transport_to(there.port)
        await post(transport)
        with pytest.raises(ConnectionReset):
            await post(transport)
        assert len(there.heard) == 3


async def test_two_idle_connections_do_not_make_two_resends(receiver, transport_to):
    """The resend uses a new connection, not another idle one that may be stale too."""
    async with receiver() as there:
        there.scripts = [closing_on_second_request(there), closing_on_second_request(there), there.answering(OK)]
        transport = transport_to(there.port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, transport)
            nursery.start_soon(post, transport)
        assert len(transport.pool) == 2
        assert (await post(transport)).status == 200
        assert there.connections == 3


async def test_no_resend_after_a_byte_of_the_answer(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [closing_on_second_request(there, last_words=b"H"), there.answering(OK)]
        transport = transport_to(there.port)
        await post(transport)
        with pytest.raises(ConnectionReset) as raised:
            await post(transport)
        assert raised.value.address == there.address
        assert there.connections == 1


@pytest.mark.parametrize("last_words", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_no_resend_after_a_new_connection(receiver, transport_to, last_words):
    async with receiver() as there:
        there.scripts = [there.answering(last_words), there.answering(OK)]
        with pytest.raises(ConnectionReset) as raised:
            await post(transport_to(there.port))
        assert (raised.value.kind, raised.value.address) == ("reset", there.address)
        assert there.connections == 1


@pytest.mark.parametrize("then", ["closes", "stops reading", "resets"])
async def test_an_early_answer_is_read(receiver, transport_to, then):
    """The receiver refuses after the head and reads no more of 32 megabytes."""
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nbig!"

    async def refuse(stream):
        await stream.receive_some(1000)
        await stream.send_all(refusal)
        if then == "stops reading":
            await trio.sleep_forever()
        if then == "closes":
            await trio.testing.wait_all_tasks_blocked()

    async with receiver() as there:
        there.scripts = [refuse]
        body = bytes(32 << 20)
        transport = transport_to(there.port)
        answer = await transport.exchange(ORIGIN, large_head(len(body)), body, soon())
        assert (answer.status, answer.body) == (413, b"big!")
        assert len(transport.pool) == 0


async def test_a_large_body_arrives_and_the_connection_is_kept(receiver, transport_to):
    body = bytes(range(256)) * 32768
    async with receiver() as there:
        there.scripts = [there.answering(OK, OK)]
        transport = transport_to(there.port)
        for reused in (False, True):
            answer = await transport.exchange(ORIGIN, large_head(len(body)), body, soon())
            assert (answer.status, answer.reused) == (200, reused)
        assert there.heard == [large_head(len(body)) + body] * 2


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 100_000])
async def test_head_and_body_arrive_in_order_with_small_sends(receiver, transport_to, size):
    """With the smallest possible buffer even the head is sent in pieces."""
    body = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    head = large_head(size)[:-2] + b"x: " + b"y" * 60_000 + b"\r\n\r\n"

    async def dial(origin, addresses, deadline, progress):
        dialled = await connect(addresses, deadline, progress)
        dialled.wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return dialled

    async with receiver() as there:
        there.scripts = [there.answering(OK)]
        answer = await transport_to(there.port, dial=dial).exchange(ORIGIN, head, body, soon())
        assert answer.status == 200
        assert there.heard == [head + body]


async def test_bodies_in_flight_are_not_copied(receiver, transport_to, settled):
    """Twenty exchanges at once share one body of 8 MiB, which no receiver reads."""
    body = bytes(8 << 20)

    async def read_nothing(stream):
        await trio.sleep_forever()

    async with receiver() as there, trio.open_nursery() as nursery:
        there.scripts = [read_nothing] * 20
        transport = transport_to(there.port)
        tracemalloc.start()
        for _ in range(20):
            nursery.start_soon(transport.exchange, ORIGIN, large_head(len(body)), body, soon(math.inf))
        await settled()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert transport.in_use == 20
        assert held < len(body)
        nursery.cancel_scope.cancel()


async def test_a_receiver_that_does_not_read_is_a_timeout_of_sending(receiver, transport_to, mock_clock):
    async def pass_the_deadline_unread(stream):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(11)
        await trio.sleep_forever()

    async with receiver() as there:
        there.scripts = [pass_the_deadline_unread]
        body = bytes(32 << 20)
        with pytest.raises(ExchangeTimeout) as raised:
            await transport_to(there.port).exchange(ORIGIN, large_head(len(body)), body, soon())
        assert (raised.value.stage, raised.value.address) == ("send", there.address)


def dripping(there, first: bytes, drop: bytes):
    async def script(stream):
        await there.request(stream)
        await stream.send_all(first)
        while True:
            await stream.send_all(drop)
            await trio.sleep(0.01)

    return script


@pytest.mark.parametrize(
    ("first", "drop"),
    [(b"", b""), (b"HTTP/1.1 200 OK\r\nx: ", b"y"), (b"", b"HTTP/1.1 102 Processing\r\n\r\n")],
    ids=["silence", "dripped head", "endless 1xx"],
)
async def test_the_deadline_is_total(receiver, transport_to, first, drop):
    async with receiver() as there:
        there.scripts = [dripping(there, first, drop)]
        transport = transport_to(there.port)
        with pytest.raises(ExchangeTimeout) as raised:
            await post(transport, seconds=0.2)
        assert (raised.value.kind, raised.value.stage, raised.value.address) == ("timeout", "answer", there.address)
        assert transport.in_use == 0


async def test_a_flood_of_1xx_is_a_bad_answer(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)]
        with pytest.raises(BadAnswer):
            await post(transport_to(there.port))


async def test_1xx_before_the_answer_is_skipped(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)]
        assert (await post(transport_to(there.port))).body == b"ok"


BODIES_THAT_GO_WRONG = {
    "over the limit": (b"HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n" + b"x" * 70000, b"x" * 65536, True),
    "endless": (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 70000, b"x" * 65536, False),
    "truncated": (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", b"half", True),
    "truncated chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", b"half", True),
    "broken chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\nx", b"half", False),
    "never finished": (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", b"half", False),
}


@pytest.mark.parametrize(("sent", "body", "close"), BODIES_THAT_GO_WRONG.values(), ids=BODIES_THAT_GO_WRONG)
async def test_nothing_in_the_body_changes_the_outcome(receiver, transport_to, sent, body, close):
    async with receiver() as there:
        there.scripts = [there.answering(sent, close=close)]
        transport = transport_to(there.port)
        answer = await post(transport, seconds=0.5 if body == b"half" else 10)
        assert (answer.status, answer.body, answer.complete) == (200, body, False)
        assert len(transport.pool) == 0


async def test_a_reset_in_the_body_does_not_change_the_outcome(receiver, transport_to):
    async def script(stream):
        await stream.receive_some(10)
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await trio.testing.wait_all_tasks_blocked()

    async with receiver() as there:
        there.scripts = [script]
        answer = await post(transport_to(there.port))
        assert (answer.status, answer.body, answer.complete) == (200, b"half", False)


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\nx: y\n\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
        b"\x15\x03\x03\0\x02",
    ],
)
async def test_garbage_is_a_bad_answer_at_once(receiver, transport_to, garbage):
    async with receiver() as there:
        there.scripts = [there.answering(garbage, close=False)]
        with pytest.raises(BadAnswer) as raised:
            await post(transport_to(there.port), seconds=60)
        assert (raised.value.kind, raised.value.address) == ("protocol", there.address)


@pytest.fixture
def dead():
    with dead_port() as port:
        yield port


async def test_a_refused_connection_is_a_connect_error(transport_to):
    port = refusing_port()
    with pytest.raises(ConnectError) as raised:
        await post(transport_to(port))
    assert (raised.value.kind, raised.value.errno) == ("connect", errno.ECONNREFUSED)
    assert raised.value.address == f"127.0.0.1:{port}"
    assert "refused" in raised.value.detail


async def test_the_next_address_is_tried_when_one_refuses(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(OK)]
        answer = await post(transport_to(refusing_port(), there.port))
        assert (answer.status, answer.address) == (200, there.address)


async def test_a_dead_address_gets_only_its_share_of_the_time(receiver, transport_to, dead):
    async with receiver() as there:
        there.scripts = [there.answering(OK)]
        answer = await post(transport_to(dead, there.port), seconds=1)
        assert (answer.status, answer.address) == (200, there.address)


async def test_a_single_dead_address_is_a_timeout_of_connecting(transport_to, dead):
    with pytest.raises(ExchangeTimeout) as raised:
        await post(transport_to(dead), seconds=0.1)
    assert (raised.value.stage, raised.value.address) == ("connect", f"127.0.0.1:{dead}")


async def test_no_route_does_not_hide_a_refusal(each_engine):
    """The second address has no route from this machine, which says nothing about the host."""
    refused = refusing_port()

    async def resolve(origin):
        return [
            (socket.AF_INET, ("127.0.0.1", refused)),
            (socket.AF_INET6, ("::ffff:255.255.255.255", 1)),
        ]

    transport = Transport(
        resolve, ssl_context=None, max_answer=1, max_idle_per_origin=1, idle_timeout=1, engine=each_engine
    )
    with pytest.raises(ConnectError) as raised:
        await post(transport)
    assert raised.value.errno == errno.ECONNREFUSED


async def test_no_address_is_a_connect_error(transport_to):
    with pytest.raises(ConnectError) as raised:
        await post(transport_to())
    assert (raised.value.errno, raised.value.address) == (None, None)


async def test_ipv6_addresses_are_bracketed(each_engine):
    async def resolve(origin):
        return [(socket.AF_INET6, ("::1", refusing_port(), 0, 0))]

    transport = Transport(
        resolve, ssl_context=None, max_answer=1, max_idle_per_origin=1, idle_timeout=1, engine=each_engine
    )
    with pytest.raises(ConnectError) as raised:
        await post(transport)
    assert raised.value.address.startswith("[::1]:")


async def test_errors_of_the_resolver_pass_through(each_engine):
    class Denied(Exception):
        pass

    async def resolve(origin):
        raise Denied

    transport = Transport(
        resolve, ssl_context=None, max_answer=1, max_idle_per_origin=1, idle_timeout=1, engine=each_engine
    )
    with pytest.raises(Denied):
        await post(transport)


async def test_a_slow_resolver_meets_the_deadline(each_engine):
    async def resolve(origin):
        await trio.sleep_forever()

    transport = Transport(
        resolve, ssl_context=None, max_answer=1, max_idle_per_origin=1, idle_timeout=1, engine=each_engine
    )
    with pytest.raises(ExchangeTimeout) as raised:
        await post(transport, seconds=0.05)
    assert (raised.value.stage, raised.value.address) == ("resolve", None)


async def test_cancellation_from_outside_closes_and_propagates(receiver, transport_to):
    closed = trio.Event()
    async with receiver() as there:

        async def script(stream):
            await there.request(stream)
            scope.cancel()
            assert await stream.receive_some(1) == b""
            closed.set()

        there.scripts = [script]
        transport = transport_to(there.port)
        with trio.CancelScope() as scope:
            await post(transport, seconds=math.inf)
        assert scope.cancelled_caught
        with trio.fail_after(30):
            await closed.wait()
        assert transport.in_use == 0


@pytest.mark.parametrize("size", [5, 32 << 20], ids=["sent whole", "still being sent"])
async def test_a_cancellation_after_the_head_returns_the_answer(receiver, transport_to, settled, size):
    """The outcome is decided. The task is cancelled at its next checkpoint."""

    async def drip(stream):
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await settled()
        scope.cancel()
        await trio.sleep_forever()

    async with receiver() as there:
        there.scripts = [drip]
        transport = transport_to(there.port)
        answer = None
        with trio.CancelScope() as scope:
            answer = await transport.exchange(ORIGIN, large_head(size), bytes(size), soon(math.inf))
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert answer is not None
        assert (answer.status, answer.body, answer.complete) == (200, b"half", False)
        assert (transport.in_use, len(transport.pool)) == (0, 0)


async def test_a_cancellation_before_the_answer_propagates(receiver, transport_to, settled):
    async def stop_reading(stream):
        await stream.receive_some(1000)
        await settled()
        scope.cancel()
        await trio.sleep_forever()

    async with receiver() as there:
        there.scripts = [stop_reading]
        transport = transport_to(there.port)
        cancelled = False
        with trio.CancelScope() as scope:
            try:
                await transport.exchange(ORIGIN, large_head(32 << 20), bytes(32 << 20), soon(math.inf))
            except trio.Cancelled:  # and nothing that only contains one
                cancelled = True
                raise
        assert cancelled
        assert transport.in_use == 0


async def in_parallel(transport, there, origins):
    """One exchange for each origin, all open at the same time."""
    arrived = 0
    all_arrived = trio.Event()

    async def script(stream):
        nonlocal arrived
        await there.request(stream)
        arrived += 1
        if arrived == len(origins):
            all_arrived.set()
        await all_arrived.wait()
        await stream.send_all(OK)
        await stream.receive_some(1)

    there.scripts = [script] * len(origins)
    async with trio.open_nursery() as nursery:
        for origin in origins:
            nursery.start_soon(post, transport, origin)


async def test_idle_connections_are_capped_per_origin_and_in_total(receiver, transport_to):
    many = [Origin("http", f"{letter}.example", 80) for letter in "aaaabbbbcc"]
    async with receiver() as there:
        transport = transport_to(there.port, max_idle_per_origin=2, max_idle=5)
        await in_parallel(transport, there, many)
        assert (transport.opened, len(transport.pool)) == (10, 5)
    async with receiver() as there:
        transport = transport_to(there.port, max_idle_per_origin=2)
        await in_parallel(transport, there, many)
        assert (len(transport.pool), transport.pool.origins) == (6, 3)


async def test_expired_connections_are_not_used_and_swept_by_later_exchanges(receiver, transport_to):
    other = Origin("http", "b.example", 80)
    async with receiver() as there:
        there.scripts = [there.answering(OK, OK)] * 3
        transport = transport_to(there.port, idle_timeout=0.05)
        await post(transport)
        await post(transport, other)
        assert len(transport.pool) == 2
        await trio.sleep(0.06)
        assert not (await post(transport)).reused
        assert len(transport.pool) == 1


async def test_run_closes_idle_connections_in_time(receiver, transport_to):
    async with receiver() as there, trio.open_nursery() as nursery:
        there.scripts = [there.answering(OK, close=False)] * 6
        transport = transport_to(there.port, idle_timeout=0.05)
        nursery.start_soon(transport.run)
        for _ in range(2):
            await in_parallel(transport, there, [ORIGIN] * 3)
            there.connections = 0
            with trio.fail_after(30):
                while len(transport.pool):
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_aclose_closes_idle_connections_now_and_used_ones_later(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(OK, OK)]
        transport = transport_to(there.port)
        await post(transport)
        await transport.aclose()
        assert len(transport.pool) == 0
        there.scripts.append(there.answering(OK))
        await post(transport)
        assert len(transport.pool) == 0


async def test_renew_closes_idle_connections_now_and_used_ones_later(receiver, transport_to):
    """A connection opened under old rules serves no exchange that starts under new ones."""
    async with receiver() as there:
        transport = transport_to(there.port)
        gone = trio.Event()

        async def idle_when_renewed(stream):
            await there.answering(OK)(stream)
            assert await stream.receive_some(1) == b""
            gone.set()

        async def in_use_when_renewed(stream):
            await there.request(stream)
            transport.renew(max_idle_per_origin=8)
            await stream.send_all(OK)
            assert await stream.receive_some(1) == b""

        there.scripts = [idle_when_renewed, in_use_when_renewed, there.answering(OK, OK)]
        await post(transport)
        assert len(transport.pool) == 1
        transport.renew(max_idle_per_origin=8)
        assert len(transport.pool) == 0
        with trio.fail_after(30):
            await gone.wait()
        assert [(await post(transport)).reused for _ in range(3)] == [False, False, True]


async def test_a_renewal_sets_the_limits_of_the_pool(receiver, transport_to):
    async with receiver() as there:
        transport = transport_to(there.port, max_idle_per_origin=1)
        for per_origin, total, idle in ((3, 10, 3), (2, 10, 2), (8, 1, 1)):
            transport.renew(max_idle_per_origin=per_origin, max_idle=total)
            there.connections = 0
            await in_parallel(transport, there, [ORIGIN] * 4)
            assert len(transport.pool) == idle


@pytest.mark.parametrize("during", ["resolving", "dialling"])
async def test_a_connection_that_opens_during_a_renewal_is_not_kept(receiver, each_engine, during):
    async with receiver() as there:
        there.scripts = [there.answering(OK)]

        async def resolve(origin):
            if during == "resolving":
                transport.renew(max_idle_per_origin=8)
            return [(socket.AF_INET, ("127.0.0.1", there.port))]

        async def dial(origin, addresses, deadline, progress):
            dialled = await connect(addresses, deadline, progress)
            if during == "dialling":
                transport.renew(max_idle_per_origin=8)
            return dialled

        transport = Transport(
            resolve,
            dial=dial,
            ssl_context=None,
            max_answer=9,
            max_idle_per_origin=1,
            idle_timeout=60,
            engine=each_engine,
        )
        assert (await post(transport)).status == 200
        assert len(transport.pool) == 0


async def test_head_answers_have_no_body(receiver, transport_to):
    async with receiver() as there:
        there.scripts = [there.answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", OK)]
        transport = transport_to(there.port)
        answer = await transport.exchange(ORIGIN, b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n", b"", soon())
        assert (answer.body, answer.complete) == (b"", True)
        assert (await post(transport)).reused


async def test_an_answer_from_a_receiver_that_reads_nothing_is_read(receiver, each_engine, settled):
    """The first send fails. Between connecting and sending there is no checkpoint, so the test simulates the race."""
    refusal = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"

    async def refuse(stream):
        await stream.send_all(refusal)
        await trio.testing.wait_all_tasks_blocked()
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    async with receiver() as there:
        there.scripts = [refuse]
        dialled = await connect([(socket.AF_INET, ("127.0.0.1", there.port))], soon(), print)
        connection = Connection(ORIGIN, dialled, Deadlines())
        await settled()
        await settled()
        parser = ResponseParser(each_engine, max_body=100)
        assert not await _talk(connection, parser, _Exchange(ORIGIN, HEAD, BODY, 0, AddressLimit(1)))
        assert parser.head.status == 503
        connection.close()


async def stop_reading(stream):
    await stream.receive_some(1000)
    await trio.sleep_forever()


async def reset(stream):
    await stream.receive_some(1000)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


async def talk_nonsense(stream):
    await stream.receive_some(1000)
    await stream.send_all(b"SSH-2.0-x\r\n")
    await trio.sleep_forever()


@pytest.mark.parametrize("size", [5, 32 << 20], ids=["sent whole", "still being sent"])
@pytest.mark.parametrize("script", [stop_reading, reset, talk_nonsense, None])
async def test_a_failed_exchange_holds_no_body(receiver, transport_to, tracked, script, size):
    """Not even until a garbage collection, which depends on the number of objects and not on their size."""
    async with receiver() as there:
        there.scripts = [script]
        transport = transport_to(there.port if script is not None else refusing_port())
        with suppress(ExchangeError):
            await transport.exchange(ORIGIN, large_head(size), tracked(bytes(size)), soon(0.2))
        await trio.lowlevel.checkpoint()
        assert tracked.alive == 0
