"""How much room is left: for everyone (the watermark), and for each host (its share).

Shares are the bytes that the waiting and dead messages of each host hold: counted, never scanned for, exact after a
kill. Writing a host's share with every message would cost a page for each host. So each group appends one row to SHIFTS
with the sums of its hosts. Sums older than the last `WINDOW` move from SHIFTS to SHARES, unless a later row has the
same host. So a host whose messages came and went meanwhile is never written there. Values are whole sums: the last one
in SHIFTS counts.

The watermark counts what is used and what is reserved for outcomes. Each waiting or dead message may still fail, be
probed, die and be replayed. core/store_rules.py bounds what that leaves, so a constant is reserved for it when the
message is accepted. The constants are pages that LMDB really took, measured with attempts as large as they can be, in
random order over thousands of messages and lanes.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from holdfast.core.errors import CorruptRecord, StoreFull
from holdfast.core.message import Message
from holdfast.core.store_rules import MESSAGE_COST, WATERMARK, refusal
from holdfast.store import records
from holdfast.store.embedded.tables import BATCH, Engine, Room, Table, Transaction, rows_after, step, walk
from holdfast.store.port import SCARCE
from holdfast.store.records import lane_key

WINDOW = 2_048
"""Sums in SHIFTS above which the older half of them goes to SHARES."""

Sums = dict[str, int]


class Shares:
    """Used by the writer's thread alone. A group's changes are kept only by `committed`."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, Sums]] | None = None
        self._latest: dict[str, tuple[int, int]] = {}
        self._sums = 0
        self._deltas: Sums = {}
        self._appended: tuple[int, Sums] | None = None
        self._folded = 0

    def begin(self) -> None:
        self._deltas = {}
        self._appended = None
        self._folded = 0

    def held(self, transaction: Transaction, host: str) -> int:
        return self._before(transaction, host) + self._deltas.get(host, 0)

    def move(self, host: str, delta: int) -> None:
        self._deltas[host] = self._deltas.get(host, 0) + delta

    def finish(self, transaction: Transaction) -> None:
        """Before the commit, write what the hosts of this group hold."""
        sums = {host: max(0, self._before(transaction, host) + delta) for host, delta in self._deltas.items() if delta}
        if not sums:
            return
        rows = self._loaded(transaction)
        number = rows[-1][0] + 1 if rows else 1
        transaction.put(Table.SHIFTS, number.to_bytes(8, "big"), records.encode_sums(sums))
        self._appended = number, sums
        if self._sums > WINDOW:
            self._fold(transaction, rows)

    def committed(self) -> None:
        if self._rows is None:
            return
        for _ in range(self._folded):
            number, sums = self._rows.popleft()
            self._sums -= len(sums)
            for host in sums:
                if self._latest[host][0] == number:
                    del self._latest[host]
        if self._appended is not None:
            self._take(*self._appended)

    def _fold(self, transaction: Transaction, rows: deque[tuple[int, Sums]]) -> None:
        """Move the older half of the rows to SHARES, without hosts that a later row has."""
        self._folded = len(rows) // 2 or 1
        for number, sums in islice(rows, self._folded):
            transaction.delete(Table.SHIFTS, number.to_bytes(8, "big"))
            for host, held in sums.items():
                if self._latest[host][0] == number:
                    put_share(transaction, host, held)

    def _before(self, transaction: Transaction, host: str) -> int:
        self._loaded(transaction)
        known = self._latest.get(host)
        return known[1] if known is not None else stored_share(transaction, host)

    def _loaded(self, transaction: Transaction) -> deque[tuple[int, Sums]]:
        if self._rows is None:
            self._rows = deque()
            for number, sums in read_shifts(transaction):
                self._take(number, sums)
        return self._rows

    def _take(self, number: int, sums: Sums) -> None:
        assert self._rows is not None
        self._rows.append((number, sums))
        self._sums += len(sums)
        for host, held in sums.items():
            self._latest[host] = number, held


def stored_share(transaction: Transaction, host: str) -> int:
    value = transaction.get(Table.SHARES, lane_key(host))
    return int.from_bytes(value, "big") if value else 0


def put_share(transaction: Transaction, host: str, held: int) -> bool:
    """Returns whether the share was different. A host that holds nothing has no row."""
    if held == stored_share(transaction, host):
        return False
    if held:
        transaction.put(Table.SHARES, lane_key(host), held.to_bytes(8, "big"))
    else:
        transaction.delete(Table.SHARES, lane_key(host))
    return True


def read_shifts(transaction: Transaction) -> Iterator[tuple[int, Sums]]:
    """Yields the rows of SHIFTS in order. An unreadable one counts as empty: fsck counts the shares anew."""
    for key, value in transaction.scan(Table.SHIFTS):
        try:
            yield int.from_bytes(key, "big"), records.decode_sums(value)
        except CorruptRecord as error:
            transaction.faults.append((Table.SHIFTS, key, str(error)))
            yield int.from_bytes(key, "big"), {}


# -- counting from the messages, in a store that nobody else has open --------------------------------------------------


def known_shares(engine: Engine) -> tuple[Counter[str], int]:
    """Returns the recorded share of each host, and how many rows can't be read."""
    with engine.read() as transaction:
        lately = {host: held for _, sums in read_shifts(transaction) for host, held in sums.items()}
        faults = len(transaction.faults)
    counted: Counter[str] = Counter(lately)
    for _, (key, value) in walk(engine, Table.SHARES):
        host = key.decode(errors="surrogateescape")
        faults += len(value) != 8
        counted[host] = lately.get(host, int.from_bytes(value, "big"))
    return +counted, faults


def count_shares(engine: Engine) -> Counter[str]:
    """Counts from the messages themselves what each host holds."""
    held: Counter[str] = Counter()
    for _, (id, value) in walk(engine, Table.MESSAGES):
        try:
            message, size, _ = records.decode_message(id, value)
            held[message.host] += MESSAGE_COST + size
        except (CorruptRecord, TypeError):
            continue
    return held


def write_shares(engine: Engine, held: Counter[str]) -> int:
    """Make these the recorded shares. Returns how many were different."""
    counted, faults = known_shares(engine)
    if counted == held and not faults:
        return 0
    while step(engine, _clear_shifts):
        pass
    changed = 0
    for hosts in _batches(engine, held):

        def put(transaction: Transaction, hosts: list[str] = hosts) -> int:
            return sum(put_share(transaction, host, held[host]) for host in hosts)

        changed += step(engine, put)
    return changed


def _clear_shifts(transaction: Transaction) -> int:
    rows = rows_after(transaction, Table.SHIFTS, None)
    for key, _ in rows:
        transaction.delete(Table.SHIFTS, key)
    return len(rows)


def _batches(engine: Engine, held: Counter[str]) -> Iterator[list[str]]:
    """Hosts that hold something, and hosts that only have a row."""
    stored = (key.decode(errors="surrogateescape") for _, (key, _) in walk(engine, Table.SHARES))
    hosts = iter(list(dict.fromkeys((*held, *stored))))
    while batch := list(islice(hosts, BATCH)):
        yield batch


COPIED = 4
"""LMDB copies pages before it frees any: new bytes take this many times their number for a while."""
OUTCOME_ROOM = 10 << 10
"""Bytes for the attempts, the place and the index entries of one message. Measured: 8.8 to 9.2 KiB."""
LANE_ROOM = 3_584
"""Bytes by which a lane's record and moments grow while it fails. Measured: 1.4 KiB, 3.3 with the longest names."""
OUTCOME_TABLES = frozenset(
    {
        *(Table.ACTIVE, Table.WAITING, Table.RETRY, Table.AGING),
        *(Table.PLACES, Table.ATTEMPTS, Table.DEAD, Table.DEAD_LANE),
    }
)


def claim_of(messages: int, size: int) -> int:
    """Returns how much room new messages of this total size may take, with what is reserved for them."""
    return COPIED * size + messages * (OUTCOME_ROOM + LANE_ROOM)


def reserved(entries: Mapping[Table, int], outcome_bytes: int) -> int:
    """Returns the bytes reserved in addition to those used. `outcome_bytes` are the bytes of the outcome tables.

    Those include attempts of delivered messages, which are removed early when room gets scarce: they count as free.
    """
    undelivered = entries[Table.MESSAGES]
    lanes = min(entries[Table.LANES], undelivered)
    return max(0, undelivered * OUTCOME_ROOM - outcome_bytes) + lanes * LANE_ROOM


class RoomKeeper:
    """Used by the writer's thread alone; `full` and `scarce` may be read from anywhere."""

    def __init__(self, host_share: float, measure: Callable[[], Room]) -> None:
        self.host_share = host_share
        self._measure = measure
        self._shares = Shares()
        self._limit = self._left = self._left_in_group = self._since_measured = 0
        self.full = self.scarce = False

    def begin(self, claim: int) -> None:
        """Begin a group that may take this much. Measuring asks every table, so it is not done for each group."""
        self._shares.begin()
        self._since_measured += claim
        if self.full or not self._limit or self._since_measured > self._left // 8:
            room = self._measure()
            self._limit = room.limit
            self._left = max(0, int(room.limit * WATERMARK) - room.needed)
            # The measured room lacks what this group adds.
            self._since_measured = claim
            self.full = self._left == 0
            self.scarce = room.needed > room.limit * SCARCE
        self._left_in_group = self._left

    def refusal(self, transaction: Transaction, message: Message) -> StoreFull | None:
        is_full, held = self.full or self._left_in_group <= 0, self._shares.held(transaction, message.host)
        return refusal(message, is_full=is_full, held=held, share=self._limit * self.host_share)

    def hold(self, host: str, body_size: int) -> None:
        self._shares.move(host, MESSAGE_COST + body_size)
        self._left_in_group -= body_size + OUTCOME_ROOM + LANE_ROOM

    def release(self, host: str, body_size: int) -> None:
        self._shares.move(host, -(MESSAGE_COST + body_size))

    def finish(self, transaction: Transaction) -> None:
        """Called before the commit."""
        self._shares.finish(transaction)

    def committed(self) -> None:
        self._shares.committed()
