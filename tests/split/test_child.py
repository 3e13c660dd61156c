"""The ingest process alone, with a test in the place of the gateway: it says what it is told, and never more."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import Address, build
from holdfast.core.message import parse_id
from holdfast.split.frames import Beginning, Frame, Kind, Settings, cut, decode_accept, frame
from holdfast.split.parent import start_ingest
from holdfast.store.port import Accept
from tests.gateway.hostile import raw_client, rest, statuses
from tests.support.harness import PATIENCE

LAST_ID = (1 << 40).to_bytes(6, "big") + bytes(10)
OTHER_ID = b"\x01" * 16


class Owner:
    """The gateway's end of the channel."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair()
        self._received = bytearray()
        with there, socket.create_server(("127.0.0.1", 0)) as listening:
            self.address = Address(*listening.getsockname())
            self.process = start_ingest([there, listening], os.environ)
        self._here.settimeout(PATIENCE)

    def begin(self) -> None:
        config = build({"egress": {"allow_loopback": True, "allow_ports": ["*"]}, "store": {"path": "/nowhere"}})
        own = frozenset({(self.address.host, self.address.port)})
        self.say(frame(Kind.BEGIN, Beginning(Settings(config, None), self.address, own, 0, LAST_ID)))
        assert self.hear() == [(Kind.TAKEN, None)]

    def say(self, data: bytes) -> None:
        self._here.sendall(data)

    def hear(self) -> list[Frame]:
        while not (frames := cut(self._received)):
            self._received += self._here.recv(65536)
        return frames

    def hang_up(self) -> None:
        self._here.close()

    def close(self) -> None:
        self.hang_up()
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.close()


def request(target: str) -> bytes:
    head = f"POST /{target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    return head.encode()


def post(owner: Owner, client: socket.socket) -> Accept:
    """Send one webhook; what travels of it."""
    client.sendall(request("http://127.0.0.1:9/hook"))
    ((kind, (fields,)),) = owner.hear()
    assert kind is Kind.ACCEPTS
    return decode_accept(fields)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (frame(Kind.ANSWERS, [True]), 202, b"holdfast-message-id: msg_"),
        (frame(Kind.ANSWERS, [False]), 202, b'"state": "queued"'),
        (frame(Kind.ANSWERS, [OTHER_ID]), 202, b"holdfast-message-id: msg_" + OTHER_ID.hex().encode()),
        (frame(Kind.ANSWERS, [None]), 422, b"key-reused"),
        (frame(Kind.ANSWERS, [["too much", "127.0.0.1:9"]]), 507, b"host-share-used"),
        (frame(Kind.ANSWERS, [["too much", None]]), 507, b"store-full"),
        (frame(Kind.FAILED, "the disk"), 503, b"store-failed"),
    ],
)
def test_a_webhook_is_answered_as_the_gateway_says(owner: Owner, answer: bytes, status: int, said: bytes) -> None:
    owner.begin()
    with raw_client(str(owner.address)) as client:
        accept = post(owner, client)
        assert accept.message.target == "http://127.0.0.1:9/hook"
        assert accept.message.id > LAST_ID
        owner.say(answer)
        got = rest(client)
    assert statuses(got) == [status]
    assert said in got


@pytest.mark.parametrize("left", [b"", frame(Kind.ANSWERS, [True])[:-1], frame(Kind.ANSWERS, [True])[:2]])
def test_a_channel_that_ends_in_an_answer_acknowledges_nothing(owner: Owner, left: bytes) -> None:
    owner.begin()
    with raw_client(str(owner.address)) as client:
        post(owner, client)
        owner.say(left)
        owner.hang_up()
        got = rest(client)
    assert statuses(got) == [503]
    assert b"retry-after: " in got
    assert owner.process.wait(PATIENCE) == 0


def test_without_a_beginning_it_ends(owner: Owner) -> None:
    owner.say(frame(Kind.BEGIN, None)[:-1])
    owner.hang_up()
    assert owner.process.wait(PATIENCE) == 0


def test_what_is_under_way_at_a_stop_is_answered_and_then_it_ends(owner: Owner) -> None:
    owner.begin()
    with raw_client(str(owner.address)) as client:
        accept = post(owner, client)
        owner.say(frame(Kind.STOP))
        owner.say(frame(Kind.ANSWERS, [True]))
        got = rest(client)
    assert statuses(got) == [202]
    assert parse_id(got.partition(b"holdfast-message-id: ")[2][:36].decode()) == accept.message.id
    assert owner.process.wait(PATIENCE) == 0


def test_its_own_listener_is_no_target(owner: Owner) -> None:
    owner.begin()
    with raw_client(str(owner.address)) as client:
        client.sendall(request(f"http://{owner.address}/x"))
        got = rest(client)
    assert statuses(got) == [403]
    assert b"holdfast itself" in got


def test_the_engine_of_the_store_is_not_in_its_memory(owner: Owner) -> None:
    owner.begin()
    assert "lmdb" not in Path(f"/proc/{owner.process.pid}/maps").read_text()
