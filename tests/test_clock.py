from holdfast.clock import BootClock


def test_a_wall_clock_that_is_behind_goes_on_after_the_stored_time() -> None:
    """After it, not at it: two runs never begin at the same moment."""
    far_ahead = 1 << 45
    clock = BootClock(far_ahead)
    assert clock.now() > far_ahead
    assert clock.behind > 0
