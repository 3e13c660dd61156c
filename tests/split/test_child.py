"""The ingest process alone: the test plays the gateway."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import Address, build
from holdfast.core.message import parse_id
from holdfast.split.channel import Frame, IngestStart, Kind, Settings, decode_accept, encode_frame, take_frames
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

    def start(self) -> None:
        config = build({"egress": {"allow_loopback": True, "allow_ports": ["*"]}, "store": {"path": "/nowhere"}})
        own = frozenset({(self.address.host, self.address.port)})
        self.send(encode_frame(Kind.START, IngestStart(Settings(config, None), self.address, own, 0, LAST_ID)))
        assert self.receive() == [(Kind.APPLIED, None)]

    def send(self, data: bytes) -> None:
        self._here.sendall(data)

    def receive(self) -> list[Frame]:
        while not (frames := take_frames(self._received)):
            self._received += self._here.recv(65536)
        return frames

    def close_channel(self) -> None:
        self._here.close()

    def close(self) -> None:
        self.close_channel()
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
    """Sends one webhook. Returns the message that reaches the gateway."""
    client.sendall(request("http://127.0.0.1:9/hook"))
    ((kind, (fields,)),) = owner.receive()
    assert kind is Kind.ACCEPTS
    return decode_accept(fields)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (encode_frame(Kind.RESULTS, [True]), 202, b"holdfast-message-id: msg_"),
        (encode_frame(Kind.RESULTS, [False]), 202, b'"state": "queued"'),
        (encode_frame(Kind.RESULTS, [OTHER_ID]), 202, b"holdfast-message-id: msg_" + OTHER_ID.hex().encode()),
        (encode_frame(Kind.RESULTS, [None]), 422, b"key-reused"),
        (encode_frame(Kind.RESULTS, [["too much", "127.0.0.1:9"]]), 507, b"host-share-used"),
        (encode_frame(Kind.RESULTS, [["too much", None]]), 507, b"store-full"),
        (encode_frame(Kind.FAILED, "the disk"), 503, b"store-failed"),
    ],
)
def test_a_webhook_is_answered_by_the_gateways_result(owner: Owner, answer: bytes, status: int, said: bytes) -> None:
    owner.start()
    with raw_client(str(owner.address)) as client:
        accept = post(owner, client)
        assert accept.message.target == "http://127.0.0.1:9/hook"
        assert accept.message.id > LAST_ID
        owner.send(answer)
        got = rest(client)
    assert statuses(got) == [status]
    assert said in got


@pytest.mark.parametrize("left", [b"", encode_frame(Kind.RESULTS, [True])[:-1], encode_frame(Kind.RESULTS, [True])[:2]])
def test_a_channel_that_ends_within_a_result_acknowledges_nothing(owner: Owner, left: bytes) -> None:
    owner.start()
    with raw_client(str(owner.address)) as client:
        post(owner, client)
        owner.send(left)
        owner.close_channel()
        got = rest(client)
    assert statuses(got) == [503]
    assert b"retry-after: " in got
    assert owner.process.wait(PATIENCE) == 0


def test_it_ends_if_the_channel_ends_before_the_start(owner: Owner) -> None:
    owner.send(encode_frame(Kind.START, None)[:-1])
    owner.close_channel()
    assert owner.process.wait(PATIENCE) == 0


def test_open_requests_are_answered_at_a_stop_before_it_ends(owner: Owner) -> None:
    owner.start()
    with raw_client(str(owner.address)) as client:
        accept = post(owner, client)
        owner.send(encode_frame(Kind.STOP))
        owner.send(encode_frame(Kind.RESULTS, [True]))
        got = rest(client)
    assert statuses(got) == [202]
    assert parse_id(got.partition(b"holdfast-message-id: ")[2][:36].decode()) == accept.message.id
    assert owner.process.wait(PATIENCE) == 0


def test_its_own_listener_is_refused_as_a_target(owner: Owner) -> None:
    owner.start()
    with raw_client(str(owner.address)) as client:
        client.sendall(request(f"http://{owner.address}/x"))
        got = rest(client)
    assert statuses(got) == [403]
    assert b"holdfast itself" in got


def test_lmdb_is_not_loaded(owner: Owner) -> None:
    owner.start()
    assert "lmdb" not in Path(f"/proc/{owner.process.pid}/maps").read_text()
