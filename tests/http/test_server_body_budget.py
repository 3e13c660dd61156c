"""The budget for bytes of request bodies."""

import gc
import json
import tracemalloc
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.http.exceptions import problem_for_status
from holdfast.http.request_response import PendingResponse, Request, Response
from holdfast.http.server import BodyBudget

LARGE = 100_000
SMALL = 16_384
MOST = 2 * LARGE
CHUNKED = b"Transfer-Encoding: chunked"
EXPECT = b"Expect: 100-continue"


def head(length: int, *fields: bytes) -> bytes:
    lines = [b"POST /x HTTP/1.1", b"Host: a", b"Content-Length: %d" % length, *fields, b"", b""]
    return b"\r\n".join(lines if CHUNKED not in fields else [line for line in lines if b"Length" not in line])


async def ok(request: Request) -> Response:
    return Response(200, [], b"%d" % len(request.body))


class Later:
    """A handler that keeps each request pending, as a store does."""

    def __init__(self) -> None:
        self.pending: list[PendingResponse] = []

    def __call__(self, request: Request) -> PendingResponse:
        self.pending.append(PendingResponse())
        return self.pending[-1]


@pytest.fixture
def small_server(serve):
    """A server with a budget for two large bodies."""
    return lambda handler=ok, **options: serve(handler, **({"body_budget": MOST, "max_body": LARGE} | options))


async def until(condition) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.001)


async def begun(running, stack, *starts: bytes) -> list:
    """Clients that have sent these bytes, one after another."""
    clients = []
    for start in starts:
        clients.append(await stack.enter_async_context(running.client()))
        await clients[-1].send(start)
        await wait_all_tasks_blocked(0.01)
    return clients


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


async def test_bodies_over_the_budget_wait_unread_and_are_served_in_order(small_server, stack):
    served: list[bytes] = []

    async def note(request: Request) -> Response:
        served.append(request.body[:1])
        return Response(200)

    async with small_server(note, max_body=MOST) as running:
        clients = await begun(running, stack, *[head(MOST) + b"%d" % number for number in range(5)])
        assert running.server.body_budget.held == MOST
        async with trio.open_nursery() as nursery:
            for number in (4, 3, 2, 1, 0):
                nursery.start_soon(clients[number].send, b"x" * (MOST - 1))
        for client in clients:
            assert (await client.answer())[0] == 200
        assert served == [b"0", b"1", b"2", b"3", b"4"]
        assert running.server.body_budget.held == 0


@pytest.mark.parametrize("start", [b"", b"x" * 1000], ids=["after its head", "in part with its head"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_small_bodies_never_wait(small_server, stack, chunked, start):
    async with small_server() as running:
        await begun(running, stack, head(LARGE), head(LARGE), head(LARGE))
        whole = b"x" * SMALL
        pieces = [b"4000\r\n", whole, b"\r\n0\r\n\r\n"] if chunked else [whole[:10], whole[10:]]
        (client,) = await begun(running, stack, head(SMALL, *([CHUNKED] if chunked else [])) + pieces[0])
        for piece in pieces[1:]:
            await client.send(piece)
        assert (await client.answer())[2] == b"16384"


async def test_a_body_larger_than_the_budget_is_received_alone(small_server, stack):
    async with small_server(max_body=2 * MOST) as running:
        first, huge, third = await begun(running, stack, head(LARGE), head(2 * MOST), head(LARGE))
        assert running.server.body_budget.held == LARGE
        await first.send(b"x" * LARGE)
        await until(lambda: running.server.body_budget.held == 2 * MOST)
        await huge.send(b"x" * 2 * MOST)
        await until(lambda: running.server.body_budget.held == LARGE)
        await third.send(b"x" * LARGE)
        assert [(await client.answer())[0] for client in (first, huge, third)] == [200] * 3


@pytest.mark.parametrize("fields", [(EXPECT,), (EXPECT, CHUNKED)], ids=["sized", "chunked"])
async def test_continue_is_sent_only_when_there_is_budget(small_server, stack, fields):
    async with small_server() as running:
        first, _, asking = await begun(running, stack, head(LARGE), head(LARGE), head(LARGE, *fields))
        with trio.move_on_after(0.05):
            pytest.fail(f"it was told {await asking.stream.receive_some()}")
        await first.send(b"x" * LARGE)
        with trio.fail_after(30):
            assert (await asking.stream.receive_some()).startswith(b"HTTP/1.1 100 ")


@pytest.mark.parametrize("fields", [(), (CHUNKED,), (CHUNKED, EXPECT)], ids=["sized", "chunked", "asking"])
async def test_a_body_without_budget_in_time_is_503_with_retry_after(small_server, stack, fields):
    counted: list[int] = []
    holding = Later()
    async with small_server(
        holding, body_timeout=0.2, idle_timeout=60, on_refusal=lambda status, _: counted.append(status)
    ) as running:
        await begun(running, stack, *[head(LARGE) + b"x" * LARGE] * 2)
        await until(lambda: len(holding.pending) == 2)
        chunk = b"5000\r\n" + b"x" * 0x5000 if CHUNKED in fields and EXPECT not in fields else b""
        (late,) = await begun(running, stack, head(LARGE, *fields) + chunk)
        status, answer, body = await late.answer()
        assert (status, counted) == (503, [503])
        assert dict(answer.headers)[b"retry-after"] == b"1"
        assert dict(answer.headers)[b"content-type"] == b"application/problem+json"
        assert json.loads(body)["type"] == "urn:holdfast:problem:service-unavailable"
        assert await late.rest() == b""
        assert running.server.body_budget.held == MOST
        for pending in holding.pending:
            pending.resolve(Response(200))
        assert running.server.body_budget.held == 0


async def test_the_wait_for_budget_does_not_shorten_the_time_for_the_body(small_server, stack, autojump_clock):
    async with small_server(body_timeout=10) as running:
        holding = await begun(running, stack, head(LARGE), head(LARGE))
        (late,) = await begun(running, stack, head(LARGE))
        await trio.sleep(8)
        for client in holding:
            await client.send(b"x" * LARGE)
        await trio.sleep(8)
        await late.send(b"x" * LARGE)
        assert (await late.answer())[0] == 200


WAYS_OUT = {
    "the client goes": (head(LARGE), None, None),
    "408": (head(LARGE), b"", 408),
    "413": (head(LARGE, CHUNKED, EXPECT), b"186a0\r\n" + b"x" * LARGE + b"\r\n1\r\nx\r\n", 413),
    "400": (head(LARGE, CHUNKED, EXPECT), b"no chunk\r\n", 400),
    "answered": (head(LARGE), b"x" * LARGE, 200),
    "answered, chunked": (head(LARGE, CHUNKED), b"8000\r\n" + b"x" * 0x8000 + b"\r\n0\r\n\r\n", 200),
    "answered, to 1.0": (head(LARGE).replace(b"1.1", b"1.0"), b"x" * LARGE, 200),
}


@pytest.mark.parametrize(("start", "rest", "status"), WAYS_OUT.values(), ids=WAYS_OUT)
async def test_the_budget_is_given_back_however_a_request_ends(small_server, stack, start, rest, status):
    async with small_server(body_timeout=0.2 if status == 408 else 60) as running:
        (client,) = await begun(running, stack, start)
        if CHUNKED not in start or EXPECT in start:
            assert running.server.body_budget.held == LARGE
        if EXPECT in start:
            assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        if rest is None:
            await client.stream.aclose()
        else:
            await client.send(rest)
            assert (await client.answer())[0] == status
            assert running.server.body_budget.held == 0, "not only when the client has gone"
        await until(lambda: running.server.body_budget.held == 0)


async def test_a_turn_that_comes_with_a_cancellation_is_passed_on():
    """Both happen in the same pass of the scheduler: the cancellation comes before the budget is given back."""
    budget = BodyBudget(10)
    await budget.take(10)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(budget.take, 10)
            await wait_all_tasks_blocked()
            scope.cancel()
            budget.give_back(10)
    assert budget.held == 0
    with trio.fail_after(30):
        await budget.take(10)


async def test_a_request_that_leaves_the_queue_lets_the_next_ones_in(small_server, stack, autojump_clock):
    async with small_server(Later(), body_timeout=10, max_body=MOST) as running:
        await begun(running, stack, head(LARGE) + b"x" * LARGE)
        await begun(running, stack, head(MOST))
        await trio.sleep(5)
        await begun(running, stack, head(LARGE))
        assert running.server.body_budget.held == LARGE
        await until(lambda: running.server.body_budget.held == 2 * LARGE)


async def test_the_budget_is_held_until_a_pending_response_is_resolved(small_server, stack):
    later = Later()
    async with small_server(later) as running:
        (client,) = await begun(running, stack, head(LARGE) + b"x" * LARGE)
        await until(lambda: later.pending)
        await client.stream.aclose()
        await wait_all_tasks_blocked(0.01)
        assert running.server.body_budget.held == LARGE
        later.pending[0].resolve(Response(200))
        assert running.server.body_budget.held == 0
        await until(lambda: running.server.connections == 0)


async def test_a_complete_chunked_body_keeps_only_its_size_of_the_budget(small_server, stack):
    later = Later()
    async with small_server(later) as running:
        start = head(LARGE, CHUNKED) + b"5000\r\n" + b"x" * 0x5000
        (client,) = await begun(running, stack, start)
        assert running.server.body_budget.held == LARGE
        await client.send(b"\r\n0\r\n\r\n")
        await until(lambda: later.pending)
        assert running.server.body_budget.held == 0x5000


def refusing(request: Request) -> PendingResponse:
    raise problem_for_status(400, "no")


def refusing_later(request: Request) -> PendingResponse:
    pending = PendingResponse()
    trio.lowlevel.current_trio_token().run_sync_soon(_give_refusal, pending, request)
    return pending


def _give_refusal(pending: PendingResponse, request: Request) -> None:
    """Holds the message when it refuses, like a store."""
    try:
        raise problem_for_status(507, "no")
    except Exception as error:
        pending.resolve(error)


@pytest.mark.parametrize("handler", [ok, refusing, refusing_later])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_open_connection_holds_no_body_after_its_response(serve, stack, handler, chunked):
    """Not even until a garbage collection."""
    size = 1 << 20
    whole = head(size, CHUNKED) + b"100000\r\n" if chunked else head(size)
    async with serve(handler) as running:
        clients = await begun(running, stack, *[b""] * 8)
        body, end = bytes(size), b"\r\n0\r\n\r\n" if chunked else b""
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for client in clients:
                await client.send(whole)
                await client.send(body)
                await client.send(end)
                await client.answer()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert running.server.connections == 8
        assert held < size


async def test_a_body_exists_once_while_it_is_handled(serve, stack):
    size, count = 1 << 20, 8
    done = trio.Event()
    handling: list[Request] = []

    async def hold(request: Request) -> Response:
        handling.append(request)
        await done.wait()
        return Response(200)

    async with serve(hold) as running:
        clients = await begun(running, stack, *[b""] * count)
        body = bytes(size)
        tracemalloc.start()
        try:
            for client in clients:
                await client.send(head(size))
                await client.send(body)
            await until(lambda: len(handling) == count)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            done.set()
        assert held < 1.5 * count * size
