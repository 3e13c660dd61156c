"""What happened since the start, counted: totals, histograms, and rates of the last minutes for charts."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
OPERATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BUCKET_WIDTH = 5_000
"""Milliseconds."""
BUCKETS = 180
"""15 minutes."""


class Distribution(NamedTuple):
    """A histogram at one moment. The last of `counts` is for values above the last bound."""

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


class Series:
    """Counts of the last 15 minutes, in buckets of 5 seconds. Old buckets are dropped by `add`: no task is needed."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, now: int) -> None:
        bucket = now // BUCKET_WIDTH
        if bucket not in self._counts and len(self._counts) > BUCKETS:
            self._counts = {old: count for old, count in self._counts.items() if old >= bucket - BUCKETS}
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def per_second(self, now: int) -> list[float]:
        """Rates, oldest first, without the bucket that is not over yet."""
        current = now // BUCKET_WIDTH
        return [self._counts.get(bucket, 0) * 1000 / BUCKET_WIDTH for bucket in range(current - BUCKETS, current)]


@dataclass(slots=True)
class Counters:
    """Totals of one run: `outcomes` by error kind or status, `dead` and `trips` by reason, `refused` by its slug.
    `fenced` are outcomes that came too late: another replica owned the message by then.
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
