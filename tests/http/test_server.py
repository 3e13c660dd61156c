"""Requests and responses of the server."""

import json
import logging
import socket

import pytest
import trio

from holdfast.http.exceptions import Problem
from holdfast.http.request_response import Request, Response, StreamingResponse

POST = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


async def echo(request: Request) -> Response:
    document = {
        "method": request.method,
        "target": request.target.decode(),
        "body": len(request.body),
        "local": request.local,
    }
    return Response(200, [(b"content-type", b"application/json")], json.dumps(document).encode())


def get(path: bytes = b"/", version: bytes = b"1.1", *headers: bytes) -> bytes:
    return b"GET %s HTTP/%s\r\nHost: a\r\n" % (path, version) + b"".join(h + b"\r\n" for h in headers) + b"\r\n"


async def test_a_request_is_answered(serve, each_engine):
    async with serve(echo, engine=each_engine) as running, running.client() as client:
        await client.send(POST)
        status, head, body = await client.answer()
        assert status == 200
        assert dict(head.headers)[b"content-length"] == b"%d" % len(body)
        assert json.loads(body) == {"method": "POST", "target": "/x", "body": 5, "local": ["127.0.0.1", running.port]}


async def test_connections_are_kept_and_counted(serve):
    async with serve(echo) as running:
        async with running.client() as client:
            for number in range(3):
                await client.send(get(b"/%d" % number))
                _, head, body = await client.answer()
                assert json.loads(body)["target"] == f"/{number}"
                assert b"connection" not in dict(head.headers)
            assert running.server.connections == 1
        with trio.fail_after(30):
            while running.server.connections:
                await trio.lowlevel.checkpoint()


async def test_pipelined_requests_are_answered_in_order(serve, each_engine):
    """The first handler waits until the last request has arrived."""
    arrived: list[bytes] = []

    async def slow_first(request: Request) -> Response:
        arrived.append(request.target)
        if request.target == b"/0":
            await trio.testing.wait_all_tasks_blocked()
        return Response(200, [], request.target)

    async with serve(slow_first, engine=each_engine) as running, running.client() as client:
        await client.send(b"".join(get(b"/%d" % number) for number in range(5)) + POST)
        answers = [(await client.answer())[2] for _ in range(6)]
        assert answers == arrived == [b"/0", b"/1", b"/2", b"/3", b"/4", b"/x"]


async def test_a_pipelined_refusal_comes_after_the_answers_before_it(serve):
    async with serve(echo) as running, running.client() as client:
        await client.send(get(b"/0") + b"GET / HTTP/1.1\nHost: a\n\n")
        assert (await client.answer())[0] == 200
        assert (await client.answer())[0] == 400
        assert await client.rest() == b""


@pytest.mark.parametrize(
    ("headers", "kept"), [((), False), ((b"Connection: keep-alive",), True), ((b"Connection: close",), False)]
)
async def test_http_1_0_is_answered(serve, headers, kept):
    async with serve(echo) as running, running.client() as client:
        await client.send(get(b"/", b"1.0", *headers))
        status, head, _ = await client.answer()
        assert status == 200
        assert dict(head.headers)[b"connection"] == (b"keep-alive" if kept else b"close")
        if kept:
            await client.send(get())
            assert (await client.answer())[0] == 200
        else:
            assert await client.rest() == b""


async def test_connection_close_is_obeyed(serve):
    async with serve(echo) as running, running.client() as client:
        await client.send(get(b"/", b"1.1", b"Connection: close"))
        _, head, _ = await client.answer()
        assert dict(head.headers)[b"connection"] == b"close"
        assert await client.rest() == b""


async def test_head_gets_no_body(serve):
    async with serve(echo) as running, running.client() as client:
        await client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + get(b"/next"))
        status, head, body = await client.answer(to_head_request=True)
        assert (status, body) == (200, b"")
        assert int(dict(head.headers)[b"content-length"]) > 0
        assert json.loads((await client.answer())[2])["target"] == "/next"


async def test_encoded_bytes_are_sent_unchanged(serve):
    prepared = Response(202, [(b"x-prepared", b"1")], b"ok").encode()

    async def handler(request: Request) -> bytes:
        return prepared

    async with serve(handler) as running, running.client() as client:
        await client.send(POST + get(b"/", b"1.1", b"Connection: close"))
        assert await client.rest() == prepared + prepared.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


async def test_204_has_no_length(serve):
    async def handler(request: Request) -> Response:
        return Response(204)

    async with serve(handler) as running, running.client() as client:
        await client.send(get(b"/", b"1.1", b"Connection: close"))
        assert await client.rest() == b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


async def test_continue_is_sent_only_after_the_gate(serve):
    def gate(head):
        if head.target == b"/no":
            raise Problem(403, "Forbidden", "not here", type="urn:holdfast:problem:forbidden")

    expecting = b"POST %s HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    async with serve(echo, gate=gate) as running:
        async with running.client() as client:
            await client.send(expecting % b"/yes")
            with trio.fail_after(30):
                assert await client.stream.receive_some(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"hello")
            assert (await client.answer())[0] == 200
        async with running.client() as client:
            await client.send(expecting % b"/no")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"connection: close" in answer


async def test_no_continue_is_sent_if_the_body_has_started(serve):
    async with serve(echo) as running, running.client() as client:
        await client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\nh"
        )
        await client.send(b"i")
        assert (await client.rest()).startswith(b"HTTP/1.1 200 ")


async def test_the_gate_refuses_before_the_body_and_closes(serve):
    handled: list[Request] = []

    async def handler(request: Request) -> Response:
        handled.append(request)
        return Response(200)

    def gate(head):
        raise Problem(
            507, "Full", "wait", type="urn:x", headers=[(b"retry-after", b"7")], extra={"used": 1, "status": 9}
        )

    async with serve(handler, gate=gate) as running, running.client() as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n")
        status, head, body = await client.answer()
        headers = dict(head.headers)
        assert status == 507
        assert headers[b"content-type"] == b"application/problem+json"
        assert headers[b"retry-after"] == b"7"
        assert json.loads(body) == {"type": "urn:x", "title": "Full", "status": 507, "detail": "wait", "used": 1}
        assert await client.rest() == b""
        assert not handled


async def test_a_problem_of_the_handler_keeps_the_connection(serve):
    async def handler(request: Request) -> Response:
        raise Problem(404, "Not Found", "no such route", type="urn:holdfast:problem:no-route")

    async with serve(handler) as running, running.client() as client:
        for _ in range(2):
            await client.send(POST)
            assert (await client.answer())[0] == 404


async def test_a_failing_handler_is_500_and_logged(serve, caplog):
    async def handler(request: Request) -> Response:
        if request.target == b"/boom":
            raise OSError("this one is not the client's")
        return Response(200)

    with caplog.at_level(logging.ERROR, "holdfast.http"):
        async with serve(handler) as running, running.client() as client:
            await client.send(get(b"/boom"))
            status, _, body = await client.answer()
            assert status == 500
            assert json.loads(body)["type"] == "urn:holdfast:problem:internal-server-error"
            assert b"client's" not in body
            await client.send(get())
            assert (await client.answer())[0] == 200
    assert "this one is not the client's" in caplog.text
    assert "/boom" not in caplog.text


async def test_a_failing_gate_is_500(serve, caplog):
    def gate(head):
        raise ZeroDivisionError

    async with serve(echo, gate=gate) as running, running.client() as client:
        await client.send(get())
        assert (await client.answer())[0] == 500
    assert "ZeroDivisionError" in caplog.text


async def test_a_handler_finishes_after_its_client_left(serve):
    entered, go, finished = trio.Event(), trio.Event(), trio.Event()

    async def handler(request: Request) -> Response:
        entered.set()
        await go.wait()
        await trio.lowlevel.checkpoint()
        finished.set()
        return Response(200)

    async with serve(handler) as running:
        async with running.client() as client:
            await client.send(POST)
            await entered.wait()
            client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        go.set()
        with trio.fail_after(30):
            await finished.wait()
        async with running.client() as client:
            await client.send(POST)
            assert (await client.answer())[0] == 200


async def test_a_client_that_leaves_in_the_middle_is_not_logged(serve, caplog):
    async with serve(echo) as running:
        for sent in (b"", b"P", POST[:20], POST[:-2], POST):
            async with running.client() as client:
                await client.send(sent)
                client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        async with running.client() as client:
            await client.send(POST)
            assert (await client.answer())[0] == 200
    assert not caplog.records


async def test_a_stream_is_sent_piece_by_piece(serve):
    more = trio.Event()

    async def handler(request: Request) -> StreamingResponse:
        async def pieces():
            yield b"one\n"
            await more.wait()
            yield b""
            yield b"two\n"

        return StreamingResponse(200, [(b"content-type", b"text/plain")], pieces())

    async with serve(handler) as running:
        async with running.client() as client:
            await client.send(get())
            heard = b""
            with trio.fail_after(30):
                while b"one\n" not in heard:
                    heard += await client.stream.receive_some(1000)
            more.set()
            heard += await client.rest()
            assert heard.endswith(b"\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\n")
        async with running.client() as client:
            await client.send(get(b"/", b"1.0"))
            assert (await client.rest()).endswith(b"\r\n\r\none\ntwo\n")


@pytest.mark.parametrize("how", ["client leaves", "server stops"])
async def test_an_endless_stream_ends_with_its_client_or_server(serve, how):
    closed = trio.Event()

    async def handler(request: Request) -> StreamingResponse:
        async def pieces():
            try:
                yield b"one"
                await trio.sleep_forever()
            finally:
                closed.set()

        return StreamingResponse(200, [], pieces())

    async with serve(handler) as running:
        async with running.client() as client:
            await client.send(get())
            heard = b""
            while b"one" not in heard:
                heard += await client.stream.receive_some(1000)
            if how == "server stops":
                running.server.stop()
                await client.rest()
        with trio.fail_after(30):
            await closed.wait()


async def test_a_stream_that_fails_ends_without_its_last_chunk(serve, caplog):
    async def handler(request: Request) -> StreamingResponse:
        async def pieces():
            yield b"one"
            raise ZeroDivisionError

        return StreamingResponse(200, [], pieces())

    async with serve(handler) as running, running.client() as client:
        await client.send(get())
        assert (await client.rest()).endswith(b"3\r\none\r\n")
    assert "ZeroDivisionError" in caplog.text


async def test_stopping_closes_idle_connections_and_finishes_requests(serve):
    entered, go = trio.Event(), trio.Event()

    async def handler(request: Request) -> Response:
        if request.target == b"/slow":
            entered.set()
            await go.wait()
        return Response(200, [], request.target)

    async with serve(handler) as running:
        async with (
            running.client() as idle,
            running.client() as fresh,
            running.client() as busy,
            running.client() as sending,
        ):
            await idle.send(get())
            assert (await idle.answer())[0] == 200
            await busy.send(get(b"/slow") + get(b"/pipelined"))
            await sending.send(POST[:-1])
            await entered.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            running.server.stop()
            assert await idle.rest() == b""
            assert await fresh.rest() == b""
            with pytest.raises(OSError, match="connect"):
                await trio.open_tcp_stream("127.0.0.1", running.port)
            go.set()
            status, head, body = await busy.answer()
            assert (status, body, dict(head.headers)[b"connection"]) == (200, b"/slow", b"close")
            assert await busy.rest() == b""
            await sending.send(POST[-1:])
            status, head, _ = await sending.answer()
            assert (status, dict(head.headers)[b"connection"]) == (200, b"close")
            assert await sending.rest() == b""
        with trio.fail_after(30):
            while running.server.connections:
                await trio.lowlevel.checkpoint()
