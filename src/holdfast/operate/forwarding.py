"""Whichever replica an operator speaks to, the owner of a host carries out what concerns that host.

What has to be done by the owner is what it has in memory: circuits and messages that wait. Anything else is done where
it was asked for.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import trio

from holdfast.core.errors import StoreUnreachable
from holdfast.http.errors import Problem
from holdfast.operate.actions import Actions
from holdfast.operate.requests import bulk_limit, problem, store_problems

WITHOUT_OWNER = ("drop", "retry")
"""What can be done while nobody delivers: nobody has these messages in memory."""

HANDED_OVER_WITHIN = 5.0
"""Seconds that a host without an owner is waited for."""
LOOK_AGAIN_AFTER = 0.25
PASSING = ("urn:holdfast:problem:no-owner", "urn:holdfast:problem:moved")

Action = Callable[..., Awaitable[dict[str, Any]]]

CARRIED_OUT = ("unfreeze", "freeze", "probe", "retry", "drop", "drop_messages")
"""What a replica does for another."""


class Owners(Protocol):
    """The replicas, as far as operators are concerned."""

    def owns(self, host: str) -> bool: ...

    def owner_of(self, host: str) -> int | None: ...

    def others(self) -> list[int]:
        """All others that own something."""

    @property
    def are_complete(self) -> bool:
        """Whether every host has an owner."""

    async def ask(self, owner: int, request: bytes) -> bytes:
        """Have another replica carry something out. Raises StoreUnreachable."""


class ForwardingActions(Actions):
    """Actions of a replica that shares its store."""

    def __init__(self, owners: Owners, *parts: Any) -> None:
        super().__init__(*parts)
        self.owners = owners

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
        """Each owner drops its own, this replica first."""
        if not self.owners.are_complete:
            raise problem(503, "no-owner", "No replica delivers to some hosts at present; ask again in some seconds.")
        limit = bulk_limit(body)
        total = await self._here("drop_messages", body=dict(body))
        for owner in self.owners.others():
            left = {} if limit is None else {"limit": limit - total["dropped"]}
            if left.get("limit") == 0:
                return total
            answer = await self._ask(owner, "drop_messages", body={**body, **left})
            total = {"dropped": total["dropped"] + answer["dropped"], "done": total["done"] and answer["done"]}
        return total

    async def _at(self, host: str, action: str, **arguments: Any) -> dict[str, Any]:
        """A host that just goes from one owner to the next is waited for: nothing was done yet."""
        end = trio.current_time() + HANDED_OVER_WITHIN
        while True:
            try:
                with store_problems():
                    return await self._at_owner(host, action, **arguments)
            except Problem as refusal:
                if refusal.type not in PASSING or trio.current_time() > end:
                    raise
            await trio.sleep(LOOK_AGAIN_AFTER)

    async def _at_owner(self, host: str, action: str, **arguments: Any) -> dict[str, Any]:
        if self.owners.owns(host):
            return await self._here(action, **arguments)
        owner = self.owners.owner_of(host)
        if owner is None and action in WITHOUT_OWNER:
            return await self._here(action, **arguments)
        if owner is None:
            raise problem(503, "no-owner", f"No replica delivers to {host} at present; ask again in some seconds.")
        return await self._ask(owner, action, **arguments)

    async def _here(self, action: str, **arguments: Any) -> dict[str, Any]:
        perform: Action = getattr(super(), action)
        return await perform(**arguments)

    async def _ask(self, owner: int, action: str, **arguments: Any) -> dict[str, Any]:
        request = json.dumps({"action": action, "arguments": arguments}).encode()
        try:
            answer = json.loads(await self.owners.ask(owner, request))
        except StoreUnreachable as error:
            raise problem(503, "no-answer", f"The replica that owns this did not answer: {error}.") from None
        if "problem" in answer:
            raise _problem(**answer["problem"])
        return dict(answer["result"])

    async def serve(self, request: bytes) -> bytes:
        """Carry out what another replica asks. Returns the answer."""
        asked = json.loads(request)
        action = asked["action"]
        try:
            if action not in CARRIED_OUT:
                raise problem(501, "unknown-action", f"The replica that owns this has another version: no {action}.")
            with store_problems():
                return json.dumps({"result": await self._here(action, **asked["arguments"])}).encode()
        except Problem as refusal:
            return json.dumps({"problem": refusal.document}).encode()


def _problem(status: int, title: str, detail: str, type: str, **extra: Any) -> Problem:
    return Problem(status, title, detail, type=type, extra=extra)
