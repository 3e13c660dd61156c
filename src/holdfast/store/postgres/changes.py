"""The changes of delivery and operators: a queue of operations, and one transaction behind the fence for each group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import Fenced, RowsLocked, StoreUnreachable
from holdfast.core.message import MessageId
from holdfast.store.batching import group_size
from holdfast.store.port import (
    NEVER,
    BulkResult,
    Commit,
    Deliver,
    DoneOrFailed,
    DropMessages,
    Fail,
    LaneChange,
    Operation,
    ReplayDead,
    Retried,
    RetryNow,
    Shelve,
    lane_changes,
)
from holdfast.store.postgres import arrivals, bulk, outcomes, ownership_tables
from holdfast.store.postgres.arrival_feed import ArrivalFeed
from holdfast.store.postgres.arrivals import ShelveArrived
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.membership import Member
from holdfast.store.postgres.ownership_tables import NOT_JOINED, Membership, Release
from holdfast.store.postgres.rows import Terms
from holdfast.store.postgres.shards import OwnedShards
from holdfast.store.postgres.state import UNREACHABLE, WORKED_WITHIN, StoreState
from holdfast.store.postgres.transactions import Connection
from holdfast.store.postgres.write_queue import WriteQueue


class DeliveryWriter:
    """Writes what delivery and operators change, in groups. A change of the owner's passes the fence, or is dropped."""

    def __init__(
        self, client: Client, state: StoreState, member: Member, shards: OwnedShards, feed: ArrivalFeed
    ) -> None:
        self._client = client
        self._state = state
        self._member = member
        self._shards = shards
        self._feed = feed
        self._unsure: Sequence[Operation] = ()
        """The group whose commit was not answered: it may be written."""
        self._void: Sequence[Operation] = ()
        """The group that was under way when this replica was declared dead."""
        self._earliest_wake = NEVER
        self.queue = WriteQueue(
            self._write,
            _group_size,
            self._report,
            patient=(*outcomes.TOGETHER, ShelveArrived, Release),
            is_urgent=_is_urgent,
            lane_of=outcomes.lane_of,
        )

    def drop(self) -> None:
        """This replica was declared dead: other replicas own the shards that the pending changes are for."""
        self._unsure = ()
        self._void = self.queue.under_way
        self.queue.drop(Fenced())

    async def _write(self, operations: Sequence[Operation]) -> list[Any]:
        """One transaction."""
        if operations is self._void:
            return [Fenced()] * len(operations)
        membership = self._member.membership
        if membership is None:
            raise StoreUnreachable(NOT_JOINED)
        if self._state.unreachable:
            raise StoreUnreachable(UNREACHABLE)  # The next beat finds out whether it is back.
        owned = dict(self._shards.owned)
        group = outcomes.prepare(operations, membership.run) if isinstance(operations[0], outcomes.TOGETHER) else None
        if group is not None and not group.shards <= owned.keys():
            return await self._write_own(operations, membership.run)
        if isinstance(operations[0], Release) and not operations[0].shards.items() <= owned.items():
            return [Fenced()]
        if group is not None:
            group.younger = self._feed.known.younger
        shards = {} if group is None else {shard: owned[shard] for shard in group.shards}
        change = Change(operations, group, membership, shards, self._member.terms(1), self._unsure)
        try:
            results, self._earliest_wake = await change.run(self._client)
        except RowsLocked:
            self._unsure = ()
            raise
        except StoreUnreachable as error:
            self._unsure = operations
            self._state.disconnected(error)
            raise
        except Fenced:
            self._member.lose()
            return [Fenced()] * len(operations)
        self._unsure = ()
        return results

    async def _write_own(self, operations: Sequence[Operation], run: int) -> list[Any]:
        """Without the operations for hosts that went to another replica since they were put."""
        own = [each for each in operations if outcomes.prepare([each], run).shards <= self._shards.owned.keys()]
        written = dict(zip(map(id, own), await self._write(own) if own else (), strict=True))
        return [written.get(id(each), Fenced()) for each in operations]

    def _report(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        changed: list[LaneChange] = []
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, (Fenced, StoreUnreachable)):
                if isinstance(operation.done, DoneOrFailed):
                    operation.done(result)
                continue
            for id in _finished_arrivals(operation, result):
                self._feed.known.leave(id)
            if isinstance(operation, Release):
                self._feed.known.forget(operation.shards)
                self._shards.released(operation.shards, operation.to)
            if operation.done is not None:
                operation.done(result)
            if isinstance(operation, ReplayDead) and isinstance(result, BulkResult):
                self._feed.add(result.ids)  # Each is new to its owner, who sees that it is a replay.
            elif isinstance(result, (BulkResult, Retried)):
                changes = lane_changes(operation, result)
                changed += [change for change in changes if self._shards.owns(change.host)]
                if isinstance(operation, RetryNow) and result is Retried.REPLAYED:
                    self._feed.add([operation.id])
        seconds, is_scarce = self.queue.last, self._state.full
        self._state.listener.committed(
            Commit(len(operations), seconds, (), (), changed, self._earliest_wake, is_scarce)
        )


@dataclass(slots=True)
class Change:
    """One transaction. `shards` are those that its group touches, with their epochs. `unsure` are the operations, these
    or others, of the commit before, if that was not answered.
    """

    operations: Sequence[Operation]
    group: outcomes.Group | None
    membership: Membership
    shards: Mapping[int, int]
    terms: Terms
    unsure: Sequence[Operation]

    async def run(self, client: Client) -> tuple[list[Any], int]:
        """Returns the results, and when the first lane that it touched needs attention. Raises Fenced."""
        if self.unsure or self.group is None or not self.group.is_plain:
            return await client.run(self._write, within=WORKED_WITHIN)
        values = outcomes.delivered_values(self.group, self.membership, self.shards, self.terms)
        await client.execute(outcomes.DELIVERED, values, within=WORKED_WITHIN)
        self.membership.writes += 1
        return [None] * len(self.operations), NEVER

    def _write(self, connection: Connection) -> tuple[list[Any], int]:
        if self.unsure and ownership_tables.was_committed(connection, self.membership):
            self.membership.writes += 1
            if self.group is not None and self.unsure is self.operations:
                return [None] * len(self.operations), 0
        if self.group is None:
            return [self._write_single(connection, self.operations[0])], 0
        outcomes.write(connection, self.group, self.membership, self.shards, self.terms)
        self.membership.writes += 1
        moved = self.group.moved
        results = [
            len({message.id for message in each.messages} & moved) if isinstance(each, Shelve) else None
            for each in self.operations
        ]
        return results, self.group.earliest_wake

    def _write_single(self, connection: Connection, operation: Operation) -> Any:
        by_anyone = bulk.ANYONES.get(type(operation))
        if by_anyone is not None:
            result = by_anyone(connection, operation, self.terms)
            connection.commit()
            return result
        shards = operation.shards if isinstance(operation, (ShelveArrived, Release)) else {}
        ownership_tables.pass_fence(connection, self.membership, shards)
        result = _OWNERS[type(operation)](connection, operation, self.terms)
        connection.commit()
        self.membership.writes += 1
        return result


_OWNERS: dict[type[Operation], Callable[[Connection, Any, Terms], Any]] = {
    **bulk.OWNERS,
    ShelveArrived: arrivals.shelve,
    Release: ownership_tables.release,
}


def _group_size(operations: Sequence[Operation]) -> int:
    """Outcomes share a transaction; any other operation has its own."""
    return max(1, outcomes.share_a_transaction(operations[: group_size(operations)]))


def _is_urgent(operation: Operation) -> bool:
    """Nobody waits for a delivery that changes nothing else: the worker is free already."""
    return not isinstance(operation, Deliver) or operation.lane is not None or isinstance(operation.done, DoneOrFailed)


def _finished_arrivals(operation: Operation, result: Any) -> Iterable[MessageId]:
    """The messages that are in a queue or gone once an operation is written."""
    if isinstance(operation, DropMessages):
        return list(result.ids)
    if isinstance(operation, Shelve):
        return [message.id for message in operation.messages]
    if isinstance(operation, Deliver) or (isinstance(operation, Fail) and operation.step is not None):
        return [operation.entry.message.id]
    return ()
