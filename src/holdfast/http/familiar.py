"""Heads that were read before. They repeat: an app asks with the same ones again and again, and a server answers with
the same ones for as long as its `Date` is the same.

What a head means depends on its bytes alone, so a verdict can be kept and given again. Reading two heads was a tenth of
a webhook's cost; where every head is another one, looking it up here costs a fiftieth of that. Refusals are not kept.
"""

from __future__ import annotations

from typing import Generic, TypeVar

MOST = 512
LONGEST = 1_024

Read = TypeVar("Read")


class Familiar(Generic[Read]):
    """What was read of heads, by their bytes. Whoever gets it must not change it: others get the same."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Read] = {}

    def find(self, raw: bytes) -> Read | None:
        return self._known.get(raw)

    def keep(self, raw: bytes, read: Read) -> None:
        """Bounded in number and in bytes: the next ones take the place of all."""
        if len(raw) > LONGEST:
            return
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[raw] = read
