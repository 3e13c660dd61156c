"""Which sockets have something to read, told once for all of them.

trio arms a socket anew for every wait, which is a system call and a third of what a wait costs; a webhook has two of
them. Here a socket is registered once, edge-triggered, with an epoll of our own; one task of trio's waits for that, and
wakes whoever waits for a socket that was heard of.
"""

from __future__ import annotations

import select
from typing import Protocol

import trio

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLPRI | select.EPOLLET
_IN_PARTS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI
"""Data with an end behind it, or with an urgent byte in it: one read stops before either."""


class Heard(Protocol):
    def heard(self, in_parts: bool) -> None:
        """Something has come, `in_parts` if one read may not take it all. May be said too often, never too seldom."""


class Readiness:
    """One for each run of trio; lives as long as that."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._listening: dict[int, Heard] = {}
        trio.lowlevel.spawn_system_task(self._listen)

    def watch(self, number: int, who: Heard) -> None:
        self._listening[number] = who
        self._epoll.register(number, _EVENTS)

    def forget(self, number: int) -> None:
        """Before a socket is closed, which takes it out of the epoll by itself."""
        del self._listening[number]

    async def _listen(self) -> None:
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for number, events in self._epoll.poll(0):
                    who = self._listening.get(number)
                    if who is not None:
                        who.heard(bool(events & _IN_PARTS))


_readiness: trio.lowlevel.RunVar[Readiness] = trio.lowlevel.RunVar("readiness")


def readiness() -> Readiness:
    try:
        return _readiness.get()
    except LookupError:
        made = Readiness()
        _readiness.set(made)
        return made
