"""Restarts in a row, under load: the store does not grow by them, and a start reads no more than before.

`HOLDFAST_RESTARTS` sets their number, a hundred in the long run. Each run purges what earlier ones delivered; the tenth
and the last go on until nothing is left, the others are stopped in the middle of their load, every fourth by SIGKILL.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.shares import WINDOW
from holdfast.store.embedded.tables import Table
from tests.crash.load import Book, Load, Post, agent, command
from tests.support.harness import Gateway, Receiver, running, until
from tests.support.repetitions import amount

RESTARTS = amount(12, 100, "HOLDFAST_RESTARTS")
DRAINED = (10, RESTARTS)
SENDERS = 2
EACH_SENDS = 20

RULES = {
    "retry__base": "50ms",
    "circuit__probe_every": "1ms",
    "retention__delivered": "100ms",
}
"""What was delivered is purged soon, and from the start on: it is `probe_every` that keeps it at first."""


@dataclass(frozen=True)
class Measure:
    """What a drained and stopped store takes: the file, in bytes and as allocated, its pages, its rows by table."""

    size: int
    allocated: int
    used: int
    rows: dict[str, int]


def measure(store: Path) -> Measure:
    file = (store / "data.mdb").stat()
    engine = LmdbEngine(store, 4 << 30)
    try:
        with engine.read() as transaction:
            rows = {table.name: transaction.entries(table) for table in Table}
        return Measure(file.st_size, file.st_blocks * 512, engine.room().used, rows)
    finally:
        engine.close()


def drain(gateway: Gateway, book: Book) -> None:
    """Until everything is delivered, and what is known of it purged; the oldest go first."""
    book.wait_for_all()
    last = max(book.ids)
    until(lambda: gateway.get(f"/messages/{last}").status_code == 404)


SHIFTS_BYTES = 64 * WINDOW
"""What the sums of the last groups may take: a window that fills up once and then moves on."""


def test_the_store_does_not_grow_by_restarts(
    tmp_path: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    store, book, chance = tmp_path / "store", Book(), random.Random(0)
    book.watch(receiver, lambda request: 200 if chance.random() < 0.9 else 500)
    measures: list[Measure] = []
    starts: list[float] = []
    for life in range(1, RESTARTS + 1):
        began = time.perf_counter()
        with running(store, **RULES, **agent(life)) as gateway:
            starts.append(time.perf_counter() - began)
            load = Load(gateway, book, life, [[Post(f"{receiver.url}/hook", b"x" * 200)] * EACH_SENDS] * SENDERS)
            load.wait_for_some()
            if life in DRAINED:
                load.wait()
                drain(gateway, book)
            if life % 4 == 3:
                book.killed.add(life)
                gateway.kill()
            else:
                assert gateway.stop() == 0
            load.stop()
        if life in DRAINED:
            measures.append(measure(store))
    tell(measures, starts, measured)
    tenth, last = measures[0], measures[-1]
    for name in ("size", "allocated", "used"):
        assert getattr(last, name) <= 1.05 * getattr(tenth, name) + SHIFTS_BYTES, name
    assert last.rows["SHIFTS"] <= WINDOW
    assert last.rows | {"SHIFTS": 0} == tenth.rows | {"SHIFTS": 0}, "a start has no more to read"
    assert book.repeats() <= book.in_flight_at_kills()
    assert command(store, "fsck").returncode == 0


def tell(measures: list[Measure], starts: list[float], measured: Callable[[str], None]) -> None:
    tenth, last = measures[0], measures[-1]
    early, late = sorted(starts[5:15])[5], sorted(starts[-10:])[5]
    measured(
        f"{len(starts)} restarts (after the tenth): file {last.size} bytes ({tenth.size}), {last.allocated} allocated "
        f"({tenth.allocated}), {last.used} used ({tenth.used}); a start {late * 1000:.0f} ms ({early * 1000:.0f})"
    )
