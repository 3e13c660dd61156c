"""What delivery writes: one transaction behind the fence, and which operations may share it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.message import MessageId
from holdfast.store.batching import group_size
from holdfast.store.port import NEVER, Deliver, DropMessages, Fail, Hearing, Operation, Shelve
from holdfast.store.postgres import arrivals, bulk, outcomes, ownership
from holdfast.store.postgres.arrivals import ShelveArrived
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.ownership import Membership, Release
from holdfast.store.postgres.rows import Terms

WORKED_WITHIN = 15.0
"""Seconds that delivery waits for what it reads and writes: longer than any lock is waited for."""


@dataclass(slots=True)
class Change:
    """One transaction of delivery on its way. `shards` are those that its group touches, with their epochs. `unsure` is
    what was to be written, this or other operations, when nobody heard whether that was committed.
    """

    operations: Sequence[Operation]
    group: outcomes.Group | None
    membership: Membership
    shards: Mapping[int, int]
    terms: Terms
    unsure: Sequence[Operation]

    async def run(self, client: Client) -> tuple[list[Any], int]:
        """The results, and when the earliest lane that it touched needs attention. Raises Fenced."""
        if self.unsure or self.group is None or not self.group.is_plain:
            return await client.run(self._carry_out, within=WORKED_WITHIN)
        values = outcomes.delivered_values(self.group, self.membership, self.shards, self.terms)
        await client.execute(outcomes.DELIVERED, values, within=WORKED_WITHIN)
        self.membership.writes += 1
        return [None] * len(self.operations), NEVER

    def _carry_out(self, connection: Connection) -> tuple[list[Any], int]:
        if self.unsure and ownership.was_committed(connection, self.membership):
            self.membership.writes += 1
            if self.group is not None and self.unsure is self.operations:
                return [None] * len(self.operations), 0
        if self.group is None:
            return [self._carry_out_alone(connection, self.operations[0])], 0
        outcomes.write(connection, self.group, self.membership, self.shards, self.terms)
        self.membership.writes += 1
        moved = self.group.moved
        results = [
            len({message.id for message in each.messages} & moved) if isinstance(each, Shelve) else None
            for each in self.operations
        ]
        return results, self.group.earliest_wake

    def _carry_out_alone(self, connection: Connection, operation: Operation) -> Any:
        anyones = bulk.ANYONES.get(type(operation))
        if anyones is not None:
            result = anyones(connection, operation, self.terms)
            connection.commit()
            return result
        shards = operation.shards if isinstance(operation, (ShelveArrived, Release)) else {}
        ownership.pass_fence(connection, self.membership, shards)
        result = _OWNERS[type(operation)](connection, operation, self.terms)
        connection.commit()
        self.membership.writes += 1
        return result


_OWNERS: dict[type[Operation], Callable[[Connection, Any, Terms], Any]] = {
    **bulk.OWNERS,
    ShelveArrived: arrivals.shelve,
    Release: ownership.release,
}


def group_size_of(operations: Sequence[Operation]) -> int:
    """Outcomes share a transaction; anything else has its own."""
    return max(1, outcomes.share_a_transaction(operations[: group_size(operations)]))


def is_urgent(operation: Operation) -> bool:
    """A delivery that changes nothing else is waited for by nobody: the attempt's place is free already."""
    return not isinstance(operation, Deliver) or operation.lane is not None or isinstance(operation.done, Hearing)


def left_by(operation: Operation, result: Any) -> Iterable[MessageId]:
    """The messages that are not among the arrived ones any more, once this is written."""
    if isinstance(operation, DropMessages):
        return list(result.ids)
    if isinstance(operation, Shelve):
        return [message.id for message in operation.messages]
    if isinstance(operation, Deliver) or (isinstance(operation, Fail) and operation.step is not None):
        return [operation.entry.message.id]
    return ()
