"""The state that the parts of the store share: config, room, whether the database is reachable, and the listener."""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from holdfast.clock import Clock
from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.core.store_rules import WATERMARK, StoreRules
from holdfast.store.port import StoreListener
from holdfast.store.postgres.ownership_tables import Renewal
from holdfast.store.postgres.rows import Terms

UNREACHABLE = "the database can't be reached"
WORKED_WITHIN = 15.0
"""Seconds that delivery waits for a read or a write: longer than for any lock."""
TRY_AGAIN_AFTER = 0.25
"""Seconds between two attempts to reach the database."""
FAULTS_REPORTED = 10_000


@dataclass(slots=True)
class Room:
    """The bytes in the store when they were last measured, and those accepted here since."""

    used: int = 0
    is_measured: bool = False

    def measure(self, used: int) -> None:
        self.used, self.is_measured = used, True

    def is_close(self, coming: int, terms: Terms) -> bool:
        """Whether the counters have to be read: while the whole store holds less, no host can be over its share."""
        most = 0.8 * terms.max_size * min(WATERMARK, terms.rules.host_share)
        return not self.is_measured or self.used + coming > most


class StoreState:
    """`follow_time` sets the clock by the fleet's time. It returns by how many milliseconds that has jumped."""

    def __init__(
        self, rules: StoreRules, clock: Clock, max_size: int, follow_time: Callable[[int, int | None], int]
    ) -> None:
        self.rules = rules
        self.clock = clock
        self.max_size = max_size
        self.follow_time = follow_time
        self.room = Room()
        self.listener = StoreListener()
        self.unreachable = True
        self.failed: CommitFailed | None = None
        self.broken = trio.Event()
        self._problem = ""
        self._last_contact: int | None = None
        self._has_jumped = False
        self._reported: set[tuple[str, str]] = set()

    @property
    def full(self) -> bool:
        return self.room.used > WATERMARK * self.max_size

    def connected(self, renewal: Renewal, asked_at: int, begins_until: int, lease: int) -> int:
        """The lease was renewed. Returns by how much the fleet's time has jumped."""
        jump = self.follow_time(renewal.time, asked_at)
        self.unreachable = False
        self.listener.lease_renewed(begins_until, renewal.run)
        if self._problem:
            self._problem = ""
            self.listener.store_reachable(None)
        if jump and not self._has_jumped:
            self.listener.clock_jumped(jump)
        was_cut_off = self._last_contact is None or asked_at - self._last_contact > lease
        if was_cut_off or self._has_jumped != bool(jump):
            self.listener.store_reconnected()
        self._last_contact, self._has_jumped = asked_at, bool(jump)
        return jump

    def disconnected(self, error: StoreUnreachable) -> None:
        if not self.unreachable or str(error) != self._problem:
            self.listener.store_reachable(error)
        self.unreachable, self._problem = True, str(error)

    def fail(self, error: CommitFailed) -> None:
        """The store writes nothing more."""
        self.failed = error
        self.broken.set()
        self.listener.store_failed(error)

    def report_unreadable(self, table: str, key: str, fault: str) -> None:
        """Once for each record."""
        if (table, key) not in self._reported and len(self._reported) < FAULTS_REPORTED:
            self._reported.add((table, key))
            self.listener.record_unreadable(table, key, fault)
