"""The interfaces of delivery and of the process that operate needs. process/gateway.py connects them."""

from collections.abc import Awaitable, Callable, Container
from typing import Protocol

from holdfast.core.circuit import CircuitChange
from holdfast.core.counters import Counters
from holdfast.core.lane import Lane
from holdfast.core.message import MessageId
from holdfast.core.ownership import Role


class Deliveries(Protocol):
    """Delivery, as operators see and change it. `delivery.dispatcher.LaneControl` implements it."""

    @property
    def in_flight(self) -> Container[MessageId]: ...

    @property
    def attempts_in_flight(self) -> int: ...

    @property
    def is_quiet(self) -> bool: ...

    async def wait_quiet(self) -> None: ...

    def lane_of(self, key: str) -> Lane | None:
        """Returns the lane of this key if it is in memory: its counters are newer than the store's."""

    def active_in(self, lane: Lane) -> int:
        """How many messages of a lane are in memory or in flight and not in its queue on disk."""

    def is_queued(self, id: MessageId, key: str) -> bool:
        """Whether a message is in memory, so that it can't be made due any sooner."""

    async def unfreeze(self, key: str, host: str) -> CircuitChange | None: ...

    async def freeze(self, key: str, host: str) -> CircuitChange | None: ...

    async def probe(self, key: str, host: str) -> bool: ...


class Spooled(Protocol):
    """The local spool: how many messages wait there for the database, and since when."""

    @property
    def count(self) -> int: ...

    @property
    def since(self) -> int | None: ...


class Condition(Protocol):
    """The process as a whole."""

    started_at: int
    role: Role | None
    """None if the store is not shared."""
    counters: Counters
    counting: Callable[[], Awaitable[None]]
    """Brings the counters up to date if another process counts a part of them."""

    @property
    def spool(self) -> Spooled | None:
        """None if there is no spool."""

    @property
    def ready(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    @property
    def store_trouble(self) -> str | None:
        """Why the store can't make progress; None if it can."""

    @property
    def store_away(self) -> bool:
        """Whether the database is unreachable. Work continues when it is back."""

    @property
    def store_full(self) -> bool: ...

    def drain(self) -> None:
        """Stop being ready until `resume`, as before an exit."""

    def resume(self) -> None: ...
