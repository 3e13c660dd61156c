"""Two replicas, and a host that each of them owns."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.fleet.replicas import Database
from tests.support.harness import Gateway, Receiver, running, until


@dataclass
class Pair:
    """Everything is asked of `here`, which does not own the host `other`."""

    database: Database
    here: Gateway
    there: Gateway
    own: Receiver
    other: Receiver

    def ask(self, method: str, path: str, document: object = None) -> httpx.Response:
        return self.here.call(method, f"/v1/{path}", document)

    def act(self, receiver: Receiver, act: str) -> httpx.Response:
        return self.ask("POST", f"circuits/{key(receiver)}/{act}")

    def post(self, receiver: Receiver, number: int = 1) -> list[str]:
        return [self.here.post(f"{receiver.url}/{each}").json()["id"] for each in range(number)]

    def states(self, *ids: str) -> set[str]:
        return {self.here.message(id)["state"] for id in ids}

    def numbers(self, *gateways: Gateway) -> set[int]:
        """Under which replicas are registered."""
        return {number for each in gateways for number in self.database.numbers(each.process.pid)}


def key(receiver: Receiver) -> str:
    return f"127.0.0.1:{receiver.port}"


def told(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return [event for event in gateway.events() if event["event"] == name]


@contextmanager
def two(folder: Path, url: str, url_there: str | None = None, **keys: object) -> Iterator[Pair]:
    """`url_there` is the other one's way to the same database."""
    database = Database(url)
    with (
        running(folder / "here", store__url=url, **keys) as here,
        running(folder / "there", store__url=url_there or url, **keys) as there,
        ExitStack() as receivers,
    ):
        until(database.is_shared_out)
        found: dict[int | None, Receiver] = {}
        while found.keys() != {here.process.pid, there.process.pid}:
            receiver = receivers.enter_context(closing(Receiver()))
            found[database.owner(key(receiver))] = receiver
        yield Pair(database, here, there, found[here.process.pid], found[there.process.pid])
