from holdfast.clock import ANSWERS_KEPT, BootClock, SharedClock


def test_a_wall_clock_that_is_behind_goes_on_after_the_stored_time() -> None:
    """After it, not at it: two runs never begin at the same moment."""
    far_ahead = 1 << 45
    clock = BootClock(far_ahead)
    assert clock.now() > far_ahead
    assert clock.behind > 0


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
    assert clock.drift() == 501_250 - 900_250


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
