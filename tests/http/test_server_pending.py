"""Pending responses, resolved by other code."""

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.http.exceptions import problem_for_status
from holdfast.http.request_response import PendingResponse, Request, Response


class Later:
    """A handler whose responses are resolved by the test."""

    def __init__(self) -> None:
        self.pending: list[tuple[bytes, PendingResponse]] = []

    def __call__(self, request: Request) -> PendingResponse:
        pending = PendingResponse()
        self.pending.append((request.target, pending))
        return pending

    async def until(self, count: int) -> None:
        with trio.fail_after(30):
            while len(self.pending) < count:
                await trio.lowlevel.checkpoint()

    def resolve(self, number: int, answer: object = None) -> None:
        target, pending = self.pending[number]
        pending.resolve(Response(200, [], target) if answer is None else answer)


def get(target: bytes, *headers: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n" % (target, b"".join(header + b"\r\n" for header in headers))


@pytest.fixture
def later() -> Later:
    return Later()


async def test_pending_responses_follow_each_other_on_one_connection(serve, later, each_engine):
    async with serve(later, engine=each_engine) as running, running.client() as client:
        for number in range(3):
            await client.send(get(b"/%d" % number))
            await later.until(number + 1)
            later.resolve(number)
            assert (await client.answer())[2] == b"/%d" % number


async def test_a_response_that_is_resolved_already_is_sent(serve):
    def at_once(request: Request) -> PendingResponse:
        pending = PendingResponse()
        pending.resolve(b"HTTP/1.1 204 No Content\r\n\r\n")
        return pending

    async with serve(at_once) as running, running.client() as client:
        for _ in range(3):
            await client.send(get(b"/"))
            assert (await client.answer())[0] == 204


async def test_the_next_request_waits_for_the_response_before_it(serve, later):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0") + get(b"/1"))
        await wait_all_tasks_blocked(0.01)
        await client.send(get(b"/2"))
        await wait_all_tasks_blocked(0.01)
        assert len(later.pending) == 1
        for number in range(3):
            await later.until(number + 1)
            later.resolve(number)
            assert (await client.answer())[2] == b"/%d" % number


async def test_a_refusal_waits_for_the_response_before_it(serve, later):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0") + b"GET / HTTP/1.1\nHost: a\n\n")
        await later.until(1)
        await wait_all_tasks_blocked(0.01)
        later.resolve(0)
        assert (await client.answer())[::2] == (200, b"/0")
        assert (await client.answer())[0] == 400
        assert await client.rest() == b""


async def test_the_next_head_does_not_time_out_while_a_response_is_pending(serve, later, autojump_clock):
    async with serve(later, head_timeout=5) as running, running.client() as client:
        await client.send(get(b"/0") + get(b"/1")[:10])
        await later.until(1)
        await trio.sleep(60)
        later.resolve(0)
        assert (await client.answer())[0] == 200
        await client.send(get(b"/1")[10:])
        await later.until(2)
        later.resolve(1)
        assert (await client.answer())[2] == b"/1"


async def test_a_client_that_closed_its_side_still_gets_its_response(serve, later):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0"))
        await client.stream.send_eof()
        await later.until(1)
        await wait_all_tasks_blocked(0.01)
        later.resolve(0)
        assert (await client.answer())[2] == b"/0"
        assert await client.rest() == b""


async def test_a_client_that_left_does_not_disturb_others(serve, later):
    async with serve(later) as running:
        async with running.client() as client:
            await client.send(get(b"/0"))
            await later.until(1)
        later.resolve(0)
        with trio.fail_after(30):
            while running.server.connections:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("header", [b"Connection: close", b"X-A: b"])
async def test_an_exception_becomes_an_error_response(serve, later, caplog, header):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0", header))
        await later.until(1)
        later.resolve(0, problem_for_status(507, "no room"))
        assert (await client.answer())[0] == 507
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/1", header))
        await later.until(2)
        later.resolve(1, RuntimeError("a bug"))
        assert (await client.answer())[0] == 500
    assert "a bug" in caplog.text


async def test_an_invalid_response_closes_only_its_own_connection(serve, later, caplog):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0"))
        await later.until(1)
        later.resolve(0, object())
        assert await client.rest() == b""
    assert "sending an answer failed" in caplog.text


async def test_stopping_sends_pending_responses_and_closes(serve, later):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0"))
        await later.until(1)
        running.server.stop()
        await wait_all_tasks_blocked(0.01)
        later.resolve(0)
        status, head, body = await client.answer()
        assert (status, body, dict(head.headers)[b"connection"]) == (200, b"/0", b"close")
        assert await client.rest() == b""


async def test_a_response_larger_than_the_socket_buffers_arrives_whole(serve, later):
    async with serve(later) as running, running.client() as client:
        await client.send(get(b"/0") + get(b"/1"))
        await later.until(1)
        body = bytes(range(256)) * (32 << 10)
        later.resolve(0, Response(200, [], body))
        await wait_all_tasks_blocked(0.01)
        assert len(later.pending) == 1
        assert (await client.answer())[2] == body
        await later.until(2)
        later.resolve(1)
        assert (await client.answer())[2] == b"/1"


async def test_a_client_that_reads_nothing_is_disconnected(serve, later, autojump_clock):
    async with serve(later, idle_timeout=5) as running, running.client() as client:
        await client.send(get(b"/0"))
        await later.until(1)
        later.resolve(0, Response(200, [], bytes(32 << 20)))
        with trio.fail_after(60):
            while running.server.connections:
                await trio.sleep(1)


async def test_a_connection_is_closed_to_make_room_only_after_its_response(serve, later):
    async with serve(later, max_connections=1) as running, running.client() as first:
        await first.send(get(b"/0"))
        await later.until(1)
        async with running.client() as second:
            assert (await second.answer())[0] == 503
        later.resolve(0)
        assert (await first.answer())[2] == b"/0"
        async with running.client() as third:
            await third.send(get(b"/1"))
            await later.until(2)
            assert await first.rest() == b""
            later.resolve(1)
            assert (await third.answer())[2] == b"/1"


async def test_a_connection_closed_to_make_room_starts_no_further_request(serve, later):
    """A new connection arrives with the response, before the pipelined request is read."""

    def admit(_: object) -> None:
        if later.pending:
            later.resolve(0)

    async with serve(later, max_connections=1, admit=admit) as running, running.client() as first:
        await first.send(get(b"/0") + get(b"/1"))
        await later.until(1)
        await wait_all_tasks_blocked(0.01)
        async with running.client() as second:
            assert (await first.answer())[2] == b"/0"
            assert await first.rest() == b""
            assert len(later.pending) == 1
            await second.send(get(b"/2"))
            await later.until(2)
            later.resolve(1)
            assert (await second.answer())[2] == b"/2"


async def test_nothing_is_kept_of_a_client_that_reset_before_its_response(serve, later):
    async with serve(later) as running:
        async with running.client() as client:
            await client.send(get(b"/0"))
            await later.until(1)
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        with trio.fail_after(30):
            while running.server.connections:
                await trio.lowlevel.checkpoint()
        later.resolve(0)
        assert not running.server.waiting
