"""What a transaction is made under: the config's numbers, who makes it, and when."""

from dataclasses import dataclass

from holdfast.store.work import StoreRules


@dataclass(frozen=True, slots=True)
class Terms:
    """`number` is this replica's, which its claims are fenced by; `writer` names the counters that this connection
    writes. `run` is when the fleet began. `hints`: whether the engine can notify.
    """

    rules: StoreRules
    number: int
    writer: int
    run: int
    now: int
    hints: bool
    max_size: int
