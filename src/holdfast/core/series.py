"""How often something happened lately: counts in buckets of a few seconds, for charts. Nothing runs to keep it."""

WIDTH = 5_000
BUCKETS = 180
"""15 minutes."""


class Series:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, now: int) -> None:
        bucket = now // WIDTH
        if bucket not in self._counts and len(self._counts) > BUCKETS:
            self._counts = {old: count for old, count in self._counts.items() if old >= bucket - BUCKETS}
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def per_second(self, now: int) -> list[float]:
        """The last 15 minutes, oldest first, the bucket under way left out."""
        current = now // WIDTH
        return [self._counts.get(bucket, 0) * 1000 / WIDTH for bucket in range(current - BUCKETS, current)]
