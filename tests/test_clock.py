import trio

from holdfast.clock import ANSWERS_KEPT, OFF, BootClock, SharedClock, TrioClock, is_off, offset

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
    """Its clocks, in milliseconds."""

    def __init__(self) -> None:
        self.boot = 1_000

    def shared(self) -> SharedClock:
        return SharedClock(lambda: 500_000 + self.boot, lambda: self.boot)


def test_a_database_that_was_not_heard_of_yet_leaves_the_machine_s_time() -> None:
    assert Machine().shared().now() == 501_000


def test_the_time_of_a_shared_store_is_its_database_s() -> None:
    machine = Machine()
    clock = machine.shared()
    clock.follow(900_000)
    machine.boot += 250
    assert clock.now() == 900_250
    assert clock.wall() == 501_250
    assert offset(clock) == 900_250 - 501_250


def test_an_answer_that_came_late_does_not_set_the_clock_back() -> None:
    machine = Machine()
    clock = machine.shared()
    clock.follow(900_000)
    machine.boot += 5_000
    clock.follow(901_000)  # asked a second after the first, heard four seconds later
    assert clock.now() == 905_000


def test_a_database_whose_clock_is_behind_is_followed_after_some_answers_and_time_never_goes_back() -> None:
    machine = Machine()
    clock = machine.shared()
    clock.follow(900_000)
    assert clock.now() == 900_000
    for _ in range(ANSWERS_KEPT):
        machine.boot += 100
        before = clock.now()
        clock.follow(machine.boot + 890_000)
    assert clock.now() == before
    machine.boot += 20_000
    assert clock.now() == machine.boot + 890_000
