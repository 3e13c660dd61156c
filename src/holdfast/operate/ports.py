"""What operate needs of delivery and of the process. The composition root hands over who fulfils it."""

from collections.abc import Container
from typing import Protocol

from holdfast.core.circuit import Change
from holdfast.core.lane import Lane
from holdfast.core.message import MessageId
from holdfast.core.tally import Tally


class Deliveries(Protocol):
    """What is under way, and what an operator may change about it."""

    @property
    def in_flight(self) -> Container[MessageId]: ...

    @property
    def attempts_in_flight(self) -> int: ...

    def lane_of(self, key: str) -> Lane | None:
        """The lane of this key if it is in memory: its counters are newer than the store's."""

    def active_in(self, lane: Lane) -> int:
        """How many of its messages wait in memory or are under way without having stood in the lane's queue."""

    async def unfreeze(self, key: str, host: str) -> Change | None: ...

    def slow_start(self, key: str, host: str) -> None: ...


class Condition(Protocol):
    """The process as a whole."""

    started_at: int
    tally: Tally

    @property
    def ready(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    @property
    def store_trouble(self) -> str | None:
        """Why the store can't make progress, if it can't."""

    @property
    def store_full(self) -> bool: ...
