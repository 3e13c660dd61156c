"""The channel between the two processes, and the store as the ingest process sees it."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from holdfast.core.errors import CommitFailed, StoreFull
from holdfast.core.message import Message, Place, Standing
from holdfast.split import child
from holdfast.split.channel import (
    Channel,
    Kind,
    decode_accept,
    decode_result,
    encode_accept,
    encode_frame,
    encode_result,
    take_frames,
)
from holdfast.split.child import RemoteStore
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
def test_a_message_arrives_with_its_record(size: int, key: IdempotencyKey | None, place: Place | None) -> None:
    sent = Accept(message(b"\xfe" * size), key, place)
    ((kind, (fields,)),) = take_frames(bytearray(encode_frame(Kind.ACCEPTS, [encode_accept(sent)])))
    came = decode_accept(fields)
    assert kind is Kind.ACCEPTS
    assert (came.message, came.key, came.place) == (sent.message, key, place)
    assert came.encoded == encode_message(sent.message)


@pytest.mark.parametrize(
    "result", [Accepted(active=True), Accepted(active=False), Duplicate(ID), Conflict()], ids=lambda each: repr(each)
)
def test_a_result_arrives(result: object) -> None:
    assert decode_result(encode_result(result)) == result


@pytest.mark.parametrize("host", [None, "a.example:443"])
def test_a_full_store_arrives_with_its_reason(host: str | None) -> None:
    result = decode_result(encode_result(StoreFull("the store is full", host=host)))
    assert isinstance(result, StoreFull)
    assert (str(result), result.host) == ("the store is full", host)


@pytest.mark.parametrize("step", [1, 3, 4, 7, 1_000])
def test_frames_are_the_same_however_they_are_split_into_reads(step: int) -> None:
    sent = [(Kind.RESULTS, [True, None]), (Kind.FAILED, "why"), (Kind.COUNT, None), (Kind.RESULTS, [b"x" * 300])]
    data, received, came = b"".join(encode_frame(*each) for each in sent), bytearray(), []
    for start in range(0, len(data), step):
        received += data[start : start + step]
        came += take_frames(received)
    assert came == sent
    assert not received


@contextmanager
def pair(collected: Kind) -> Iterator[tuple[Channel, socket.socket]]:
    here, there = socket.socketpair()
    with there:
        channel = Channel(here, collected)
        yield channel, there
        channel.close()


@asynccontextmanager
async def sending(channel: Channel) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send)
        yield
        nursery.cancel_scope.cancel()


def read(there: socket.socket) -> list[tuple[Kind, Any]]:
    """Frames sent so far."""
    received = bytearray()
    there.setblocking(False)
    try:
        while True:
            received += there.recv(1 << 20)
    except BlockingIOError:
        return take_frames(received)


async def test_items_of_one_pass_are_one_frame_and_the_order_is_kept() -> None:
    with pair(Kind.RESULTS) as (channel, there):
        async with sending(channel):
            channel.add(True)
            channel.add(None)
            channel.post(Kind.FAILED, "why")
            channel.add(False)
            await trio.testing.wait_all_tasks_blocked()
            assert read(there) == [(Kind.RESULTS, [True, None]), (Kind.FAILED, "why"), (Kind.RESULTS, [False])]


async def test_an_incomplete_frame_at_the_end_is_dropped() -> None:
    with pair(Kind.ACCEPTS) as (channel, there):
        whole = encode_frame(Kind.RESULTS, [True])
        there.sendall(whole + whole[:-1])
        there.shutdown(socket.SHUT_WR)
        assert await channel.receive() == [(Kind.RESULTS, [True])]
        assert await channel.receive() == []


async def test_a_frame_larger_than_any_buffer_arrives() -> None:
    with pair(Kind.ACCEPTS) as (channel, there):
        other = Channel(there.dup(), Kind.ACCEPTS)
        async with sending(other):
            other.add(encode_accept(Accept(message(b"x" * (5 << 20)))))
            ((_, (fields,)),) = await channel.receive()
        other.close()
        assert decode_accept(fields).message.body == b"x" * (5 << 20)


class Store:
    """A remote store, and its result for each message."""

    def __init__(self, channel: Channel) -> None:
        self.store = RemoteStore(channel, bytes(16), lambda bits: 0)
        self.results: dict[int, object] = {}

    async def accept(self, number: int, body: bytes = b"{}") -> None:
        operation = accept(number, body)
        operation.done = lambda result: self.results.update({number: result})
        self.store.submit(operation)
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def remote_store() -> AsyncIterator[tuple[Store, socket.socket]]:
    with pair(Kind.ACCEPTS) as (channel, there):
        async with sending(channel):
            yield Store(channel), there


def numbers(there: socket.socket) -> list[int]:
    """Numbers of the messages sent so far."""
    return [int.from_bytes(fields[0], "big") for _, content in read(there) for fields in content]


async def test_results_go_to_the_messages_in_the_order_of_sending() -> None:
    async with remote_store() as (it, there):
        for number in range(4):
            await it.accept(number)
        assert numbers(there) == [0, 1, 2, 3]
        it.store.resolve([True, ID])
        it.store.resolve([None, ["no room", None]])
        await trio.testing.wait_all_tasks_blocked()
        assert [it.results[number] for number in range(3)] == [Accepted(active=True), Duplicate(ID), Conflict()]
        assert isinstance(it.results[3], StoreFull)


async def test_the_number_of_messages_sent_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_MESSAGES_SENT", 3)
    async with remote_store() as (it, there):
        for number in range(5):
            await it.accept(number)
        assert numbers(there) == [0, 1, 2]
        it.store.resolve([True, True])
        await trio.testing.wait_all_tasks_blocked()
        assert numbers(there) == [3, 4]
        assert set(it.results) == {0, 1}


async def test_the_bytes_sent_are_limited_but_one_message_always_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_BYTES_SENT", 1_000)
    async with remote_store() as (it, there):
        for number in range(3):
            await it.accept(number, b"x" * 5_000)
        for number in range(3):
            assert numbers(there) == [number]
            it.store.resolve([True])
            await trio.testing.wait_all_tasks_blocked()
        assert len(it.results) == 3


async def test_a_failed_store_fails_messages_sent_held_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_MESSAGES_SENT", 1)
    async with remote_store() as (it, there):
        await it.accept(0)
        await it.accept(1)
        it.store.fail("the disk")
        await it.accept(2)
        assert [str(it.results[number]) for number in range(3)] == ["the disk"] * 3
        assert all(isinstance(result, CommitFailed) for result in it.results.values())
        assert numbers(there) == [0]


def test_ids_continue_from_the_last_one() -> None:
    last = (5_000).to_bytes(6, "big") + b"\xaa" * 10
    store = RemoteStore(None, last, lambda bits: 0)  # type: ignore[arg-type]
    first, second, third = store.mint(4_000), store.mint(4_000), store.mint(6_000)
    assert last < first < second < third
    assert int.from_bytes(third[:6], "big") == 6_000
