"""Pages of the map leave the process's memory when they are many, and can be read again."""

from pathlib import Path

from holdfast.store.embedded.data_file import LOOK_EVERY, MOST, resident_files
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table, Transaction, step

ROWS = 2 * MOST >> 12


def test_what_was_read_does_not_stay(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "store", 1 << 30)
    try:
        step(engine, put_rows)
        before = resident_files()
        assert count(engine) == ROWS
        assert resident_files() - before > MOST
        for _ in range(LOOK_EVERY):
            with engine.read() as transaction:
                transaction.get(Table.META, b"schema")
        assert resident_files() < before + (MOST >> 1)
        assert count(engine) == ROWS
    finally:
        engine.close()


def put_rows(transaction: Transaction) -> None:
    for number in range(ROWS):
        transaction.put(Table.BODIES, number.to_bytes(18, "big"), number.to_bytes(4_080, "big"))


def count(engine: LmdbEngine) -> int:
    """Rows that hold what was written, all in one transaction."""
    with engine.read() as transaction:
        return sum(
            int.from_bytes(key, "big") == int.from_bytes(row, "big") for key, row in transaction.scan(Table.BODIES)
        )
