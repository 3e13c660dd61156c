import pytest
import trio

from holdfast.clock import (
    JUMP,
    OFF,
    SETTLED_AFTER,
    TAKEN_AFTER,
    BootClock,
    SharedClock,
    is_off,
    offset,
    sleep_until,
)
from tests.support.trio_clock import TrioClock

DAY = 86_400_000


def test_a_wall_clock_that_is_behind_goes_on_after_the_stored_time() -> None:
    """After it, not at it: two runs never begin at the same moment."""
    far_ahead = 1 << 45
    clock = BootClock(far_ahead)
    assert clock.now() > far_ahead
    assert abs(clock.wall() - far_ahead) > DAY


def test_the_offset_says_how_far_time_is_ahead_of_the_wall_clock_at_a_start_and_after_a_jump() -> None:
    moved = 0
    clock = BootClock(3 * DAY, lambda: 1_000 + moved, lambda: 1_000)
    assert offset(clock) == 3 * DAY + 1 - 1_000
    moved = 3 * DAY
    assert (clock.now(), clock.wall(), offset(clock)) == (3 * DAY + 1, 3 * DAY + 1_000, -999)


def test_a_clock_is_off_by_two_seconds_either_way_and_not_by_what_is_usual() -> None:
    assert [is_off(each) for each in (OFF, -OFF, OFF - 1, 1 - OFF, 0)] == [True, True, False, False, False]


async def test_in_virtual_time_the_wall_clock_is_the_same(autojump_clock: object) -> None:
    clock = TrioClock(DAY)
    await trio.sleep(3_600)
    assert (clock.wall(), offset(clock)) == (DAY + 3_600_000, 0)


class Machine:
    """Its clocks, in milliseconds, and a database whose clock says `ahead` more than its boot-time clock."""

    def __init__(self) -> None:
        self.boot = 1_000
        self.ahead = 900_000
        self.clock = SharedClock(lambda: 500_000 + self.boot, lambda: self.boot)

    def settled(self) -> SharedClock:
        self.clock.follow(self.boot + self.ahead)
        self.boot += SETTLED_AFTER
        return self.clock

    def ask(self, there: int = 0, back: int = 0) -> int:
        """The database's time, that long on its way."""
        asked_at = self.boot
        self.boot += there
        moment = self.boot + self.ahead
        self.boot += back
        return self.clock.follow(moment, asked_at)


def test_a_database_that_was_not_heard_of_yet_leaves_the_machine_s_time() -> None:
    assert Machine().clock.now() == 501_000


def test_the_time_of_a_shared_store_is_its_database_s() -> None:
    machine = Machine()
    clock = machine.clock
    clock.follow(900_000)
    machine.boot += 250
    assert clock.now() == 900_250
    assert clock.wall() == 501_250
    assert offset(clock) == 900_250 - 501_250


def test_a_machine_that_is_ahead_does_not_stand_still_once_the_database_is_heard() -> None:
    machine = Machine()
    machine.ahead = 100_000
    assert machine.clock.now() == 501_000
    machine.clock.follow(machine.boot + machine.ahead)
    before = machine.clock.now()
    assert before == 101_000
    machine.boot += 10
    assert machine.clock.now() == before + 10


def test_an_answer_that_takes_long_moves_nothing() -> None:
    machine = Machine()
    clock = machine.settled()
    for there, back in ((0, 5_000), (5_000, 0), (2_500, 2_500)):
        assert machine.ask(there, back) == 0
        assert clock.now() == machine.boot + 900_000


def test_a_clock_that_drifts_is_followed_and_time_does_not_go_back_by_it() -> None:
    machine = Machine()
    clock = machine.settled()
    machine.ahead += JUMP - 1
    assert machine.ask() == 0
    assert clock.now() == machine.boot + machine.ahead
    before = clock.now()
    machine.ahead -= JUMP - 1
    assert machine.ask() == 0
    assert clock.now() == before
    machine.boot += JUMP
    assert clock.now() == machine.boot + machine.ahead == before + 1


@pytest.mark.parametrize("jump", [40 * DAY, -60_000, JUMP, -JUMP])
def test_a_jump_is_told_and_not_followed(jump: int) -> None:
    machine = Machine()
    clock = machine.settled()
    machine.ahead += jump
    for _ in range(5):
        assert machine.ask() == jump
        assert clock.now() == machine.boot + 900_000
        machine.boot += 1_000
    machine.ahead -= jump
    assert machine.ask() == 0
    assert clock.now() == machine.boot + 900_000


@pytest.mark.parametrize("jump", [40 * DAY, -60_000])
def test_a_shared_time_that_stays_another_is_taken(jump: int) -> None:
    """Nobody has put it right: all others go by it."""
    machine = Machine()
    clock = machine.settled()
    machine.ahead += jump
    assert machine.ask() == jump
    machine.boot += TAKEN_AFTER
    assert machine.ask() == 0
    assert clock.now() == machine.boot + machine.ahead


def test_a_replica_that_has_just_joined_takes_the_time_as_it_is() -> None:
    machine = Machine()
    clock = machine.settled()
    clock.follow(machine.boot + machine.ahead)
    for jump in (DAY, -DAY):
        machine.boot += SETTLED_AFTER // 3
        machine.ahead += jump
        assert machine.ask() == 0
        assert clock.now() == machine.boot + machine.ahead


async def test_a_sleep_does_not_get_longer_when_time_is_set_back(autojump_clock: object) -> None:
    began = trio.current_time()
    clock = SharedClock(lambda: 0, lambda: round((trio.current_time() - began) * 1000))
    clock.follow(10 * DAY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep_until, clock, clock.now() + 90_000)
        await trio.sleep(1)
        clock.follow(5 * DAY)
    assert clock.uptime() < 200_000
