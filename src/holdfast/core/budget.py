"""How a budget is shared among hosts, so that hosts that hang can't use it up, however many they are.

Attempts in flight and bytes in memory are both such budgets, and follow the same rule:

- Hosts whose last attempt got no answer share at most a quarter of a budget.
- Hosts that were not tried yet share at most half of it.
- The last quarter is only for hosts that answer and hold nothing of the budget.

So a host that answers always finds room. The memory for webhooks has two fixed parts, so that neither side can starve
the other: bodies that clients are sending, and messages that wait for an attempt or are in flight.
"""

from enum import IntEnum

from holdfast.core.message import Message

MEMORY_BYTES = 64 << 20
RECEIVING_BYTES = MEMORY_BYTES * 3 // 8
"""For bodies that clients are sending."""
DELIVERING_BYTES = MEMORY_BYTES - RECEIVING_BYTES
"""For messages read ahead of their turn, in flight, or with an outcome that is not on disk yet."""
MESSAGE_OVERHEAD = 2048
"""Bytes that a message takes besides its content: its objects, and those of its lane."""


class HostClass(IntEnum):
    """Hosts by their last attempt. Any answer counts as an answer, whatever its status."""

    ANSWERING = 0
    UNTRIED = 1
    SILENT = 2


def class_of(answers: bool | None) -> HostClass:
    """`answers`: whether the last attempt got an answer; None before the first one has ended."""
    if answers:
        return HostClass.ANSWERING
    return HostClass.UNTRIED if answers is None else HostClass.SILENT


class Budget:
    """An amount that hosts share. `used` is the sum over all hosts."""

    __slots__ = ("_below_reserve", "_limits", "_used_by", "size", "used")

    def __init__(self, size: int) -> None:
        self.used = 0
        self._used_by = [0, 0, 0]
        self.resize(size)

    def resize(self, size: int) -> None:
        """If more than the new size is in use, nothing more is taken until enough was given back."""
        self.size = size
        self._below_reserve = size - size // 4
        self._limits = (size, max(1, size // 2), max(1, size // 4))

    def admits(self, host_class: int, *, idle: bool) -> bool:
        """Whether a host may take some. `idle`: it holds nothing of this budget now."""
        if host_class:
            return self.used < self._below_reserve and self._used_by[host_class] < self._limits[host_class]
        return self.used < (self.size if idle else self._below_reserve)

    def is_half_free(self, host_class: int) -> bool:
        """Whether hosts of a class may take some, and use less than half of their share."""
        return 2 * self._used_by[host_class] < self._limits[host_class] and self.admits(host_class, idle=True)

    def take(self, host_class: int, amount: int = 1) -> None:
        self.used += amount
        self._used_by[host_class] += amount

    def give_back(self, host_class: int, amount: int = 1) -> None:
        """`host_class` is the class that it was taken for: the host may have changed since."""
        self.used -= amount
        self._used_by[host_class] -= amount


def weight_of(message: Message) -> int:
    """The bytes that a message counts for while it is in memory."""
    head = sum(len(name) + len(value) for name, value in message.headers)
    return MESSAGE_OVERHEAD + len(message.body) + len(message.path) + head
