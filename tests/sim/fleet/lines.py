"""A replica's connections in a world of several: what becomes of them, and how their transactions meet.

Each statement is a step, taken in a thread that runs only while the loop waits for it. So the transactions of all
replicas go on between each other as the seed wants it, locks included, and yet no two things happen at once. Between
two steps the database may get out of reach, an answer lost, and the process may stand still or be gone.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

import psycopg
import trio
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.clock import TrioClock
from holdfast.core.errors import StoreAway, StoreError
from holdfast.store.port import Operation
from holdfast.store.postgres.connection import Line

HAND_OVER = 0.35
"""How often others get a chance to go on between two statements."""
LOCKED_FOR = 2.0
"""Seconds that a server waits for the next statement of a process that stands still in the middle of a transaction."""
LATE = 8.0
"""Seconds after which what was given up may still come to its end."""
REAL_SECONDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@dataclass
class Plight:
    """What befalls one replica. `loses_next`: the next commit is made, and then the database is out of reach."""

    killed: bool = False
    cut_off: bool = False
    loses_next: bool = False
    moves: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.moves.set()

    @property
    def unreachable(self) -> bool:
        return self.killed or self.cut_off

    def stop(self) -> None:
        self.moves = trio.Event()

    def go_on(self) -> None:
        self.moves.set()


class StepsClock(TrioClock):
    """One that is asked in a step's thread too."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self._clock = trio.lowlevel.current_clock()

    def now(self) -> int:
        return self._offset + round(self._clock.current_time() * 1000)


class Locks:
    """Knows from the server which statements wait for another transaction. They are asked again whenever somebody has
    taken a step: real time plays no part in it.
    """

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._waiting = trio.lowlevel.ParkingLot()

    def hold_up(self, process: int) -> bool:
        row = self._connection.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (process,)).fetchone()
        return row is not None and bool(row[0])

    def moved(self) -> None:
        self._waiting.unpark_all()

    async def wait(self) -> None:
        await self._waiting.park()

    def close(self) -> None:
        self._connection.close()


@dataclass
class Group:
    """What a transaction is made for, and when it was committed: by the order of all commits, and by the clock."""

    operations: Sequence[Operation] = ()
    order: int = 0
    at: int = 0


class Steps:
    """Something that is done in a thread, one step at a time."""

    _mine = threading.local()

    def __init__(self, do: Callable[[], Any], group: Group) -> None:
        self._do = do
        self.group = group
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._result: Any = None
        self._error: BaseException | None = None
        self._waits = False
        self.process = 0
        self.over = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._mine.steps = self
        self._turn.acquire()
        try:
            self._result = self._do()
        except BaseException as error:
            self._error = error
        self.over = True
        self._back.release()

    @classmethod
    def mine(cls) -> "Steps | None":
        """Those that the present thread goes by."""
        return getattr(cls._mine, "steps", None)

    def hand_over(self) -> None:
        """In the thread: the end of a step."""
        self._back.release()
        self._turn.acquire()

    def advance(self, is_held_up: Callable[[int], bool]) -> bool:
        """On the loop: go on to the end of a step. False if it waits for a lock, and has to be asked again."""
        if not self._waits:
            self._turn.release()
        self._waits = False
        while not self._back.acquire(timeout=0.01):
            if is_held_up(self.process):
                self._waits = True
                return False
        return True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class Stepped:
    """A connection whose statements are steps."""

    def __init__(self, connection: psycopg.Connection[Any], line: "FleetLine") -> None:
        self._real = connection
        self._line = line
        self._process = connection.info.backend_pid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def autocommit(self) -> bool:
        return self._real.autocommit

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self._real.autocommit = on

    def execute(self, *terms: Any) -> Any:
        self._line.step(self._process)
        return self._real.execute(*terms)

    def commit(self) -> None:
        """One of nothing is no step: what a transaction came to is known once it is committed."""
        if self._real.info.transaction_status != TransactionStatus.IDLE:
            self._line.step(self._process)
            self._line.commits()
        self._real.commit()


class FleetLine(Line):
    """`on_commit` is told just before a commit, `on_done` of what a whole transaction came to, heard of or not. Without
    `stepped` a transaction is one step: faster, and nothing comes between.
    """

    def __init__(self, url: str, name: str, plight: Plight, chance: Random, locks: Locks, *, stepped: bool) -> None:
        super().__init__(url, name, threaded=False)
        self._plight = plight
        self._chance = chance
        self._locks = locks
        self._stepped = stepped
        self._alone = trio.Lock()
        self.group = Group()
        self.on_commit: Callable[[Group], None] = lambda group: None
        self.on_done: Callable[[Group, Any], None] = lambda group, results: None
        self.on_given_up: Callable[[Callable[..., Any], Any], None] = lambda go_on, steps: None

    # -- in the thread ---------------------------------------------------------------------------------------------

    def open(self) -> Any:
        if self._plight.unreachable:
            raise psycopg.OperationalError("the database is out of reach")
        known = self._connection
        connection: Any = super().open()
        if connection is not known:
            for setting in REAL_SECONDS:
                connection.execute(f"SET {setting} TO 0")
            connection.commit()
            connection = self._connection = Stepped(connection, self)  # type: ignore[assignment]
        return connection

    def step(self, process: int) -> None:
        """A statement is about to be made by a process of the server's."""
        steps = Steps.mine()
        if steps is not None:
            steps.process = process
            if self._chance.random() < HAND_OVER:
                steps.hand_over()

    def commits(self) -> None:
        group = self._present
        if not group.order:
            self.on_commit(group)

    @property
    def _present(self) -> Group:
        steps = Steps.mine()
        return self.group if steps is None else steps.group

    def _once(self, work: Callable[..., Any]) -> Any:
        """`on_done` is told None of a transaction that was not made after all."""
        group, results = self._present, None
        try:
            results = super()._once(work)
        finally:
            if group.order:
                self.on_done(group, results)
                group.order = 0 if results is None else group.order
        return results

    # -- on the loop -----------------------------------------------------------------------------------------------

    async def run(self, work: Callable[..., Any], *, within: float | None = None) -> Any:
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            async with self._alone:
                group = self.group = Group(self.group.operations)
                await self._rest()
                if not self._stepped:
                    result = self._attempt(work)
                else:
                    ends = inf if within is None else trio.current_time() + within
                    result = await self._in_steps(Steps(lambda: self._attempt(work), group), ends)
                await self._rest()
        return self._heard(group, result)

    async def _in_steps(self, steps: Steps, ends: float = inf) -> Any:
        while not steps.over:
            if not steps.advance(self._locks.hold_up):
                await self._locks.wait()
                continue
            self._locks.moved()
            await self._rest()
            if trio.current_time() > ends and not steps.over:
                self._give_up(steps)
                raise StoreAway("the database did not answer in time")
        return steps.result()

    def _give_up(self, steps: Steps) -> None:
        """Nobody waits for it any more, and it may be done all the same."""
        if self._chance.random() < 0.5:
            self._hang_up()
        self._abandon()
        self.on_given_up(self._go_on, steps)

    async def _go_on(self, steps: Steps) -> None:
        await trio.sleep(self._chance.uniform(0, LATE))
        with suppress(StoreError):
            await self._in_steps(steps)

    async def _rest(self) -> None:
        """Between two steps: time passes, and whatever befalls the replica does."""
        if self._chance.random() < 0.1:
            await trio.sleep(self._chance.uniform(0, 0.05))
        else:
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(LOCKED_FOR) as scope:
            await self._plight.moves.wait()
        if scope.cancelled_caught:
            self._hang_up()
            await self._plight.moves.wait()
        if self._plight.unreachable:
            self._hang_up()

    def _heard(self, group: Group, result: Any) -> Any:
        plight = self._plight
        if plight.loses_next and group.order:
            plight.loses_next, plight.cut_off = False, True
        if plight.unreachable:
            raise StoreAway("the answer got lost")
        return result

    def _hang_up(self) -> None:
        """What was not committed is undone: here and now, so that whoever waits for it goes on."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        if connection.info.pipeline_status == PipelineStatus.OFF:
            connection.rollback()
        connection.close()
        self._locks.moved()
