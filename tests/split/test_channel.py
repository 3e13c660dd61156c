"""What travels between the two processes arrives as it was, in order, and never more of it than agreed."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from holdfast.core.errors import CommitFailed, StoreFull
from holdfast.core.message import Message, Place, Standing
from holdfast.split import distant
from holdfast.split.channel import Channel
from holdfast.split.distant import DistantStore
from holdfast.split.frames import Kind, cut, decode_accept, decode_answer, encode_accept, encode_answer, frame
from holdfast.store.port import Accept, Accepted, Conflict, Duplicate, IdempotencyKey
from holdfast.store.records import encode_message

ID = bytes(range(16))


def message(body: bytes = b"{}", id: bytes = ID) -> Message:
    headers = ((b"content-type", b"text/plain"), (b"x", b"\xff"))
    place = ("a.example:443", "a.example:443", "https", "a.example", b"/hook?x=1")
    return Message(id, *place, "POST", headers, body, 1_000, 2_000, "billing", True)


def accept(number: int, body: bytes = b"{}") -> Accept:
    return Accept(message(body, number.to_bytes(16, "big")))


@pytest.mark.parametrize("size", [0, 2, 1_900, 1_990, 2_100, 4_080, 4_081, 70_000])
@pytest.mark.parametrize("key", [None, IdempotencyKey(b"d" * 16, b"b" * 16)])
@pytest.mark.parametrize("place", [None, Place(Standing.RETRY, 2_000, 9_000, 3, 4, held=True)])
def test_a_message_arrives_with_the_record_that_the_store_keeps(
    size: int, key: IdempotencyKey | None, place: Place | None
) -> None:
    sent = Accept(message(b"\xfe" * size), key, place)
    ((kind, (fields,)),) = cut(bytearray(frame(Kind.ACCEPTS, [encode_accept(sent)])))
    came = decode_accept(fields)
    assert kind is Kind.ACCEPTS
    assert (came.message, came.key, came.place) == (sent.message, key, place)
    assert came.encoded == encode_message(sent.message)


@pytest.mark.parametrize(
    "result", [Accepted(active=True), Accepted(active=False), Duplicate(ID), Conflict()], ids=lambda each: repr(each)
)
def test_an_answer_arrives(result: object) -> None:
    assert decode_answer(encode_answer(result)) == result


@pytest.mark.parametrize("host", [None, "a.example:443"])
def test_that_there_is_no_room_arrives_with_its_reason(host: str | None) -> None:
    told = decode_answer(encode_answer(StoreFull("the store is full", host=host)))
    assert isinstance(told, StoreFull)
    assert (str(told), told.host) == ("the store is full", host)


@pytest.mark.parametrize("step", [1, 3, 4, 7, 1_000])
def test_frames_are_the_same_however_they_are_cut(step: int) -> None:
    sent = [(Kind.ANSWERS, [True, None]), (Kind.FAILED, "why"), (Kind.COUNT, None), (Kind.ANSWERS, [b"x" * 300])]
    data, received, came = b"".join(frame(*each) for each in sent), bytearray(), []
    for start in range(0, len(data), step):
        received += data[start : start + step]
        came += cut(received)
    assert came == sent
    assert not received


@contextmanager
def pair(gathered: Kind) -> Iterator[tuple[Channel, socket.socket]]:
    here, there = socket.socketpair()
    with there:
        channel = Channel(here, gathered)
        yield channel, there
        channel.close()


@asynccontextmanager
async def sending(channel: Channel) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send)
        yield
        nursery.cancel_scope.cancel()


def read(there: socket.socket) -> list[tuple[Kind, Any]]:
    """What has been sent so far."""
    received = bytearray()
    there.setblocking(False)
    try:
        while True:
            received += there.recv(1 << 20)
    except BlockingIOError:
        return cut(received)


async def test_what_gathers_in_one_round_is_one_frame_and_order_is_kept() -> None:
    with pair(Kind.ANSWERS) as (channel, there):
        async with sending(channel):
            channel.add(True)
            channel.add(None)
            channel.post(Kind.FAILED, "why")
            channel.add(False)
            await trio.testing.wait_all_tasks_blocked()
            assert read(there) == [(Kind.ANSWERS, [True, None]), (Kind.FAILED, "why"), (Kind.ANSWERS, [False])]


async def test_a_frame_that_broke_off_is_nothing() -> None:
    with pair(Kind.ACCEPTS) as (channel, there):
        whole = frame(Kind.ANSWERS, [True])
        there.sendall(whole + whole[:-1])
        there.shutdown(socket.SHUT_WR)
        assert await channel.receive() == [(Kind.ANSWERS, [True])]
        assert await channel.receive() == []


async def test_a_frame_larger_than_any_buffer_arrives() -> None:
    with pair(Kind.ACCEPTS) as (channel, there):
        other = Channel(there.dup(), Kind.ACCEPTS)
        async with sending(other):
            other.add(encode_accept(Accept(message(b"x" * (5 << 20)))))
            ((_, (fields,)),) = await channel.receive()
        other.close()
        assert decode_accept(fields).message.body == b"x" * (5 << 20)


class Asked:
    """A distant store, and what it said of each message."""

    def __init__(self, channel: Channel) -> None:
        self.store = DistantStore(channel, bytes(16), lambda bits: 0)
        self.results: dict[int, object] = {}

    async def accept(self, number: int, body: bytes = b"{}") -> None:
        operation = accept(number, body)
        operation.done = lambda result: self.results.update({number: result})
        self.store.submit(operation)
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[Asked, socket.socket]]:
    with pair(Kind.ACCEPTS) as (channel, there):
        async with sending(channel):
            yield Asked(channel), there


def numbers(there: socket.socket) -> list[int]:
    """Of the messages that travelled."""
    return [int.from_bytes(fields[0], "big") for _, content in read(there) for fields in content]


async def test_answers_go_to_whoever_asked_in_the_order_of_asking() -> None:
    async with asked() as (it, there):
        for number in range(4):
            await it.accept(number)
        assert numbers(there) == [0, 1, 2, 3]
        it.store.answered([True, ID])
        it.store.answered([None, ["no room", None]])
        await trio.testing.wait_all_tasks_blocked()
        assert [it.results[number] for number in range(3)] == [Accepted(active=True), Duplicate(ID), Conflict()]
        assert isinstance(it.results[3], StoreFull)


async def test_only_so_many_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distant, "MOST_UNANSWERED", 3)
    async with asked() as (it, there):
        for number in range(5):
            await it.accept(number)
        assert numbers(there) == [0, 1, 2]
        it.store.answered([True, True])
        await trio.testing.wait_all_tasks_blocked()
        assert numbers(there) == [3, 4]
        assert set(it.results) == {0, 1}


async def test_only_so_many_bytes_are_under_way_but_one_message_always_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distant, "MOST_BYTES", 1_000)
    async with asked() as (it, there):
        for number in range(3):
            await it.accept(number, b"x" * 5_000)
        for number in range(3):
            assert numbers(there) == [number]
            it.store.answered([True])
            await trio.testing.wait_all_tasks_blocked()
        assert len(it.results) == 3


async def test_a_failed_store_fails_what_waits_what_is_held_and_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distant, "MOST_UNANSWERED", 1)
    async with asked() as (it, there):
        await it.accept(0)
        await it.accept(1)
        it.store.fail("the disk")
        await it.accept(2)
        assert [str(it.results[number]) for number in range(3)] == ["the disk"] * 3
        assert all(isinstance(result, CommitFailed) for result in it.results.values())
        assert numbers(there) == [0]


def test_ids_go_on_from_the_last_one() -> None:
    last = (5_000).to_bytes(6, "big") + b"\xaa" * 10
    store = DistantStore(None, last, lambda bits: 0)  # type: ignore[arg-type]
    first, second, third = store.mint(4_000), store.mint(4_000), store.mint(6_000)
    assert last < first < second < third
    assert int.from_bytes(third[:6], "big") == 6_000
