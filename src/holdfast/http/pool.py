"""Idle connections by origin, and a limit on exchanges with one address.

Each origin has a stack of connections: the last one put back is the first one taken, so unneeded ones age and expire.
One queue over all origins orders them by age. Its front is always the bottom of a stack, so every operation takes
constant time.
"""

from collections import OrderedDict, deque

from holdfast.http.connection import Connection
from holdfast.http.dial import Origin
from holdfast.http.exceptions import AddressBusy


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
        """Returns a usable connection. Closes dead ones that it finds."""
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
        """Closes expired connections, oldest first."""
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
        """Closes a connection at the bottom of its stack."""
        stack = self._stacks[connection.origin]
        stack.popleft()
        if not stack:
            del self._stacks[connection.origin]
        del self._expiries[connection]
        connection.close()


class AddressLimit:
    """Limits the exchanges on new connections to one address.

    Any number of names may lead to one address that accepts connections and never answers. An exchange on a reused
    connection does not count, as its peer has answered before.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._exchanges: dict[str, int] = {}

    def enter(self, address: str) -> None:
        """Counts an exchange that is about to dial. Raises AddressBusy."""
        exchanges = self._exchanges.get(address, 0)
        if exchanges >= self.limit:
            raise AddressBusy(address)
        self._exchanges[address] = exchanges + 1

    def leave(self, address: str) -> None:
        exchanges = self._exchanges[address] - 1
        if exchanges:
            self._exchanges[address] = exchanges
        else:
            del self._exchanges[address]
