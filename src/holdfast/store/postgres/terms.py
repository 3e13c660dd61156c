"""What a transaction is made under: the config's numbers, who makes it, and when."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from holdfast.core.ownership import shard_of
from holdfast.core.store_rules import StoreRules


@dataclass(frozen=True, slots=True)
class Terms:
    """`number` is this replica's; `writer` names the counters that this connection writes. `owners` are those of the
    shards, as they were last heard of: who is told of new messages. None of them is, where the engine can't notify.
    `owned` are this replica's own shards.
    """

    rules: StoreRules
    number: int
    writer: int
    now: int
    max_size: int
    owners: Mapping[int, int] = field(default_factory=dict)
    owned: Set[int] = frozenset()

    def owns(self, host: str) -> bool:
        return shard_of(host) in self.owned
