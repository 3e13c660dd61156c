"""Clients of a fleet: kept-alive connections that post until so many webhooks are acknowledged.

Whoever gets no answer, or is told that the store is away, goes to the next replica with a new webhook: what became of
the first nobody knows, and it does not count.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from tests.fleet.event_log import Acknowledged, Witness
from tests.fleet.receivers import Host
from tests.fleet.replicas import Replica

_STATUS = re.compile(rb"HTTP/1.1 (\d{3})")
_ID = re.compile(rb"\r\nholdfast-message-id: *(\w+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d+", re.IGNORECASE)

ANSWERED_WITHIN = 8.0
"""Seconds after which a client gives up; a replica that stands still does not answer."""
BODY = b"x" * 500


@dataclass
class Senders:
    """`pick` says which host the n-th webhook is for, `present` which replicas there are."""

    witness: Witness
    present: Callable[[], Sequence[Replica]]
    pick: Callable[[int], Host]
    total: int
    pause: float = 0.0
    """Seconds between two webhooks of the same client: the load is bounded."""
    patience: float = ANSWERED_WITHIN
    a_talk: int = 1_000_000
    """Webhooks that a client sends over one connection, before it goes to the next replica."""
    sent: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0
    """Seconds that an answer took, of those that came."""
    unanswered: int = 0
    """Webhooks whose sender gave up."""
    is_over: bool = False

    @property
    def acknowledged(self) -> int:
        return len(self.witness.acknowledged)

    async def run(self, clients: int) -> None:
        async with trio.open_nursery() as nursery:
            for client in range(clients):
                nursery.start_soon(self._be_client, client)

    async def reached(self, number: int) -> None:
        """Until so many are acknowledged."""
        while self.acknowledged < min(number, self.total):
            await trio.sleep(0.01)

    async def _be_client(self, turn: int) -> None:
        while not self._is_done:
            replicas = self.present()
            if not replicas:
                await trio.sleep(0.01)
                continue
            replica = replicas[turn % len(replicas)]
            turn += 1
            with suppress(OSError, trio.BrokenResourceError):
                try:
                    await self._talk(replica)
                except trio.TooSlowError:
                    self.unanswered += 1

    @property
    def _is_done(self) -> bool:
        return self.is_over or self.acknowledged >= self.total

    async def _talk(self, replica: Replica) -> None:
        """With one replica, until it refuses or is gone."""
        host, _, port = replica.gateway.ingest.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            for _ in range(self.a_talk):
                if self._is_done:
                    return
                number, self.sent = self.sent, self.sent + 1
                if not await self._post(stream, self.pick(number)):
                    return
                await trio.sleep(self.pause)

    async def _post(self, stream: trio.SocketStream, host: Host) -> bool:
        """Whether it was acknowledged."""
        began, since = self.witness.number(), trio.current_time()
        head = f"POST /{host.url}/hook HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(BODY)}\r\n\r\n"
        with trio.fail_after(self.patience):
            await stream.send_all(head.encode() + BODY)
            answer = await _answer(stream)
        self.slowest = max(self.slowest, trio.current_time() - since)
        status, id = _STATUS.match(answer), _ID.search(answer)
        assert status is not None, answer
        if status[1] != b"202":
            assert _RETRY_AFTER.search(answer), answer
            self.refused[int(status[1])] += 1
            return False
        assert id is not None, answer
        self.witness.acknowledged.append(Acknowledged(id[1].decode(), host.name, began))
        return True


async def _answer(stream: trio.SocketStream) -> bytes:
    got = b""
    while True:
        data = await stream.receive_some(65_536)
        if not data:
            raise trio.BrokenResourceError("closed")
        got += data
        end = got.find(b"\r\n\r\n")
        length = _LENGTH.search(got, 0, end + 2) if end >= 0 else None
        if end >= 0 and len(got) >= end + 4 + (int(length[1]) if length else 0):
            return got
