"""Actions on a host are carried out by the replica that owns it, whichever replica an operator asks.

This holds for circuits and waiting messages, which the owner has in memory. The replica that was asked carries out all
other actions.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import trio

from holdfast.core.errors import StoreUnreachable
from holdfast.http.exceptions import Problem
from holdfast.operate.actions import Actions
from holdfast.operate.routing import bulk_limit, problem, store_problems

WITHOUT_OWNER = ("drop", "retry")
"""Actions that any replica may carry out on a host without an owner: no replica has its messages in memory."""
WAIT_FOR_OWNER = 5.0
"""Seconds that an action waits for a host that has no owner at the moment."""
TRY_AGAIN_AFTER = 0.25
TEMPORARY = ("urn:holdfast:problem:no-owner", "urn:holdfast:problem:moved")
"""Problems of a host that goes from one owner to the next. Nothing was done yet."""
FORWARDED = ("unfreeze", "freeze", "probe", "retry", "drop", "drop_messages")
"""Actions that a replica carries out for another."""

Action = Callable[..., Awaitable[dict[str, Any]]]


class Owners(Protocol):
    """The replicas and the hosts that they own."""

    def owns(self, host: str) -> bool: ...

    def owner_of(self, host: str) -> int | None: ...

    def others(self) -> list[int]:
        """All other replicas that own hosts."""

    @property
    def are_complete(self) -> bool:
        """Whether every host has an owner."""

    async def ask(self, owner: int, request: bytes) -> bytes:
        """Send a request to another replica and return its answer. Raises StoreUnreachable."""


class ForwardingActions(Actions):
    """The actions of a replica that shares its store with others."""

    def __init__(self, owners: Owners, *parts: Any) -> None:
        super().__init__(*parts)
        self._owners = owners

    async def unfreeze(self, name: str, *, replay_dead: bool) -> dict[str, Any]:
        record = (await self._queries.find_circuit(name)).record
        return await self._at(record.host, "unfreeze", name=name, replay_dead=replay_dead)

    async def freeze(self, name: str) -> dict[str, Any]:
        _, host = await self._queries.key_and_host(name)
        return await self._at(host, "freeze", name=name)

    async def probe(self, name: str) -> dict[str, Any]:
        record = (await self._queries.find_circuit(name)).record
        return await self._at(record.host, "probe", name=name)

    async def retry(self, text: str) -> dict[str, Any]:
        _, _, host = await self._known(text)
        return await self._at(host, "retry", text=text)

    async def drop(self, text: str) -> dict[str, Any]:
        _, _, host = await self._known(text)
        return await self._at(host, "drop", text=text)

    async def drop_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Each owner drops the messages of its own hosts, this replica first."""
        if not self._owners.are_complete:
            raise problem(
                503, "no-owner", "Some hosts have no owner at the moment; repeat the request in some seconds."
            )
        limit = bulk_limit(body)
        total = await self._here("drop_messages", body=dict(body))
        for owner in self._owners.others():
            left = {} if limit is None else {"limit": limit - total["dropped"]}
            if left.get("limit") == 0:
                return total
            answer = await self._forward(owner, "drop_messages", body={**body, **left})
            total = {"dropped": total["dropped"] + answer["dropped"], "done": total["done"] and answer["done"]}
        return total

    async def _at(self, host: str, action: str, **arguments: Any) -> dict[str, Any]:
        end = trio.current_time() + WAIT_FOR_OWNER
        while True:
            try:
                with store_problems():
                    return await self._at_owner(host, action, **arguments)
            except Problem as refusal:
                if refusal.type not in TEMPORARY or trio.current_time() > end:
                    raise
            await trio.sleep(TRY_AGAIN_AFTER)

    async def _at_owner(self, host: str, action: str, **arguments: Any) -> dict[str, Any]:
        owner = None if self._owners.owns(host) else self._owners.owner_of(host)
        if owner is not None:
            return await self._forward(owner, action, **arguments)
        if not self._owners.owns(host) and action not in WITHOUT_OWNER:
            raise problem(503, "no-owner", f"{host} has no owner at the moment; repeat the request in a while.")
        return await self._here(action, **arguments)

    async def _here(self, action: str, **arguments: Any) -> dict[str, Any]:
        perform: Action = getattr(super(), action)
        return await perform(**arguments)

    async def _forward(self, owner: int, action: str, **arguments: Any) -> dict[str, Any]:
        request = json.dumps({"action": action, "arguments": arguments}).encode()
        try:
            answer = json.loads(await self._owners.ask(owner, request))
        except StoreUnreachable as error:
            raise problem(503, "no-answer", f"The owner of this host did not answer: {error}.") from None
        if "problem" in answer:
            raise _problem(**answer["problem"])
        return dict(answer["result"])

    async def serve(self, request: bytes) -> bytes:
        """Carry out an action for another replica. Returns the answer."""
        forwarded = json.loads(request)
        action = forwarded["action"]
        try:
            if action not in FORWARDED:
                raise problem(501, "unknown-action", f"The owner of this host has another version, without {action}.")
            with store_problems():
                return json.dumps({"result": await self._here(action, **forwarded["arguments"])}).encode()
        except Problem as refusal:
            return json.dumps({"problem": refusal.document}).encode()


def _problem(status: int, title: str, detail: str, type: str, **extra: Any) -> Problem:
    return Problem(status, title, detail, type=type, extra=extra)
