"""The app of the demo: sends webhooks to holdfast over HTTP, and looks at nothing but the 202."""

import json
import socket

import trio

from holdfast.config import Address
from holdfast.demo.promise import promise
from holdfast.demo.receiver import Addresses
from holdfast.demo.transports import plain_transport
from holdfast.http.dial import Origin

PATIENCE = 30.0
ACCEPTED = 202


class Sender:
    """`sent` are the ids that were answered with 202, in that order; `busy` while an answer is waited for."""

    def __init__(self, ingest: Address) -> None:
        self.ingest = ingest
        self._transport = plain_transport(self._resolve, max_answer=65_536, max_idle=1)
        self.sent: list[str] = []
        self.busy = False

    async def send(self, target: str) -> str:
        """Send one webhook; returns the id that holdfast gave it."""
        body = json.dumps({"order": len(self.sent) + 1}).encode()
        head = (
            f"POST /{target} HTTP/1.1\r\nhost: {self.ingest}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        origin = Origin("http", self.ingest.host, self.ingest.port)
        self.busy = True
        try:
            answer = await self._transport.exchange(origin, head.encode(), body, trio.current_time() + PATIENCE)
        finally:
            self.busy = False
        promise(answer.status == ACCEPTED, f"202 for a webhook to {target}", (answer.status, answer.body))
        self.sent.append(json.loads(answer.body)["id"])
        return self.sent[-1]

    async def send_many(self, number: int, target: str) -> list[str]:
        return [await self.send(target) for _ in range(number)]

    async def _resolve(self, origin: Origin) -> Addresses:
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, (origin.host, origin.port))]
