"""A scenario's measurements, and the goals for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.measuring import Run


@dataclass(frozen=True)
class Bound:
    """At least or at most so much, of the median ratio or of the median figure itself."""

    at_least: float | None = None
    at_most: float | None = None
    of_figure: bool = False

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else "reported"

    def met(self, value: float) -> bool:
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Figure:
    """Pairs measured one after the other: `ours` in `unit`, and `other` with what it is; without one, no ratio.

    `beside` is printed next to it; `note` says what stood in the way of measuring it as meant.
    """

    unit: str
    ours: Sequence[float]
    other: Sequence[float] = ()
    against: str = ""
    beside: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def value(self) -> float | None:
        return median(self.ours) if self.ours else None

    @property
    def base(self) -> float | None:
        return median(self.other) if self.other else None

    @property
    def ratios(self) -> list[float]:
        if not self.other:
            return []
        return [ours / other for ours, other in zip(self.ours, self.other, strict=True)]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None


def details(runs: Sequence[Run]) -> dict[str, float]:
    """What is shown beside a figure made of runs under load: medians."""
    shown = {
        "cpu us": median(run.cpu for run in runs) * 1e6,
        "ack p50 ms": median(run.p50 for run in runs) * 1e3,
        "ack p99 ms": median(run.p99 for run in runs) * 1e3,
        "anon MB": median(run.memory.anon for run in runs) / 1e6,
        "file MB": median(run.memory.file for run in runs) / 1e6,
    }
    groups = [run.group for run in runs if run.group is not None]
    return shown | ({"group": median(groups)} if groups else {})
