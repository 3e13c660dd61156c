"""A wire receives every byte and every end, and no task waits for ever."""

import errno
import random
import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.http.wire import Wire


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_bytes_from_before_the_registration_are_received(ends):
    ours, theirs = ends
    theirs.send(b"early")
    assert await Wire(ours).receive(100) == b"early"


async def test_an_end_with_the_last_byte_is_received(ends):
    ours, theirs = ends
    wire = Wire(ours)
    theirs.send(b"last")
    theirs.shutdown(socket.SHUT_WR)
    with trio.fail_after(10):
        assert [await wire.receive(100), await wire.receive(100), await wire.receive(100)] == [b"last", b"", b""]
    assert not wire.is_quiet()


async def test_an_end_after_the_last_read_is_received(ends):
    ours, theirs = ends
    wire = Wire(ours)
    theirs.send(b"last")
    assert await wire.receive(100) == b"last"
    assert wire.is_quiet()
    theirs.close()
    with trio.fail_after(10):
        assert await wire.receive(100) == b""


async def test_bytes_beyond_the_size_stay_for_the_next_receive(ends):
    ours, theirs = ends
    wire = Wire(ours)
    theirs.send(b"abcd")
    with trio.fail_after(10):
        assert [await wire.receive(2), await wire.receive(2)] == [b"ab", b"cd"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self_sent, theirs)
            assert await wire.receive(2) == b"ef"


async def self_sent(theirs: socket.socket) -> None:
    await wait_all_tasks_blocked()
    theirs.send(b"ef")


@pytest.fixture
def tcp_ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    with ours, theirs:
        yield ours, theirs


def with_an_urgent_byte(theirs: socket.socket) -> None:
    theirs.send(b"head")
    theirs.send(b"!", socket.MSG_OOB)
    theirs.send(b"tail")


def with_a_descriptor(theirs: socket.socket) -> None:
    socket.send_fds(theirs, [b"head"], [theirs.fileno()])
    theirs.send(b"tail")


@pytest.mark.parametrize(
    ("kind", "say"), [("tcp_ends", with_an_urgent_byte), ("ends", with_an_urgent_byte), ("ends", with_a_descriptor)]
)
async def test_a_short_read_is_followed_by_another(request, kind, say):
    ours, theirs = request.getfixturevalue(kind)
    say(theirs)
    wire = Wire(ours)
    with trio.fail_after(10):
        assert await wire.receive(100) == b"head"
        assert not wire.is_quiet()
        assert await wire.receive(100) == b"tail"
        theirs.send(b"more")
        assert await wire.receive(100) == b"more"


async def test_a_wire_with_unread_bytes_is_not_quiet(ends):
    ours, theirs = ends
    wire = Wire(ours)
    await wait_all_tasks_blocked(0.01)
    assert wire.is_quiet()
    theirs.send(b"?")
    await wait_all_tasks_blocked(0.01)
    assert not wire.is_quiet()


@pytest.mark.parametrize("what", ["receive", "send_all"])
async def test_closing_wakes_waiting_tasks(ends, what):
    wire = Wire(ends[0])

    async def wait() -> None:
        with pytest.raises(OSError) as raised:
            await (wire.receive(1) if what == "receive" else wire.send_all(bytes(16 << 20)))
        assert raised.value.errno == errno.EBADF

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            wire.close()
            wire.close()
    with pytest.raises(OSError):
        await wire.receive(1)


async def test_a_receive_can_follow_a_cancelled_one(ends):
    ours, theirs = ends
    wire = Wire(ours)
    with trio.CancelScope() as scope:
        scope.cancel()
        await wire.receive(1)
    assert scope.cancelled_caught
    theirs.send(b"x")
    with trio.fail_after(10):
        assert await wire.receive(1) == b"x"


async def test_a_peer_that_never_pauses_leaves_other_tasks_their_turn(ends):
    ours, theirs = ends
    theirs.setblocking(False)
    wire, turns = Wire(ours), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        for _ in range(100):
            theirs.send(bytes(20))
            await wire.receive(10)
        nursery.cancel_scope.cancel()
    assert turns >= 50


async def test_every_byte_arrives_in_random_order_of_sends_and_receives(ends):
    """With random sizes, pauses and ends, the reader gets every byte and then the end."""
    for seed in range(100):
        chance = random.Random(seed)
        ours, theirs = socket.socketpair()
        wire, sent, got = Wire(ours), b"", b""

        async def send(theirs: socket.socket = theirs, chance: random.Random = chance) -> None:
            nonlocal sent
            for _ in range(chance.randrange(12)):
                piece = chance.randbytes(chance.randrange(1, 300))
                theirs.send(piece)
                sent += piece
                for _ in range(chance.randrange(4)):
                    await trio.lowlevel.checkpoint()
            theirs.close()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while piece := await wire.receive(chance.randrange(1, 200)):
                    got += piece
        assert got == sent, seed
        wire.close()
