"""Idle connections by origin. Every operation takes the same time, however many there are.

Per origin a stack: the last one put back is the first one taken, so that what is not needed ages and goes. Over all
of them one queue by age, whose front is always the bottom of its own origin's stack: what expires or has to make
room is found there.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from holdfast.http.connection import Connection, Origin


class Pool:
    def __init__(self, *, max_per_origin: int, max_total: int, idle_timeout: float) -> None:
        self.max_per_origin = max_per_origin
        self.max_total = max_total
        self._idle_timeout = idle_timeout
        self._stacks: dict[Origin, deque[Connection]] = {}
        self._expiries: OrderedDict[Connection, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiries)

    @property
    def origins(self) -> int:
        return len(self._stacks)

    @property
    def next_expiry(self) -> float | None:
        return next(iter(self._expiries.values()), None)

    def take(self, origin: Origin, now: float) -> Connection | None:
        """A connection that can be used; those found dead on the way are closed."""
        while stack := self._stacks.get(origin):
            connection = stack.pop()
            if not stack:
                del self._stacks[origin]
            if self._expiries.pop(connection) > now and connection.is_quiet():
                return connection
            connection.close()
        return None

    def put(self, connection: Connection, now: float) -> None:
        if self.max_per_origin <= 0 or self.max_total <= 0:
            connection.close()
            return
        stack = self._stacks.get(connection.origin)
        if stack is not None and len(stack) >= self.max_per_origin:
            self._drop(stack[0])
        elif len(self._expiries) >= self.max_total:
            self._drop(next(iter(self._expiries)))
        self._stacks.setdefault(connection.origin, deque()).append(connection)
        self._expiries[connection] = now + self._idle_timeout

    def sweep(self, now: float, at_most: int) -> None:
        """Closes connections whose time is over, the oldest first."""
        for _ in range(at_most):
            expiry = self.next_expiry
            if expiry is None or expiry > now:
                return
            self._drop(next(iter(self._expiries)))

    def clear(self) -> None:
        for connection in self._expiries:
            connection.close()
        self._expiries.clear()
        self._stacks.clear()

    def _drop(self, connection: Connection) -> None:
        """Closes one that lies at the bottom of its stack."""
        stack = self._stacks[connection.origin]
        stack.popleft()
        if not stack:
            del self._stacks[connection.origin]
        del self._expiries[connection]
        connection.close()
