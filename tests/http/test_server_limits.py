"""Limits of the server, and clients that try to block it."""

import errno
import json
import resource
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import trio

from holdfast.http.request_response import PendingResponse, Request, Response, StreamingResponse
from holdfast.http.server import LOG_INTERVAL, ROOM_SECONDS
from holdfast.http.server_connection import MAX_UNSENT, STREAM_PATIENCE

POST = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


async def ok(request: Request) -> Response:
    return Response(200, [], b"%d" % len(request.body))


REFUSED = {
    "bare LF": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "smuggling": (
        400,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "unknown method": (405, b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "declared too large": (413, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n"),
    "long url": (414, b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "large head": (431, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 33000 + b"\r\n\r\n"),
    "other coding": (501, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: br\r\n\r\n"),
    "version": (505, b"GET / HTTP/3.0\r\nHost: a\r\n\r\n"),
}


@pytest.mark.parametrize(("status", "raw"), REFUSED.values(), ids=REFUSED)
async def test_a_refusal_is_a_problem_document_is_counted_and_closes(serve, each_engine, status, raw):
    counted: list[tuple[int, str]] = []
    async with serve(ok, engine=each_engine, on_refusal=lambda *refusal: counted.append(refusal)) as running:
        async with running.client() as client:
            await client.send(raw)
            answered, head, body = await client.answer()
            document = json.loads(body)
            assert answered == document["status"] == status
            assert dict(head.headers)[b"content-type"] == b"application/problem+json"
            assert dict(head.headers)[b"connection"] == b"close"
            assert document["type"].startswith("urn:holdfast:problem:")
            assert counted == [(status, document["detail"])]
            assert await client.rest() == b""


async def test_a_client_that_still_sends_gets_the_response_and_no_reset(serve):
    """It sends eight megabytes before it reads, as many clients do."""
    async with serve(ok) as running, running.client() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n")
        for _ in range(128):
            await client.send(b"x" * 65536)
        assert (await client.answer())[0] == 413


async def test_a_chunked_body_is_limited(serve):
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    async with serve(ok) as running:
        async with running.client() as client:
            await client.send(
                b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 16 + b"0\r\n\r\n"
            )
            status, _, body = await client.answer()
            assert (status, body) == (200, b"1048576")
        async with running.client() as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 17)
            assert (await client.answer())[0] == 413


@pytest.mark.parametrize(
    ("limit", "sent"), [("head_timeout", b"POST /x HT"), ("head_timeout", POST + b"GET"), ("body_timeout", POST[:-1])]
)
async def test_a_slow_head_or_body_is_408(serve, limit, sent):
    counted: list[int] = []
    async with serve(ok, on_refusal=lambda status, _: counted.append(status), **{limit: 0.05}) as running:
        async with running.client() as client:
            await client.send(sent)
            if sent.startswith(POST):
                assert (await client.answer())[0] == 200
            status, _, body = await client.answer()
            assert (status, counted) == (408, [408])
            assert limit.removesuffix("_timeout") in json.loads(body)["detail"]
            assert await client.rest() == b""


async def test_a_dripping_head_does_not_extend_its_time(serve):
    """Each byte arrives within the timeout, but not all of them together."""
    async with serve(ok, head_timeout=0.3) as running, running.client() as client:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:

                async def drip() -> None:
                    try:
                        for byte in b"GET / HTTP/1.1\r\nX: " + b"y" * 2000:
                            await client.send(bytes([byte]))
                            await trio.sleep(0.02)
                    except trio.BrokenResourceError:
                        pass

                nursery.start_soon(drip)
                assert (await client.answer())[0] == 408
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("first", [b"", POST, b"\r\n"])
async def test_idle_connections_are_closed_silently(serve, first):
    async with serve(ok, idle_timeout=0.3, head_timeout=0.1) as running, running.client() as client:
        await client.send(first)
        if first == POST:
            assert (await client.answer())[0] == 200
        assert await client.rest() == b""


async def test_a_slow_handler_is_not_a_slow_client(serve):
    async def slow(request: Request) -> Response:
        await trio.sleep(0.2)
        return Response(200, [], b"done")

    async with serve(slow, idle_timeout=0.05, head_timeout=0.05, body_timeout=0.05) as running:
        async with running.client() as client:
            await client.send(POST)
            assert (await client.answer())[2] == b"done"


async def test_a_client_that_does_not_read_is_disconnected(serve):
    async def large(request: Request) -> Response:
        return Response(200, [], bytes(32 << 20))

    async with serve(large, idle_timeout=0.2) as running, running.client() as client:
        await client.send(POST)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert running.server.connections == 1
        with trio.fail_after(30):
            while running.server.connections:
                await trio.sleep(0.01)


class Held:
    """A handler that answers when the test releases it."""

    def __init__(self) -> None:
        self.handling = 0
        self.let_go = trio.Event()

    async def __call__(self, request: Request) -> Response:
        self.handling += 1
        await self.let_go.wait()
        return Response(200, [], b"done")


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_a_server_with_a_request_on_every_connection_answers_503(serve):
    """One request is being handled, of the other half the body has arrived."""
    counted: list[int] = []
    held = Held()
    async with serve(held, max_connections=2, on_refusal=lambda status, _: counted.append(status)) as running:
        async with running.client() as first, running.client() as second:
            await first.send(POST)
            await second.send(POST[:-1])
            await until(lambda: held.handling == 1 and not running.server.waiting)
            async with running.client() as third:
                await third.send(POST)
                status, head, _ = await third.answer()
                headers = dict(head.headers)
                assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
                assert await third.rest() == b""
            assert counted == [503]
            held.let_go.set()
            await second.send(POST[-1:])
            for client in (first, second):
                assert (await client.answer())[0] == 200
        await until(lambda: running.server.connections == 0)
        async with running.client() as client:
            await client.send(POST)
            assert (await client.answer())[0] == 200


@asynccontextmanager
async def one_in_hand_and_one_at_the_door(serve, settled):
    """A server for one connection with a blocked handler, and two clients."""
    held = Held()
    async with serve(held, max_connections=1) as running, running.client() as first:
        await first.send(POST)
        await until(lambda: held.handling == 1)
        async with running.client() as second:
            await second.send(POST)
            await settled()
            yield running.server, held, first, second


async def test_a_new_client_waits_for_the_first_response(serve, settled):
    async with one_in_hand_and_one_at_the_door(serve, settled) as (_, held, first, second):
        held.let_go.set()
        for client in (first, second):
            assert (await client.answer())[0] == 200
        assert await first.rest() == b""


async def test_a_waiting_client_gets_503_when_the_server_stops(serve, settled):
    async with one_in_hand_and_one_at_the_door(serve, settled) as (server, held, first, second):
        server.stop()
        held.let_go.set()
        assert (await first.answer())[0] == 200
        assert (await second.answer())[0] == 503


LARGE = Response(200, [], bytes(32 << 20))


async def large(request: Request) -> Response:
    return LARGE if request.target == b"/large" else Response(200, [], b"small")


def large_at_once(request: Request) -> PendingResponse:
    pending = PendingResponse()
    pending.resolve(LARGE if request.target == b"/large" else Response(200, [], b"small"))
    return pending


GET_LARGE = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("handler", [large, large_at_once])
async def test_a_full_server_closes_a_client_that_does_not_read(serve, settled, handler):
    """Its pipelined requests are not handled any more."""
    handled: list[bytes] = []

    def counting(request: Request):
        handled.append(request.target)
        return handler(request)

    async with serve(counting, max_connections=2) as running, running.client() as stuck, running.client() as other:
        await stuck.send(GET_LARGE + POST)
        await settled()
        await other.send(POST)
        assert (await other.answer())[0] == 200
        async with running.client() as new:
            await new.send(POST)
            assert (await new.answer())[0] == 200
            await other.send(POST)
            assert (await other.answer())[0] == 200
            assert len(await stuck.rest()) < 32 << 20
            await settled()
            assert running.server.connections == 2
        assert handled == [b"/large", b"/x", b"/x", b"/x"]


@pytest.mark.parametrize("handler", [large, large_at_once])
async def test_a_slow_reader_gets_its_response_while_there_is_room(serve, settled, handler):
    async with serve(handler, max_connections=2) as running, running.client() as late, running.client() as other:
        await late.send(GET_LARGE + POST)
        await settled()
        await other.send(POST)
        assert (await other.answer())[0] == 200
        data = b""
        with trio.fail_after(30):
            while not data.endswith(b"small"):
                data += await late.stream.receive_some(1 << 20)
        assert len(data) > 32 << 20


async def test_few_responses_are_made_for_a_client_that_does_not_read(serve, settled):
    made = 0

    async def answer(request: Request) -> Response:
        nonlocal made
        made += 1
        return Response(200, [], bytes(16384))

    async with serve(answer) as running:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", running.port))
            client.sendall(POST * 1000)
            await settled()
            assert MAX_UNSENT < made * 16384 < 2 * MAX_UNSENT


async def test_a_stuck_stream_is_closed_to_make_room_after_a_while(serve, settled, mock_clock):
    async def stream(request: Request) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes, None]:
            yield LARGE.body

        return StreamingResponse(200, [], pieces())

    async with serve(stream, max_connections=1) as running, running.client() as stuck:
        await stuck.send(POST)
        await settled()
        async with running.client() as early:
            await settled()
            mock_clock.jump(ROOM_SECONDS)
            assert (await early.answer())[0] == 503
        mock_clock.jump(STREAM_PATIENCE)
        async with running.client() as new:
            await new.send(POST)
            assert (await new.stream.receive_some()).startswith(b"HTTP/1.1 200")


async def test_pipelined_requests_leave_other_connections_their_turn(serve):
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with serve(ok) as running, running.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        before = turns
        await client.send(POST * 200)
        for _ in range(200):
            assert (await client.answer())[0] == 200
        assert turns - before >= 200
        nursery.cancel_scope.cancel()


async def test_pipelined_requests_do_not_keep_a_connection_open(serve):
    async def slow(request: Request) -> Response:
        await trio.testing.wait_all_tasks_blocked()
        return Response(200, [], b"")

    async with serve(slow, max_connections=1) as running, running.client() as first:
        await first.send(POST * 10_000)
        async with running.client() as second:
            await second.send(POST)
            assert (await second.answer())[0] == 200


async def test_a_stream_that_is_read_is_never_closed_to_make_room(serve):
    async def stream(request: Request) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes, None]:
            yield b"piece"
            await trio.sleep_forever()

        return StreamingResponse(200, [], pieces())

    async with serve(stream, max_connections=1) as running, running.client() as first:
        await first.send(POST)
        assert (await first.stream.receive_some()).startswith(b"HTTP/1.1 200")
        async with running.client() as second:
            await second.send(POST)
            assert (await second.answer())[0] == 503
        assert running.server.connections == 1


WITHOUT_A_REQUEST = {
    "said nothing": b"",
    "sent an empty line": b"\r\n",
    "drips a head": b"POST /x HT",
    "is idle after an answer": POST,
    "does not leave after a refusal": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "does not leave after its last answer": POST.replace(b"Host", b"Connection: close\r\nHost"),
}


@pytest.mark.parametrize("sent", WITHOUT_A_REQUEST.values(), ids=WITHOUT_A_REQUEST)
async def test_a_full_server_closes_the_connection_without_a_request_for_longest(serve, settled, sent):
    async with serve(ok, max_connections=3) as running, running.client() as first:
        await first.send(sent)
        await settled()
        async with running.client() as second, running.client() as third, running.client() as fourth:
            await first.rest()
            for client in (fourth, third, second):
                await client.send(POST)
                assert (await client.answer())[0] == 200
            assert running.server.connections == 3


async def test_a_connection_with_the_latest_response_is_closed_last(serve, settled):
    async with serve(ok, max_connections=2) as running, running.client() as used, running.client() as silent:
        await settled()
        await used.send(POST)
        assert (await used.answer())[0] == 200
        async with running.client() as new:
            await new.send(POST)
            assert (await new.answer())[0] == 200
            assert await silent.rest() == b""
            await used.send(POST)
            assert (await used.answer())[0] == 200


async def test_a_connection_with_an_unread_request_is_not_closed(serve):
    """Many clients have sent their requests before the first one is accepted. Each gets some answer."""
    async with serve(ok, max_connections=2) as running, AsyncExitStack() as stack:
        crowd = []
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            sock.sendall(POST)
            sock.setblocking(False)
            crowd.append(trio.socket.from_stdlib_socket(sock))
        with trio.fail_after(30):
            statuses = [(await each.recv(12))[-3:] for each in crowd]
        assert b"200" in statuses
        assert set(statuses) <= {b"200", b"503"}


@pytest.mark.parametrize("sent", [b"POST /x HT", b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", POST[:5] + b"\n"])
async def test_an_endless_head_does_not_keep_a_connection_open(serve, settled, sent):
    """The first client has unread bytes whenever another one connects."""
    with socket.socket() as first:

        def admit(_: object) -> None:
            first.send(b"x" * 100)

        async with serve(ok, max_connections=1, admit=admit) as running:
            first.connect(("127.0.0.1", running.port))
            first.send(sent)
            await settled()
            async with running.client() as second:
                await second.send(POST)
                assert (await second.answer())[0] == 200


async def test_closing_to_make_room_is_logged_once_in_an_interval(serve, caplog, autojump_clock):
    async with serve(ok, max_connections=1, idle_timeout=1000) as running:

        async def come_and_go(count: int) -> None:
            for _ in range(count):
                async with running.client() as client:
                    await client.send(POST)
                    assert (await client.answer())[0] == 200
                    async with running.client():
                        assert await client.rest() == b""

        await come_and_go(5)
        (logged,) = caplog.messages
        assert "127.0.0.1:" in logged
        assert "limit of 1 connections" in logged
        await trio.sleep(LOG_INTERVAL)
        await come_and_go(5)
        assert len(caplog.messages) == 2


async def test_a_lower_limit_applies_from_the_next_connection(serve, limits, settled):
    async with serve(ok) as running, AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(running.client())
        await settled()
        assert running.server.connections == 10
        running.server.set_limits(replace(limits, max_connections=4))
        async with running.client() as client:
            await client.send(POST)
            assert (await client.answer())[0] == 200
            assert running.server.connections == 4


async def test_the_server_survives_running_out_of_descriptors(serve, caplog):
    async with serve(ok) as running:
        caller = socket.socket()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
            with pytest.raises(OSError) as raised:
                socket.socket()
            assert raised.value.errno == errno.EMFILE
            caller.connect(("127.0.0.1", running.port))
            with trio.fail_after(30):
                while "could not accept" not in caplog.text:
                    await trio.sleep(0.01)
            await trio.sleep(0.25)
            assert caplog.text.count("could not accept") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        caller.setblocking(False)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(caller)) as stream:
            with trio.fail_after(30):
                await stream.send_all(POST)
                assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 200 ")
