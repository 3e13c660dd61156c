"""Requests of operators to hosts that another replica owns: rows that the owner carries out and answers."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import trio

from holdfast.core.errors import StoreUnreachable
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.membership import Member
from holdfast.store.postgres.ownership_tables import CHANNEL, NOT_JOINED
from holdfast.store.postgres.state import StoreState
from holdfast.store.postgres.transactions import Connection, Result, Work

ANSWERED_WITHIN = 10.0
"""Seconds that an operator waits for the replica that owns a host."""
LOOK_EVERY = 0.1
"""Seconds between two looks for the answer: a replica that owns no shard is not notified."""
STORED_WITHIN = 5.0
"""Seconds that a request or an answer may take to be stored or read."""
KEPT = 60
"""Seconds after which a request that nobody answered, or whose answer nobody took, is removed."""
REQUEST, ANSWER = "request", "answer"
"""The payloads of notifications to the owner, and to the replica that asked."""

# The table has a row for each request under way: a few, which are all read.
_INSERT = """INSERT INTO requests (id, asked_by, owner, asked_at, request)
    VALUES (%s, %s, %s, clock_timestamp(), %s)"""
_NOTIFY = "SELECT pg_notify(%s, %s)"
_ASKED = "SELECT id, asked_by, request FROM requests WHERE owner = %s AND answer IS NULL ORDER BY asked_at"
_ANSWER = "UPDATE requests SET answer = %s WHERE id = %s"
_TAKE_ANSWERS = "DELETE FROM requests WHERE asked_by = %s AND answer IS NOT NULL RETURNING id, answer"
_EXPIRE = "DELETE FROM requests WHERE asked_at < clock_timestamp() - %s * interval '1 second'"
_WITHDRAW = "DELETE FROM requests WHERE id = %s RETURNING answer"


class Asked(NamedTuple):
    id: bytes
    asked_by: int
    request: bytes


class Requests:
    """Asks other replicas, and serves what they ask."""

    def __init__(self, client: Client, state: StoreState, member: Member, random_bits: Callable[[int], int]) -> None:
        self._client = client
        self._state = state
        self._member = member
        self._random_bits = random_bits
        self._answers: dict[bytes, trio.Event | bytes] = {}
        self._under_way: set[bytes] = set()
        self._called = trio.Event()

    def look(self) -> None:
        """This replica was asked something, or answered."""
        self._called.set()

    async def ask(self, owner: int, request: bytes) -> bytes:
        """Has another replica carry out a request. Returns its answer."""
        if not self._member.number:
            raise StoreUnreachable(NOT_JOINED)
        id, answered = self._random_bits(128).to_bytes(16, "big"), trio.Event()
        self._answers[id] = answered
        try:
            await self._run(partial(ask, id=id, asked_by=self._member.number, owner=owner, request=request))
            with trio.move_on_after(ANSWERED_WITHIN):
                while not answered.is_set():
                    with trio.move_on_after(LOOK_EVERY):
                        await answered.wait()
                    self.look()
            answer = self._answers[id]
        finally:
            del self._answers[id]
        if isinstance(answer, bytes):
            return answer
        came_late = await self._run(partial(withdraw, id=id))
        if came_late is None:
            raise StoreUnreachable(f"no answer within {ANSWERED_WITHIN:.0f} s")
        return came_late

    async def serve(self) -> None:
        """Carries out the requests of others, and takes their answers."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._called.wait()
                self._called = trio.Event()
                if not self._member.number:
                    continue
                with suppress(StoreUnreachable):
                    if self._answers:
                        self._take(await self._run(partial(answers, asked_by=self._member.number)))
                    for request in await self._run(partial(asked, owner=self._member.number)):
                        if request.id not in self._under_way:
                            self._under_way.add(request.id)
                            nursery.start_soon(self._carry_out, request)

    async def _carry_out(self, request: Asked) -> None:
        done = await self._state.listener.requested(request.request)
        with suppress(StoreUnreachable):
            await self._run(partial(answer, request=request, answer=done))
        self._under_way.discard(request.id)

    def _take(self, found: Mapping[bytes, bytes]) -> None:
        for id, given in found.items():
            waiting = self._answers.get(id)
            if isinstance(waiting, trio.Event):
                self._answers[id] = given
                waiting.set()

    async def _run(self, work: Work[Result]) -> Result:
        return await self._client.run(work, within=STORED_WITHIN)


def ask(connection: Connection, id: bytes, asked_by: int, owner: int, request: bytes) -> None:
    connection.execute(_INSERT, (id, asked_by, owner, request))
    connection.execute(_NOTIFY, (CHANNEL.format(owner), REQUEST))
    connection.commit()


def asked(connection: Connection, owner: int) -> list[Asked]:
    """The requests to a replica that have no answer."""
    found = connection.execute(_ASKED, (owner,)).fetchall()
    connection.commit()
    return [Asked(*row) for row in found]


def answer(connection: Connection, request: Asked, answer: bytes) -> None:
    connection.execute(_ANSWER, (answer, request.id))
    connection.execute(_NOTIFY, (CHANNEL.format(request.asked_by), ANSWER))
    connection.commit()


def answers(connection: Connection, asked_by: int) -> dict[bytes, bytes]:
    """Takes the answers to a replica's requests, and removes expired requests."""
    found = connection.execute(_TAKE_ANSWERS, (asked_by,)).fetchall()
    connection.execute(_EXPIRE, (KEPT,))
    connection.commit()
    return dict(found)


def withdraw(connection: Connection, id: bytes) -> bytes | None:
    """Takes a request back. Returns its answer if it has one."""
    found = connection.execute(_WITHDRAW, (id,)).fetchone()
    connection.commit()
    return None if found is None or found[0] is None else bytes(found[0])
