"""How many bytes of request bodies a server holds at once.

A request whose body did not come whole with its head takes room for it before the body is read. Where there is none it
waits, first come first served, and nothing more is read of it: so TCP holds its client back.
"""

from __future__ import annotations

import trio


class Receiving:
    """Room for `most` bytes. One body always fits, however large, while there is no other."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._waiting: dict[trio.Event, int] = {}

    async def take(self, size: int) -> None:
        """Wait until there is room, and take it."""
        if not self._waiting and self._fits(size):
            self.held += size
            return
        turn = trio.Event()
        self._waiting[turn] = size
        try:
            await turn.wait()
        except trio.Cancelled:
            if self._waiting.pop(turn, None) is None:
                self.give_back(size)  # its turn came after it was cancelled
            else:
                self._admit()  # a smaller one behind it may fit
            raise

    def give_back(self, size: int) -> None:
        self.held -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            turn, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                return
            del self._waiting[turn]
            self.held += size
            turn.set()

    def _fits(self, size: int) -> bool:
        return self.held == 0 or self.held + size <= self.most
