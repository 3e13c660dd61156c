"""What was done since the start. Counted where it happens, read by whoever shows it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.series import Series

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
OPERATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Distribution(NamedTuple):
    """A histogram at one moment. `counts` has one more than `bounds`: what is above the last of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def snapshot(self) -> Distribution:
        return Distribution(tuple(self.bounds), tuple(self.counts), self.total)


@dataclass(slots=True)
class Tally:
    """Totals of one run: `outcomes` by error kind or status, `dead` and `trips` by reason, `refused` by its slug.
    `fenced` are outcomes that came too late: the message was no longer this replica's.
    """

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    replayed: int = 0
    dropped: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    trips: Counter[str] = field(default_factory=Counter)
    evicted: int = 0
    fenced: int = 0
    broken_records: int = 0
    control_refused: int = 0
    ack_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    group_operations: Histogram = field(default_factory=lambda: Histogram(OPERATIONS))
    attempt_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    accepted_lately: Series = field(default_factory=Series)
    delivered_lately: Series = field(default_factory=Series)
