"""How a budget is shared among hosts, so that no number of hosts that hang can use it up.

Attempts in flight and bytes in memory are both such budgets, and follow the same rule:

- Hosts whose last attempt got no answer share at most a quarter of a budget.
- Hosts that were not tried yet share at most half of it.
- The last quarter is only for hosts that answer and hold nothing of the budget.

So a host that answers always finds room, whatever the others do.
"""

from enum import IntEnum

from holdfast.core.message import Message


class HostClass(IntEnum):
    """What the last attempt to a host says about it. An answer is an answer, whatever its status."""

    ANSWERING = 0
    UNTRIED = 1
    SILENT = 2


def class_of(answers: bool | None) -> HostClass:
    """`answers`: whether the last attempt got an answer; None before the first one has ended."""
    if answers:
        return HostClass.ANSWERING
    return HostClass.UNTRIED if answers is None else HostClass.SILENT


class Budget:
    """So many of something at once. `used` is the sum over all hosts."""

    __slots__ = ("_below_reserve", "_limits", "_used_by", "size", "used")

    def __init__(self, size: int) -> None:
        self.used = 0
        self._used_by = [0, 0, 0]
        self.resize(size)

    def resize(self, size: int) -> None:
        """What is in use above a smaller size is given back as it ends."""
        self.size = size
        self._below_reserve = size - size // 4
        self._limits = (size, max(1, size // 2), max(1, size // 4))

    def admits(self, host_class: int, *, idle: bool) -> bool:
        """Whether a host may take some. `idle`: it holds nothing of this budget now."""
        if host_class:
            return self.used < self._below_reserve and self._used_by[host_class] < self._limits[host_class]
        return self.used < (self.size if idle else self._below_reserve)

    def is_half_free(self, host_class: int) -> bool:
        """Whether hosts of a class may take some, and use less than half of what they may have."""
        return 2 * self._used_by[host_class] < self._limits[host_class] and self.admits(host_class, idle=True)

    def take(self, host_class: int, amount: int = 1) -> None:
        self.used += amount
        self._used_by[host_class] += amount

    def give_back(self, host_class: int, amount: int = 1) -> None:
        """`host_class` is the one that it was taken for, whatever the host has become since."""
        self.used -= amount
        self._used_by[host_class] -= amount


BUDGET = 64 << 20
RECEIVING_BYTES = BUDGET * 3 // 8
"""Bodies that clients are sending."""
DELIVERING_BYTES = BUDGET - RECEIVING_BYTES
"""Messages read ahead of their turn, in flight, or with an outcome that is not on disk yet."""

MESSAGE_OVERHEAD = 2048
"""What a message takes besides its bytes: its objects, and those of its lane."""


def weight_of(message: Message) -> int:
    """What a message counts for while it is in memory."""
    head = sum(len(name) + len(value) for name, value in message.headers)
    return MESSAGE_OVERHEAD + len(message.body) + len(message.path) + head
