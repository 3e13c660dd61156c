"""What the server refuses, and that nobody can hold it up."""

import errno
import json
import resource
import socket

import pytest
import trio

from holdfast.http.server import Request, Response

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
async def test_refusals_are_problems_counted_and_close(serve, each_engine, status, raw):
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


async def test_a_client_still_sending_sees_the_answer_not_a_reset(serve):
    """It sends eight megabytes before it listens, as many clients do."""
    async with serve(ok) as running, running.client() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n")
        for _ in range(128):
            await client.send(b"x" * 65536)
        assert (await client.answer())[0] == 413


async def test_a_chunked_body_is_counted(serve):
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
async def test_too_slow_is_408(serve, limit, sent):
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


async def test_the_head_may_not_be_dripped(serve):
    """Each byte comes well within the timeout; all of them together do not."""
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


async def test_a_client_that_does_not_read_is_dropped(serve):
    async def large(request: Request) -> Response:
        return Response(200, [], bytes(32 << 20))

    async with serve(large, idle_timeout=0.2) as running, running.client() as client:
        await client.send(POST)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert running.server.connections == 1
        with trio.fail_after(30):
            while running.server.connections:
                await trio.sleep(0.01)


async def test_too_many_connections_get_503_and_room_comes_back(serve):
    counted: list[int] = []
    async with serve(ok, max_connections=2, on_refusal=lambda status, _: counted.append(status)) as running:
        async with running.client() as first, running.client() as second:
            for client in (first, second):
                await client.send(POST)
                assert (await client.answer())[0] == 200
            async with running.client() as third:
                await third.send(POST)
                status, head, _ = await third.answer()
                headers = dict(head.headers)
                assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
                assert await third.rest() == b""
            assert counted == [503]
            await first.send(POST)
            assert (await first.answer())[0] == 200
        with trio.fail_after(30):
            while running.server.connections:
                await trio.lowlevel.checkpoint()
        async with running.client() as client:
            await client.send(POST)
            assert (await client.answer())[0] == 200


async def test_running_out_of_descriptors_is_survived(serve, caplog):
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
