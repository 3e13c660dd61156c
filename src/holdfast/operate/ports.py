"""What operate needs of delivery and of the process. The composition root hands over who fulfils it."""

from collections.abc import Awaitable, Callable, Container
from typing import Protocol

from holdfast.core.circuit import Change
from holdfast.core.counters import Counters
from holdfast.core.lane import Lane
from holdfast.core.message import MessageId
from holdfast.core.ownership import Role


class Deliveries(Protocol):
    """What is under way, and what an operator may change about it."""

    @property
    def in_flight(self) -> Container[MessageId]: ...

    @property
    def attempts_in_flight(self) -> int: ...

    @property
    def is_quiet(self) -> bool: ...

    async def wait_quiet(self) -> None: ...

    def lane_of(self, key: str) -> Lane | None:
        """The lane of this key if it is in memory: its counters are newer than the store's."""

    def active_in(self, lane: Lane) -> int:
        """How many of its messages wait in memory or are under way without having stood in the lane's queue."""

    def is_queued(self, id: MessageId, key: str) -> bool:
        """Whether a message is in memory and next in its lane: it can't be made due any sooner."""

    async def unfreeze(self, key: str, host: str) -> Change | None: ...

    async def freeze(self, key: str, host: str) -> Change | None: ...

    async def probe(self, key: str, host: str) -> bool: ...


class Spooled(Protocol):
    """Messages that wait on this machine's disk for the database that replicas share, and since when some do."""

    @property
    def count(self) -> int: ...

    @property
    def since(self) -> int | None: ...


class Condition(Protocol):
    """The process as a whole."""

    started_at: int
    role: Role | None
    """What this replica does; None where there is only this one."""
    counters: Counters
    counting: Callable[[], Awaitable[None]]
    """Brings the counters up to date, where another process counts a part of them."""

    @property
    def spool(self) -> Spooled | None:
        """None where there is none."""

    @property
    def ready(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    @property
    def store_trouble(self) -> str | None:
        """Why the store can't make progress, if it can't."""

    @property
    def store_away(self) -> bool:
        """Whether the database can't be reached: what waits for it goes on when it is back."""

    @property
    def store_full(self) -> bool: ...

    def drain(self) -> None:
        """Stop being ready, as before an exit, until `resume`."""

    def resume(self) -> None: ...
