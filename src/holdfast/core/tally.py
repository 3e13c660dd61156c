"""What was done since the start. Counted where it happens, read by whoever shows it."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Totals of one run; `outcomes` by status class or error kind."""

    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    trips: Counter[str] = field(default_factory=Counter)
