"""A clock in virtual time."""

import trio


class TrioClock:
    """trio's time as wall time. With a MockClock, hours pass in no time."""

    def __init__(self, start: int) -> None:
        self._offset = start - round(trio.current_time() * 1000)

    def now(self) -> int:
        return self._offset + round(trio.current_time() * 1000)

    def wall(self) -> int:
        return self.now()

    def uptime(self) -> int:
        return self.now()

    def deadline(self, moment: int) -> float:
        return (moment - self._offset) / 1000
